"""A small file, and the check that no reader thread is left behind."""

import threading

import pytest

from tests.trainer_data.factories import preparing, write_arrays

# PyTorch's DataLoader, as a peer, does not wait for the threads of its queues, which are ending.
ENDING_SECONDS = 5.0


@pytest.fixture
def numbers(tmp_path):
    """100 samples, each of which says its row."""
    return write_arrays(tmp_path / "numbers.h5")


@pytest.fixture
def unstopped(tmp_path):
    """A preparation that nobody stops."""
    return preparing(tmp_path)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("QueueFeederThread"):
            thread.join(ENDING_SECONDS)
    assert set(threading.enumerate()) <= before
