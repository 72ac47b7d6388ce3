"""One optimizer step, from the forward pass to the update, and that of an evaluation; no sync."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch
from torch import Tensor, nn

from worker.trainer.compiler import compiled
from worker.trainer.optimizers import set_learning_rate
from worker.trainer.randomness import same_random_numbers
from worker.trainer.recipes.base import Arrays, Task, untouched
from worker.trainer.static_step import StaticStep

WINDOW: Final = 0  # since the last log point
EPOCH: Final = 1  # since the epoch began


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

    `loss_sums` are the losses times their samples since the last log point and since the epoch's
    start. They stay on the device, in float64, until `worker.trainer.report` reads them; a loss
    that is not finite makes its sum so, which is how it is noticed.

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
    ) -> None:
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.precision = precision
        self.clip_grad_norm = clip_grad_norm
        self.loss_sums = torch.zeros(2, dtype=torch.float64, device=precision.device)
        self.loss_samples = [0, 0]
        self.grad_norm = torch.zeros((), device=precision.device)
        self.learning_rate = float(optimizer.param_groups[0]["lr"])
        self.static: StaticStep | None = None
        self.under_way = False
        """Whether a step was begun and not ended."""
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._loss, self._measure = task.loss, task.measure

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @property
    def has_finite_weights(self) -> bool:
        """Also of what the model keeps beside them; waits for the device."""
        return all(bool(one.isfinite().all()) for one in self.model.state_dict().values())

    def compile(self, mode: str) -> None:
        """Compile what is computed of a batch; optimizer and clipping are fused kernels already."""
        self._loss, self._measure = compiled(self._loss, mode), compiled(self._measure, mode)

    def accumulate(self, arrays: Arrays, size: int, share: float) -> None:
        """Add a micro-batch of `size` samples, which is `share` (0 to 1) of the step's samples."""
        self.under_way = True
        if self.static is None or not self.static.take(arrays, size, share):
            self._add_gradients(arrays, size, share)
        self.loss_samples = [samples + size for samples in self.loss_samples]

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
        """A whole step of the batches that lie in `static`: what a CUDA graph records."""
        for arrays, size, share in static.micro_batches():
            self._add_gradients(arrays, size, share)
        self._update()

    def _add_gradients(self, arrays: Arrays, size: int, share: float) -> None:
        with self.precision.autocast():
            loss = self._loss(self.model, arrays)
        self.precision.scaler.scale(loss * share).backward()  # type: ignore[no-untyped-call]
        self.loss_sums.add_(loss.detach(), alpha=size)

    def _update(self) -> None:
        self.precision.scaler.unscale_(self.optimizer)
        self.grad_norm.copy_(self._clip())
        self.precision.scaler.step(self.optimizer)
        self.precision.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _clip(self) -> Tensor:
        """The gradients' norm before clipping, on the device."""
        if self.clip_grad_norm is not None:
            return nn.utils.clip_grad_norm_(self._parameters, self.clip_grad_norm)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return nn.utils.get_total_norm(gradients)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model as evaluations use it, and nothing kept for gradients. What is drawn and what
        the task notes meanwhile is forgotten: an evaluation that a stop cuts short is repeated.
        """
        with untouched(self.task), same_random_numbers(self.device), torch.inference_mode():
            self.model.eval()
            yield
            self.model.train()

    def measure(self, arrays: Arrays) -> Tensor:
        """What the task's scores need of a batch, as means: float64 on the device."""
        with self.precision.autocast():
            return self._measure(self.model, arrays)

    def restart_loss(self, which: int) -> None:
        self.loss_sums[which] = 0.0
        self.loss_samples[which] = 0
