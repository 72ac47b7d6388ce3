"""The API as a process: token, address, signals, what it has loaded, and bad luck."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys

import psutil
import pytest

from app.settings import load_settings
from app.store.store import open_store
from tests.api.process import ApiProcess
from tests.api.support import SPEC, Player

MIB = 2**20
HEAVY = ("torch", "h5py", "numpy", "pandas", "pynvml", "worker")


def test_the_first_start_makes_a_token_for_its_owner_alone(tmp_path):
    with ApiProcess(tmp_path) as server:
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
        assert server.client.get("/runs").status_code == 200
        document = json.loads((tmp_path / "api.json").read_text())
        assert document == {"url": server.url, "pid": server.process.pid}
        first = server.token
        assert first not in server.log
        assert "a token was made" in server.log
    assert first.encode() not in (tmp_path / "stoker.db").read_bytes()
    with ApiProcess(tmp_path) as server:
        assert server.token == first
        assert server.client.get("/runs").status_code == 200


def test_a_token_of_another_database_is_replaced(tmp_path):
    (tmp_path / "token").write_text("stale")
    with ApiProcess(tmp_path) as server:
        assert server.token != "stale"
        assert server.client.get("/runs").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_its_lines_look_like_the_workers(tmp_path, number):
    with ApiProcess(tmp_path) as server:
        server.process.send_signal(number)
        assert server.process.wait(10) == 0
        assert not (tmp_path / "api.json").exists()
        lines = server.log.splitlines()
    assert any(line.endswith(f"] the API listens url={server.url}") for line in lines)
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[(info|warning) *\] \w", line), line


def test_a_taken_port_is_said_so(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code = (
            "from app.api.main import serve; from app.settings import load_settings\n"
            "from app.errors import StokerError\n"
            "try: serve(load_settings())\n"
            "except StokerError as error: print(error.detail)"
        )
        environment = os.environ | {"STOKER_HOME": str(tmp_path), "STOKER_PORT": str(port)}
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
    assert f"127.0.0.1:{port} cannot be bound" in answer.stdout
    assert not (tmp_path / "api.json").exists()


def test_it_is_small_and_free_of_torch(tmp_path, record_property):
    spy = (
        "import sys, atexit; atexit.register(lambda: print('LOADED', "
        f"[m for m in {HEAVY!r} if m in sys.modules])); "
    )
    with ApiProcess(tmp_path, before=spy) as server:
        settings = load_settings(home=tmp_path)
        store = open_store(settings)
        Player(store, settings)
        for _ in range(50):
            assert server.client.post("/runs", json=SPEC).status_code == 201
        yaml = "recipe: {kind: sequence}\ndata: {dataset: weather}\n"
        kind = {"Content-Type": "application/yaml"}
        assert server.client.post("/runs", content=yaml, headers=kind).status_code == 201
        for path in ("/runs", "/openapi.json", "/metrics", "/queue", "/presets"):
            assert server.client.get(path).status_code == 200
        resident = psutil.Process(server.process.pid).memory_info().rss
        store.close()
    assert "LOADED []" in server.log
    record_property("resident_mib", round(resident / MIB))
    assert resident < 150 * MIB
