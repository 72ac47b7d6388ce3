"""Threads that read and unpack what one source asks for; the one that asks is one of them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from app.container import usable_cores
from app.planning.residency import MOST_READ_THREADS

# HDF5 reads with one thread at a time. From the page cache, on 2 cores: h5py 6.2 GiB/s, one thread
# 7.7, two 9.5, four 8.7.
READ_THREADS = min(MOST_READ_THREADS, usable_cores())

Share = TypeVar("Share")


class ReadThreads:
    """They run from the beginning, while there is memory: one that is begun when almost none is
    left waits for ever in `Thread.start` instead of raising MemoryError. `close` ends them.
    """

    def __init__(self, count: int = READ_THREADS) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="direct-reader")
        begun = Barrier(count)
        for _ in range(count - 1):
            self._pool.submit(begun.wait)
        begun.wait()

    def run(self, work: Callable[[Iterator[Share]], None], shares: Sequence[Share]) -> None:
        """Do `work` in several threads, this one among them, which all take their shares from one
        iterator: whoever is done takes the next. Raises the first error.
        """
        threads = max(1, min(self.count, len(shares)))
        left = iter(_in_stretches(shares, threads))
        others = threads - 1
        waiting = [self._pool.submit(work, left) for _ in range(others)]
        try:
            work(left)
        finally:
            errors = [done.exception() for done in waiting]  # waits: nobody else may write here
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        self._pool.shutdown()


def _in_stretches(shares: Sequence[Share], threads: int) -> list[Share]:
    """Such an order that each thread, at the same pace, goes through a stretch of its own: a system
    that reads ahead does so for each. One behind the other, cold files came at 0.7 of the rate.
    """
    length = -(-len(shares) // threads)
    stretches = [shares[begin : begin + length] for begin in range(0, len(shares), max(1, length))]
    return [
        share for place in range(length) for one in stretches for share in one[place : place + 1]
    ]
