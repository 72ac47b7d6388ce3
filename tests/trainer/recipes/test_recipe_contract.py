"""What a recipe may give beside model and loss: groups of parameters, state that is carried on."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from app.lifecycle import Reason
from app.recipes.sequence import Sequence
from app.spec.optimization import SGD, Adam, AdamW, Optimizer
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll
from worker.trainer import recipes
from worker.trainer.errors import TrainerError
from worker.trainer.optimizers import build_optimizer, set_learning_rate
from worker.trainer.recipes.base import Batch, Begin, Statistics, Tables, Task
from worker.trainer.recipes.sequence import SequenceTask


class OneGroup(SequenceTask):
    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        return {"head": model.parameters()}


class TooFew(SequenceTask):
    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        return {"head": model.get_submodule("head").parameters()}


class Twice(SequenceTask):
    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        return {"backbone": model.parameters(), "head": model.get_submodule("head").parameters()}


class Misnamed(SequenceTask):
    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        model = super().build_model(statistics, tables)
        model.undecayed = ("positions",)  # type: ignore[assignment]
        return model


class Undeclared(SequenceTask):
    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        return {"tail": model.parameters()}


def use(monkeypatch: pytest.MonkeyPatch, task: type[Task]) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: task)


@pytest.mark.parametrize("wanted", [AdamW(), Adam(kind="adam"), SGD(kind="sgd")])
def test_each_group_steps_as_it_would_alone_at_its_own_rate(wanted: Optimizer) -> None:
    """And one without a factor at the rate of the schedule."""
    torch.manual_seed(0)
    start = [torch.randn(3, 4), torch.randn(5)]
    gradients = [[torch.randn_like(one) for one in start] for _ in range(4)]

    def trained(groups: Mapping[str, list[int]], factors: Mapping[str, float]) -> list[Tensor]:
        weights = [nn.Parameter(one.clone()) for one in start]
        chosen = {name: [weights[i] for i in one] for name, one in groups.items()}
        optimizer = build_optimizer(wanted, chosen, factors)
        for number, given in enumerate(gradients):
            for weight, gradient in zip(weights, given, strict=True):
                weight.grad = gradient.clone()
            set_learning_rate(optimizer, 0.1 / (number + 1))
            optimizer.step()
        return [weight.detach() for weight in weights]

    both = trained({"backbone": [0], "head": [1]}, {"backbone": 0.125})
    assert torch.equal(both[0], trained({"all": [0, 1]}, {"all": 0.125})[0])
    assert torch.equal(both[1], trained({"all": [0, 1]}, {})[1])
    assert not torch.equal(both[0], trained({"all": [0, 1]}, {})[0])


# A decay and a change of rate that no weight notices: each makes other groups, which train alike.
ONE_GROUP = {"weight_decay": 0.0}
BY_DECAY = {"weight_decay": 1e-30, "decay": "matrices"}
BY_RATE = {"weight_decay": 0.0, "backbone_lr": math.nextafter(0.01, 1.0)}
BY_BOTH = {**BY_DECAY, **BY_RATE, "weight_decay": 1e-30}


@pytest.mark.parametrize("task", [SequenceTask, OneGroup])
@pytest.mark.parametrize(
    ("first", "second"),
    [(ONE_GROUP, BY_DECAY), (BY_DECAY, ONE_GROUP), (BY_BOTH, BY_RATE), (BY_RATE, BY_BOTH)],
    ids=["all to matrices", "matrices to all", "all rates", "both"],
)
def test_a_checkpoint_does_not_ask_how_parameters_are_grouped(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    task: type[Task],
    first: dict[str, Any],
    second: dict[str, Any],
) -> None:
    """Neither by the spec's optimizer nor by the recipe's task, which only reorders them."""
    straight = lab.run(patch={"optimizer": ONE_GROUP})
    run_dir = lab.new_run()
    use(monkeypatch, task)
    lab.run(run_dir, patch={"optimizer": first}, stop=StopAtPoll(BUILDING_POLLS + 5))
    use(monkeypatch, SequenceTask)
    resumed = lab.run(run_dir, patch={"optimizer": second})
    assert resumed.of_kind("restored")[0]["step"] > 0
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (TooFew, "encoder.weight_ih_l0 is in 0 of its groups"),
        (Twice, "head.weight is in 2 of its groups"),
        (Undeclared, r"tail is no group of Recipe.parameter_groups \(backbone, head\)"),
    ],
)
def test_groups_that_do_not_part_the_model_are_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, task: type[Task], told: str
) -> None:
    use(monkeypatch, task)
    with pytest.raises(TrainerError, match=told) as caught:
        lab.run()
    assert caught.value.reason is Reason.trainer_error


def test_an_undecayed_parameter_that_is_not_there_ends_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Misnamed)
    with pytest.raises(TrainerError, match=r"SequenceModel\.undecayed names 'positions'") as caught:
        lab.run()
    assert caught.value.reason is Reason.trainer_error


def test_the_backbone_learns_at_a_rate_of_its_own(lab: Lab) -> None:
    rates = {"lr": 0.01, "backbone_lr": 1e-9, "weight_decay": 0.0}
    outcome = lab.run(patch={"optimizer": rates})
    first, last = (
        load_file(outcome.checkpoint(step) / "model.safetensors")
        for step in (min(steps_of(outcome)), max(steps_of(outcome)))
    )
    for name, weight in last.items():
        if "encoder" in name:
            torch.testing.assert_close(weight, first[name], rtol=0, atol=1e-6)
        elif "head" in name:
            assert (weight - first[name]).abs().max() > 1e-3
    (event,) = outcome.of_kind("applied")
    assert event["applied"]["learning_rates"] == {"backbone": 1e-9, "head": 0.01}
    assert event["applied"]["decayed_parameters"] == 0


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_a_run_says_which_rates_decay_and_momentum_it_has(lab: Lab, decay: str) -> None:
    """By the names of the recipe's groups, though these are one group of the optimizer."""
    patch = {"optimizer": {"decay": decay}, "schedule": {"kind": "onecycle"}}
    outcome = lab.run(patch=patch)
    (event,) = outcome.of_kind("applied")
    names = load_file(outcome.checkpoint() / "optimizer.safetensors")
    decayed = [
        one.numel()
        for name, one in names.items()
        if name.endswith(".exp_avg") and (decay == "all" or "bias" not in name)
    ]
    assert event["applied"]["learning_rates"] == {"backbone": 0.01, "head": 0.01}
    assert event["applied"]["momentum"] == 0.9
    assert event["applied"]["decayed_parameters"] == sum(decayed)


def steps_of(outcome: Outcome) -> list[int]:
    folders = (outcome.folder / "checkpoints").glob("step-*")
    return [int(folder.name.removeprefix("step-")) for folder in folders]


def test_a_rate_for_a_backbone_that_is_not_there_ends_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sequence, "parameter_groups", ("model",))
    with pytest.raises(TrainerError, match=r"sequence has no backbone.* of model") as caught:
        lab.run(patch={"optimizer": {"backbone_lr": 1e-4}})
    assert caught.value.reason is Reason.spec_error


class Carrying(SequenceTask):
    """Weighs losses by a running mean of the inputs, which goes from batch to batch."""

    size = 3

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        model = super().build_model(statistics, tables)
        model.register_buffer("running", torch.zeros(self.size), persistent=False)
        return model

    def carried(self, model: nn.Module) -> Mapping[str, Tensor]:
        return {"running": model.get_buffer("running")}

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        self._note(model, batch)
        weight = 1 + self.carried(model)["running"].mean()
        return {"loss": super().loss(model, batch)["loss"] * weight}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        self._note(model, batch)
        sums = super().measure(model, batch)
        return sums | {"loss": sums["loss"] * (1 + self.carried(model)["running"].mean())}

    def _note(self, model: nn.Module, batch: Batch) -> None:
        with torch.no_grad():
            mean = batch.arrays["features"].mean((0, 1))[: self.size]
            self.carried(model)["running"].mul_(0.9).add_(mean)


class Wider(Carrying):
    size = 2


class Forgetful(Carrying):
    """Resets nothing where an epoch begins."""

    def begin(self, kind: Begin, model: nn.Module) -> None:
        if kind == "evaluation":
            super().begin(kind, model)


def test_what_is_carried_begins_anew_with_each_epoch_and_outlives_a_stop(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Carrying)
    stop = StopAtPoll()
    straight, polls = lab.run(stop=stop), stop.polls
    assert len(list(lab.interrupted(straight, range(BUILDING_POLLS + 1, polls, 3)))) >= 3
    state = load_file(straight.checkpoint() / "state.safetensors")
    assert bool(state["carried.running"].any())
    assert "running" not in load_file(straight.checkpoint() / "model.safetensors")
    use(monkeypatch, Forgetful)
    assert lab.run().losses != straight.losses


def test_an_evaluation_puts_it_aside(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins with none, and the training goes on with its own."""
    use(monkeypatch, Carrying)
    often, once = lab.run(patch={"evaluation": {"every_steps": 1}}), lab.run()
    assert often.weights == once.weights
    assert last_of(often)["val_loss"] == last_of(once)["val_loss"]


def last_of(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = outcome.result["last"]
    return found


def test_another_shape_of_it_is_not_gone_on_from(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Carrying)
    run_dir = lab.new_run()
    lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 5))
    use(monkeypatch, Wider)
    with pytest.raises(TrainerError, match=r"of what is carried running is \(3,\) there") as caught:
        lab.run(run_dir)
    assert caught.value.reason is Reason.carry_mismatch


def test_no_recipe_has_norms_over_a_batch() -> None:
    """A last batch of 1, and micro-batches of a few, train as any others."""
    files = [*Path(recipes.__file__).parent.glob("*.py")]
    assert len(files) > 5
    assert [file.name for file in files if "BatchNorm" in file.read_text()] == []
