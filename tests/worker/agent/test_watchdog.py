"""When a pulse that stands still is a hang; the pulse is written by the trainer's own code."""

import json

import pytest

from app.spec.run import RunSpec
from worker.agent.attempt_folder import AttemptDir
from worker.agent.watchdog import (
    COMPILING_PHASE,
    COMPILING_SECONDS,
    STARTUP_PHASES,
    STARTUP_SECONDS,
    Watchdog,
    longest_silence,
)
from worker.reporting import PHASES, Pulse

TRAINING_PHASES = PHASES[COMPILING_PHASE + 1 :]


def pulse_in(folder):
    return AttemptDir(folder).pulse()


def test_the_phases_of_the_start_are_the_trainers():
    assert set(PHASES[:STARTUP_PHASES]) == {"starting", "building", "restoring", "preparing"}


@pytest.mark.parametrize("phase", ["none", *PHASES[:STARTUP_PHASES]])
def test_the_start_has_time_however_small_the_users_value(tmp_path, phase):
    if phase != "none":
        Pulse(tmp_path / "pulse").enter(phase)
    watchdog = Watchdog(5.0, pulse_in(tmp_path), now=0.0)
    assert not watchdog.hangs(pulse_in(tmp_path), STARTUP_SECONDS - 1)
    assert watchdog.hangs(pulse_in(tmp_path), STARTUP_SECONDS + 1)


def test_compiling_has_its_own_time_however_small_the_users_value(tmp_path):
    """For each graph: it beats between them."""
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter("compiling")
    watchdog = Watchdog(5.0, pulse_in(tmp_path), now=0.0)
    pulse.beat()
    assert not watchdog.hangs(pulse_in(tmp_path), 1.0)
    assert not watchdog.hangs(pulse_in(tmp_path), COMPILING_SECONDS)
    assert watchdog.hangs(pulse_in(tmp_path), COMPILING_SECONDS + 2.0)
    assert PHASES[COMPILING_PHASE] == "compiling"


@pytest.mark.parametrize("phase", TRAINING_PHASES)
def test_a_phase_that_has_begun_to_move_has_what_the_user_gave_it(tmp_path, phase):
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter(phase)
    watchdog = Watchdog(5.0, pulse_in(tmp_path), now=0.0)
    pulse.beat()
    assert not watchdog.hangs(pulse_in(tmp_path), 8.0)
    assert not watchdog.hangs(pulse_in(tmp_path), 12.0)
    assert watchdog.hangs(pulse_in(tmp_path), 14.0)
    assert watchdog.allowed_seconds == 5.0


@pytest.mark.parametrize("phase", TRAINING_PHASES)
def test_the_first_batch_of_a_phase_has_as_much_time_as_the_start(tmp_path, phase):
    """It compiles, tunes and waits for the first chunk."""
    pulse = Pulse(tmp_path / "pulse")
    watchdog = Watchdog(5.0, pulse_in(tmp_path), now=0.0)
    pulse.enter(phase)
    assert not watchdog.hangs(pulse_in(tmp_path), 0.0)
    assert not watchdog.hangs(pulse_in(tmp_path), STARTUP_SECONDS - 1)
    assert watchdog.hangs(pulse_in(tmp_path), STARTUP_SECONDS + 1)


def test_a_phase_that_was_left_need_not_warm_up_again(tmp_path):
    pulse = Pulse(tmp_path / "pulse")
    pulse.enter("training")
    watchdog = Watchdog(5.0, pulse_in(tmp_path), now=0.0)
    for act in (pulse.beat, lambda: pulse.enter("evaluating"), lambda: pulse.enter("training")):
        act()
        assert not watchdog.hangs(pulse_in(tmp_path), 1.0)
    assert watchdog.hangs(pulse_in(tmp_path), 7.0)


def test_a_large_value_of_the_user_holds_for_the_start_as_well(tmp_path):
    watchdog = Watchdog(10_000.0, pulse_in(tmp_path), now=0.0)
    assert not watchdog.hangs(pulse_in(tmp_path), 9_999.0)


@pytest.mark.parametrize(("timeout", "most"), [("auto", 3600), (5.0, 3600), (10_000.0, 10_000)])
def test_of_a_run_it_is_told_how_long_it_may_be_silent_at_most(timeout, most):
    spec = {"recipe": {"kind": "sequence"}, "data": {"dataset": "d"}}
    spec["policy"] = {"hang_timeout_seconds": timeout}
    assert longest_silence(RunSpec.model_validate_json(json.dumps(spec))) == most
