"""The launcher with real processes: orders, grace, locks, and that nothing outlives it."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.worker.eventually import eventually
from worker.launch.compile_cache import cache_folders
from worker.launch.local import (
    HEAP,
    HUGE_TENSORS,
    memory_settings,
    start_launcher,
    trainer_environment,
)
from worker.protocol import Launch, LeaseTerm, boottime

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ENDLESS_TERM = LeaseTerm(boottime() + 10**6, boottime() + 10**6)
FAKE_TRAINER = [sys.executable, str(Path(__file__).parents[1] / "fake_trainer.py")]


class Attempt:
    """One launched fake trainer."""

    def __init__(self, root, script, grace=30.0):
        self.folder = root / "attempt-1"
        self.run_lock = root / "lock"
        self.folder.mkdir()
        document = {
            "run_id": 1,
            "attempt": 1,
            "spec": {"notes": json.dumps(script)},
            "run_dir": str(root),
            "threads": 1,
            "restore": [],
        }
        (self.folder / "spec.json").write_text(json.dumps(document))
        self.plan = Launch(
            attempt_dir=self.folder,
            slot_locks=(root / "slot.lock",),
            run_lock=self.run_lock,
            grace_seconds=grace,
            environment=trainer_environment(root, gpu=None, threads=1),
        )
        self.messages = []
        self.launched: Any = None

    def start(self, command=FAKE_TRAINER, lease_term=ENDLESS_TERM):
        self.launched = start_launcher(self.plan.environment, command)
        self.launched.begin(self.plan, lease_term)
        return self

    def hear(self, key):
        """Wait for a message with this key; its value."""
        while not any(key in message for message in self.messages):
            assert select.select([self.launched.control], [], [], 60)[0]
            messages = self.launched.messages()
            assert messages is not None, f"{self.messages} and then the end, but no {key}"
            self.messages += messages
        return next(message[key] for message in self.messages if key in message)

    def wait(self):
        """Wait for the launcher's end; exit.json, or None when there is none."""
        assert select.select([self.launched.pidfd], [], [], 60)[0]
        self.launched.returncode()
        path = self.folder / "exit.json"
        return json.loads(path.read_text()) if path.exists() else None

    def steps_begun(self):
        path = self.folder / "events.jsonl"
        return path.exists() and '"progress"' in path.read_text()

    def log(self):
        return (self.folder / "trainer.log").read_text()


@pytest.fixture
def attempt(tmp_path):
    attempts = []

    def make(script, grace=30.0):
        attempts.append(Attempt(tmp_path, script, grace))
        return attempts[-1]

    yield make
    for made in attempts:
        if made.launched is not None:
            made.launched.order("kill")
            made.wait()
            made.launched.close()


ENDLESS = {"steps": 10**6}


def test_a_trainer_runs_to_its_end_and_the_launcher_tells_how(attempt):
    one = attempt({"steps": 3}).start()
    pid = one.hear("started")
    assert one.hear("exited") == 0
    ended = one.wait()
    assert (ended["pid"], ended["returncode"], ended["escaped"]) == (pid, 0, 0)
    assert ended["finished_at"] >= ended["started_at"]


def test_stop_lets_the_trainer_save(attempt):
    one = attempt(ENDLESS).start()
    eventually(one.steps_begun, "the trainer trains")
    one.launched.order("stop")
    assert one.wait()["returncode"] == 0
    events = (one.folder / "events.jsonl").read_text()
    assert '"interrupted"' in events
    assert '"saved"' in events


def test_a_trainer_that_ignores_the_stop_is_killed_after_the_grace_time(attempt):
    one = attempt({**ENDLESS, "on_stop": "ignore"}, grace=0.3).start()
    eventually(one.steps_begun, "the trainer trains")
    one.launched.order("stop")
    assert one.wait()["returncode"] == -signal.SIGKILL


def test_kill_goes_before_a_stop_that_waits(attempt):
    one = attempt({**ENDLESS, "on_stop": "ignore"}, grace=3600).start()
    eventually(one.steps_begun, "the trainer trains")
    one.launched.order("stop")
    one.launched.order("kill")
    assert one.wait()["returncode"] == -signal.SIGKILL


def test_dump_writes_the_stacks_into_the_log(attempt):
    one = attempt(ENDLESS).start()
    eventually(one.steps_begun, "the trainer trains")
    one.launched.order("dump")
    eventually(lambda: "most recent call first" in one.log(), "the stacks are in the log")
    assert psutil.pid_exists(one.hear("started"))


def test_the_death_of_the_agent_is_a_stop_with_a_checkpoint(attempt):
    one = attempt(ENDLESS).start()
    eventually(one.steps_begun, "the trainer trains")
    one.launched.control.close()
    assert one.wait()["returncode"] == 0
    assert list(one.folder.glob("checkpoints/step-*/manifest.json"))


def test_sigterm_to_the_launcher_is_a_stop_with_a_checkpoint(attempt):
    one = attempt(ENDLESS).start()
    eventually(one.steps_begun, "the trainer trains")
    os.kill(one.launched.pid, signal.SIGTERM)
    assert one.wait()["returncode"] == 0


def test_the_trainer_dies_with_its_launcher(attempt):
    one = attempt(ENDLESS).start()
    pid = one.hear("started")
    eventually(one.steps_begun, "the trainer trains")
    os.kill(one.launched.pid, signal.SIGKILL)
    assert one.wait() is None
    eventually(lambda: not psutil.pid_exists(pid), "the trainer is gone")


def test_a_daemon_of_the_trainer_is_reaped_before_the_locks_are_free(attempt):
    one = attempt({"steps": 20, "at": {"2": "daemon"}}).start()
    ended = one.wait()
    assert ended["returncode"] == 0
    assert ended["escaped"] == 1
    daemon = int((one.run_lock.parent / "daemon").read_text())
    assert not psutil.pid_exists(daemon)


@pytest.mark.parametrize("lock", ["lock", "slot.lock"])
def test_a_held_lock_is_waited_for_and_then_reported(attempt, tmp_path, lock):
    with (tmp_path / lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        one = attempt({}, grace=0.3).start()
        assert "earlier attempt" in one.hear("busy")
        assert one.wait() is None
    assert not (one.folder / "events.jsonl").exists()


def test_the_locks_are_held_while_the_trainer_lives(attempt, tmp_path):
    one = attempt(ENDLESS).start()
    one.hear("started")
    for lock in ("lock", "slot.lock"):
        with (tmp_path / lock).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_trainer_sees_only_a_minimal_environment(attempt, monkeypatch):
    monkeypatch.setenv("STOKER_DATABASE_URL", "postgresql://user:secret@host/db")
    one = attempt(ENDLESS)
    trainer = psutil.Process(one.start().hear("started"))
    environment = trainer.environ()
    assert "secret" not in str(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["OMP_NUM_THREADS"] == "1"
    assert os.getsid(trainer.pid) == trainer.pid


def test_a_trainer_that_cannot_be_started_is_told_with_the_cause(attempt):
    one = attempt({})
    assert "/does/not/exist" in one.start(["/does/not/exist"]).hear("failed")
    assert one.wait() is None


def test_the_exit_code_is_told_even_when_its_file_cannot_be_written(attempt):
    one = attempt({"steps": 3})
    (one.folder / "exit.tmp").mkdir()  # as a full disk would, refuses the file
    assert one.start().hear("exited") == 0
    assert one.wait() is None
    assert one.launched.returncode() == 0


def test_what_tunes_pytorch_is_passed_on_and_nothing_that_is_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("STOKER_DATABASE_URL", "postgresql://user:secret@host/name")
    environment = trainer_environment(tmp_path, gpu=None, threads=1)
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "STOKER_DATABASE_URL" not in environment


@pytest.mark.parametrize("owners", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_threads_spin_briefly_unless_the_owner_says_how_they_wait(tmp_path, monkeypatch, owners):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in owners.items():
        monkeypatch.setenv(name, value)
    environment = trainer_environment(tmp_path, gpu=None, threads=2)
    waiting = {k: v for k, v in environment.items() if k in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    assert waiting == (owners or {"GOMP_SPINCOUNT": "1500"})


def test_compiled_steps_are_kept_under_home_unless_the_owner_says_where(tmp_path, monkeypatch):
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CXX"):
        monkeypatch.delenv(name, raising=False)
    usual = trainer_environment(tmp_path, gpu=None, threads=3)
    assert usual.items() >= cache_folders(tmp_path).items()
    assert usual["TORCHINDUCTOR_COMPILE_THREADS"] == "3"
    assert "CXX" not in usual
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/owners/cache")
    monkeypatch.setenv("CXX", "clang++")
    chosen = trainer_environment(tmp_path, gpu=None, threads=3)
    assert (chosen["TORCHINDUCTOR_CACHE_DIR"], chosen["CXX"]) == ("/owners/cache", "clang++")
    assert chosen["TRITON_CACHE_DIR"] == usual["TRITON_CACHE_DIR"]


TAKES_MEMORY = """
import torch

kept = torch.ones(64 * 2**20 // 4)
flags = [line.split() for line in open("/proc/self/smaps") if line.startswith("VmFlags")]
print(any("hg" in of_a_mapping for of_a_mapping in flags))
"""


@pytest.mark.skipif(not HUGE.exists(), reason="the kernel has no huge pages")
@pytest.mark.parametrize(("owner", "gets"), [(None, True), ("", False)])
def test_tensors_lie_on_huge_pages_unless_the_owner_says_otherwise(
    tmp_path, monkeypatch, owner, gets
):
    for name in ("GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    if owner is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", owner)
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    done = subprocess.run(
        [sys.executable, "-c", TAKES_MEMORY],
        env=trainer_environment(tmp_path, gpu=None, threads=1),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{gets}\n"


@pytest.mark.parametrize(
    ("libc", "settings"),
    [
        (("glibc", "2.36"), HEAP),
        (("glibc", "2.35"), HEAP),
        (("glibc", "3.0"), HEAP),
        (("glibc", "2.34"), HUGE_TENSORS),
        (("", ""), HUGE_TENSORS),
    ],
)
def test_the_memory_of_a_trainer_is_kept_by_the_c_library_or_by_pytorch(libc, settings):
    assert memory_settings(libc) == settings


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE"])
def test_what_the_owner_says_of_memory_is_all_that_is_said(tmp_path, monkeypatch, name):
    for each in ("GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "1")
    found = trainer_environment(tmp_path, gpu=None, threads=1)
    assert found[name] == "1"
    assert len(found.keys() & {"GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE"}) == 1


def test_an_order_that_a_standing_launcher_does_not_read_is_kept_for_it(attempt):
    one = attempt({**ENDLESS, "on_stop": "ignore"}, grace=3600).start()
    eventually(one.steps_begun, "the trainer trains")
    os.kill(one.launched.pid, signal.SIGSTOP)
    while not one.launched.has_unsent:
        one.launched.order("dump")
    for _ in range(1000):
        one.launched.hold(ENDLESS_TERM)
    one.launched.order("kill")
    os.kill(one.launched.pid, signal.SIGCONT)

    def sent():
        one.launched.flush()
        return not one.launched.has_unsent

    eventually(sent, "the launcher takes what waited")
    assert one.wait()["returncode"] == -signal.SIGKILL


def test_an_agent_that_dies_as_the_trainer_starts_is_a_stop(attempt):
    one = attempt(ENDLESS)
    one.start()
    one.launched.control.close()
    assert one.wait()["returncode"] is not None
