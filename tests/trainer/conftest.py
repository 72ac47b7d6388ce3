"""A fresh laboratory for every test, and torch's process-wide settings put back after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.trainer.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
