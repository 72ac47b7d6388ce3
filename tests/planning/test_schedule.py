"""Learning rates: those of the literature and of torch, at any step without history."""

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.optim.swa_utils import SWALR

from app.planning.schedule import learning_rate, run_rate, schedule_version
from app.spec.optimization import (
    Constant,
    CosineWarmup,
    LinearWarmup,
    OneCycle,
    Plateau,
    Schedule,
)
from app.spec.run import RunSpec


def rates(schedule: OneCycle | Constant | CosineWarmup | LinearWarmup, total: int) -> list[float]:
    return [learning_rate(schedule, 0.1, step, total) for step in range(total)]


def torch_one_cycle(total: int, fraction: float, div: float, final_div: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        0.1,
        total_steps=total,
        pct_start=fraction,
        div_factor=div,
        final_div_factor=final_div,
        cycle_momentum=False,
    )
    result = []
    for _ in range(total):
        result.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedule.step() if len(result) < total else None
    return result


@pytest.mark.parametrize("total", [2, 7, 100, 1003])
@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.3, 1.0])
@pytest.mark.parametrize(("div", "final_div"), [(25.0, 1e4), (1.0, 10.0)])
def test_onecycle_is_torchs(total: int, fraction: float, div: float, final_div: float) -> None:
    schedule = OneCycle(warmup_fraction=fraction, div_factor=div, final_div_factor=final_div)
    expected = torch_one_cycle(total, fraction, div, final_div)
    assert rates(schedule, total) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_onecycle_takes_its_warmup_in_steps_as_well() -> None:
    assert rates(OneCycle(warmup_steps=30), 100) == rates(OneCycle(warmup_fraction=0.3), 100)


@pytest.mark.parametrize("warmup_steps", [0, 1, 5, 500])
@pytest.mark.parametrize("total", [1, 5, 6])
@pytest.mark.parametrize("kind", [OneCycle, CosineWarmup, LinearWarmup])
def test_no_warmup_is_too_short_or_too_long(
    kind: type[OneCycle | CosineWarmup | LinearWarmup], total: int, warmup_steps: int
) -> None:
    names = {OneCycle: "onecycle", CosineWarmup: "cosine_warmup", LinearWarmup: "linear_warmup"}
    schedule = kind.model_validate({"kind": names[kind], "warmup_steps": warmup_steps})
    assert all(0.0 <= rate <= 0.1 + 1e-12 for rate in rates(schedule, total))


@pytest.mark.parametrize("warmup", [{"warmup_steps": 3}, {"warmup_fraction": 0.3}, {}])
@pytest.mark.parametrize("total", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("kind", ["onecycle", "cosine_warmup", "linear_warmup", "constant"])
def test_no_schedule_begins_at_a_rate_of_0(kind: str, total: int, warmup: dict[str, float]) -> None:
    """Such a step, with accumulation a whole window of batches, would be for nothing."""
    document = {"kind": kind, **({} if kind == "constant" else warmup)}
    schedule = TypeAdapter[Schedule](Schedule).validate_python(document)
    assert learning_rate(schedule, 0.1, 0, total) > 0


def test_other_rates_than_before_have_another_version() -> None:
    """Those of one cycle are as they always were, so that its checkpoints go on exactly."""
    kinds = (OneCycle(), Constant(kind="constant"), CosineWarmup(kind="cosine_warmup"))
    assert [schedule_version(schedule) for schedule in kinds] == [1, 1, 2]


def test_cosine_rises_linearly_and_falls_as_a_cosine() -> None:
    found = rates(CosineWarmup(kind="cosine_warmup", warmup_fraction=0.1), 100)
    assert found[:3] == pytest.approx([0.1 / 11, 0.2 / 11, 0.3 / 11])
    assert found[10] == pytest.approx(0.1)
    assert found[55] == pytest.approx(0.05)
    assert found[99] < 0.001


def test_linear_rises_and_falls_linearly() -> None:
    found = rates(LinearWarmup(kind="linear_warmup", warmup_steps=20), 100)
    assert found[10] == pytest.approx(0.1 * 11 / 21)
    assert found[20] == pytest.approx(0.1)
    assert found[60] == pytest.approx(0.05)


def test_constant_is_constant() -> None:
    assert set(rates(Constant(kind="constant"), 10)) == {0.1}


def torchs(total: int, make: Callable[[SGD], Sequence[tuple[int, LRScheduler]]]) -> list[float]:
    """The rates of torch's schedulers, each from a step on, that one after another take turns."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    parts, result = make(optimizer), []
    schedule = SequentialLR(optimizer, [one for _, one in parts], [at for at, _ in parts[1:]])
    for _ in range(total):
        result.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR gives its parts an epoch
            schedule.step()
    return result


@pytest.mark.parametrize("warmup", [1, 7, 30])
@pytest.mark.parametrize("by", ["steps", "fraction"])
@pytest.mark.parametrize("kind", ["cosine_warmup", "linear_warmup"])
def test_a_warm_up_and_what_follows_are_torchs(kind: str, by: str, warmup: int) -> None:
    total = 100
    given = {"warmup_steps": warmup} if by == "steps" else {"warmup_fraction": warmup / total}
    schedule = TypeAdapter[Schedule](Schedule).validate_python({"kind": kind, **given})

    def make(optimizer: SGD) -> Sequence[tuple[int, LRScheduler]]:
        rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        if kind == "linear_warmup":
            return (0, rise), (warmup, LinearLR(optimizer, 1.0, 0.0, total - warmup))
        return (0, rise), (warmup, CosineAnnealingLR(optimizer, total - warmup))

    found = [learning_rate(schedule, 0.1, step, total) for step in range(total)]
    assert found == pytest.approx(torchs(total, make), rel=1e-9, abs=1e-15)


EPOCH_STEPS, EPOCHS = 4, 10


def run_of(**blocks: Any) -> RunSpec:
    document = {"recipe": {"kind": "sequence"}, "data": {"dataset": "waves"}, **blocks}
    return RunSpec.model_validate_json(
        json.dumps({"optimizer": {"kind": "sgd", "lr": 0.1}, **document})
    )


@pytest.mark.parametrize("anneal_epochs", [0, 1, 3, 20])
@pytest.mark.parametrize("start_epoch", [1, 2, 7])
@pytest.mark.parametrize("schedule", [{"kind": "onecycle"}, {"kind": "constant"}])
def test_swa_has_a_rate_of_its_own_as_torchs_swalr(
    schedule: dict[str, Any], start_epoch: int, anneal_epochs: int
) -> None:
    """torch's recipe: its scheduler takes a step after each step, SWALR one at each epoch's end."""
    averaging = {"kind": "swa", "start_epoch": start_epoch, "lr": 0.02}
    spec = run_of(schedule=schedule, averaging={**averaging, "anneal_epochs": anneal_epochs})
    total = EPOCH_STEPS * EPOCHS
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    before = [learning_rate(spec.schedule, 0.1, step, total) for step in range(total)]
    swalr, expected = None, []
    for step in range(total):
        epoch, begins = step // EPOCH_STEPS + 1, step % EPOCH_STEPS == 0
        if epoch < start_epoch:
            optimizer.param_groups[0]["lr"] = before[step]
        elif begins:
            optimizer.param_groups[0]["lr"] = before[step] if swalr is None else expected[-1]
            swalr = swalr or SWALR(optimizer, swa_lr=0.02, anneal_epochs=anneal_epochs)
            optimizer.step()
            swalr.step()
        expected.append(float(optimizer.param_groups[0]["lr"]))
    found = [run_rate(spec, step, total, EPOCH_STEPS) for step in range(total)]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[-1] == pytest.approx(0.02) or anneal_epochs > EPOCHS - start_epoch


def test_a_plateau_goes_on_from_what_it_has_come_to() -> None:
    averaging = {"kind": "swa", "start_epoch": 3, "lr": 0.05, "anneal_epochs": 2}
    spec = run_of(schedule={"kind": "plateau"}, averaging=averaging)
    found = [run_rate(spec, epoch * EPOCH_STEPS, 40, EPOCH_STEPS, 0.01) for epoch in range(5)]
    assert found == pytest.approx([0.01, 0.01, 0.03, 0.05, 0.05])
    assert learning_rate(Plateau(kind="plateau"), 0.1, 7, 10) == 0.1
