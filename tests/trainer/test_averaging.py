"""Averaged weights: torch's, delivered as they are evaluated, and the same after any stop."""

from collections.abc import Iterator
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from app.lifecycle import Reason
from app.planning.ladder import Rung
from app.spec.optimization import Averaging, ExponentialAveraging, StochasticAveraging
from tests.trainer.checkpoints.test_whole_state import DrawingTask, Normed
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged
from worker.trainer.averaging import averaged_weights
from worker.trainer.checkpoints.format import TRAINED, load, publish
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Batch

# The ramp ends within a run of nine steps: after its fifth update, 6/15 is the decay.
EMA: dict[str, Any] = {"averaging": {"kind": "ema", "decay": 0.4, "ramp": True}}
# Three epochs of three steps: the second and the third enter.
SWA: dict[str, Any] = {
    "averaging": {"kind": "swa", "start_epoch": 2, "lr": 0.02},
    "evaluation": {"every_epochs": 1, "every_steps": None},
    "checkpoint": {"every_steps": 1},
}
EPOCH_STEPS = 3


def ramped(averaged: list[Tensor], weights: list[Tensor], count: Tensor) -> None:
    n = int(count)
    get_ema_multi_avg_fn(min(0.5, (1 + n) / (10 + n)))(averaged, weights, count)


class NormedTask(DrawingTask):
    """Notes what it is shown without gradients while it trains, as when statistics are updated."""

    shown: list[Tensor]

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if model.training and not torch.is_grad_enabled():
            type(self).shown.append(batch.arrays["features"].clone())
        return super().loss(model, batch)


@pytest.fixture
def _normed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    NormedTask.shown = []
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: NormedTask)
    yield
    NormedTask.shown = []


def trained(outcome: Outcome, step: int) -> dict[str, Tensor]:
    """The weights that the training goes on with, beside the averaged ones."""
    state = load(outcome.checkpoint(step)).parts["state"]
    return {n.removeprefix(TRAINED): one for n, one in state.items() if n.startswith(TRAINED)}


def delivered(outcome: Outcome, step: int) -> dict[str, Tensor]:
    return safetensors.torch.load_file(outcome.checkpoint(step) / "model.safetensors")


def scores_of_delivered(
    lab: Lab, patch: dict[str, Any], outcome: Outcome, step: int
) -> dict[str, Any]:
    """The result of a run that begins with the weights of a checkpoint, and hardly moves."""
    still = {
        "optimizer": {"lr": 1e-12, "weight_decay": 0.0},
        "training": {"max_steps": 1},
        "averaging": {"kind": "none"},
    }
    restore = [{"path": str(outcome.checkpoint(step)), "carry": "weights", "own": False}]
    return lab.run(patch=merged(patch, still), restore=restore).result


def stopped_while_updating(lab: Lab) -> Outcome:
    """A run of NormedTask with SWA that is stopped while its first statistics are updated."""

    class Late(StopAtPoll):
        @property
        def requested(self) -> bool:
            return bool(NormedTask.shown)

    NormedTask.shown = []
    return lab.run(patch=SWA, stop=Late())


def train_a_little(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


@pytest.mark.parametrize(
    ("wanted", "reference"),
    [
        (ExponentialAveraging(kind="ema", decay=0.9, ramp=False), get_ema_multi_avg_fn(0.9)),
        (ExponentialAveraging(kind="ema", decay=0.5), ramped),
        (StochasticAveraging(kind="swa", start_epoch=1, lr=0.1), None),
    ],
    ids=["ema", "ramped", "swa"],
)
def test_an_average_is_that_of_torchs_averaged_model(wanted: Averaging, reference: Any) -> None:
    """To the last bit after every step; weights that are tied are averaged once."""
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    theirs, ours = AveragedModel(model, multi_avg_fn=reference), averaged_weights(model, wanted)
    assert ours is not None
    assert ours.state_dict().keys() == model.state_dict().keys()
    for step in range(20):
        train_a_little(model)
        before = {name: one.clone() for name, one in model.state_dict().items()}
        theirs.update_parameters(model)
        ours.take(step + 1)
        expected = theirs.module.state_dict()
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, expected[name]), name
        with ours.in_model():
            assert torch.equal(model.get_parameter("2.weight"), expected["0.weight"])
        assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize(
    ("averaging", "decays"),
    [
        ({"decay": 0.7, "ramp": False}, [0.7] * 8),
        ({"decay": 0.4, "ramp": True}, [2 / 11, 3 / 12, 4 / 13, 5 / 14, 0.4, 0.4, 0.4, 0.4]),
    ],
    ids=["steady", "ramped"],
)
def test_an_ema_of_a_run_is_that_of_its_steps(
    lab: Lab, averaging: dict[str, Any], decays: list[float]
) -> None:
    often = {"checkpoint": {"every_steps": 1, "keep_last": 100}, "averaging": averaging}
    patch = merged(EMA, often)
    outcome = lab.run(patch=patch)
    plain = lab.run(patch={"checkpoint": {"every_steps": 1}})
    average: dict[str, Tensor] = {}
    for step in range(1, 3 * EPOCH_STEPS + 1):
        weights = trained(outcome, step)
        # The training itself is the one that it would be without an average.
        assert all(torch.equal(one, delivered(plain, step)[n]) for n, one in weights.items())
        for name, one in weights.items():
            weight = 1.0 if step == 1 else 1 - decays[step - 2]
            average[name] = torch.lerp(average.get(name, one), one, weight)
        found = delivered(outcome, step)
        assert all(torch.equal(found[name], one) for name, one in average.items())
    assert not torch.equal(found["head.weight"], weights["head.weight"])


@pytest.mark.usefixtures("_normed")
def test_swa_of_a_run_is_torchs_with_its_statistics_updated(lab: Lab) -> None:
    outcome = lab.run(patch=SWA)
    assert trained(outcome, EPOCH_STEPS) == {}
    passes = NormedTask.shown[: len(NormedTask.shown) // 2], NormedTask.shown[-6:]
    model = Normed(torch.zeros(3))
    model.load_state_dict(delivered(outcome, EPOCH_STEPS))
    theirs = AveragedModel(model)
    for epoch, shown in zip((2, 3), passes, strict=True):
        assert sum(map(len, shown)) == 42
        weights = trained(outcome, epoch * EPOCH_STEPS)
        model.load_state_dict({**delivered(outcome, EPOCH_STEPS), **weights})
        theirs.update_parameters(model)
        update_bn(shown, theirs)
        found = delivered(outcome, epoch * EPOCH_STEPS)
        for name, tensor in theirs.module.state_dict().items():
            assert torch.equal(found[name], tensor), name
        in_the_next_epoch = delivered(outcome, 7) if epoch == 2 else found
        assert all(torch.equal(in_the_next_epoch[name], one) for name, one in found.items())
    assert not torch.equal(found["norm.running_mean"], weights["norm.running_mean"])


@pytest.mark.parametrize("patch", [EMA, SWA], ids=["ema", "swa"])
def test_what_is_evaluated_is_what_a_checkpoint_delivers(lab: Lab, patch: dict[str, Any]) -> None:
    """Also what the test looks at."""
    outcome = lab.run(patch=patch)
    best = outcome.result["best"]["step"]
    for step in {best, outcome.result["last"]["step"]}:
        found = scores_of_delivered(lab, patch, outcome, step)
        told = load(outcome.checkpoint(step), ()).body["metrics"]["val_loss"]
        assert found["last"]["val_loss"] == pytest.approx(told, rel=1e-5)
        if step == best:
            tested = outcome.result["test"]["test_loss"]
            assert found["test"]["test_loss"] == pytest.approx(tested, rel=1e-5)
    raw = lab.run(patch=merged(patch, {"averaging": {"kind": "none"}}))
    assert raw.result["last"]["val_loss"] != outcome.result["last"]["val_loss"]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("patch", [EMA, SWA], ids=["ema", "swa"])
@pytest.mark.usefixtures("_normed")
def test_a_run_interrupted_anywhere_ends_as_one_that_was_not(
    lab: Lab, patch: dict[str, Any], kill: bool
) -> None:
    """Also while the statistics of batch norm are updated."""
    stop = StopAtPoll()
    straight, polls = lab.run(patch=patch, stop=stop), stop.polls
    stale = 0
    anywhere = range(BUILDING_POLLS + 1, polls, 3)
    for first, resumed in lab.interrupted(straight, anywhere, patch, kill=kill):
        if first is not None:
            saved = any((first.folder / "checkpoints").glob("step-*[0-9]"))
            stale += saved and load(first.checkpoint(), ()).body["average"]["statistics_due"]
        assert resumed.result == straight.result
        last = 3 * EPOCH_STEPS
        if (resumed.folder / "checkpoints").is_dir():
            expected = trained(straight, last)
            assert all(torch.equal(o, expected[n]) for n, o in trained(resumed, last).items())
    assert bool(stale) == (patch is SWA and not kill)


@pytest.mark.usefixtures("_normed")
def test_a_stop_while_the_last_statistics_are_updated_is_made_good(lab: Lab) -> None:
    """Where nothing is evaluated the step is the same, and its checkpoint is written anew."""
    patch = merged(SWA, {"data": {"split": {"validation_fraction": 0.0}}, "early_stopping": None})
    straight, run_dir = lab.run(patch=patch), lab.new_run()
    count, last = len(NormedTask.shown), straight.result["last"]["step"]

    class Late(StopAtPoll):
        @property
        def requested(self) -> bool:
            return len(NormedTask.shown) > 2 * count - 3

    first = lab.run(run_dir, patch, stop=Late())
    assert load(first.checkpoint(), ()).body["average"]["statistics_due"]
    assert first.end is not None
    assert first.end.step == last
    resumed = lab.run(run_dir, patch)
    for name, tensor in delivered(straight, last).items():
        assert torch.equal(delivered(resumed, last)[name], tensor), name


@pytest.mark.usefixtures("_normed")
def test_whoever_takes_statistics_that_are_no_averages_is_warned(lab: Lab) -> None:
    """Not where none are taken, nor where a run goes on, which updates them."""
    first, whole = stopped_while_updating(lab), lab.run(patch=SWA)
    only_head = {"init_from": {"run": 1, "prefix": "head."}}

    def warned(of: Outcome, carry: str, **patch: Any) -> list[str]:
        restore = [{"path": str(of.checkpoint(6)), "carry": carry, "own": False}]
        told = lab.run(patch=patch or None, restore=restore).of_kind("warning")
        return [one["message"] for one in told if one["code"] == "statistics_stale"]

    for carry in ("weights", "init"):
        (message,) = warned(first, carry, init_from={"run": 1})
        assert "The checkpoint of step 6 was saved while batch norm's statistics" in message
        assert "begin with another checkpoint" in message
        assert not warned(whole, carry, init_from={"run": 1})
    assert not warned(first, "init", **only_head)
    assert not warned(first, "full", **SWA)


@pytest.mark.parametrize("patch", [EMA, SWA], ids=["ema", "swa"])
def test_smaller_micro_batches_have_the_same_average(lab: Lab, patch: dict[str, Any]) -> None:
    plain = {"recipe": {"dropout": 0.0}}
    straight = lab.run(patch=merged(patch, plain))
    cut = lab.run(patch=merged(patch, plain), rung=Rung(2, batch=3, evaluation_batch=2))
    expected = delivered(straight, 9)
    for name, tensor in delivered(cut, 9).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loader", ["stream", "dataloader"])
@pytest.mark.usefixtures("_normed")
def test_statistics_are_updated_between_epochs_of_any_loader(lab: Lab, loader: str) -> None:
    loaders: dict[str, dict[str, Any]] = {
        "stream": {"kind": "chunked", "residency": "stream", "chunk_size": "4KiB"},
        "dataloader": {"kind": "dataloader", "num_workers": 0},
    }
    straight = lab.run(patch=SWA)
    outcome = lab.run(patch=merged(SWA, {"data": {"loader": loaders[loader]}}))
    assert (outcome.weights, outcome.losses) == (straight.weights, straight.losses)


def test_the_best_may_be_of_the_time_before_the_average(lab: Lab) -> None:
    """And is tested as it was evaluated: as trained."""
    worse = merged(SWA, {"averaging": {"start_epoch": 3, "lr": 10.0}})
    outcome = lab.run(patch=worse)
    assert outcome.result["best"]["step"] <= 2 * EPOCH_STEPS
    plain = lab.run(patch=merged(SWA, {"averaging": {"kind": "none"}, "training": {"epochs": 3}}))
    step = outcome.result["best"]["step"]
    assert delivered(outcome, step).keys() == delivered(plain, step).keys()
    for name, tensor in delivered(plain, step).items():
        assert torch.equal(delivered(outcome, step)[name], tensor), name
    tested = scores_of_delivered(lab, worse, outcome, step)["test"]["test_loss"]
    assert outcome.result["test"]["test_loss"] == pytest.approx(tested, rel=1e-5)


def test_trained_weights_that_are_not_finite_are_not_kept_beside_an_average_that_is(
    lab: Lab,
) -> None:
    kept = load(lab.run(patch=EMA).checkpoint())
    (name, *_) = trained_names = [n for n in kept.parts["state"] if n.startswith(TRAINED)]
    kept.parts["state"][name] = torch.full_like(kept.parts["state"][name], torch.nan)
    assert len(trained_names) > 1
    with pytest.raises(TrainerError, match=name) as raised:
        publish(kept, lab.root / "step-9")
    assert raised.value.reason is Reason.nonfinite


def test_a_checkpoint_that_lacks_the_trained_weights_is_of_no_such_run(lab: Lab) -> None:
    run_dir = lab.new_run()
    first = lab.run(run_dir, EMA, stop=StopAtPoll(BUILDING_POLLS + 12))
    restore = [{"path": str(first.checkpoint()), "carry": "full", "own": True}]
    with pytest.raises(TrainerError, match=r"that are averaged .* unknown to this"):
        lab.run(run_dir, {}, restore=restore)
