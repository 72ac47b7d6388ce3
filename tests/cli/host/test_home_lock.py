"""One `stoker up` a home."""

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.cli.failures import CommandFailed
from app.cli.host.home_lock import HomeLock, end_holder, holder_of
from app.settings import Settings, load_settings
from tests.e2e.service import eventually

HOLD = """
import sys, time
from app.cli.host.home_lock import HomeLock
from app.settings import load_settings
with HomeLock(load_settings(home=sys.argv[1])):
    time.sleep(600)
"""


@pytest.fixture
def settings(home: Path) -> Settings:
    return load_settings(home=home)


@pytest.fixture
def holder(home: Path, settings: Settings):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(home)])
    eventually(lambda: holder_of(settings), "the child holds the home")
    yield process
    process.kill()
    process.wait()


def test_nobody_holds_a_new_home(settings):
    assert holder_of(settings) is None


def test_the_second_is_refused_with_who_and_what_to_do(settings, holder):
    with pytest.raises(CommandFailed) as refused, HomeLock(settings):
        raise AssertionError("it must not be entered")
    assert f"process {holder.pid}" in refused.value.detail
    assert "stoker down" in refused.value.detail


def test_a_look_at_the_lock_refuses_nobody(settings):
    """`stoker down`, `doctor` and others take it shared for a moment."""
    settings.home.mkdir(exist_ok=True)
    with (settings.home / "up.lock").open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        end = threading.Timer(0.3, fcntl.flock, (look, fcntl.LOCK_UN))
        end.start()
        with HomeLock(settings):
            assert holder_of(settings) is not None
        end.join()


def test_the_lock_ends_with_its_process_however_it_ends(settings, holder):
    holder.kill()
    holder.wait()
    assert holder_of(settings) is None
    with HomeLock(settings):
        pass


def test_a_dead_ones_id_in_the_file_means_nothing(settings):
    with HomeLock(settings):
        pass
    (settings.home / "up.lock").write_text(json.dumps({"pid": 1}))
    assert holder_of(settings) is None


def test_ending_the_holder_waits_until_it_has_gone(settings, holder):
    found = holder_of(settings)
    assert found is not None
    assert found.pid == holder.pid
    end_holder(found, settings)
    assert holder.wait(5) == -15
    assert holder_of(settings) is None
