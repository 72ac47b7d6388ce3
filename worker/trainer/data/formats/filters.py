"""HDF5's filters by their registered numbers: which pack an array, and what they are called."""

from contextlib import suppress

import h5py

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
