"""One optimizer step, from the forward pass to the update, and that of an evaluation; no sync."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from worker.trainer.averaging import AveragedWeights
from worker.trainer.data.batch import NO_BUCKET, Batch, Bucket
from worker.trainer.data.tensors import resized
from worker.trainer.optimizers import set_learning_rate
from worker.trainer.randomness import same_random_numbers
from worker.trainer.recipes.base import Task, WeightedLoss, untouched
from worker.trainer.recipes.contract import require_gradient, require_terms
from worker.trainer.speed.compiler import compiled
from worker.trainer.speed.static_step import StaticStep, StaticSteps

WINDOW: Final = 0  # since the last log point
EPOCH: Final = 1  # since the epoch began

ONE_TERM: Final = MappingProxyType({"loss": 1.0})
NO_TABLES: Final = MappingProxyType[str, Tensor]({})


class Precision:
    """How numbers are rounded: autocast for the forward pass, loss scaling for fp16."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device = device
        self.dtype = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(name)
        self.scaler = self._new_scaler()

    def _new_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)

    def leave_step(self) -> None:
        """Forget a step that was begun and not ended; the scale stays as it is."""
        state, self.scaler = self.scaler.state_dict(), self._new_scaler()
        if state:
            self.scaler.load_state_dict(state)

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


class TrainingStep:
    """Gradients of one or more micro-batches, then one update of the weights.

    `loss_sums` (2, names + 1) are the sums of the losses over samples, by `loss_names` the whole
    and then its terms where it has several, and last the weight to divide them by: the number of
    samples, or what `WeightedLoss` says. The rows are since the last log point, and since the
    epoch's start. They stay on the device, in float64, until `worker.trainer.report.report` reads
    them; a loss that is not finite makes its sum so, which is how it is noticed.

    What is read afterwards is written in place, so that a CUDA graph may write it too. Where there
    is a `static` step, full steps go through it; others are launched one operation at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        clip_grad_norm: float | None,
        loss_weights: Mapping[str, float] = ONE_TERM,
        tables: Mapping[str, Tensor] = NO_TABLES,
        average: AveragedWeights | None = None,
    ) -> None:
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.precision = precision
        self.clip_grad_norm = clip_grad_norm
        self.loss_weights = loss_weights
        self.tables = dict(tables)
        self.average = average
        self.loss_names = ("loss", *loss_weights) if len(loss_weights) > 1 else ("loss",)
        self.loss_sums = torch.zeros(
            (2, len(self.loss_names) + 1), dtype=torch.float64, device=precision.device
        )
        self.sample_weight: Tensor | float = 0.0
        """The mean weight of a sample in the step under way, which its gradients are divided by; a
        number where all samples weigh the same, which needs no division.
        """
        self.grad_norm = torch.zeros((), device=precision.device)
        self.learning_rate = float(optimizer.defaults["lr"])
        self.static: StaticStep | StaticSteps | None = None
        self.under_way = False
        """Whether a step was begun and not ended."""
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._loss, self._measure = self._sample_losses, task.measure

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @property
    def has_finite_weights(self) -> bool:
        """Also of what the model keeps beside them; waits for the device."""
        each = chain(self.model.state_dict().values(), self.delivered().values())
        return all(bool(one.isfinite().all()) for one in each)

    def delivered(self) -> dict[str, Tensor]:
        """The model's state as it is evaluated and saved to be used: averaged where it is to be."""
        return self.average.state_dict() if self.average else self.model.state_dict()

    def compile(self, mode: str) -> None:
        """Compile what is computed of a batch; optimizer and clipping are fused kernels already."""
        self._loss, self._measure = compiled(self._loss, mode), compiled(self._measure, mode)

    def begin_epoch(self) -> None:
        """Before the first batch of each."""
        self.task.begin("epoch", self.model)

    @torch.no_grad()
    def begin_lanes(self, begins: Tensor) -> None:
        """Before a batch in which these places begin another series, bool (batch,)."""
        self.task.begin_lanes(self.model, begins)

    @torch.no_grad()
    def forget_carried(self) -> None:
        """Before a batch that does not follow on the one before it, in no place of it."""
        for tensor in self.task.carried(self.model).values():
            tensor.zero_()

    def made_up(self, size: int, bucket: Bucket = NO_BUCKET) -> Batch:
        """A batch of so many samples that are not of the data; packed arrays have the bucket's
        rows, those of the average without one.
        """
        batch = self.task.made_up(size, self.device)
        return replace(batch, arrays=resized(batch.arrays, bucket)) if bucket else batch

    def accumulate(self, batch: Batch, share: float) -> None:
        """Add a micro-batch, which is `share` (0 to 1) of the step's samples."""
        self.under_way = True
        if self.static is None or not self.static.take(batch, share):
            self._add_gradients(batch, share)

    def apply(self, learning_rate: float) -> None:
        """Clip the accumulated gradients, update the weights, forget the gradients."""
        self.learning_rate = learning_rate
        set_learning_rate(self.optimizer, learning_rate)
        if self.static is not None and self.static.is_full:
            self.static.run()
        else:
            self._update()
        self.under_way = False

    def compute(self, static: StaticStep) -> None:
        """A whole step of the batches that lie in `static`: what a CUDA graph captures."""
        for batch, share in static.micro_batches():
            self._add_gradients(batch, share)
        self._update()

    def _add_gradients(self, batch: Batch, share: float) -> None:
        with self.precision.autocast():
            losses, is_weighted = self._loss(self.model, self.with_tables(batch))
        self.precision.scaler.scale(losses[0] * share).backward()  # type: ignore[no-untyped-call]
        losses = losses.detach()
        self.loss_sums.add_(losses, alpha=batch.size)
        self.sample_weight = self.sample_weight + (losses[-1] * share if is_weighted else share)

    def with_tables(self, batch: Batch) -> Batch:
        """The batch with what the recipe has prepared."""
        return replace(batch, tables=self.tables) if self.tables else batch

    def _sample_losses(self, model: nn.Module, batch: Batch) -> tuple[Tensor, bool]:
        """Returns a row of `loss_sums` as means over the batch's samples: the sum of the terms
        times their factors, each term without its factor, and the weight of a sample. The second
        value is True if that weight differs from 1.
        """
        loss = self.task.loss(model, batch)
        require_terms(self.task, loss, self.loss_weights)
        terms, weight = (loss.sums, loss.weight) if isinstance(loss, WeightedLoss) else (loss, None)
        factored = [
            terms[name] if factor == 1.0 else terms[name] * factor
            for name, factor in self.loss_weights.items()
        ]
        total = factored[0].reshape(()) if len(factored) == 1 else torch.stack(factored).sum()
        require_gradient(self.task, total)
        each = [terms[name].detach() for name in self.loss_names[1:]]
        if weight is None:
            return torch.stack([total, *each, torch.ones_like(total)]), False
        return torch.stack([total, *each, weight]) / batch.size, True

    def _update(self) -> None:
        self.precision.scaler.unscale_(self.optimizer)
        self._divide_gradients()
        self.grad_norm.copy_(self._clip())
        self.precision.scaler.step(self.optimizer)
        self.precision.scaler.update()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Drop what was accumulated of a step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.sample_weight = 0.0

    def _divide_gradients(self) -> None:
        """Divides by the step's weight, which is known only after its last micro-batch."""
        weight = self.sample_weight
        if isinstance(weight, Tensor):
            # The gradients are 0 where nothing counts, and are divided by 1 then.
            torch._foreach_div_(self._gradients(), weight + (weight == 0))

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def _clip(self) -> Tensor:
        """The gradients' norm before clipping, on the device."""
        if self.clip_grad_norm is not None:
            return nn.utils.clip_grad_norm_(self._parameters, self.clip_grad_norm)
        return nn.utils.get_total_norm(self._gradients())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model as evaluations use it, with averaged weights where there are some, and nothing
        kept for gradients. What is drawn and what the task notes meanwhile is forgotten: an
        evaluation that a stop cuts short is repeated.
        """
        average = self.average.in_model() if self.average else nullcontext()
        with average, self.untouched(), torch.inference_mode():
            self.model.eval()
            self.task.begin("evaluation", self.model)
            yield
            self.model.train()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """What is drawn, and what the task notes or carries meanwhile, is forgotten."""
        with untouched(self.task, self.model), same_random_numbers(self.device):
            yield

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """What the task's scores need of a batch, as sums over its samples, on the device."""
        with self.precision.autocast():
            return self._measure(self.model, self.with_tables(batch))

    def look_at(self, batch: Batch) -> None:
        """A forward pass as the training makes it, not compiled, of which nothing is kept."""
        with self.precision.autocast():
            self.task.loss(self.model, self.with_tables(batch))

    def restart_loss(self, which: int) -> None:
        self.loss_sums[which] = 0.0


class ForwardPass(nn.Module):
    """`TrainingStep.look_at` as a module, by which torch updates batch norm's statistics."""

    def __init__(self, step: TrainingStep) -> None:
        super().__init__()
        self.model, self._step = step.model, step

    def forward(self, batch: Batch) -> None:
        self._step.look_at(batch)
