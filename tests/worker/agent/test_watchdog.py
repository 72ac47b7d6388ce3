"""When a pulse that stands still is a hang; the pulse is written by the trainer's own code."""

import pytest

from worker.agent.attempt_folder import AttemptDir
from worker.agent.watchdog import (
    COMPILING_PHASE,
    COMPILING_SECONDS,
    STARTUP_PHASES,
    STARTUP_SECONDS,
    Watchdog,
)
from worker.reporting import PHASES, Pulse

TRAINING_PHASES = PHASES[COMPILING_PHASE + 1 :]


def test_the_phases_of_the_start_are_the_trainers():
    assert set(PHASES[:STARTUP_PHASES]) == {"starting", "building", "restoring", "preparing"}


@pytest.mark.parametrize("phase", ["none", *PHASES[:STARTUP_PHASES]])
def test_the_start_has_time_however_small_the_users_value(tmp_path, phase):
    if phase != "none":
        Pulse(tmp_path / "pulse").enter(phase)
    watchdog = Watchdog(AttemptDir(tmp_path).pulse, 5.0, now=0.0)
    assert not watchdog.hangs(STARTUP_SECONDS - 1)
    assert watchdog.hangs(STARTUP_SECONDS + 1)


def test_compiling_has_its_own_time_however_small_the_users_value(tmp_path):
    """For each graph: it beats between them."""
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter("compiling")
    watchdog = Watchdog(AttemptDir(tmp_path).pulse, 5.0, now=0.0)
    pulse.beat()
    assert not watchdog.hangs(1.0)
    assert not watchdog.hangs(COMPILING_SECONDS)
    assert watchdog.hangs(COMPILING_SECONDS + 2.0)
    assert PHASES[COMPILING_PHASE] == "compiling"


@pytest.mark.parametrize("phase", TRAINING_PHASES)
def test_a_phase_that_has_begun_to_move_has_what_the_user_gave_it(tmp_path, phase):
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter(phase)
    watchdog = Watchdog(AttemptDir(tmp_path).pulse, 5.0, now=0.0)
    pulse.beat()
    assert not watchdog.hangs(8.0)
    assert not watchdog.hangs(12.0)
    assert watchdog.hangs(14.0)
    assert watchdog.allowed_seconds == 5.0


@pytest.mark.parametrize("phase", TRAINING_PHASES)
def test_the_first_batch_of_a_phase_has_as_much_time_as_the_start(tmp_path, phase):
    """It compiles, tunes and waits for the first chunk."""
    pulse = Pulse(tmp_path / "pulse")
    watchdog = Watchdog(AttemptDir(tmp_path).pulse, 5.0, now=0.0)
    pulse.enter(phase)
    assert not watchdog.hangs(0.0)
    assert not watchdog.hangs(STARTUP_SECONDS - 1)
    assert watchdog.hangs(STARTUP_SECONDS + 1)


def test_a_phase_that_was_left_need_not_warm_up_again(tmp_path):
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter("training")
    watchdog = Watchdog(AttemptDir(tmp_path).pulse, 5.0, now=0.0)
    for act in (pulse.beat, lambda: pulse.enter("evaluating"), lambda: pulse.enter("training")):
        act()
        assert not watchdog.hangs(1.0)
    assert watchdog.hangs(7.0)


def test_a_large_value_of_the_user_holds_for_the_start_as_well(tmp_path):
    watchdog = Watchdog(AttemptDir(tmp_path).pulse, 10_000.0, now=0.0)
    assert not watchdog.hangs(9_999.0)
