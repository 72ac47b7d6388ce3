"""Windows that a file keeps as series, cut out on the device."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from worker.trainer.data.group_source import GroupSource
from worker.trainer.data.source import Field, Rows
from worker.trainer.data.transfer import SeriesWindows, Slot, Transfer


def load_series(
    source: GroupSource,
    rows: Rows,
    slot: Slot,
    make_transfer: Callable[[Mapping[str, Field]], Transfer],
) -> Iterator[int]:
    """Put the steps that the windows of these rows slide over into device memory, and into the slot
    how they are cut; yields after each piece with the bytes it had.
    """
    for name, windows in source.windows.items():
        starts, series = windows.starts[rows], source.stored[name]
        first, end = int(starts.min()), int(starts.max()) + windows.length
        transfer = make_transfer(series.fields)
        steps = transfer.new_slot(end - first, 0)
        yield from transfer.load(series, np.arange(first, end), steps)
        transfer.end_loading()
        transfer.close()
        [array] = steps.arrays.values()
        slot.windows[name] = SeriesWindows.of(array, starts - first, windows.length)
