"""Files of tensors: to the byte what the library writes, and never silently short."""

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from worker.trainer import disk
from worker.trainer.tensor_file import NAMES, pieces_of

SHAPES = [(), (0,), (3,), (2, 0), (2, 3), (1, 1, 5)]


def every_kind() -> dict[str, torch.Tensor]:
    """Each type of numbers in each shape, in an order that is not that of the file."""
    tensors: dict[str, torch.Tensor] = {}
    for dtype in reversed(NAMES):
        for shape in SHAPES:
            name = f"{str(dtype)[::-1]}.{len(tensors)}"
            tensors[name] = torch.ones(shape).to(dtype)
    return tensors


def test_the_bytes_are_those_of_the_library() -> None:
    torch.manual_seed(0)
    tensors = every_kind() | {'quote" and ä': torch.randn(7, 3), "bits": torch.randn(33) > 0}
    assert b"".join(pieces_of(tensors)) == safetensors.torch.save(tensors)
    assert b"".join(pieces_of({})) == safetensors.torch.save({})


def test_no_tensor_is_copied() -> None:
    tensor = torch.randn(7, 3)
    _, piece = pieces_of({"weight": tensor})
    assert np.frombuffer(piece, np.float32).ctypes.data == tensor.data_ptr()


def test_a_type_that_the_format_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match=r"weight is of torch\.complex64; a checkpoint can keep"):
        pieces_of({"weight": torch.zeros(2, dtype=torch.complex64)})


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files of this process end at so many bytes: a write over it is cut, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    yield 1_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_is_cut_is_gone_on_with(tmp_path: Path, small_files: int) -> None:
    with pytest.raises(OSError, match="too large") as caught:
        disk.write_file(tmp_path / "file", [memoryview(bytes(small_files + 1))])
    assert caught.value.errno == errno.EFBIG
    disk.write_file(tmp_path / "fits", [memoryview(b"ab"), memoryview(b"c")])
    assert (tmp_path / "fits").read_bytes() == b"abc"
