"""What is told of a script's progress, and when it counts as hung."""

import json
import math
import os
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.script.stage import spec_json
from worker.reporting import EventLog
from worker.script import config as module_of_config
from worker.script import curves as module_of_curves
from worker.script import progress, shim
from worker.script.config import LARGEST_BYTES, ScriptConfig
from worker.script.curves import Curves
from worker.script.progress import ScriptProgress
from worker.script.status import StatusServer
from worker.script.work import SHIM, ScriptWork


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Script:
    """One under way that a test plays."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self.clock = folder, clock
        (folder / "spec.json").write_text(json.dumps(spec_json(folder)))
        self.work = ScriptWork.read(folder)
        self.status = StatusServer(folder, 1)
        self._events = EventLog(folder / "events.jsonl")
        curves = Curves(self.work, 0.0, None, lambda *_: None)
        counted = shim.Shim(self.work.shim_file)
        self.progress = ScriptProgress(curves, self.status, counted, self._events, 0)

    def looks(self, steps: int = 0, seconds: float = 1.0, others: int = 0) -> None:
        """After so many seconds; `steps`: of the shim, in all; `others`: that it does not count."""
        self.clock.now += seconds
        with self.work.shim_file.open("r+b") as file:
            file.write(SHIM.pack(steps, 0.0, 1, others, 0))
        self.progress.read()
        self.progress.tell(1, 1)

    def posts(self, **status: object) -> None:
        request = urllib.request.Request(
            self.status.url,
            data=json.dumps({"trainerStatus": status}).encode(),
            headers={"Authorization": f"Bearer {self.status.token_file.read_text()}"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def told(self, name: str) -> Any:
        """Of the newest progress."""
        lines = (self._folder / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event[name] for event in events if event["kind"] == "progress"][-1]

    def tellings(self) -> int:
        lines = (self._folder / "events.jsonl").read_text().splitlines()
        return sum(json.loads(line)["kind"] == "progress" for line in lines)

    def close(self) -> None:
        self.status.close()
        self._events.close()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(shim, "time", clock)
    script = Script(tmp_path, clock)
    yield script
    script.close()


@pytest.mark.parametrize(
    "text",
    [f'{{"a": "{LARGEST_BYTES * "x"}"}}', '{"a": ' + 500 * "[" + 500 * "]" + "}", "[1]"],
    ids=["large", "deep", "list"],
)
def test_a_config_that_cannot_be_shown_is_told_once(tmp_path: Path, text: str):
    told: list[str] = []
    path = tmp_path / "config.json"
    config = ScriptConfig(path, lambda code, _: told.append(code))
    for written, news in (('{"a": [1', None), ('{"a": [1]}', {"a": [1]}), (text, None)):
        path.write_text(written)
        assert config.news() == news
        assert config.news() is None
    assert told == ["config_not_shown"]


def test_a_config_is_told_when_it_has_changed_and_without_secrets(tmp_path: Path):
    path = tmp_path / "config.json"
    config = ScriptConfig(path, lambda *_: None)
    told = []
    for number, lr in enumerate((0.1, 0.1, 0.1)):
        path.write_text(json.dumps({"lr": lr, "api_key": "k", "nan": math.nan}))
        os.utime(path, (1e9 + number, 1e9 + number))
        told.append(config.news())
    assert told[1:] == [None, None], "kept again, it is no news"
    assert told[0] is not None
    assert (told[0]["lr"], told[0]["api_key"]) == (0.1, "***")


def test_a_config_that_changes_at_every_step_is_told_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock, path = Clock(), tmp_path / "config.json"
    monkeypatch.setattr(module_of_config, "time", clock)
    warned: list[str] = []
    config = ScriptConfig(path, lambda code, _: warned.append(code))
    told = []
    for step in range(1000):
        path.write_text(json.dumps({"step": step}))
        os.utime(path, (1e9 + step, 1e9 + step))
        clock.now += 1.0
        told.append(config.news())
    steps = [news["step"] for news in told if news is not None]
    assert steps == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]
    assert config.news(is_last=True) == {"step": 999}, "the newest is shown in the end"
    for size in range(3):
        path.write_text(json.dumps({"a": (LARGEST_BYTES + size) * "x"}))
        assert config.news() is None
    assert warned == ["config_not_shown"]


def test_the_time_left_is_by_its_rate_where_it_says_how_many_steps_there_are(script: Script):
    script.posts(metrics=[{"name": "total_steps", "value": "100"}])
    script.looks(10)
    assert script.told("eta_seconds") is None, "no rate is known yet"
    script.looks(30, seconds=10.0)
    assert script.told("mean_iterations_per_second") == 2.0
    assert script.told("eta_seconds") == 35.0
    script.posts(estimatedRemainingSeconds=7)
    script.looks(31)
    assert script.told("eta_seconds") == 7.0, "as it says itself"


def test_it_stands_still_by_steps_and_numbers_or_else_by_its_output(script: Script):
    def silence() -> tuple[float, str]:
        return script.progress.silence(printed_at=5000.0)

    script.looks()
    assert silence() == (5000.0, "printed nothing")
    script.looks(steps=3, seconds=10.0)
    assert silence() == (1011.0, "made no step")
    script.looks(steps=3, others=1, seconds=10.0)
    assert silence() == (1021.0, "made no step"), "of a second optimizer, while the first lives"
    script.posts(metrics=[{"name": "loss", "value": "0.4"}])
    script.looks(steps=3, others=1, seconds=10.0)
    assert silence() == (1031.0, "made no step and reported no number"), "it evaluates"
    script.looks(steps=4, others=1, seconds=10.0)
    assert silence() == (1041.0, "made no step and reported no number")
    assert script.told("step") == 4


def test_numbers_in_its_prints_are_no_sign_of_life_and_no_steps_if_others_are_counted(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module_of_curves, "SEARCH_SECONDS", 0.0)
    script.progress._curves = Curves(script.work, 0.0, None, lambda *_: None)
    (tmp_path / "trainer.log").write_text("step 40 loss 0.5\n")
    for _ in range(2):
        script.looks()
    assert script.progress.silence(printed_at=5000.0) == (5000.0, "printed nothing")
    assert (script.told("step"), script.told("loss")) == (40, 0.5)
    script.looks(steps=3)
    assert script.told("step") == 3, "of an optimizer, which may take several of the script's"


def test_without_steps_it_stands_still_by_its_numbers(script: Script):
    script.posts(metrics=[{"name": "loss", "value": "0.5"}])
    script.looks()
    assert script.progress.silence(printed_at=5000.0) == (1001.0, "reported no number")


def test_a_silent_script_is_told_of_every_minute_and_is_not_taken_for_stalled(script: Script):
    for _ in range(130):
        script.looks()
    assert script.tellings() == 3


@pytest.mark.parametrize("total", [0, -1, 1e300, "nan"])
def test_what_is_no_number_of_steps_makes_nothing_done(script: Script, total: object):
    script.status._told({"metrics": [{"name": "total_steps", "value": total}]})
    assert script.status.steps is None


def test_who_hangs_up_leaves_no_traceback_in_the_log_of_the_script(
    script: Script, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    done, server = threading.Event(), script.status._server
    shut_down = server.shutdown_request

    def shut_down_and_say_so(request: socket.socket) -> None:
        shut_down(request)
        done.set()

    monkeypatch.setattr(server, "shutdown_request", shut_down_and_say_so)
    token = script.status.token_file.read_text()
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        head = f"POST /runs/1/status HTTP/1.1\r\nAuthorization: Bearer {token}\r\n"
        client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert done.wait(30)
    assert capfd.readouterr().err == ""
