"""The files that every arm reads: windows as float32, in the layouts that users have."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

NAMES = ("features", "targets")
WINDOW, HORIZON = 360, 36
SHUFFLED = {"shuffle": True}
# As users write them: one piece; or compressed, in chunks of a few windows.
LAYOUTS: dict[str, Mapping[str, Any]] = {
    "contiguous": {},
    "gzip": {"compression": "gzip", "compression_opts": 4, **SHUFFLED},
}
with suppress(ImportError):  # the extra `filters`
    import hdf5plugin

    LAYOUTS |= {
        "zstd": {**hdf5plugin.Zstd(clevel=3), **SHUFFLED},
        "lz4": {**hdf5plugin.LZ4(), **SHUFFLED},
    }
LAYOUTS["lzf"] = {"compression": "lzf", **SHUFFLED}
ROWS_OF_A_CHUNK = 16
WRITTEN_AT_ONCE = 256


@dataclass(frozen=True)
class DataFile:
    """`features` (samples, 360, features) and `targets` (samples, 36); `checksum` tells what an
    epoch has to bring: the sum of every sample's first target.
    """

    path: Path
    samples: int
    features: int
    checksum: float

    @property
    def row_bytes(self) -> int:
        return 4 * WINDOW * self.features

    @property
    def sample_bytes(self) -> int:
        return self.row_bytes + 4 * HORIZON

    @property
    def bytes(self) -> int:
        return self.samples * self.sample_bytes


def write(folder: Path, layout: str, samples: int, features: int) -> DataFile:
    """Measured values as sensors give them: slow waves, noise in the last of few digits."""
    path = folder / f"{layout}-{samples}-{features}.h5"
    random = np.random.default_rng(7)
    options = dict(LAYOUTS[layout])
    if options:
        options["chunks"] = (min(ROWS_OF_A_CHUNK, samples), WINDOW, features)
    checksum = 0.0
    with h5py.File(path, "w") as file:
        windows = file.create_dataset("features", (samples, WINDOW, features), "f4", **options)
        targets = file.create_dataset("targets", (samples, HORIZON), "f4")
        for start in range(0, samples, WRITTEN_AT_ONCE):
            stop = min(start + WRITTEN_AT_ONCE, samples)
            windows[start:stop] = _waves(random, stop - start, features)
            ahead = random.integers(0, 1000, (stop - start, HORIZON)).astype(np.float32)
            targets[start:stop] = ahead
            checksum += float(ahead[:, 0].sum(dtype=np.float64))
    return DataFile(path, samples, features, checksum)


def _waves(random: np.random.Generator, rows: int, features: int) -> NDArray[np.float32]:
    begin = random.uniform(0, 6, (rows, 1, features))
    time = begin + np.linspace(0, 4, WINDOW)[None, :, None]
    noise = random.integers(-2, 3, (rows, WINDOW, features), dtype=np.int8)
    return (np.round(40 * np.sin(time)) / 8 + noise / 8).astype(np.float32)
