"""The socket for commands of this host's user: who may speak, what is taken, what is kept."""

import base64
import json
import os
import socket
import stat
from typing import Any

import pytest

from app.durable import socket_address
from app.settings import load_settings
from app.store.engine.migrate import upgrade
from app.store.store import open_store
from tests.script.disks import small_disk
from worker.agent.admission import MOST_BYTES, AdmissionSocket
from worker.kept import Kept, forget

REQUEST = {"recipe": {"kind": "script", "argv": ["/bin/true"], "cwd": "/tmp"}}


@pytest.fixture
def world(tmp_path):
    settings = load_settings(home=tmp_path / "home")
    settings.home.mkdir()
    upgrade(settings)
    store = open_store(settings)
    listening = AdmissionSocket(settings, store, 0)
    yield settings, store, listening
    listening.close()
    store.close()


def ask(listening, data: bytes):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(listening.path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return json.loads(connection.makefile().readline())


def test_only_its_user_can_reach_it(world):
    settings, _, listening = world
    assert stat.S_IMODE(settings.sockets_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(listening.path.stat().st_mode) == 0o600


def test_a_command_becomes_a_run_of_its_owner_with_its_environment_apart(world):
    settings, store, listening = world
    code = {"git_sha": "abc", "dirty": True, "diff": "+x", "untracked": [], "argv": ["true"]}
    asked = {"request": REQUEST, "environment": {"PATH": "/bin", "MINE": "1"}, "code": code}
    run_id = ask(listening, json.dumps(asked).encode() + b"\n")["run"]
    documents = store.runs.documents(run_id)
    key = documents.spec["recipe"]["environment"]
    kept = settings.environments_dir / f"{key}.json"
    assert json.loads(kept.read_text()) == {"PATH": "/bin", "MINE": "1"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "MINE" not in json.dumps(documents.spec)
    assert documents.code == {**code, "diff_bytes": None, "repository": None, "folder": None}
    assert store.runs.get(run_id).dataset is None


def test_its_env_is_kept_apart_like_the_rest_of_the_environment(world):
    """It may hold secrets, so it stands in no row: only in the file of mode 0600."""
    settings, store, listening = world
    request = {"recipe": {**REQUEST["recipe"], "env": {"TOKEN": "hush", "A": "2"}}}
    asked = {"request": request, "environment": {"A": "1", "B": "1"}}
    run_id = ask(listening, json.dumps(asked).encode() + b"\n")["run"]
    documents = store.runs.documents(run_id)
    assert "hush" not in json.dumps([documents.request, documents.spec, documents.provenance])
    kept = settings.environments_dir / f"{documents.spec['recipe']['environment']}.json"
    assert json.loads(kept.read_text()) == {"A": "2", "B": "1", "TOKEN": "hush"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    alone = ask(listening, json.dumps({"request": request}).encode() + b"\n")["run"]
    key = store.runs.documents(alone).spec["recipe"]["environment"]
    kept = settings.environments_dir / f"{key}.json"
    assert json.loads(kept.read_text()) == {"TOKEN": "hush", "A": "2"}


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "STOKER_RUN_DIR", "STOKER_ANY"])
def test_env_that_stoker_sets_itself_is_refused_by_name(world, name):
    settings, store, listening = world
    request = {"recipe": {**REQUEST["recipe"], "env": {"A": "1", name: "2"}}}
    ways: tuple[dict[str, Any], ...] = ({}, {"environment": {}})
    for given in ways:
        problem = ask(listening, json.dumps({"request": request, **given}).encode() + b"\n")[
            "problem"
        ]
        (issue,) = problem["issues"]
        assert (issue["code"], issue["loc"]) == ("set_by_stoker", ["recipe", "env", name])
        assert f"{name} cannot be passed on" in issue["message"]
    assert not list(settings.environments_dir.glob("*.json"))
    assert not sum(store.runs.counts_by_state().values())
    ambient = {"request": REQUEST, "environment": {name: "2"}}
    assert "run" in ask(listening, json.dumps(ambient).encode() + b"\n"), "nobody asked for it"


@pytest.mark.parametrize(("name", "value"), [("", "1"), ("A=B", "1"), ("A\0", "1"), ("A", "\0")])
def test_what_no_environment_can_hold_is_refused_by_name(world, name, value):
    settings, store, listening = world
    asked = {"request": REQUEST, "environment": {"PATH": "/bin", name: value}}
    problem = ask(listening, json.dumps(asked).encode() + b"\n")["problem"]
    assert f"{name!r} is not a valid environment variable" in problem["detail"]
    assert not list(settings.environments_dir.glob("*"))
    assert not sum(store.runs.counts_by_state().values())


def test_nothing_is_left_of_an_environment_that_finds_no_room(world):
    settings, store, listening = world
    asked = {"request": REQUEST, "environment": {"SECRET": "x" * 1_500_000}}
    with small_disk(settings.environments_dir, 1) as place:
        problem = ask(listening, json.dumps(asked).encode() + b"\n")["problem"]
        assert "No space left on device" in problem["detail"]
        assert not list(place.iterdir())
    assert not sum(store.runs.counts_by_state().values())


def test_of_a_large_diff_a_run_shows_the_beginning(world):
    _, store, listening = world
    code = {"git_sha": "abc", "dirty": True, "diff": "+x" * 50_000, "argv": ["true", "é"]}
    asked = {"request": REQUEST, "code": code}
    run_id = ask(listening, json.dumps(asked).encode() + b"\n")["run"]
    _, shown = store.runs.script(run_id)
    assert (shown["argv"], shown["diff"]) == (["true", "é"], "+x" * 32_768)
    assert store.runs.documents(run_id).code["diff"] == code["diff"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{\n", "no JSON"),
        (b"[]\n", "Only scripts"),
        (b'{"request": {"recipe": {"kind": "sequence"}}}\n', "Only scripts"),
        (b"x" * (MOST_BYTES + 2), "bytes at most"),
        (json.dumps({"request": {"recipe": {"kind": "script"}}}).encode(), "no command"),
        (
            json.dumps({"request": REQUEST, "environment": {"A": 1}}).encode(),
            "names with a text each",
        ),
        (
            json.dumps({"request": {"recipe": {**REQUEST["recipe"], "env": ["A=1"]}}}).encode(),
            "names with a text each",
        ),
        (
            json.dumps({"request": {"recipe": {**REQUEST["recipe"], "snapshot": True}}}).encode(),
            "`stoker run --snapshot` makes that copy",
        ),
    ],
    ids=["half", "list", "recipe", "huge", "empty", "environment", "env", "snapshot"],
)
def test_nonsense_is_refused_with_a_sentence_and_the_next_one_is_taken(world, data, told):
    _, store, listening = world
    assert told in ask(listening, data)["problem"]["detail"]
    assert not list(world[0].environments_dir.glob("*.json")), "of what was refused nothing is kept"
    assert "run" in ask(listening, json.dumps({"request": REQUEST}).encode() + b"\n")
    assert store.runs.counts_by_state()


def test_another_user_is_refused(world, monkeypatch):
    _, _, listening = world
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # as if the peer were somebody else
    assert "takes commands of user 12345" in ask(listening, b"{}\n")["problem"]["detail"]


def test_a_home_with_a_long_path_has_a_socket_all_the_same(tmp_path):
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    path = folder / "agent-0.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(socket_address(path))
        assert path.exists()


SHELL = {"umask": 0o077, "niceness": 9, "limits": {"RLIMIT_NOFILE": 300}}


def test_its_shell_and_its_standard_input_are_kept_with_it(world):
    settings, store, listening = world
    stdin = base64.b64encode(b"exit 3").decode()
    asked = {"request": REQUEST, "environment": {"A": "1"}, "shell": SHELL, "stdin": stdin}
    run_id = ask(listening, json.dumps(asked).encode() + b"\n")["run"]
    key = store.runs.documents(run_id).spec["recipe"]["environment"]
    kept = Kept.read(settings.environments_dir / f"{key}.json")
    assert kept.environment == {"A": "1"}
    assert kept.inherited.document() == SHELL
    assert kept.stdin is not None
    assert kept.stdin.read_bytes() == b"exit 3"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in settings.environments_dir.iterdir()}
    assert modes == {0o600}
    forget(settings.environments_dir / f"{key}.json")
    assert not list(settings.environments_dir.iterdir())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"shell": {**SHELL, "umask": "77"}}, "umask, niceness and limits are whole numbers"),
        ({"shell": {**SHELL, "limits": {"RLIMIT_ANY": 1}}}, "the names of soft limits"),
        ({"shell": 3}, "the settings of a shell are an object"),
        ({"shell": SHELL, "stdin": "no base64!"}, "comes as base64"),
        ({"shell": SHELL, "stdin": 3}, "comes as base64"),
        ({"shell": SHELL, "stdin": "eHh4" * 2**19}, "1,048,576 bytes at most"),
    ],
)
def test_what_no_shell_can_have_is_refused(world, more, told):
    settings, store, listening = world
    asked = {"request": REQUEST, "environment": {"A": "1"}, **more}
    assert told in ask(listening, json.dumps(asked).encode() + b"\n")["problem"]["detail"]
    assert not list(settings.environments_dir.glob("*"))
    assert not sum(store.runs.counts_by_state().values())


def test_gpus_that_its_shell_had_chosen_are_a_warning(world):
    _, store, listening = world
    asked = {"request": REQUEST, "environment": {"A": "1"}, "shell": {**SHELL, "gpus": "3"}}
    run_id = ask(listening, json.dumps(asked).encode() + b"\n")["run"]
    (issue,) = store.runs.documents(run_id).issues
    assert (issue["code"], issue["severity"]) == ("gpus_of_shell", "warning")
    assert "CUDA_VISIBLE_DEVICES=3" in issue["message"]
    without = asked | {"request": {**REQUEST, "runtime": {"gpus": 0}}}
    run_id = ask(listening, json.dumps(without).encode() + b"\n")["run"]
    assert not store.runs.documents(run_id).issues, "it asks for none"
