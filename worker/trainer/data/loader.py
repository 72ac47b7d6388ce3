"""Opens a run's data: checks it against the spec, chooses the residency, gives the batch streams."""

from collections.abc import Mapping
from typing import Any

import torch

from app.spec.run import RunSpec
from worker.trainer.data.batch import Batches
from worker.trainer.data.source import Field


class DataSet:
    """A run's data: three batch streams (validation and test may be None) and what describes them.

    `counters`: .bytes_read, .wait_seconds (time the loop waited for data), .queue_depth (chunks
    that wait to be used; None when resident).
    """

    train: Batches
    validation: Batches | None
    test: Batches | None
    fields: Mapping[str, Field]

    def statistics(self, names: tuple[str, ...]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """(mean, std) of each field over the training part, float64 on the CPU.

        Inputs: one value per feature, shape (last axis,), or () for one number a sample; targets:
        shape (), over all steps. A constant feature has std 1. DataError on NaN or infinity.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What was chosen and why, as JSON for applied.json."""
        raise NotImplementedError

    def close(self) -> None:
        """Join every reader and give the memory back."""
        raise NotImplementedError


def open_data(
    spec: RunSpec,
    datasets: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    host_budget_bytes: int | None = None,
) -> DataSet:
    """Open the datasets of spec.json (name → path, fingerprint, …) for `spec` on `device`.

    `host_budget_bytes`: host memory that data may take on a CPU device; None: half of what is
    available. Raises DataError, DatasetChanged, SpecMismatch.
    """
    raise NotImplementedError
