"""What is due at a step boundary."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lifecycle import Reason
from app.planning.arithmetic import evaluations
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, merged
from worker.trainer.agenda import Agenda
from worker.trainer.state import Best, TrainState, Yardstick, improves


def agenda(patch: dict[str, Any], steps_per_epoch: int = 100) -> Agenda:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    return Agenda(spec, steps_per_epoch * 8 * 2, has_validation=True)


@pytest.mark.parametrize(
    ("steps_per_epoch", "log_every"), [(1, 1), (100, 1), (400, 6), (3_000, 45), (10_000, 50)]
)
def test_log_points_are_about_200_a_run_and_never_more_than_50_steps_apart(
    steps_per_epoch: int, log_every: int
) -> None:
    found = agenda({"training": {"log_every_steps": "auto"}}, steps_per_epoch)
    assert found.log_every_steps == log_every


def test_max_steps_ends_a_run_only_if_it_comes_first() -> None:
    assert agenda({"training": {"max_steps": 10}}).total_steps == 10
    assert agenda({"training": {"max_steps": 10_000}}).total_steps == 300


def test_an_evaluation_that_was_cut_short_stays_due() -> None:
    state = TrainState(step=4, position=40, logged_step=4)
    assert agenda({}).evaluation_due(state)
    assert not agenda({}).log_due(state)
    state.evaluated_step = 4
    assert not agenda({}).evaluation_due(state)


def test_an_epoch_is_reported_after_its_evaluation_and_once() -> None:
    state = TrainState(step=100, epoch=1, logged_step=100)
    assert not agenda({}).epoch_report_due(state)
    state.evaluated_step = 100
    assert agenda({}).epoch_report_due(state)
    state.reported_epoch = 1
    assert not agenda({}).epoch_report_due(state)


@given(
    by_steps=st.none() | st.integers(1, 40),
    by_epochs=st.none() | st.integers(1, 7),
    steps_per_epoch=st.integers(1, 12),
    epochs=st.integers(1, 9),
    max_steps=st.none() | st.integers(1, 60),
)
@settings(deadline=None)
def test_as_many_evaluations_are_due_as_were_counted_beforehand(
    by_steps: int | None,
    by_epochs: int | None,
    steps_per_epoch: int,
    epochs: int,
    max_steps: int | None,
) -> None:
    wanted = {"every_steps": by_steps, "every_epochs": by_epochs}
    training = {"epochs": epochs, "max_steps": max_steps}
    found = agenda({"evaluation": wanted, "training": training}, steps_per_epoch)
    states = [
        TrainState(step=step, epoch=step // steps_per_epoch, position=step % steps_per_epoch)
        for step in range(found.total_steps + 1)
    ]
    counted = evaluations(found.spec.evaluation, found.total_steps, steps_per_epoch)
    assert counted == sum(found.evaluation_due(state) for state in states)


@pytest.mark.parametrize(
    ("checkpoint", "state", "seconds", "due"),
    [
        ({"every_steps": 5}, TrainState(step=10), 0, True),
        ({"every_steps": 5}, TrainState(step=11), 0, False),
        ({"every_seconds": 60.0}, TrainState(step=11), 59, False),
        ({"every_seconds": 60.0}, TrainState(step=11), 60, True),
        ({}, TrainState(step=11, best=Best(11, 1, 0.5, {})), 0, False),
        ({}, TrainState(step=300), 0, True),
    ],
)
def test_checkpoints_come_by_steps_by_seconds_and_at_the_end(
    checkpoint: dict[str, Any], state: TrainState, seconds: float, due: bool
) -> None:
    patch = {"checkpoint": {"every_steps": None, "every_seconds": None} | checkpoint}
    assert agenda(patch).checkpoint_due(state, (9, 0), seconds) is due


def test_nothing_is_saved_twice_but_a_repeated_evaluation_is_news() -> None:
    state = TrainState(step=10, evaluated_step=8)
    due = agenda({}).checkpoint_due
    assert not due(state, (10, 8), 1e9)
    state.evaluated_step = 10
    assert due(state, (10, 8), 1e9)


def test_completion_comes_before_other_endings() -> None:
    state = TrainState(step=300, patience_used=99, trained_seconds=1e9)
    assert agenda({"policy": {"max_duration_seconds": 5.0}}).ending(state) is Reason.completed


def test_improvement_needs_more_than_min_delta() -> None:
    assert improves(1.0, None, "min")
    assert not improves(0.95, 1.0, "min", min_delta=0.1)
    assert improves(0.85, 1.0, "min", min_delta=0.1)
    assert improves(1.2, 1.0, "max", min_delta=0.1)
    assert not improves(1.0, 1.0, "max")


def test_the_state_survives_json() -> None:
    best, by = Best(2, 1, 1 / 3, {"val_loss": 1 / 3}), Yardstick("val_loss", "min", None)
    state = TrainState(step=3, last={"lr": 0.1 + 0.2}, best=best, best_by=by, patience_by=by)
    assert TrainState.from_json(json.loads(json.dumps(state.to_json()))) == state


LOSS, MAE, FEWER, FIRST = (
    Yardstick("val_loss", "min", None),
    Yardstick("val_mae", "max", None),
    Yardstick("val_loss", "min", 3, spaced=True),
    Yardstick("val_loss", "min", 3),
)


@pytest.mark.parametrize(
    ("before", "best_by", "patience_by", "value", "patience", "lost"),
    [
        (LOSS, LOSS, LOSS, 0.5, (0.4, 3), 0),
        (LOSS, MAE, LOSS, 7.0, (0.4, 3), 0),
        (LOSS, LOSS, MAE, 0.5, (7.0, 0), 1),
        (LOSS, LOSS, None, 0.5, (None, 0), 0),
        (LOSS, FEWER, FEWER, None, (None, 0), 2),
        (FIRST, FEWER, FEWER, None, (None, 0), 2),
        (FEWER, FEWER, FEWER, 0.5, (0.4, 3), 0),
    ],
)
def test_what_was_kept_by_another_yardstick_is_rebuilt_or_dropped(
    before: Yardstick,
    best_by: Yardstick,
    patience_by: Yardstick | None,
    value: float,
    patience: Any,
    lost: int,
) -> None:
    state = TrainState(
        best=Best(4, 1, 0.5, {"val_loss": 0.5, "val_mae": 7.0}),
        best_by=before,
        patience_by=before,
        patience_best=0.4,
        patience_used=3,
    )
    assert len(state.judge_by(best_by, patience_by)) == lost
    assert (state.best and state.best.value) == value
    assert (state.patience_best, state.patience_used) == patience
    assert (state.best_by, state.patience_by) == (best_by, patience_by)
