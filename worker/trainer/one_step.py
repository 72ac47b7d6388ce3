"""One training step and one evaluation of a spec, with batches made up, and the memory they took.

Model, optimizer, step and evaluation are the trainer's own. The data is not read: what a batch
takes depends on its shape alone, and a probe lasts seconds however large the data is.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.lifecycle import Reason
from app.spec.stored import read_stored
from worker.trainer.build import choose_precision, configure_torch, open_device
from worker.trainer.data.source import Field, at_full_length
from worker.trainer.data.transfer import made_up
from worker.trainer.failure import explain
from worker.trainer.memory import MemoryMeter
from worker.trainer.prepare import build_step
from worker.trainer.recipes import TASKS
from worker.trainer.step import Precision, TrainingStep

# The smaller of two batches: what a sample takes is the slope between them.
PART = 8
MEMORY_RAN_OUT = (Reason.host_oom, Reason.device_oom)


def measure_step(order: Mapping[str, Any]) -> dict[str, Any]:
    """Peaks in bytes where the model lies: above the imports on a host, of PyTorch on a GPU.

    `{training: [[batch, peak], [batch, peak]], accumulating: peak, evaluation: [batch, peak] or
    null, host_bytes, reserved_bytes or null}`, or `{error, out_of_memory: [phase, batch] or null}`.
    """
    probe = _Probe(order)
    try:
        return probe.run()
    except Exception as error:  # noqa: BLE001 - every failure is told as a sentence
        reason, message = explain(error, f"{probe.phase} with a batch of {probe.batch_size}")
        ran_out = [probe.phase, probe.batch_size] if reason in MEMORY_RAN_OUT else None
        return {"error": message, "out_of_memory": ran_out}


class _Probe:
    """`phase` and `batch_size` say what is under way."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._meter = MemoryMeter(torch.device(order["device"]))
        self.phase = "building"
        self.batch_size: int = order["batch_size"]

    def run(self) -> dict[str, Any]:
        order, meter = self._order, self._meter
        on_gpu = order["device"] != "cpu"
        whole, evaluated = order["batch_size"], order["evaluation_batch_size"]
        small, large = max(1, whole // PART), max(2, whole)
        step = self._build()
        training = [[size, self._train(step, size)] for size in (small, large)]
        accumulating = self._train(step, large, batches=2)
        return {
            "training": training,
            "accumulating": accumulating,
            "evaluation": [evaluated, self._evaluate(step, evaluated)] if evaluated else None,
            "host_bytes": meter.host_peak_bytes(),
            "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
        }

    def _build(self) -> TrainingStep:
        order = self._order
        spec = read_stored(order["spec"])
        device = open_device(order["device"])
        precision = choose_precision(spec.runtime.precision, device)
        configure_torch(spec.runtime, precision, order["threads"])
        self._fields: dict[str, Field] = {}
        for name, field in order["fields"].items():
            plain = Field(tuple(field["shape"]), np.dtype(field["dtype"]))
            self._fields |= at_full_length(name, plain) if field.get("ragged") else {name: plain}
        self._learning_rate = spec.optimizer.lr
        self._device = device
        task = TASKS[spec.recipe.kind].for_run(spec, self._fields)
        step = build_step(spec, task, {}, Precision(precision, device))
        step.compile(spec.runtime.compile.mode)
        return step

    def _train(self, step: TrainingStep, size: int, *, batches: int = 1) -> int:
        """The peak so far, after two steps: only the second has the optimizer's state beside it."""
        self.phase, self.batch_size = "training", size
        for _ in range(2):
            for _ in range(batches):
                step.accumulate(self._batch(size), size, 1 / batches)
            step.apply(self._learning_rate)
        return self._meter.peak_bytes()

    def _evaluate(self, step: TrainingStep, size: int) -> int:
        """The peak of an evaluation alone."""
        self.phase, self.batch_size = "evaluating", size
        self._meter.forget_peak()
        with step.evaluating():
            step.measure(self._batch(size)).tolist()  # waits for the device
        return self._meter.peak_bytes()

    def _batch(self, size: int) -> dict[str, Tensor]:
        return made_up(self._fields, size, self._device)
