"""Whole epochs of an order, the next of which is made while one is in use."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from worker.trainer.data.order import Order
from worker.trainer.data.source import Rows


class _GivenUp(Exception):
    """Ends the thread from inside when nobody wants its epoch any more."""


class OrderAhead:
    """To sort 40 million samples takes ten seconds, which the loop would wait for in each epoch.

    The order is used by this thread alone. `epochs`: of the run; none after the last is made.
    """

    def __init__(self, order: Order, epochs: int) -> None:
        self._order = order
        self._epochs = epochs
        self._closing = threading.Event()
        self._next: tuple[int, Future[Rows]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="order-ahead")
        order.piece_done = self._piece_done

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def rows(self, epoch: int) -> Rows:
        """All of an epoch; waits where another one was made."""
        made, self._next = self._next, None
        if made is None or made[0] != epoch:
            made = self._begin(epoch)
        rows = made[1].result()
        if epoch + 1 < self._epochs:
            self._next = self._begin(epoch + 1)
        return rows

    def close(self) -> None:
        """End the thread; a sort that is under way is given up."""
        self._closing.set()
        self._thread.shutdown(cancel_futures=True)

    def _begin(self, epoch: int) -> tuple[int, Future[Rows]]:
        order = self._order
        return epoch, self._thread.submit(order.rows, epoch, 0, order.num_samples)

    def _piece_done(self) -> None:
        if self.is_closing:
            raise _GivenUp
