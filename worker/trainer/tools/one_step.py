"""One training step and one evaluation of a spec, with batches made up, and the memory they took.

Model, optimizer, step and evaluation are the trainer's own. The data is not read: what a batch
takes depends on its shape alone, and a probe lasts seconds however large the data is.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from app.lifecycle import Reason
from app.planning.packing import RowSpread, rounded_rows
from app.spec.stored import read_stored
from worker.trainer.build import build_step
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field, at_full_length
from worker.trainer.device import choose_precision, configure_torch, open_device
from worker.trainer.failure import explain
from worker.trainer.recipes import task_of
from worker.trainer.recipes.sums import Sums
from worker.trainer.report.memory import MemoryMeter, host_free_bytes
from worker.trainer.step import Precision, TrainingStep

# The smaller of two batches: what a sample takes is the slope between them.
PART = 8
# So many steps are timed, or as many as begin within the seconds.
TIMED_STEPS, TIMED_SECONDS = 20, 2.0
MEMORY_RAN_OUT = (Reason.host_oom, Reason.device_oom)


def measure_step(order: Mapping[str, Any]) -> dict[str, Any]:
    """Peaks in bytes where the model lies: above the imports on a host, of PyTorch on a GPU.

    `{training: [[batch, peak], [batch, peak]], samples_per_second: [rate, rate], accumulating:
    peak, evaluation: [batch, peak] or null, host_bytes, reserved_bytes or null, parameters,
    torch}`, or `{error, out_of_memory: [phase, batch] or null, least_bytes}`: it took as much.
    """
    probe = _Probe(order)
    try:
        return probe.run()
    except Exception as error:  # noqa: BLE001 - every failure is told as a sentence
        phase = f"{probe.phase} with a batch of {probe.batch_size}"
        reason, message = explain(error, phase, logged=False)
        if reason not in MEMORY_RAN_OUT:
            return {"error": message, "out_of_memory": None}
        ran_out = [probe.phase, probe.batch_size]
        return {"error": message, "out_of_memory": ran_out, "least_bytes": probe.least_bytes()}


class _Probe:
    """`phase` and `batch_size` say what is under way."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._meter = MemoryMeter(torch.device(order["device"]))
        self._free_bytes = _free_bytes(order["device"])
        self.phase = "building"
        self.batch_size: int = order["batch_size"]

    def least_bytes(self) -> int:
        """What a step that ran out of memory took at least: all that was free before."""
        return max(self._free_bytes, self._meter.peak_bytes())

    def run(self) -> dict[str, Any]:
        order, meter = self._order, self._meter
        on_gpu = order["device"] != "cpu"
        whole, evaluated = order["batch_size"], order["evaluation_batch_size"]
        small, large = max(1, whole // PART), max(2, whole)
        step = self._build()
        peaks, rates = [], []
        for size in (small, large):
            peaks.append([size, self._train(step, size)])
            rates.append(self._rate(step, size))
        accumulating = self._train(step, large, batches=2)
        return {
            "training": peaks,
            "samples_per_second": rates,
            "accumulating": accumulating,
            "evaluation": [evaluated, self._evaluate(step, evaluated)] if evaluated else None,
            "host_bytes": meter.host_peak_bytes(),
            "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
            "parameters": sum(p.numel() for p in step.model.parameters()),
            "torch": torch.__version__,
        }

    def _build(self) -> TrainingStep:
        order = self._order
        spec = read_stored(order["spec"])
        device = open_device(order["device"])
        precision = choose_precision(spec.runtime.precision, device)
        configure_torch(spec.runtime, precision, order["threads"])
        fields: dict[str, Field] = {}
        for name, field in order["fields"].items():
            shape, dtype = tuple(field["shape"]), np.dtype(field["dtype"])
            feature = field.get("target_feature")
            plain = Field(shape, dtype, field.get("rows"), target_feature=feature)
            fields |= at_full_length(name, plain) if field.get("ragged") else {name: plain}
        self._learning_rate = spec.optimizer.lr
        task = task_of(spec.recipe.kind).for_run(spec, fields)
        step = build_step(
            spec, task, {}, Precision(precision, device), tables=task.made_up_tables()
        )
        step.compile(spec.runtime.compile.mode)
        return step

    def _largest(self, step: TrainingStep, size: int) -> Batch:
        """Of so many samples the largest that a step is captured for: half of the batches of packed
        samples are larger than the mean.
        """
        spreads = {name: RowSpread(**one) for name, one in self._order.get("spreads", {}).items()}
        rows = {name: rounded_rows(one.likely(size)) for name, one in spreads.items()}
        return step.made_up(size, rows)

    def _train(self, step: TrainingStep, size: int, *, batches: int = 1) -> int:
        """The peak so far, after two steps: only the second has the optimizer's state beside it."""
        self.phase, self.batch_size = "training", size
        for _ in range(2):
            for _ in range(batches):
                step.accumulate(self._largest(step, size), 1 / batches)
            step.apply(self._learning_rate)
        return self._meter.peak_bytes()

    def _rate(self, step: TrainingStep, size: int) -> float:
        """Samples a second of steps that wait for nothing, of batches as they are on average."""
        batch, made = step.made_up(size), 0
        began = time.perf_counter()
        while made < TIMED_STEPS and (not made or time.perf_counter() - began < TIMED_SECONDS):
            step.accumulate(batch, 1.0)
            step.apply(self._learning_rate)
            made += 1
        step.grad_norm.item()  # waits for the device
        return made * size / (time.perf_counter() - began)

    def _evaluate(self, step: TrainingStep, size: int) -> int:
        """The peak of an evaluation alone."""
        self.phase, self.batch_size = "evaluating", size
        self._meter.forget_peak()
        with step.evaluating():
            sums = Sums(step.task)
            sums.add(step.measure(self._largest(step, size)), size)
            sums.totals()  # waits for the device
        return self._meter.peak_bytes()


def _free_bytes(device: str) -> int:
    """Where the model will lie."""
    if device == "cpu":
        return host_free_bytes()
    free: int = torch.cuda.mem_get_info(device)[0]
    return free
