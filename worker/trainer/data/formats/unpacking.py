"""How the chunks of packed arrays become values again, each into memory that is there already."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, cast

import h5py
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from worker.trainer.data.formats.filters import BLOSC, LZ4, LZF, ZSTD, filters_of

Bytes = NDArray[np.uint8]
Decompress = Callable[[Any, Bytes], None]
"""(packed bytes, where the chunk goes): fills it to its end, or raises one of ERRORS."""
# What unpacking damaged bytes raises. isal's stubs call its exception an instance of one.
ERRORS = (RuntimeError, ValueError, EOFError, cast("type[Exception]", isal_zlib.error))

# What a Blosc buffer of one block begins with that is stored as it is, but for its shuffling:
# version, version of the codec, flags, bytes of a value, bytes of all, of a block, of the buffer;
# where the block begins, and its bytes (README_CHUNK_FORMAT of c-blosc 1).
BLOSC_HEADER = struct.Struct("<BBBBIIIII")
BLOSC_VERSION, BLOSC_CODEC_VERSION = 2, 1
BLOSC_SHUFFLED, BLOSC_ONE_STREAM = 0x01, 0x10
MOST_BLOSC_BYTES = 2**29


class Shuffled:
    """Memory for a chunk whose bytes were sorted by their place in a value."""

    def __init__(self, size: int, itemsize: int) -> None:
        """`size`: bytes of the chunk, `itemsize`: of a value."""
        begin = BLOSC_HEADER.size
        header = BLOSC_HEADER.pack(
            *(BLOSC_VERSION, BLOSC_CODEC_VERSION, BLOSC_SHUFFLED | BLOSC_ONE_STREAM),
            *(itemsize, size % 2**32, size % 2**32, (begin + size) % 2**32),
            *(begin - struct.calcsize("<I"), size % 2**32),
        )
        self._buffer = np.empty(begin + size, np.uint8)
        self._buffer[:begin] = np.frombuffer(header, np.uint8)
        self._itemsize = itemsize
        self.bytes = self._buffer[begin:]

    def unshuffle(self, out: Bytes) -> None:
        """By Blosc at 17 GiB/s, without it at 3."""
        if _codecs() is not None and self.bytes.size <= MOST_BLOSC_BYTES:
            _codec("blosc_decode", self._buffer, out)
            return
        values = out.reshape(-1, self._itemsize)
        for number, plane in enumerate(self.bytes.reshape(self._itemsize, -1)):
            values[:, number] = plane  # a transposed copy would run at 0.4


class Scratch:
    """Memory that a thread needs to unpack chunks of one array, one after the other: to take new
    memory for each takes longer than to unpack it.
    """

    def __init__(self, size: int, itemsize: int) -> None:
        self.chunk = np.empty(size, np.uint8)
        self.shuffled = Shuffled(size, itemsize)


@dataclass(frozen=True)
class Packing:
    """By what the chunks of an array were packed: shuffled or not, then compressed or not."""

    shuffled: bool
    decompress: Decompress | None

    def unpack(self, data: Any, left_out: int, scratch: Scratch, out: Bytes) -> None:
        """`left_out`: a bit for each filter that did not pack this chunk. Raises one of ERRORS."""
        shuffled = self.shuffled and not left_out & 1
        into = scratch.shuffled.bytes if shuffled else out
        if self.decompress is not None and not left_out >> self.shuffled & 1:
            self.decompress(data, into)
        else:
            _fill(into, data)
        if shuffled:
            scratch.shuffled.unshuffle(out)


def packing_of(array: h5py.Dataset) -> Packing | None:
    """None where only HDF5 can unpack it, or a library of the extra `filters` is missing."""
    codes = [code for code, _ in filters_of(array)]
    shuffled = codes[:1] == [h5py.h5z.FILTER_SHUFFLE]
    compressors = codes[shuffled:]
    if not compressors:
        return Packing(shuffled, None)
    decompress = _decompressor(compressors[0])
    return Packing(shuffled, decompress) if decompress and len(compressors) == 1 else None


def _decompressor(code: int) -> Decompress | None:
    if code == h5py.h5z.FILTER_DEFLATE:
        return _inflate
    return BY_CODECS.get(code) if _codecs() is not None else None


@cache
def _codecs() -> ModuleType | None:
    """None without the extra `filters`."""
    try:
        import imagecodecs  # late: it takes 0.2 s, and few files need it
    except ImportError:
        return None
    return imagecodecs


def _codec(name: str, data: Any, out: Bytes) -> None:
    _require(len(getattr(_codecs(), name)(data, out=out)), out)


def _inflate(data: Any, out: Bytes) -> None:
    # No further than a chunk goes: damaged bytes can say that they grow without end.
    stream = isal_zlib.decompressobj()
    _fill(out, stream.decompress(data, out.size))
    if not stream.eof and (stream.decompress(stream.unconsumed_tail, 1) or not stream.eof):
        raise ValueError("a chunk does not end where it is full")


def _lzf(data: Any, out: Bytes) -> None:
    _codec("lzf_decode", data, out)


def _zstd(data: Any, out: Bytes) -> None:
    _codec("zstd_decode", data, out)


def _lz4(data: Any, out: Bytes) -> None:
    _require(int.from_bytes(bytes(data[:8]), "big"), out)
    _codec("lz4h5_decode", data, out)


def _blosc(data: Any, out: Bytes) -> None:
    _require(int.from_bytes(bytes(data[4:8]), "little"), out)
    if int.from_bytes(bytes(data[12:16]), "little") != len(data):  # it would be read beyond its end
        raise ValueError("a chunk says that it is longer or shorter than it is")
    _codec("blosc_decode", data, out)


def _fill(out: Bytes, data: Any) -> None:
    _require(len(data), out)
    out[:] = np.frombuffer(data, np.uint8)


def _require(found: int, out: Bytes) -> None:
    """Damaged bytes unpack to fewer than they should, or say that they are any number."""
    if found != out.size:
        raise ValueError(f"a chunk has {found:,} bytes, and {out.size:,} would be right")


BY_CODECS: dict[int, Decompress] = {
    LZF: _lzf,
    LZ4: _lz4,
    ZSTD: _zstd,
    BLOSC: _blosc,
}
