"""Proves that the files of a script's checkpoint are whole, by what each of them is.

Many formats tell where they end: a file that was cut short does not match its own header or
directory. A format without such a mark proves nothing by itself.
"""

import ast
import gzip
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.manifest import MANIFEST
from worker.regular_files import open_regular

UNFINISHED = ("*.tmp", "*.incomplete", "checkpoint-is-incomplete.txt", "*.tmp-*")
# torch.save and pickle write files of these names. A cut one begins like a whole one.
SAVED = {".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".joblib"}
# Files of these names begin with one of the marks below; the others may be raw numbers.
MARKED = {".pt", ".pth", ".ckpt", ".npz", ".keras", ".npy", ".h5", ".hdf5", ".gz"}
PICKLE, PICKLE_END = b"\x80", b"."
# torch.save began so before 1.6: pickles, and raw numbers behind them.
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
HEAD_BYTES = 64
LARGEST_HEADER = 100 * 2**20
LARGEST_JSON = 64 * 2**20
# A larger one is not unpacked to see whether it is whole: that takes a second per 200 MB.
LARGEST_UNPACKED = 2**28
PIECE_BYTES = 2**20
SHARD = re.compile(r"(.*?)(\d+)([-_]of[-_])(\d+)(.*)", re.DOTALL)
# Hugging Face's Trainer writes it last of all.
TRAINER_STATE = "trainer_state.json"
# torch.distributed.checkpoint writes it when all shards are there.
SHARDS_OF_TORCH, METADATA_OF_TORCH = ".distcp", ".metadata"


class NotWhole(Exception):
    """It is no finished checkpoint, or a damaged one; the text says why."""


def is_proved(file: Path) -> bool:
    """Returns True if the file is whole by its own format, False if that has no mark.

    Raises NotWhole if it is cut short or damaged, OSError if it cannot be read.
    """
    if any(file.match(name) for name in UNFINISHED):
        raise NotWhole(f"{file.name} says that it is unfinished")
    with open_regular(file) as stream:
        head = stream.read(HEAD_BYTES)
        size = stream.seek(0, 2)
        for mark, check in CHECKS.items():
            if head.startswith(mark):
                return check(file, stream, size)
        if file.suffix == ".safetensors" or head[8:10] == b'{"':
            return _tensors(file, stream, size)
        if file.suffix == ".json" or head[:1] in (b"{", b"["):
            return _json(file, stream, size)
    if file.suffix in MARKED:
        raise NotWhole(f"{file.name} is cut short or damaged")
    return False


def require_complete(names: Collection[str], root: Path) -> None:
    """Raises NotWhole if a set of files lacks some that it names itself: shards "of N", or what an
    index lists. `names`: paths relative to `root`.
    """
    shards = dict[tuple[str, str, str], set[int]]()
    for name in names:
        if match := SHARD.fullmatch(name):
            before, number, between, count, behind = match.groups()
            shards.setdefault((before, f"{between}{count}", behind), set()).add(int(number))
    for (before, of, behind), numbers in shards.items():
        count = int(re.sub(r"\D", "", of))
        if len(numbers) < count:
            raise NotWhole(f"it has {len(numbers)} of {count} files {before}*{of}{behind}")
    folders = {str(PurePosixPath(name).parent) for name in names if name.endswith(SHARDS_OF_TORCH)}
    for folder in folders:
        if str(PurePosixPath(folder) / METADATA_OF_TORCH) not in names:
            raise NotWhole(f"it has no {METADATA_OF_TORCH}, which is written last")
    for name in names:
        if name.endswith(".index.json"):
            _require_listed(name, names, root)


def _require_listed(index: str, names: Collection[str], root: Path) -> None:
    with open_regular(root / index) as stream:
        data = stream.read(LARGEST_JSON)
    try:
        files = json.loads(data)["weight_map"].values()
        listed = {str(PurePosixPath(index).parent / str(file)) for file in files}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return  # It is an index of something else.
    if lacking := sorted(listed - set(names)):
        raise NotWhole(f"{index} lists {lacking[0]}, which is not there")


def _tensors(file: Path, stream: BufferedReader, size: int) -> bool:
    """The header of safetensors says where the last tensor ends."""
    is_named = file.suffix == ".safetensors"
    stream.seek(0)
    prefix = stream.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 0 < length <= LARGEST_HEADER:
        return _unless(is_named, f"{file.name} has no header of safetensors")
    try:
        header = json.loads(stream.read(length))
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _unless(is_named, f"the header of {file.name} cannot be read")
    if size != expected:
        raise NotWhole(f"{file.name} has {size} bytes, and its header tells of {expected}")
    return True


def _unless(is_named: bool, why: str) -> bool:
    if is_named:
        raise NotWhole(why)
    return False


def _zip(file: Path, stream: BufferedReader, size: int) -> bool:
    """A zip has its directory last: torch.save, npz, Keras."""
    try:
        with zipfile.ZipFile(stream) as archive:
            archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, struct.error) as error:
        raise NotWhole(f"{file.name} is cut short or damaged") from error
    return True


def _pickle(file: Path, stream: BufferedReader, size: int) -> bool:
    """A pickle ends with a point; so may a cut one, by chance."""
    stream.seek(0)
    if stream.read(len(OLD_TORCH)) == OLD_TORCH or file.suffix not in SAVED:
        return False
    stream.seek(size - 1)
    if stream.read(1) != PICKLE_END:
        raise NotWhole(f"{file.name} is cut short: a pickle ends otherwise")
    return False


def _hdf5(file: Path, stream: BufferedReader, size: int) -> bool:
    """The superblock of HDF5 says where the file ends, once it is closed or flushed.

    Source: HDF5 File Format Specification 3.0, "Disk Format: Level 0A".
    """
    stream.seek(0)
    head = stream.read(128)
    version = head[8] if len(head) > 8 else 0
    if version > 1:
        width, place = head[9], 12
    else:
        width, place = head[13] if len(head) > 13 else 0, 24 if version == 0 else 28
    begin = place + 2 * width
    field = head[begin : begin + width]
    if width not in (2, 4, 8) or len(field) != width:
        raise NotWhole(f"{file.name} is cut short: its superblock is not whole")
    end = int.from_bytes(field, "little")
    if size < end:
        raise NotWhole(f"{file.name} has {size} bytes, and its superblock tells of {end}")
    return size == end


def _npy(file: Path, stream: BufferedReader, size: int) -> bool:
    """The header of a NumPy array gives its shape and type.

    Source: numpy.lib.format. A type of several fields gives no size here.
    """
    stream.seek(6)
    version = stream.read(2)
    width = 2 if version[:1] == b"\x01" else 4
    length = int.from_bytes(stream.read(width), "little")
    if not 0 < length <= LARGEST_HEADER:
        raise NotWhole(f"{file.name} is cut short: it has no header of NumPy")
    try:
        header = ast.literal_eval(stream.read(length).decode("latin1"))
        match = re.fullmatch(r"[<>|=]?[biufc](\d+)", header["descr"])
        shape = tuple(int(entries) for entries in header["shape"])
    except (ValueError, SyntaxError, LookupError, TypeError, RecursionError, MemoryError) as error:
        raise NotWhole(f"the header of {file.name} cannot be read") from error
    if match is None:
        return False
    expected = 8 + width + length + int(match[1]) * _product(shape)
    if size != expected:
        raise NotWhole(f"{file.name} has {size} bytes, and its header tells of {expected}")
    return True


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for entries in shape:
        count *= entries
    return count


def _gzip(file: Path, stream: BufferedReader, size: int) -> bool:
    """The end of gzip is known by unpacking all of it."""
    if size > LARGEST_UNPACKED:
        return False
    stream.seek(0)
    try:
        with gzip.open(stream) as unpacked:
            unpacked_bytes = 0
            while piece := unpacked.read(PIECE_BYTES):
                unpacked_bytes += len(piece)
                if unpacked_bytes > 4 * LARGEST_UNPACKED:
                    return False
    except (EOFError, OSError, zlib.error) as error:
        raise NotWhole(f"{file.name} is cut short or damaged") from error
    return True


def _json(file: Path, stream: BufferedReader, size: int) -> bool:
    if size > LARGEST_JSON:
        return False
    stream.seek(0)
    data = stream.read()
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        is_one = file.suffix == ".json" and not _is_json(data.partition(b"\n")[0])
        return _unless(is_one, f"{file.name} is no whole JSON")
    return True


def _is_json(line: bytes) -> bool:
    """True of the first of JSON lines, which have no mark of their end."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


Check = Callable[[Path, BufferedReader, int], bool]
CHECKS: Mapping[bytes, Check] = {
    b"PK\x03\x04": _zip,
    b"\x89HDF\r\n\x1a\n": _hdf5,
    b"\x93NUMPY": _npy,
    b"\x1f\x8b": _gzip,
    PICKLE: _pickle,
}


def require_free_name(names: Collection[str]) -> None:
    """Raises NotWhole if a file has the name of the manifest, which Stoker adds."""
    if MANIFEST in names:
        raise NotWhole(f"it has a file {MANIFEST}, which is a name of Stoker's own")


def ends_with_trainer_state(times: Mapping[str, Any]) -> bool:
    """Returns True if no file is newer than the one that Hugging Face's Trainer writes last.

    `times`: when each file was written, by its name.
    """
    return TRAINER_STATE in times and times[TRAINER_STATE] == max(times.values())
