"""A trainer that was started ahead: it imports what every attempt needs, and waits for one."""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from app.loading import unsearched

AUTOGROUP = Path("/proc/self/autogroup")
AUTOGROUP_TRIES = 20


def wait_for_attempt(told: int) -> Path:
    """The attempt's folder, which comes as a line of standard input; ends the process if none does.

    Says `ready` to the descriptor `told` when it has imported; after the line its output goes to
    the attempt's log.
    """
    loading = threading.Thread(target=_load)
    loading.start()
    loading.join()
    os.write(told, b"ready\n")
    os.close(told)
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)  # the launcher is gone
    order = json.loads(line)
    folder = Path(order["attempt_dir"])
    os.environ.update(order["environment"])
    os.chdir(folder)
    _replace(0, Path(os.devnull), os.O_RDONLY)
    for output in (1, 2):
        _replace(output, folder / "trainer.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return folder


def _load() -> None:
    """At the lowest priority: a training beside it may have threads that spin for each other.

    In a thread of its own, because what has become idle priority cannot be raised again.
    """
    with suppress(OSError):  # where it is not allowed, the import is not slowed
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    _weigh_session(19)
    try:
        with suppress(Exception), unsearched():  # the attempt imports it again, and tells
            import worker.trainer.failure
            import worker.trainer.run  # noqa: F401 - to be there
    finally:
        _weigh_session(0)


def _weigh_session(nice: int) -> None:
    """Where the kernel shares the cores among sessions, set this one's nice; it may ask to wait."""
    for _ in range(AUTOGROUP_TRIES):
        try:
            AUTOGROUP.write_text(str(nice))
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            return
        else:
            return


def _replace(descriptor: int, path: Path, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)
