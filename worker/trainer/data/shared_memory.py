"""Memory that a process shares with those it starts, and that is gone with the last of them."""

import mmap
import os
import weakref
from multiprocessing import context, reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedMemory:
    """`bytes` is (size,) uint8, zeros at first, and begins a page.

    It has no name and lies on no file system: /dev/shm holds 64 MiB in many a container. It can be
    sent only to a process that is being started.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("stoker-batches")
            os.ftruncate(descriptor, size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return _received, (len(self.bytes), reduction.DupFd(self._descriptor))


def _received(size: int, sent: Any) -> SharedMemory:
    return SharedMemory(size, sent.detach())
