"""The launcher: parent and subreaper of one trainer, and holder of the locks that fence it.

    python -S -P -m worker.launch.launcher --control-fd N [--standby] [--command JSON]

One JSON object a line on the control socket. From the agent: {"do": "begin", …} once (see Launch),
{"do": "stop"} (SIGTERM, after the grace time SIGKILL), {"do": "kill"} (SIGKILL now), {"do": "dump"}
(stacks into the trainer's log), {"do": "hold", …} after each beat that was stored (see LeaseTerm).
To the agent: {"started": pid}, {"exited": returncode}, {"busy": sentence}, {"lapsed": true} (no
beat was stored for so long that the trainer is stopped), {"failed": sentence, "errno": number or
null}.
The end of the file means that the agent is gone, and is a stop. With --standby a trainer is started
at once, imports what it needs and waits for its attempt. Standard library only and one thread:
PDEATHSIG fires when the thread that made the child ends, and a light launcher starts in
milliseconds.
"""

import argparse
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from worker.protocol import Control, Launch, boottime

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOCK_RETRY_SECONDS = 0.1
# Timers stand still while a host sleeps, and a lease term's clock does not: so it is looked at.
POLL_SECONDS = 0.5
# When memory runs out the kernel should take the trainer, never the agent or the API.
# One that only waits goes first of all.
TRAINER_OOM_SCORE_ADJ = "500"
STANDBY_OOM_SCORE_ADJ = "1000"
STANDBY_READY = b"ready\n"
TRAINER_COMMAND = [sys.executable, "-P", "-m", "worker.trainer"]

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Set a process attribute; raises OSError where the kernel refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launcher")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--command", type=json.loads, default=TRAINER_COMMAND)
    return parser.parse_args(argv)


def wait_for_attempt(control: Control) -> Launch | None:
    """None when there is none to come: the agent is gone, or wants no more of this process."""
    while (order := control.wait(timeout=None)) is None or order["do"] == "dump":
        pass
    return Launch.of(order) if order["do"] == "begin" else None


def take_locks(attempt: Launch, control: Control) -> list[int] | None:
    """Lock all files, waiting up to the grace time; None when told to stop, when the lease term
    ends before, or when they are still held.
    """
    deadline = time.monotonic() + attempt.grace_seconds
    held: list[int] = []
    for path in (*attempt.slot_locks, attempt.run_lock):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                control.tell(
                    busy=f"{path.name} is held: processes of an earlier attempt are still alive"
                )
                return None
            if control.wait(timeout=LOCK_RETRY_SECONDS) is not None:
                return None
        held.append(fd)
    if boottime() >= control.lease_term.stop_at:
        control.tell(lapsed=True)
        return None
    return held


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def move_to(folder: Path) -> None:
    """Work in the attempt's folder and write to its log, as the trainer will that starts here."""
    os.chdir(folder)
    with Path("trainer.log").open("ab") as log:
        for output in (1, 2):
            os.dup2(log.fileno(), output)


def start_trainer(
    command: list[str],
    environment: dict[str, str],
    oom_score_adj: str,
    *,
    stdin: int,
    pass_fds: tuple[int, ...] = (),
) -> "subprocess.Popen[bytes]":
    """Start a trainer in a session of its own, bound to this process's life."""
    launcher = os.getpid()

    def bind_to_launcher() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died between the fork and the line above
            os._exit(1)
        Path("/proc/self/oom_score_adj").write_text(oom_score_adj)

    return subprocess.Popen(
        command,
        stdin=stdin,
        pass_fds=pass_fds,
        env=environment,
        start_new_session=True,
        preexec_fn=bind_to_launcher,  # safe, since this process has one thread
    )


class StandbyProcess(NamedTuple):
    """A trainer that was started ahead, and where it says that it is ready: not its output, since
    what it imports may print.
    """

    trainer: "subprocess.Popen[bytes]"
    ready: int


def start_standby(command: list[str]) -> StandbyProcess | None:
    """Start a trainer ahead of its attempt; None where that fails, and one starts when it comes."""
    ready, theirs = os.pipe()
    try:
        trainer = start_trainer(
            [*command, "--standby", str(theirs)],
            dict(os.environ),
            STANDBY_OOM_SCORE_ADJ,
            stdin=subprocess.PIPE,
            pass_fds=(theirs,),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        os.close(theirs)
    return StandbyProcess(trainer, ready)


def hand_over(standby: StandbyProcess, attempt: Launch) -> bool:
    """Give the attempt to the trainer that waits for one; False, and it is gone, if it does not.

    One that still imports does so at idle priority, and might for minutes.
    """
    order = {"attempt_dir": str(attempt.attempt_dir), "environment": attempt.environment}
    trainer, told = standby.trainer, standby.trainer.stdin
    assert told is not None  # noqa: S101 - a pipe was asked for
    with suppress(OSError):  # it has just died
        is_heard = select.select([standby.ready], [], [], 0)[0]
        if is_heard and os.read(standby.ready, 64) == STANDBY_READY:
            Path(f"/proc/{trainer.pid}/oom_score_adj").write_text(TRAINER_OOM_SCORE_ADJ)
            told.write(json.dumps(order).encode() + b"\n")
            told.close()
            return trainer.poll() is None
    trainer.kill()
    trainer.wait()
    return False


def supervise(pidfd: int, control: Control, grace_seconds: float) -> int:
    """Carry out orders until the trainer has ended, or until its lease term has; returns its code,
    negative for a signal. It is not reaped.
    """
    kill_at: float | None = None
    while not has_ended(pidfd, 0.0):
        do = None
        if kill_at is None and boottime() >= control.lease_term.stop_at:
            control.tell(lapsed=True)
            do = "stop"
        elif (order := control.wait(timeout=_until(kill_at, control), pidfd=pidfd)) is not None:
            do = order["do"]
        if do == "stop" and kill_at is None:
            # Only the trainer: helpers of its own that died now would look like a failure.
            _signal(pidfd, signal.SIGTERM)
            _signal(pidfd, signal.SIGCONT)  # a script may have stopped its runner
            kill_at = boottime() + grace_seconds
        elif do == "kill":
            kill_at = 0.0
        elif do == "dump":
            _signal(pidfd, signal.SIGUSR1)
        if boottime() >= _end_of(kill_at, control):
            _signal(pidfd, signal.SIGKILL)
            has_ended(pidfd, None)
    return exit_code_of(pidfd)


def _end_of(kill_at: float | None, control: Control) -> float:
    last = control.lease_term.kill_at
    return last if kill_at is None else min(kill_at, last)


def _until(kill_at: float | None, control: Control) -> float:
    """Seconds for which there is nothing to do without an order."""
    due = control.lease_term.stop_at if kill_at is None else _end_of(kill_at, control)
    return min(POLL_SECONDS, max(0.0, due - boottime()))


def has_ended(pidfd: int, timeout: float | None) -> bool:
    """Whether a process has ended within so many seconds; None: wait until it has."""
    return bool(select.select([pidfd], [], [], timeout)[0])


def exit_code_of(pidfd: int) -> int:
    """How a child has ended, which stays a zombie: nobody else gets its process id."""
    how = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    assert how is not None  # noqa: S101 - it was waited for
    return how.si_status if how.si_code == os.CLD_EXITED else -how.si_status


def _signal(pidfd: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended: that is what the loop looks at next
        signal.pidfd_send_signal(pidfd, number)


def end_descendants(trainer: "subprocess.Popen[bytes]") -> int:
    """Kill and reap the trainer and whatever it left behind; returns how many others had to be
    killed.

    As subreaper this process becomes the parent of every orphan below it, also of daemons in
    sessions of their own; when there is no child left there is no descendant left.
    """
    if trainer.returncode is None:  # once it is reaped, its number may be another group's
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()
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


def begin(
    command: list[str], standby: StandbyProcess | None, attempt: Launch
) -> "subprocess.Popen[bytes]":
    """The attempt's trainer: the one that waits, or a new one."""
    if standby is not None and hand_over(standby, attempt):
        return standby.trainer
    return start_trainer(
        [*command, str(attempt.attempt_dir)],
        attempt.environment,
        TRAINER_OOM_SCORE_ADJ,
        stdin=subprocess.DEVNULL,
    )


def run(command: list[str], standby: StandbyProcess | None, control: Control) -> None:
    """Wait for the attempt and see it through; the locks end with this process."""
    attempt = wait_for_attempt(control)
    if attempt is None:
        return
    started_at = time.time()
    try:
        move_to(attempt.attempt_dir)
        locks = take_locks(attempt, control)
        if locks is None:
            return
        trainer = begin(command, standby, attempt)
    except (OSError, subprocess.SubprocessError) as error:
        why = f"the trainer could not be started: {error}"
        control.tell(failed=why, errno=getattr(error, "errno", None))
        return
    control.tell(started=trainer.pid)
    returncode = supervise(os.pidfd_open(trainer.pid), control, attempt.grace_seconds)
    control.tell(exited=returncode)  # before the file, which a full disk may refuse
    exit_document = {
        "pid": trainer.pid,
        "returncode": returncode,
        "started_at": started_at,
        "finished_at": time.time(),
        "escaped": end_descendants(trainer),
    }
    with suppress(OSError):  # the agent has been told; the file is for an agent that comes later
        write_atomically(attempt.attempt_dir / "exit.json", exit_document)


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = Control(arguments.control_fd)
    standby = start_standby(arguments.command) if arguments.standby else None
    run(arguments.command, standby, control)
    if standby is not None:
        end_descendants(standby.trainer)  # where no attempt came for it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
