"""Many reads by one call of the system, Linux's `io_submit`: Python has no part in each of them.

Of files in the page cache the call returns when all is read; a reader's thread waits, no other.
The C library has no function for it, so it is called by its number (`man 2 io_submit`).
"""

import ctypes
import errno
import os
import platform
import sys

import numpy as np

from worker.trainer.data.parts import MOST_SKIPPED_BYTES, Parts
from worker.trainer.data.source import Rows

MOST_AT_ONCE = 256  # 512 and 1,024 brought no more
# `io_setup`, `io_getevents` and `io_submit` by their numbers.
CALLS = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}
PREADV = 7
# `struct iocb`, `struct iovec` and `struct io_event` of 64-bit systems, lowest byte first.
ORDER = np.dtype(
    [("data", "u8"), ("key", "u4"), ("flags", "i4"), ("opcode", "u2"), ("priority", "i2"),
     ("file", "u4"), ("memories", "u8"), ("count", "u8"), ("offset", "i8"), ("unused", "u8", 2)]
)  # fmt: skip
MEMORY = np.dtype([("address", "u8"), ("size", "u8")])
EVENT = np.dtype([("data", "u8"), ("order", "u8"), ("result", "i8"), ("second", "i8")])

_libc = ctypes.CDLL(None, use_errno=True)


class ReadQueue:
    """Room in the kernel for MOST_AT_ONCE reads, of one thread at a time, until the process ends:
    to give it back takes the kernel longer than to read a chunk.
    """

    def __init__(self) -> None:
        """OSError where the system has no such calls, does not allow them, or has no room left."""
        calls = CALLS.get(platform.machine()) if sys.byteorder == "little" else None
        if calls is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        setup, self._wait, self._submit = calls
        self._context = ctypes.c_ulong(0)
        _call(setup, MOST_AT_ONCE, ctypes.byref(self._context))
        each = np.arange(MOST_AT_ONCE, dtype=np.uint64)
        self._orders = np.zeros(MOST_AT_ONCE, ORDER)
        self._orders["opcode"], self._orders["data"] = PREADV, each
        self._pointers = _address(self._orders) + ORDER.itemsize * each
        self._events = np.zeros(MOST_AT_ONCE, EVENT)

    def read(self, files: Rows, offsets: Rows, memories: "Memories") -> Rows:
        """Read each run of `memories` from its place in its open file; those that were not read
        whole, whatever hindered them.
        """
        unread = []
        for begin in range(0, len(offsets), MOST_AT_ONCE):
            some = slice(begin, begin + MOST_AT_ONCE)
            count = len(offsets[some])
            orders = self._orders[:count]
            orders["file"], orders["offset"] = files[some], offsets[some]
            orders["memories"], orders["count"] = memories.firsts[some], memories.counts[some]
            results = self._results(count)
            unread.append(begin + np.flatnonzero(results != memories.sizes[some]))
        return np.concatenate(unread)

    def _results(self, count: int) -> Rows:
        """Bytes that each of the first `count` orders read; below zero where it failed."""
        results = np.full(count, -errno.EINVAL, np.int64)
        sent = 0
        while sent < count:
            pointers = ctypes.c_void_p(_address(self._pointers[sent:]))
            try:
                sent += _call(self._submit, self._context, count - sent, pointers)
            except OSError:
                break  # as EINVAL is for an order that cannot be: it and those behind are not sent
        while sent:
            place = ctypes.c_void_p(_address(self._events))
            try:
                got = _call(self._wait, self._context, sent, sent, place, None)
            except InterruptedError:
                continue
            events = self._events[:got]
            results[events["data"].astype(np.int64)] = events["result"]
            sent -= got
        return results


class Memories:
    """The memories of runs of parts, as the kernel takes them."""

    def __init__(self, parts: Parts, runs: Rows) -> None:
        """`runs`: where each begins. Behind each part is what is skipped, and nothing is behind
        the last of a run. BufferError where a part would lie outside of the memory: the kernel
        writes to any address.
        """
        ends = np.append(runs[1:], len(parts))
        self._skipped = np.empty(MOST_SKIPPED_BYTES, np.uint8)
        self._memories = np.empty((len(parts), 2), MEMORY)
        own, skipped = self._memories[:, 0], self._memories[:, 1]
        memory = np.frombuffer(parts.memory, np.uint8)
        ends_at = parts.starts + parts.sizes
        if not memory.flags.writeable or parts.starts.min() < 0 or ends_at.max() > memory.size:
            raise BufferError("rows would be read to where there is no room for them")
        own["address"] = _address(memory) + parts.starts
        own["size"] = parts.sizes
        skipped["address"] = _address(self._skipped)
        skipped["size"][:-1] = np.maximum(parts.gaps, 0)
        skipped["size"][ends - 1] = 0
        self.firsts = _address(self._memories) + 2 * MEMORY.itemsize * runs.astype(np.uint64)
        self.counts = 2 * (ends - runs) - 1
        self.sizes = np.add.reduceat(self._memories["size"].sum(1, dtype=np.int64), runs)
        """Bytes that the file has to give for each run."""


# Queues that nobody reads with. Threads come and go; at most as many as read at once are made.
_idle: list[ReadQueue] = []


def read_together(parts: Parts, runs: Rows, files: Rows, offsets: Rows) -> Rows:
    """Read runs of parts, each from its place in its open file; those that are left to be read
    one by one: all of them where they are few, or where the system has no queue for them.
    """
    everything = np.arange(len(runs))
    if len(runs) < 2:
        return everything
    try:
        queue = _take()
    except OSError:
        return everything
    left = queue.read(files, offsets, Memories(parts, runs))
    _idle.append(queue)
    return left


def why_one_by_one() -> str | None:
    """What hinders this system from making a queue for many reads; None: it has one."""
    try:
        _idle.append(_take())
    except OSError as error:
        return f"io_setup: {error.strerror}"
    return None


def _take() -> ReadQueue:
    try:
        return _idle.pop()
    except IndexError:
        return ReadQueue()


def _call(number: int, *arguments: object) -> int:
    """Of the system; OSError. Other threads have Python meanwhile."""
    long = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *long))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _address(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    return int(array.ctypes.data)
