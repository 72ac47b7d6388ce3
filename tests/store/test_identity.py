"""When a lease's holder is known to be dead, on the host of who asks."""

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from app.store import identity
from app.store.identity import is_known_dead, this_process


def test_who_lives_is_not_dead_and_who_took_its_number_is_another() -> None:
    me = this_process()
    assert not is_known_dead(me)
    assert is_known_dead(replace(me, start_time=me.start_time + 1))
    assert not is_known_dead(replace(me, boot_id="another", start_time=0.0))


def test_who_has_ended_is_dead_also_before_it_is_reaped() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        him = replace(this_process(), pid=process.pid, start_time=identity._start_time(process.pid))  # type: ignore[arg-type]
        assert not is_known_dead(him)
        process.kill()
        process.wait()
    assert is_known_dead(him)


def test_a_process_that_proc_hides_is_not_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As under `hidepid=2`, for processes of another user."""
    me = this_process()
    monkeypatch.setattr(identity, "PROC", tmp_path)
    assert not is_known_dead(me)
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert is_known_dead(replace(me, pid=process.pid))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_process_that_cannot_be_looked_at_is_not_known_to_be_dead(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As under `hidepid=1`, and without a descriptor left."""
    me = this_process()

    def refuse(_path: Path) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert not is_known_dead(me)
