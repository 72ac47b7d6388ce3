"""Page-locked memory: what its failure means."""

import pytest
import torch

from app.lifecycle import Reason
from worker.trainer.data.feed.cuda import pinning
from worker.trainer.errors import TrainerError


def test_page_locked_memory_that_is_not_to_be_had_is_the_hosts():
    """CUDA tells both kinds of memory that ran out by the same words."""
    with pytest.raises(TrainerError, match="no 64 MiB of page-locked") as caught, pinning(2**26):
        raise torch.AcceleratorError("CUDA error: out of memory")
    assert caught.value.reason is Reason.host_oom


def test_a_fault_that_shows_while_pinning_stays_a_fault():
    with pytest.raises(torch.AcceleratorError), pinning(2**26):
        raise torch.AcceleratorError("CUDA error: misaligned address")
