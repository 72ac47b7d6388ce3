"""What is written to a disk: files that the library reads, and never silently short."""

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from worker.trainer.checkpoints import disk, snapshot

SHAPES = [(), (0,), (3,), (2, 0), (2, 3), (1, 1, 5)]
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


def test_tensors_come_back_and_others_may_read_the_file(tmp_path: Path) -> None:
    tensors = {f"{t}.{s} ä": torch.ones(s).to(t) for t in TYPES for s in SHAPES}
    disk.write_file(tmp_path / "file", tensors)
    found = safetensors.torch.load((tmp_path / "file").read_bytes())
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_memory_is_taken_beside_the_tensors(tmp_path: Path) -> None:
    tensors = {"weight": torch.randn(2**25)}  # 128 MiB
    Path("/proc/self/clear_refs").write_text("5")
    before = _most_resident()
    disk.write_file(tmp_path / "file", tensors)
    assert _most_resident() - before < 2**25


def _most_resident() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files of this process end at so many bytes: a write over it is cut, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    yield 1_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("content", [bytes(1_001), {"weight": torch.zeros(250)}], ids=type)
def test_a_write_that_is_cut_is_an_error_of_the_system(
    tmp_path: Path, small_files: int, content: disk.Content
) -> None:
    with pytest.raises(OSError, match="too large") as caught:
        disk.write_file(tmp_path / "file", content)
    assert caught.value.errno == errno.EFBIG
    disk.write_file(tmp_path / "fits", bytes(small_files))
    assert (tmp_path / "fits").stat().st_size == small_files


def test_what_is_no_error_of_the_system_stays_what_it_is(tmp_path: Path) -> None:
    shared = torch.zeros(5)
    with pytest.raises(RuntimeError, match="share memory"):
        disk.write_file(tmp_path / "file", {"one": shared, "other": shared})


def test_tied_weights_are_written_under_each_name(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    last = snapshot.on_cpu({"embedding": weight, "head": weight, "view": weight[1:]})
    assert last["embedding"].data_ptr() == weight.data_ptr()
    disk.write_file(tmp_path / "file", last)
    found = safetensors.torch.load((tmp_path / "file").read_bytes())
    assert torch.equal(found["head"], weight)
    assert torch.equal(found["view"], weight[1:])
