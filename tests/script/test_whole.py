"""Each format proves that a file of it is whole, or says why not."""

import gzip
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from worker.script.whole import NotWhole, ends_with_trainer_state, is_proved, require_complete

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
        ("a.json", b'{"a":', "no whole JSON"),
        ("a.npz", b"", "cut short"),
        ("a.h5", b"", "cut short"),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00{", "cannot be read"),
        ("x.tmp", b"", "unfinished"),
    ],
)
def test_what_is_not_whole_says_why(tmp_path: Path, name: str, data: bytes, why: str):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NotWhole, match=why):
        is_proved(tmp_path / name)


def write_npz(path: Path) -> None:
    with path.open("wb") as file:  # under any name
        np.savez(file, a=np.arange(10))


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(10_000)


def write_latest_hdf5(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file["a"] = np.arange(10_000)


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones((3, 5), "f4"))


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(10_000)))


def write_tensors(path: Path) -> None:
    path.write_bytes(TENSORS)


def write_json(path: Path) -> None:
    path.write_text(json.dumps({"step": [1, 2, 3]}))


WRITERS = [
    write_npz, write_hdf5, write_latest_hdf5, write_npy, write_gzip, write_tensors, write_json,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_with_a_mark_is_proved_and_a_cut_one_never(tmp_path: Path, write, share: float):
    whole, cut = tmp_path / "step_5", tmp_path / "step_6"
    write(whole)
    assert is_proved(whole)
    data = whole.read_bytes()
    cut.write_bytes(data[: int(len(data) * share)])
    try:
        assert not is_proved(cut)
    except NotWhole:
        return


def test_files_without_a_mark_prove_nothing(tmp_path: Path):
    for name, data in {
        "old.pt": b"\x80\x02}q\x00.",
        "older.pt": pickle.dumps(0x1950A86A20F9469CFC6C, 2) + b"raw numbers",
        "numbers.bin": b"raw numbers",
        "merges.txt": b"",
        "lines.jsonl": b'{"a": 1}\n{"a": 2}\n',
        "lines.json": b'{"a": 1}\n{"a": ',
    }.items():
        (tmp_path / name).write_bytes(data)
        assert not is_proved(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["m-00001-of-00003.bin", "m-00003-of-00003.bin"], "2 of 3 files m-"),
        (["model.ckpt.data-00000-of-00002", "model.ckpt.index"], "1 of 2 files"),
        (["rank/__0_0.distcp"], "no .metadata"),
        (["a.safetensors", "model.safetensors.index.json"], "lists b.safetensors"),
    ],
)
def test_a_set_that_names_files_which_are_not_there_is_not_complete(
    tmp_path: Path, names: list[str], why: str
):
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    )
    with pytest.raises(NotWhole, match=why):
        require_complete(names, tmp_path)


def test_a_set_with_all_of_its_files_is_complete(tmp_path: Path):
    (tmp_path / "other.index.json").write_text("[]")
    require_complete(
        ["m-1-of-2.bin", "m-2-of-2.bin", "m-0-of-1", "s/.metadata", "s/__0_0.distcp",
         "other.index.json"],
        tmp_path,
    )  # fmt: skip


@pytest.mark.parametrize(("time", "is_last"), [(5, True), (4, True), (6, False)])
def test_a_folder_of_hugging_face_is_done_when_nothing_is_newer_than_its_state(time, is_last):
    assert ends_with_trainer_state({"trainer_state.json": 5, "model.bin": time}) is is_last


def test_a_folder_without_that_says_nothing():
    assert not ends_with_trainer_state({})
    assert not ends_with_trainer_state({"model.bin": 5})
