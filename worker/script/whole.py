"""Whether the files of a script's checkpoint are whole: by the formats that tell it."""

import json
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

from stoker.manifest import MANIFEST

UNFINISHED = ("*.tmp", "*.incomplete", "checkpoint-is-incomplete.txt", "*.tmp-*")
# What torch.save and pickle write, under whatever name.
SAVED = {".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".joblib"}
# A file that torch.save has to have zipped, unless it is older than PyTorch 1.6.
ZIPPED = {".pt", ".pth", ".ckpt"}
ZIP, PICKLE, PICKLE_END = b"PK\x03\x04", b"\x80", b"."
# How torch.save began before 1.6: pickles, and raw numbers behind them.
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
TRAINER_STATE = "trainer_state.json"
LARGEST_HEADER = 100 * 2**20


class NotWhole(Exception):
    """It is no finished checkpoint, or a damaged one; the text says why."""


def require_whole(path: Path) -> None:
    """Raises NotWhole where a file is unfinished or cannot be read as what its name says."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        if any(file.match(name) for name in UNFINISHED):
            raise NotWhole(f"{file.name} says that it is unfinished")
        if file == path / MANIFEST:
            raise NotWhole(f"it has a file {MANIFEST}, which is a name of Stoker's own")
        if file.suffix == ".safetensors":
            _require_tensors(file)
        elif file.suffix in SAVED:
            _require_saved(file)
        elif file.name == TRAINER_STATE:
            _require_json(file)


def _require_tensors(file: Path) -> None:
    """The header says where each tensor ends: so large the file has to be."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= LARGEST_HEADER:
            raise NotWhole(f"{file.name} has no header of safetensors")
        try:
            header = json.loads(stream.read(length))
            ends = [
                one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"
            ]
            size = 8 + length + max(ends, default=0)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise NotWhole(f"the header of {file.name} cannot be read") from error
    if file.stat().st_size != size:
        raise NotWhole(
            f"{file.name} has {file.stat().st_size} bytes, and its header tells of {size}"
        )


def _require_saved(file: Path) -> None:
    """A zip has its directory last, a pickle ends with a point; what is neither tells nothing."""
    start, end = _ends_of(file)
    if start.startswith(PICKLE):
        if not start.startswith(OLD_TORCH) and end != PICKLE_END:
            raise NotWhole(f"{file.name} is cut short: a pickle ends otherwise")
    elif start.startswith(ZIP) or file.suffix in ZIPPED:
        try:
            with zipfile.ZipFile(file) as archive:
                archive.namelist()
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, struct.error) as error:
            raise NotWhole(f"{file.name} is cut short or damaged") from error


def proves_itself(file: Path) -> bool:
    """Whether a cut one cannot pass for a whole one. A folder may lack files, or have some of an
    earlier save, unless the newest is the one that Hugging Face's Trainer writes last.
    """
    if file.suffix == ".safetensors" and file.is_file():
        return True
    with suppress(OSError):
        if file.is_dir():
            times = {p: p.stat().st_mtime_ns for p in file.rglob("*") if p.is_file()}
            return times.get(file / TRAINER_STATE) == max(times.values(), default=0)
        return file.suffix in SAVED and _ends_of(file)[0].startswith(ZIP)
    return False


def _ends_of(file: Path) -> tuple[bytes, bytes]:
    """How it begins, and its last byte."""
    with file.open("rb") as stream:
        start = stream.read(len(OLD_TORCH))
        stream.seek(max(0, stream.seek(0, 2) - 1))
        return start, stream.read(1)


def _require_json(file: Path) -> None:
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise NotWhole(f"{file.name} is no whole JSON") from error
