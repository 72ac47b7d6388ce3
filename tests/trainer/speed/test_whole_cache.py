"""What was compiled is thrown away when somebody may have left half a file in it, and only then."""

import signal
import subprocess
import sys

import pytest

from worker.trainer.report.preparing import StopRequested
from worker.trainer.speed.whole_cache import whole_cache

COMPILES = """
from worker.trainer.speed.whole_cache import whole_cache
with whole_cache():
    print(flush=True)
    input()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Something that was compiled before."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "inductor").mkdir()
    library = tmp_path / "inductor" / "a.so"
    library.write_bytes(b"ELF")
    return library


@pytest.fixture
def compiling():
    """Starts a process that compiles; it waits for a line."""
    started = []

    def start():
        command = [sys.executable, "-P", "-c", COMPILES]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_trainer_that_was_killed_while_it_compiled_costs_one_new_compilation(library, compiling):
    killed = compiling()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with whole_cache() as emptied:
        assert emptied
        assert not library.exists()
    with whole_cache() as emptied:
        assert not emptied


def test_one_that_ended_well_or_was_stopped_costs_nothing(library, compiling):
    done = compiling()
    done.communicate(b"\n")
    assert done.returncode == 0
    with pytest.raises(StopRequested), whole_cache():
        raise StopRequested
    with whole_cache() as emptied:
        assert not emptied
        assert library.exists()


def test_one_that_failed_is_not_believed_either(library):
    with pytest.raises(RuntimeError, match="C"), whole_cache():
        raise RuntimeError("C++ compile error")
    with whole_cache() as emptied:
        assert emptied
        assert not library.exists()


def test_nothing_is_taken_from_one_that_is_compiling(library, compiling):
    other = compiling()
    with pytest.raises(RuntimeError, match="C"), whole_cache():
        raise RuntimeError("C++ compile error")
    with whole_cache() as emptied:
        assert not emptied
        assert library.exists()
    other.communicate(b"\n")
    with whole_cache() as emptied:
        assert emptied


def test_without_a_cache_of_the_service_nothing_is_marked(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with whole_cache() as emptied:
        assert not emptied
