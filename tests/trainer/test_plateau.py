"""A rate that falls when validation stops improving: torch's, and the same after any stop."""

import random
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from app.spec.optimization import Plateau
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged
from worker.trainer.errors import SpecMismatch
from worker.trainer.state import Lowered, Yardstick, improves_by_share

BY = Yardstick("val_loss", "min", None)
FALLS: dict[str, Any] = {
    "schedule": {"kind": "plateau", "patience": 0, "factor": 0.3, "threshold": 0.05},
    "evaluation": {"every_steps": 1},
    "training": {"log_every_steps": 1},
}


def rates(outcome: Outcome) -> list[float]:
    """Of each step."""
    told = [event["values"] for event in outcome.of_kind("metrics")]
    return [values["lr"] for values in told if "lr" in values]


def torchs(schedule: Plateau, values: list[float]) -> list[float]:
    """The rate after each evaluation."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = ReduceLROnPlateau(
        optimizer, schedule.mode, schedule.factor, schedule.patience, schedule.threshold,
        min_lr=schedule.min_lr,
    )  # fmt: skip
    found = []
    for value in values:
        reference.step(value)
        found.append(float(optimizer.param_groups[0]["lr"]))
    return found


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize(
    ("factor", "min_lr", "threshold"), [(0.5, 0.0, 1e-4), (0.1, 0.002, 0.0), (0.9, 0.0, 0.2)]
)
def test_the_rate_is_torchs_after_every_evaluation(
    mode: str, patience: int, factor: float, min_lr: float, threshold: float
) -> None:
    document = {"kind": "plateau", "mode": mode, "patience": patience, "factor": factor}
    schedule = Plateau.model_validate({**document, "min_lr": min_lr, "threshold": threshold})
    for seed in range(5):
        draw = random.Random(seed)
        values = [draw.choice([1.0, 0.9, 1.1, draw.random()]) for _ in range(120)]
        lowered, found = Lowered(0.1, BY), []
        for value in values:
            lowered.note(value, schedule)
            found.append(lowered.rate)
        assert found == torchs(schedule, values)
        assert found[-1] < 0.1


def test_a_best_value_below_0_is_not_beaten_by_a_worse_one() -> None:
    assert not improves_by_share(-9.9, -10.0, "min", 0.05)
    assert improves_by_share(-10.6, -10.0, "min", 0.05)
    assert improves_by_share(-9.0, -10.0, "max", 0.05)
    assert not improves_by_share(-9.6, -10.0, "max", 0.05)


def test_a_runs_rates_are_those_that_torch_gives_for_its_validation(lab: Lab) -> None:
    outcome = lab.run(patch=FALLS)
    losses = [float(loss) for _, _, split, loss in outcome.rows if split == "validation"]
    schedule = Plateau.model_validate(FALLS["schedule"])
    after = [rate / 10 for rate in torchs(schedule, losses)]  # of 0.01, and not 0.1
    assert rates(outcome) == pytest.approx([0.01, *after[:-1]])
    assert len(set(rates(outcome))) > 2


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_run_interrupted_anywhere_goes_on_at_its_rate(lab: Lab, kill: bool) -> None:
    stop = StopAtPoll()
    straight, polls = lab.run(patch=FALLS, stop=stop), stop.polls
    anywhere = range(BUILDING_POLLS + 1, polls, 4)
    for _, resumed in lab.interrupted(straight, anywhere, FALLS, kill=kill):
        assert resumed.result == straight.result


def test_evaluations_by_another_yardstick_are_not_counted_on(lab: Lab) -> None:
    run_dir = lab.new_run()
    lab.run(run_dir, FALLS, stop=StopAtPoll(BUILDING_POLLS + 20))
    fewer = merged(FALLS, {"evaluation": {"max_batches": 1}})
    outcome = lab.run(run_dir, fewer)
    (told,) = [e["message"] for e in outcome.of_kind("warning") if e["code"] == "monitor_changed"]
    assert "the evaluations that schedule.patience has counted" in told


def test_a_plateau_without_a_validation_part_is_refused(lab: Lab) -> None:
    none = {"data": {"split": {"validation_fraction": 0.0}}, "early_stopping": None}
    with pytest.raises(SpecMismatch, match="schedule needs a validation part"):
        lab.run(patch=merged(FALLS, none))


def test_where_swa_has_the_rate_an_evaluation_lowers_none(lab: Lab) -> None:
    """Nor the one that SWA comes from: as torch's, which is told of no evaluation any more."""
    averaging = {"kind": "swa", "start_epoch": 2, "lr": 0.004, "anneal_epochs": 2}
    never_better = {"threshold": 0.99, "factor": 0.5, "min_lr": 0.001}
    outcome = lab.run(patch=merged(FALLS, {"averaging": averaging, "schedule": never_better}))
    # The first evaluation is the best, and each of the two after it halves the rate.
    assert rates(outcome)[:3] == pytest.approx([0.01, 0.01, 0.005])
    assert rates(outcome)[3:6] == pytest.approx([(0.0025 + 0.004) / 2] * 3)
    assert rates(outcome)[6:] == pytest.approx([0.004] * 3)
