"""Page-locked memory: what its failure means."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from app.lifecycle import Reason
from tests.trainer_data.factories import fields_of
from worker.trainer.data.cuda import pinned_arrays
from worker.trainer.errors import TrainerError


def failing(error: Exception) -> Callable[..., Any]:
    def empty(*_: Any, **__: Any) -> Any:
        raise error

    return empty


def test_page_locked_memory_that_is_not_to_be_had_is_the_hosts(numbers, monkeypatch):
    """CUDA tells both kinds of memory that ran out by the same words."""
    monkeypatch.setattr(
        torch, "empty", failing(torch.AcceleratorError("CUDA error: out of memory"))
    )
    with pytest.raises(TrainerError, match="page-locked") as caught:
        pinned_arrays(fields_of(numbers), 10)
    assert caught.value.reason is Reason.host_oom


def test_a_fault_that_shows_while_pinning_stays_a_fault(numbers, monkeypatch):
    monkeypatch.setattr(torch, "empty", failing(torch.AcceleratorError("CUDA error: misaligned")))
    with pytest.raises(torch.AcceleratorError):
        pinned_arrays(fields_of(numbers), 10)
