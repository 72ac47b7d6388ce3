"""When a pulse that stands still is a hang; the pulse is written by the trainer's own code."""

import pytest

from worker.attempt import AttemptDir
from worker.trainer.pulse import PHASES, Pulse
from worker.watchdog import STARTUP_PHASES, STARTUP_SECONDS, Watchdog


def test_the_phases_of_the_start_are_the_trainers():
    assert set(PHASES[:STARTUP_PHASES]) == {"starting", "building", "restoring"}


@pytest.mark.parametrize("phase", ["none", *PHASES[:STARTUP_PHASES]])
def test_the_start_has_time_however_small_the_users_value(tmp_path, phase):
    if phase != "none":
        Pulse(tmp_path / "pulse").enter(phase)
    watchdog = Watchdog(AttemptDir(tmp_path), 5.0, now=0.0)
    assert not watchdog.hangs(STARTUP_SECONDS - 1)
    assert watchdog.hangs(STARTUP_SECONDS + 1)


def test_training_has_what_the_user_gave_it_since_the_last_beat(tmp_path):
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter("training")
    watchdog = Watchdog(AttemptDir(tmp_path), 5.0, now=0.0)
    assert not watchdog.hangs(4.0)
    pulse.beat()
    assert not watchdog.hangs(8.0)
    assert not watchdog.hangs(12.0)
    assert watchdog.hangs(14.0)
    assert watchdog.allowed_seconds == 5.0


def test_a_large_value_of_the_user_holds_for_the_start_as_well(tmp_path):
    watchdog = Watchdog(AttemptDir(tmp_path), 10_000.0, now=0.0)
    assert not watchdog.hangs(9_999.0)
