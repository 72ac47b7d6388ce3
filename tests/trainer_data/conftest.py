"""A small file, and the check that no reader thread is left behind."""

import threading
import time

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
    deadline = time.monotonic() + ENDING_SECONDS
    while not set(threading.enumerate()) <= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
