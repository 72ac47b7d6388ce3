"""The loader's processes: how they are started, spoken to and ended, and why one of them is gone.

torch asks a multiprocessing context for processes, queues and an event. What is made here needs no
lock, no thread and no name: a process that is killed, at whatever moment, holds up nobody.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import socket
import threading
from collections.abc import Sequence
from multiprocessing import context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from app.lifecycle import Reason
from worker.trainer.data.shared_memory import SharedMemory
from worker.trainer.errors import TrainerError

# What a fork server imports once for all the processes that come from it.
PRELOADED = "worker.trainer.data.loader_dataset"
# Of a message. The batches themselves go through the room, and an error is a sentence.
MOST_BYTES = 2**16


class Channel:
    """A queue of small messages: each is one packet, which is there as a whole or not at all.

    `writers`: processes whose end is not to be slept through by who waits for a message of theirs.
    """

    def __init__(self, writers: Sequence[BaseProcess]) -> None:
        self._writers = writers
        self._out, self._in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def put(self, message: Any) -> None:
        self._in.send(pickle.dumps(message))

    def get(self, timeout: float | None = None) -> Any:
        """queue.Empty after so many seconds without one, or when a writer is gone."""
        ends = [process.sentinel for process in self._writers]
        if self._out not in wait([self._out, *ends], timeout):
            raise queue.Empty
        return pickle.loads(self._out.recv(MOST_BYTES))  # noqa: S301 - of our own processes

    def close(self) -> None:
        self._out.close()
        self._in.close()

    def cancel_join_thread(self) -> None:
        """There is no thread."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writers": ()}

    def __del__(self) -> None:
        self.close()  # torch leaves some to the end of their last user


class Flag:
    """An event that is set once and waited for by nobody."""

    def __init__(self) -> None:
        self._memory = SharedMemory(1)

    def set(self) -> None:
        self._memory.bytes[0] = 1

    def is_set(self) -> bool:
        return bool(self._memory.bytes[0])


class LoaderContext(context.BaseContext):
    """What torch is given to make processes, queues and an event with; `processes` are those."""

    kind: type[BaseProcess]

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []

    def Process(self, *args: Any, **options: Any) -> BaseProcess:  # noqa: N802
        process = self.kind(*args, **options)
        self.processes.append(process)
        return process

    def Queue(self, maxsize: int = 0) -> Channel:  # type: ignore[override]  # noqa: N802
        return Channel(self.processes)

    def Event(self) -> Flag:  # type: ignore[override]  # noqa: N802
        return Flag()

    def end(self) -> None:
        """Kill them: they only read, so nothing is lost by it, and a read may last."""
        begun = [process for process in self.processes if process.pid is not None]
        self.processes.clear()
        for process in begun:
            process.kill()
        for process in begun:
            process.join()

    def why_gone(self) -> TrainerError | None:
        """What ended one of them; None while all live."""
        for process in self.processes:
            code = process.exitcode
            if code is not None:
                return _gone(process.pid, code)
        return None


class _Spawn(LoaderContext):
    """Each process begins anew and imports what it needs."""

    kind = context.SpawnProcess


class _ForkServer(LoaderContext):
    """Each process is a copy of one that has imported what they need."""

    kind = context.ForkServerProcess

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload([PRELOADED])


def context_of(method: Literal["spawn", "forkserver"]) -> LoaderContext:
    return _Spawn() if method == "spawn" else _ForkServer()


def end_with_trainer(_: int) -> None:
    """Have this process end as soon as the trainer does, in whatever way, also while it reads; and
    not before, when all processes of a service are told to: the trainer still has to save.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    trainer = multiprocessing.parent_process()

    def follow() -> None:
        if trainer is not None:
            trainer.join()
        os._exit(1)

    threading.Thread(target=follow, name="end-with-trainer", daemon=True).start()


def _gone(pid: int | None, code: int) -> TrainerError:
    if code == -signal.SIGKILL:
        return TrainerError(
            Reason.killed,
            f"A loader process ({pid}) was killed by SIGKILL, as the kernel does when the host "
            "runs out of memory. If it comes again, lower data.loader.num_workers or "
            "prefetch_factor.",
        )
    if code == -signal.SIGTERM:
        return TrainerError(
            Reason.interrupted,
            f"A loader process ({pid}) was ended by SIGTERM as it started, as in a shutdown.",
        )
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TrainerError(
        Reason.crashed,
        f"A loader process ({pid}) ended {how} without saying why; trainer.log of the attempt has "
        "what it wrote. If it comes again, data.loader.num_workers 0 reads without processes.",
    )
