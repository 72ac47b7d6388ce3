"""HDF5's filters by their registered numbers: which pack an array, and how each is unpacked."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, cast

import h5py
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Unpack = Callable[[Any, int, int], Any]
"""(packed bytes, bytes of the whole chunk, bytes of a value) → bytes of the whole chunk."""
# What unpacking damaged bytes raises. isal's stubs call its exception an instance of one.
ERRORS = (RuntimeError, ValueError, EOFError, cast("type[Exception]", isal_zlib.error))

LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD, BLOSC2 = 32000, 32001, 32004, 32008, 32015, 32026
NAMES = {
    h5py.h5z.FILTER_DEFLATE: "gzip",
    h5py.h5z.FILTER_SZIP: "szip",
    LZF: "lzf",
    BLOSC: "blosc",
    LZ4: "lz4",
    BITSHUFFLE: "bitshuffle",
    ZSTD: "zstd",
    BLOSC2: "blosc2",
}


def filters_of(array: h5py.Dataset) -> list[tuple[int, str]]:
    """(number, name) of each, in the order in which they packed."""
    properties = array.id.get_create_plist()
    found = (properties.get_filter(number) for number in range(properties.get_nfilters()))
    return [(code, NAMES.get(code) or _said(name) or str(code)) for code, _, _, name in found]


def _said(name: bytes) -> str:
    """What the file calls it: `HDF5 zstd filter; see https://…`."""
    return name.decode("utf-8", "replace").partition(";")[0].strip()[:40]


def missing_filter(array: h5py.Dataset) -> str | None:
    """The name of a filter that HDF5 has not got here, its plugins included if there are any."""
    for code, name in filters_of(array):
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import hdf5plugin  # noqa: F401 - tells HDF5 of its filters
            if not h5py.h5z.filter_avail(code):
                return name
    return None


def compression_of(array: h5py.Dataset) -> str | None:
    """What makes the array smaller; None where nothing does."""
    order = (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)
    return next((name for code, name in filters_of(array) if code not in order), None)


def unpack_of(code: int) -> Unpack | None:
    """How the filter is undone; None where only HDF5 can, or a library of the extra is missing."""
    if code in OWN:
        return OWN[code]
    return BY_CODECS[code] if code in BY_CODECS and _codecs() is not None else None


@cache
def _codecs() -> ModuleType | None:
    """None without the extra `filters`."""
    try:
        import imagecodecs  # late: it takes 0.2 s, and few files need it
    except ImportError:
        return None
    return imagecodecs


def _inflate(data: Any, whole: int, itemsize: int) -> bytes:
    # No further than a chunk goes: damaged bytes can say that they grow without end.
    unpacked: bytes = isal_zlib.decompressobj().decompress(data, whole)
    return unpacked


def _unshuffle(data: Any, whole: int, itemsize: int) -> Bytes:
    """Bytes that were sorted by their place in a value, back into values."""
    planes: Bytes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    values = np.empty((planes.shape[1], itemsize), np.uint8)
    for number, plane in enumerate(planes):  # 2.1 GiB/s; as a transposed copy 0.4
        values[:, number] = plane
    return values.reshape(-1)


def _lzf(data: Any, whole: int, itemsize: int) -> Any:
    return _of_codecs("lzf_decode")(data, out=whole)


def _zstd(data: Any, whole: int, itemsize: int) -> Any:
    return _of_codecs("zstd_decode")(data, out=whole)


def _lz4(data: Any, whole: int, itemsize: int) -> Any:
    _require(int.from_bytes(bytes(data[:8]), "big"), whole)
    return _of_codecs("lz4h5_decode")(data)


def _blosc(data: Any, whole: int, itemsize: int) -> Any:
    _require(int.from_bytes(bytes(data[4:8]), "little"), whole)
    return _of_codecs("blosc_decode")(data)


def _of_codecs(name: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(_codecs(), name))


def _require(said: int, whole: int) -> None:
    """Damaged bytes can ask for any amount of memory."""
    if said != whole:
        raise ValueError(f"a chunk says that it holds {said:,} bytes, and {whole:,} would be right")


OWN: dict[int, Unpack] = {
    h5py.h5z.FILTER_DEFLATE: _inflate,
    h5py.h5z.FILTER_SHUFFLE: _unshuffle,
}
BY_CODECS: dict[int, Unpack] = {LZF: _lzf, LZ4: _lz4, ZSTD: _zstd, BLOSC: _blosc}
