"""Averaged weights: what SWA and EMA make of the trained ones, and evaluations look at.

The formulas are torch's (torch.optim.swa_utils). Its AveragedModel waits for the device at each
update, and copies the whole model with what a recipe keeps in it; here the one model gets the
averaged weights while they are needed, and has its own back afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_avg_fn

from app.spec.optimization import Averaging, ExponentialAveraging, NoAveraging

Update = Callable[[list[Tensor], list[Tensor], int], None]


class AveragedWeights:
    """A second copy of a model's parameters on its device, into which they enter one by one.

    Of SWA also the statistics of batch norm, which are those of the averaged weights; an average
    over steps (EMA) is so close to the weights that it has theirs, as in torch's AveragedModel.
    """

    def __init__(self, model: nn.Module, update: Update, *, with_statistics: bool) -> None:
        self._model, self._update = model, update
        self._statistics = dict(statistics_of(model)) if with_statistics else {}
        self._parameters = {name: one.detach() for name, one in model.named_parameters()}
        self.live = {**self._parameters, **self._statistics}
        """What is averaged, as it is trained, by its name in the model's state."""
        self._kept = {name: tensor.detach().clone() for name, tensor in self.live.items()}
        self.count = 0
        """How often the weights have entered; 0: there is no average yet."""
        self.step = 0
        """The step after which they entered last."""
        self.put_aside = False
        """Whether the model was given other weights, which are to be looked at as they are."""
        self.statistics_due = False
        """Whether batch norm's statistics are not yet those of these averaged weights."""

    @torch.no_grad()
    def take(self, step: int) -> None:
        """Have the weights enter as they are after this step. Waits for nothing."""
        if self.count == 0:
            for name, tensor in self.live.items():
                self._kept[name].copy_(tensor)
        else:
            averaged = [self._kept[name] for name in self._parameters]
            self._update(averaged, list(self._parameters.values()), self.count)
        self.count, self.step = self.count + 1, step
        self.statistics_due = bool(self._statistics)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Within it the model has the averaged weights, if there are any."""
        if self.count == 0 or self.put_aside:
            yield
            return
        # Taken once: where it does not fit, nothing was exchanged yet.
        largest = max(self.live.values(), key=lambda tensor: tensor.nbytes)
        room = torch.empty(largest.nbytes, dtype=torch.uint8, device=largest.device)
        self._exchange(room)
        try:
            yield
        finally:
            self._exchange(room)

    @torch.no_grad()
    def _exchange(self, room: Tensor) -> None:
        """In place: a captured step, and cuDNN's one block of weights, go on to find them there."""
        for name, live in self.live.items():
            before = room[: live.nbytes].view(live.dtype).view(live.shape).copy_(live)
            live.copy_(self._kept[name])
            self._kept[name].copy_(before)

    def state_dict(self) -> dict[str, Tensor]:
        """The model's, with the averaged weights in the place of all that they are averages of."""
        kept = {id(live): self._kept[name] for name, live in self._named()} if self.count else {}
        state = self._model.state_dict(keep_vars=True)
        return {name: kept.get(id(tensor), tensor).detach() for name, tensor in state.items()}

    def trained(self) -> dict[str, Tensor]:
        """What a checkpoint has beside `state_dict`: none before there is an average."""
        return self.live if self.count else {}

    def place(self) -> dict[str, int | bool]:
        """What a manifest has of it."""
        return {"count": self.count, "step": self.step, "statistics_due": self.statistics_due}

    @torch.no_grad()
    def restore(self, trained: dict[str, Tensor], place: Mapping[str, Any]) -> None:
        """Once the model has been given what `state_dict` gave."""
        self.count, self.step = place["count"], place["step"]
        self.statistics_due = place["statistics_due"]
        for name, tensor in trained.items():
            self._kept[name].copy_(self.live[name])
            self.live[name].copy_(tensor)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """As the model's state has them, and not detached."""
        yield from self._model.named_parameters()
        yield from self._statistics.items()


def averaged_weights(model: nn.Module, wanted: Averaging) -> AveragedWeights | None:
    """None where the weights are to be delivered as trained."""
    if isinstance(wanted, NoAveraging):
        return None
    if isinstance(wanted, ExponentialAveraging):
        return AveragedWeights(model, _exponentially(wanted), with_statistics=False)
    return AveragedWeights(model, _equally, with_statistics=True)


def _exponentially(wanted: ExponentialAveraging) -> Update:
    """The decay is a number of the host, so that no update waits for the device.

    It ramps up from the first update on: otherwise the average would be mostly weights that were
    hardly trained, in a run that is not much longer than the decay looks back.
    """

    def update(averaged: list[Tensor], weights: list[Tensor], count: int) -> None:
        decay = min(wanted.decay, (1 + count) / (10 + count)) if wanted.ramp else wanted.decay
        get_ema_multi_avg_fn(decay)(averaged, weights, count)  # type: ignore[no-untyped-call]

    return update


def _equally(averaged: Sequence[Tensor], weights: Sequence[Tensor], count: int) -> None:
    """One after another, so that no second copy of all of them is made."""
    mean = get_swa_avg_fn()  # type: ignore[no-untyped-call]
    for kept, live in zip(averaged, weights, strict=True):
        kept.copy_(mean(kept, live, count))


def statistics_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers of batch norm, by their names in the model's state."""
    for place, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield from module.named_buffers(place, recurse=False)
