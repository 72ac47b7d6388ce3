"""Named arrays as tensors."""

from collections.abc import Mapping
from math import ceil

import numpy as np
import torch
from torch import Tensor

from worker.trainer.data.source import Field, in_rows

# torch.index_select on a CPU copies a row of so many numbers with all threads, which wait for each
# other behind each row: for long, where another program has one of the cores. Of smaller rows each
# thread copies its share (at::internal::GRAIN_SIZE).
ROW_OF_ALL_THREADS, MOST_PARTS = 32_768, 1_024


def torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    """The same type, in torch's words."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def empty_arrays(
    fields: Mapping[str, Field], samples: int, device: str | torch.device, *, pin_memory: bool
) -> dict[str, Tensor]:
    """(samples, *field.shape) of each, of which nothing is set."""
    return {
        name: torch.empty(
            (samples, *field.shape),
            dtype=torch_dtype(field.dtype),
            device=device,
            pin_memory=pin_memory,
        )
        for name, field in fields.items()
    }


def made_up(
    fields: Mapping[str, Field], samples: int, device: str | torch.device
) -> dict[str, Tensor]:
    """A batch of nothing but ones, in the shapes and types of the data; of packed arrays with as
    many rows as so many samples have on average, and one that is free.
    """
    batch = empty_arrays(in_rows(fields), samples, device, pin_memory=False)
    for name, field in fields.items():
        if field.rows is not None:
            rows = ceil(samples * field.rows) + 1
            batch |= empty_arrays({name: field}, rows, device, pin_memory=False)
    # Not zeros, which a host may hand out without memory behind them.
    return {name: batch[name].fill_(1) for name in fields}


def resized(arrays: Mapping[str, Tensor], rows: Mapping[str, int]) -> dict[str, Tensor]:
    """With so many rows of some arrays: their first ones, over and over."""
    found = dict(arrays)
    for name, count in rows.items():
        array = arrays[name]
        found[name] = array[torch.arange(count, device=array.device) % len(array)]
    return found


def rows_of(arrays: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """Views of rows [start, stop) of each."""
    return {name: array[start:stop] for name, array in arrays.items()}


def parts_to_copy(length: int, numbers: int, device: torch.device) -> int:
    """Into how many equal parts to cut rows of `length` steps of so many numbers, so that threads
    copy parts by themselves; 1 where no parts are equal, and on a GPU.
    """
    least = length * numbers // ROW_OF_ALL_THREADS + 1
    if least == 1 or device.type != "cpu":
        return 1
    most = min(length, MOST_PARTS)
    return next((parts for parts in range(least, most + 1) if length % parts == 0), 1)


def take_steps(table: Tensor, begins: Tensor, length: int, out: Tensor) -> None:
    """Copy `length` steps of the table (steps, …) from each of `begins` on to the rows of `out`."""
    numbers = table.shape[1:].numel()
    parts = parts_to_copy(length, numbers, table.device)
    steps = length // parts
    # Each part that there could be: views of the table that overlap.
    every = table.as_strided((len(table) - steps + 1, steps * numbers), (numbers, 1))
    if parts > 1:
        begins = (begins[:, None] + torch.arange(0, length, steps)).flatten()
    torch.index_select(every, 0, begins, out=out.view(len(begins), -1))
