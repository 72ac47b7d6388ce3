"""The launcher: parent and subreaper of one trainer, and holder of the locks that fence it.

    python -S -P -m worker.launcher ATTEMPT_DIR --control-fd N --slot-lock PATH --run-lock PATH
        --grace SECONDS [--command JSON]

One JSON object a line on the control socket. From the agent: {"do": "stop"} (SIGTERM, after the
grace time SIGKILL), {"do": "kill"} (SIGKILL now), {"do": "dump"} (stacks into the trainer's log).
To the agent: {"started": pid}, {"exited": returncode}, {"busy": sentence}, {"failed": sentence,
"errno": number or null}. The end of the file means that the agent is gone, and is a stop. Standard
library only and one thread: PDEATHSIG fires when the thread that made the child ends, and a light
launcher starts in milliseconds.
"""

import argparse
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOCK_RETRY_SECONDS = 0.1
# When memory runs out the kernel should take the trainer, never the agent or the API.
TRAINER_OOM_SCORE_ADJ = "500"
TRAINER_COMMAND = [sys.executable, "-P", "-m", "worker.trainer"]

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Set a process attribute; raises OSError where the kernel refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launcher")
    parser.add_argument("attempt_dir", type=Path)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--slot-lock", type=Path, required=True)
    parser.add_argument("--run-lock", type=Path, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--command", type=json.loads, default=TRAINER_COMMAND)
    return parser.parse_args(argv)


class Control:
    """The socket to the agent, and SIGTERM to the launcher itself, as a stream of orders."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._buffer = b""
        self._ended = False
        self._wake, self._signalled = socket.socketpair()
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)  # recorded by the wake-up descriptor
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the agent's business
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def wait(self, *, timeout: float | None, pidfd: int | None = None) -> list[str]:
        """Orders that arrived; returns early when `pidfd` ends. End of file is one `stop`."""
        sources = [self._wake] if self._ended else [self._wake, self._socket]
        watched: list[Any] = [*sources, *([] if pidfd is None else [pidfd])]
        ready, _, _ = select.select(watched, [], [], timeout)
        orders = []
        if self._wake in ready:
            self._wake.recv(64)
            orders.append("stop")
        if self._socket in ready:
            orders += self._read()
        return orders

    def tell(self, **message: Any) -> None:
        """Send one line; a gone agent is no error, the next wait reports it."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._ended = True

    def _read(self) -> list[str]:
        try:
            received = self._socket.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            self._ended = True
            return ["stop"]
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        return [json.loads(line)["do"] for line in lines]


def take_locks(paths: list[Path], control: Control, grace_seconds: float) -> list[int] | None:
    """Lock every file, waiting up to the grace time; None when told to stop or still held."""
    deadline = time.monotonic() + grace_seconds
    held: list[int] = []
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                control.tell(
                    busy=f"{path.name} is held: processes of an earlier attempt are still alive"
                )
                return None
            if control.wait(timeout=LOCK_RETRY_SECONDS):
                return None
        held.append(fd)
    return held


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def start_trainer(command: list[str], attempt_dir: Path) -> "subprocess.Popen[bytes]":
    """Start the trainer in a session of its own, bound to this process's life."""
    launcher = os.getpid()

    def bind_to_launcher() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died between the fork and the line above
            os._exit(1)
        Path("/proc/self/oom_score_adj").write_text(TRAINER_OOM_SCORE_ADJ)

    with (attempt_dir / "trainer.log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(attempt_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=bind_to_launcher,  # safe, since this process has one thread
        )


def supervise(
    trainer: "subprocess.Popen[bytes]", pidfd: int, control: Control, grace_seconds: float
) -> int:
    """Carry out orders until the trainer has ended; returns its code, negative for a signal."""
    kill_at: float | None = None
    while trainer.poll() is None:
        timeout = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        for order in control.wait(timeout=timeout, pidfd=pidfd):
            if order == "stop" and kill_at is None:
                # Only the trainer: helpers of its own that died now would look like a failure.
                _signal(pidfd, signal.SIGTERM)
                kill_at = time.monotonic() + grace_seconds
            elif order == "kill":
                kill_at = 0.0
            elif order == "dump":
                _signal(pidfd, signal.SIGUSR1)
        if kill_at is not None and time.monotonic() >= kill_at:
            _signal(pidfd, signal.SIGKILL)
            trainer.wait()
    return int(trainer.returncode)


def _signal(pidfd: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended: that is what the loop looks at next
        signal.pidfd_send_signal(pidfd, number)


def end_descendants(process_group: int) -> int:
    """Kill and reap whatever the trainer left behind; returns how many had to be killed.

    As subreaper this process becomes the parent of every orphan below it, also of daemons in
    sessions of their own; when there is no child left there is no descendant left.
    """
    with suppress(ProcessLookupError):
        os.killpg(process_group, signal.SIGKILL)
    killed = 0
    while True:
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        try:
            _, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return killed
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def children_of(parent: int) -> list[int]:
    """Process ids of the children of `parent`, those included that have ended unreaped."""
    children = []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, and thousands of them
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            children.append(int(entry))
    return children


def write_atomically(path: Path, document: dict[str, Any]) -> None:
    """Write JSON so that a reader sees all of it or nothing."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = Control(arguments.control_fd)
    locks = take_locks([arguments.slot_lock, arguments.run_lock], control, arguments.grace)
    if locks is None:
        return 0
    started_at = time.time()
    try:
        trainer = start_trainer(arguments.command, arguments.attempt_dir)
    except (OSError, subprocess.SubprocessError) as error:
        why = f"the trainer could not be started: {error}"
        control.tell(failed=why, errno=getattr(error, "errno", None))
        return 0
    control.tell(started=trainer.pid)
    returncode = supervise(trainer, os.pidfd_open(trainer.pid), control, arguments.grace)
    control.tell(exited=returncode)  # before the file, which a full disk may refuse
    escaped = end_descendants(trainer.pid)
    exit_document = {
        "pid": trainer.pid,
        "returncode": returncode,
        "started_at": started_at,
        "finished_at": time.time(),
        "escaped": escaped,
    }
    with suppress(OSError):  # the agent has been told; the file is for an agent that comes later
        write_atomically(arguments.attempt_dir / "exit.json", exit_document)
    return 0  # the locks end with this process, when nothing of the trainer lives any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
