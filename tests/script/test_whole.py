"""What a file itself says of being whole."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from worker.script.whole import NotWhole, proves_itself, require_whole

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
DEEP = b"[" * 100_000


def tensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(8)


def newer_zip() -> bytes:
    """Of a version that this Python cannot read."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", "x")
    data = bytearray(file.getvalue())
    data[data.index(b"PK\x01\x02") + 6] = 99
    return bytes(data)


TENSORS = tensors(HEADER)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.safetensors", TENSORS[:-1], "its header tells of"),
        ("a.safetensors", b"\x01", "no header"),
        ("a.safetensors", struct.pack("<Q", 3) + b"{{{", "cannot be read"),
        ("a.safetensors", tensors(b'{"w": {"data_offsets": [0, "8"]}}'), "cannot be read"),
        ("a.safetensors", tensors(b'{"w": {"data_offsets": []}}'), "cannot be read"),
        ("a.safetensors", tensors(DEEP), "cannot be read"),
        ("a.pt", newer_zip(), "cut short or damaged"),
        ("trainer_state.json", DEEP, "no whole JSON"),
        ("a.pt", b"PK\x03\x04....", "cut short"),
        ("a.ckpt", b"", "cut short"),
        ("a.bin", b"PK\x03\x04....", "cut short"),
        ("a.pkl", b"\x80\x04K\x01", "a pickle ends otherwise"),
        ("trainer_state.json", b'{"a":', "no whole JSON"),
        ("x.tmp", b"", "unfinished"),
    ],
)
def test_what_is_not_whole_says_why(tmp_path: Path, name: str, data: bytes, why: str):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NotWhole, match=why):
        require_whole(tmp_path)


def test_what_is_whole_is_taken(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(TENSORS)
    (tmp_path / "old.pt").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "older.pt").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + b"raw numbers")
    (tmp_path / "numbers.bin").write_bytes(b"raw numbers")
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("data", "x")
    require_whole(tmp_path)


@pytest.mark.parametrize(("seconds", "proof"), [(0, True), (-1, True), (1, False)])
def test_a_folder_proves_itself_by_a_trainer_state_that_nothing_is_newer_than(
    tmp_path: Path, seconds: int, proof: bool
):
    for name, at in (("trainer_state.json", 1_000), ("model.safetensors", 1_000 + seconds)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    assert proves_itself(tmp_path) == proof


def test_a_folder_without_that_proves_nothing(tmp_path: Path):
    assert not proves_itself(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert not proves_itself(tmp_path)
