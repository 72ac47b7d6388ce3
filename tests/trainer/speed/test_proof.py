"""Steps that are tried before a training: what tells a wrong one, and what they leave behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from app.spec.optimization import SGD, Adam, AdamW, Optimizer
from tests.trainer.lab import Lab, unstopped
from tests.trainer.speed.test_mixed_precision import build_step
from tests.trainer.test_numerics import spec_of
from worker.trainer.data.batch import BatchPlan
from worker.trainer.optimizers import make_capturable, make_plain
from worker.trainer.speed import cuda_graph
from worker.trainer.speed.cuda_graph import Capturer, Replay, prove
from worker.trainer.speed.proof import STEPS, chosen_from, difference, identical, try_steps
from worker.trainer.speed.static_step import StaticStep, full_step

CPU = torch.device("cpu")


class Small:
    """A step of fp16 with everything in it that a capture could get wrong; its samples."""

    def __init__(self, wanted: Optimizer | None = None) -> None:
        self.step, self.task, self.samples = build_step(wanted)
        self.step.model = torch.nn.Sequential(self.step.model, torch.nn.Dropout(0.1))
        make_capturable(self.step.optimizer)
        shapes = full_step(BatchPlan(128, 64, False), 2)
        self.static = StaticStep(shapes, self.step.made_up)
        self.train(2)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(2):
                self.step.accumulate(self.samples, 0.5)
            self.step.apply(0.01)

    def try_it(self, *, launched: bool) -> Any:
        self.step.static = None if launched else self.static
        return try_steps(self.step, self.static.shapes, chosen_from(self.samples), 1e-5)

    def state(self) -> list[torch.Tensor]:
        step = self.step
        moments = [value for state in step.optimizer.state.values() for value in state.values()]
        kept = (*step.model.parameters(), *moments, step.loss_sums, step.grad_norm)
        return [tensor.detach().clone() for tensor in (*kept, torch.get_rng_state())]


def right(small: Small) -> None:
    small.step.compute(small.static)


def keeps_the_first_rate(small: Small) -> None:
    small.step.optimizer.param_groups[0]["lr"].fill_(2.5e-6)
    small.step.compute(small.static)


def keeps_the_last_rate(small: Small) -> None:
    small.step.optimizer.param_groups[0]["lr"].fill_(1e-5)
    small.step.compute(small.static)


def keeps_the_first_batch(small: Small) -> None:
    for batch, _ in small.static.micro_batches():
        for name, array in batch.arrays.items():
            array.copy_(small.samples.arrays[name])
    small.step.compute(small.static)


def draws_the_same_again(small: Small) -> None:
    with torch.random.fork_rng([]):
        small.step.compute(small.static)


def keeps_its_gradients(small: Small) -> None:
    small.step.compute(small.static)
    for parameter in small.step.model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0**16)  # the scale


def forgets_its_moments(small: Small) -> None:
    small.step.compute(small.static)
    for state in small.step.optimizer.state.values():
        state["exp_avg"].zero_()


def forgets_a_loss(small: Small) -> None:
    small.step.compute(small.static)
    small.step.loss_sums.mul_(0.99)


def scales_on_its_own(small: Small) -> None:
    small.step.compute(small.static)
    small.step.precision.scaler.update(1024.0)


def loses_itself(small: Small) -> None:
    small.step.compute(small.static)
    small.step.loss_sums.fill_(float("nan"))


WRONG: dict[Callable[[Small], None], str] = {
    keeps_the_first_rate: "their weights ended",
    keeps_the_last_rate: "their weights ended",
    keeps_the_first_batch: "their losses or gradients are off by",
    draws_the_same_again: "they draw other random numbers",
    keeps_its_gradients: "their losses or gradients are off by",
    forgets_its_moments: "their weights ended",
    forgets_a_loss: "their losses or gradients are off by",
    scales_on_its_own: "their loss scales differ",
    loses_itself: "their losses or gradients are off by nan",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong.__name__))
def test_a_step_that_goes_wrong_is_found_out(wrong: Callable[[Small], None]) -> None:
    small = Small()
    small.static.run_by(lambda: wrong(small))
    launched, replayed = small.try_it(launched=True), small.try_it(launched=False)
    assert WRONG[wrong] in str(difference(launched, replayed, exact=False))


@pytest.mark.parametrize("wanted", [AdamW(), Adam(kind="adam"), SGD(kind="sgd")])
def test_steps_that_are_tried_agree_and_leave_no_trace(wanted: Optimizer) -> None:
    small = Small(wanted)
    small.static.run_by(lambda: right(small))
    before, scale = small.state(), small.step.precision.scaler.state_dict()
    launched, replayed = small.try_it(launched=True), small.try_it(launched=False)
    assert difference(launched, replayed, exact=True) is None
    assert identical(launched, replayed)
    assert len({tuple(row) for row in launched.figures.tolist()}) == STEPS
    for now, then in zip(small.state(), before, strict=True):
        assert torch.equal(now, then)
    assert small.step.precision.scaler.state_dict() == scale
    assert all(parameter.grad is None for parameter in small.step.model.parameters())


def test_last_bits_matter_where_the_run_is_to_be_deterministic() -> None:
    def a_little_off(small: Small) -> None:
        small.step.compute(small.static)
        small.step.grad_norm.mul_(1 + 2e-7)

    small = Small()
    small.static.run_by(lambda: a_little_off(small))
    launched, replayed = small.try_it(launched=True), small.try_it(launched=False)
    assert difference(launched, replayed, exact=False) is None
    assert "differ in the last bits" in str(difference(launched, replayed, exact=True))


@pytest.mark.parametrize(
    ("factor", "rate", "told"),
    [(float("inf"), 0.01, "not finite and cannot be compared"), (1.0, 0.0, "show nothing")],
)
def test_steps_that_show_nothing_prove_nothing(factor: float, rate: float, told: str) -> None:
    small = Small(AdamW(weight_decay=0.0))
    small.task.factor = factor
    trial = try_steps(small.step, small.static.shapes, chosen_from(small.samples), rate)
    assert told in str(difference(trial, trial, exact=False))


def test_a_step_that_fp16_skips_is_skipped_by_both() -> None:
    small = Small()
    small.static.run_by(lambda: right(small))
    small.step.precision.scaler.update(2.0**127)
    launched, replayed = small.try_it(launched=True), small.try_it(launched=False)
    assert not launched.figures[0, -1].isfinite()
    assert "show nothing" in str(difference(launched, replayed, exact=False))


def test_a_capture_that_breaks_in_mid_step_leaves_a_step_that_trains_on(lab: Lab) -> None:
    """Its gradients were scaled back, which PyTorch allows once a step."""
    small, plain = Small(), Small()

    class InMidStep(Capturer):
        def capture(self, whole: Replay) -> Replay:
            sums = small.step.loss_sums.clone()
            clip = small.step._clip
            small.step._clip = interrupted  # type: ignore[method-assign]
            try:
                whole()
            finally:
                small.step._clip = clip  # type: ignore[method-assign]
                small.step.loss_sums.copy_(sums)  # a capture computes nothing
            return whole

    def interrupted() -> torch.Tensor:
        raise RuntimeError("cannot be captured")

    spec = spec_of({})
    with pytest.raises(RuntimeError, match="cannot be captured"):
        prove(
            small.step,
            small.static,
            chosen_from(small.samples),
            spec,
            InMidStep(),
            unstopped(lab.root),
        )
    cuda_graph._launch_again(small.step)
    make_plain(plain.step.optimizer)
    for one in (small, plain):
        torch.manual_seed(1)
        one.train(2)
    for found, expected in zip(small.state(), plain.state(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("wanted", [AdamW(), Adam(kind="adam"), SGD(kind="sgd", momentum=0.0)])
def test_an_optimizer_that_can_be_recorded_computes_the_same(wanted: Optimizer) -> None:
    """From its first step on, and once it is made plain again."""
    ended = []
    for capturable in (False, True):
        step, _, batch = build_step(wanted)
        if capturable:
            make_capturable(step.optimizer)
        for number in range(4):
            if number == 3 and capturable:
                make_plain(step.optimizer)
            step.accumulate(batch, 1.0)
            step.apply(2.0 ** -(4 + number))
        document = step.optimizer.state_dict()
        ended.append((document["state"], [p.detach() for p in step.model.parameters()]))
        assert document["param_groups"][0]["lr"] == 2.0**-7
        assert not document["param_groups"][0].get("capturable")
    torch.testing.assert_close(ended[1], ended[0], rtol=0, atol=0)


def test_a_step_that_changes_its_mind_is_an_error() -> None:
    small = Small()
    small.step.static = small.static
    small.step.accumulate(small.samples, 0.5)
    with pytest.raises(RuntimeError, match="did not go on as one"):
        small.step.accumulate(small.samples, 0.25)
    with pytest.raises(RuntimeError, match="no full step"):
        small.static.run()
