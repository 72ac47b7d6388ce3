"""The samples of a dataset one by one, and batches of them: what torch's DataLoader asks for."""

import pickle
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from app.lifecycle import Reason
from app.planning.residency import LEAST_PLACED_BYTES
from worker.trainer.data.batch import ONE_SHAPE, BatchShapes
from worker.trainer.data.batch_memory import filled_up
from worker.trainer.data.feed.rows import in_file_order, inverse, read_rows
from worker.trainer.data.layouts.layout import Layout, packed_fields
from worker.trainer.data.source import (
    Arrays,
    Field,
    OpenSource,
    Rows,
    Source,
    bytes_per_sample,
    in_rows,
)
from worker.trainer.data.tensors import empty_arrays, torch_dtype
from worker.trainer.errors import TrainerError

# Of the error of a process, which travels to the trainer.
MOST_ERROR_CHARACTERS = 1000

Fetched = dict[str, Tensor] | Exception
"""A batch's arrays, or what hindered them: torch would raise it as a traceback."""


class BatchSource(Protocol):
    """Gives batches of samples by their numbers; it may be sent to another process."""

    def batch(self, rows: Rows) -> dict[str, Tensor]:
        """These samples, in this order, in memory of their own on the host."""

    def close(self) -> None:
        """Give the file back, where this process has read it."""


class Samples(Dataset[Arrays]):
    """The samples of a registered dataset: a map-style dataset over its file, which each process
    opens for itself.
    """

    def __init__(
        self,
        open_source: OpenSource,
        num_samples: int,
        layouts: Iterable[Layout] = (),
        shapes: BatchShapes = ONE_SHAPE,
    ) -> None:
        """`layouts`: of its arrays, some of which may be packed; `shapes`: of batches then."""
        self._open_source = open_source
        self._num_samples = num_samples
        self._layouts, self._shapes = tuple(layouts), shapes
        self._source: Source | None = None

    def __len__(self) -> int:
        """All samples of the dataset, those of every part."""
        return self._num_samples

    def __getitem__(self, row: int) -> Arrays:
        """A sample's arrays by name, in the shapes and types of the file; packed ones have the rows
        of this sample, whose numbers count them.
        """
        source, rows = self._opened(), np.array([row])
        in_row = {name: one[0].numpy() for name, one in self._rows(source, rows).items()}
        return in_row | packed_fields(self._layouts, source, rows)

    def batch(self, rows: Rows) -> dict[str, Tensor]:
        """These samples, (samples, *shape) each; packed arrays one behind another, filled up where
        there are shapes of batches.

        Raises DataError, DatasetChanged.
        """
        source = self._opened()
        arrays = self._rows(source, rows)
        packed = packed_fields(self._layouts, source, rows)
        if not packed:
            return arrays
        arrays |= {name: torch.from_numpy(one) for name, one in packed.items()}
        if not self._shapes.by_size:
            return arrays
        return filled_up(arrays, source.fields, self._shapes, len(rows))

    def _opened(self) -> Source:
        if self._source is None:
            self._source = self._open_source()
        return self._source

    def _rows(self, source: Source, rows: Rows) -> dict[str, Tensor]:
        """Of fields that have a row a sample."""
        fields = in_rows(source.fields)
        ascending, positions = in_file_order(rows)
        out = empty_arrays(fields, len(rows), "cpu", pin_memory=False)
        arrays = {name: tensor.numpy() for name, tensor in out.items()}
        if ascending is rows:
            read_rows(source, rows, arrays)
        elif source.places_rows and bytes_per_sample(fields) >= LEAST_PLACED_BYTES:
            read_rows(source, ascending, arrays, positions)
        else:
            read_rows(source, ascending, arrays)
            places = torch.from_numpy(inverse(positions))
            return {name: tensor.index_select(0, places) for name, tensor in out.items()}
        return out

    def close(self) -> None:
        """Give the file back, where this process has read it."""
        if self._source is not None:
            self._source.close()
            self._source = None


MakeDataset = Callable[[Samples], Dataset[Mapping[str, Any]]]
"""`Task.dataset` of a run's recipe."""


class MadeSamples:
    """Those that a recipe's dataset makes of the file's."""

    def __init__(self, make: MakeDataset, stored: Samples, fields: Mapping[str, Field]) -> None:
        """`fields`: what the recipe says that they have. Raises TrainerError where there are not as
        many as in the file.
        """
        made: Any = make(stored)
        self._made = made
        self._stored = stored
        self._fields = fields
        if (count := len(made)) != len(stored):
            raise _not_as_declared(
                f"has {count:,} samples, and the registered one {len(stored):,}: the split and the "
                "order are those of the file, so each sample of it needs one"
            )

    def batch(self, rows: Rows) -> dict[str, Tensor]:
        """Put together by torch's `default_collate`."""
        fetch = getattr(self._made, "__getitems__", None)
        numbers = rows.tolist()
        samples = fetch(numbers) if fetch else [self._made[number] for number in numbers]
        if len(samples) != len(numbers):
            raise _not_as_declared(
                f"gives {len(samples):,} samples where its __getitems__ was asked for "
                f"{len(numbers):,}: each number needs its sample"
            )
        batch: dict[str, Tensor] = default_collate(samples)
        for name, field in self._fields.items():
            given = batch.get(name)
            wanted = f"{torch_dtype(field.dtype)} {field.shape}"
            if given is None:
                raise _not_as_declared(f"gives no {name!r}, which dataset_arrays declares")
            if f"{given.dtype} {tuple(given.shape[1:])}" != wanted:
                raise _not_as_declared(
                    f"gives {name!r} as {given.dtype} {tuple(given.shape[1:])}, which "
                    f"dataset_arrays declares as {wanted}"
                )
        return {name: batch[name] for name in self._fields}

    def close(self) -> None:
        """Give the file back, where this process has read it."""
        self._stored.close()


class Batched(Dataset[Fetched]):
    """What torch's DataLoader fetches batches from, each in one call."""

    def __init__(self, samples: BatchSource) -> None:
        self._samples = samples

    def __getitems__(self, rows: Rows) -> Fetched:
        try:
            return self._samples.batch(rows)
        except TrainerError as error:
            return error
        except Exception as error:  # noqa: BLE001 - raised again in the loop
            traceback.print_exc()
            return _able_to_travel(error)

    def close(self) -> None:
        """Give the file back, where this process has read it."""
        self._samples.close()


def _not_as_declared(what: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error, f"The dataset of Task.dataset {what}. Mend the recipe's package."
    )


def _able_to_travel(error: Exception) -> Exception:
    """The error, or one that says the same, where it is long or cannot be sent."""
    told = str(error)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of this very process
    except Exception:  # noqa: BLE001 - whatever its class does wrong
        return RuntimeError(f"{type(error).__name__}: {told[:MOST_ERROR_CHARACTERS]}")
    if len(told) <= MOST_ERROR_CHARACTERS:
        return error
    return RuntimeError(f"{type(error).__name__}: {told[:MOST_ERROR_CHARACTERS]}")
