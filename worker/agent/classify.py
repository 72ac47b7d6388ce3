"""Why an attempt ended: one Reason and a sentence, from what was said and what was seen."""

import errno
import signal
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from app.lifecycle import Intent, Reason
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.spec.script import is_script

# What an attempt may end with because its artifact root is away: it reads and writes there.
OF_THE_ROOT = frozenset(
    {
        Reason.checkpoint_write_error,
        Reason.checkpoint_unusable,
        Reason.trainer_error,
        Reason.crashed,
    }
)

Asked: TypeAlias = Literal["stop", "kill"]


@dataclass
class Evidence:
    """What is known of an attempt's end; filled in as it is seen.

    `end` is the trainer's own last event; `returncode` is the trainer's, negative for a signal,
    None when no launcher lived to report it; `launcher_returncode` is the launcher's own;
    `busy` the launcher's sentence about a held lock;
    `intent` what the user wants of the run; `needed_by` the run for which it makes place;
    `lapsed`: no beat was stored for so long that the launcher stopped the trainer;
    `fault` an error of the worker itself in dealing with this attempt; `root_was_away`: the
    artifact root was, as the end was read, and not only slow;
    `who` runs, as a person would call it.
    """

    end: dict[str, Any] | None = None
    returncode: int | None = None
    launcher_returncode: int | None = None
    started: bool = False
    busy: str | None = None
    fault: Exception | None = None
    hang_seconds: float | None = None
    asked: Asked | None = None
    intent: Intent = Intent.run
    drained: bool = False
    needed_by: int | None = None
    lapsed: bool = False
    oom_kills: int = 0
    grace_seconds: float = 0.0
    last_log_line: str | None = None
    root_was_away: bool = False
    who: Literal["trainer", "script"] = "trainer"

    @classmethod
    def of(cls, spec: dict[str, Any], grace_seconds: float) -> Self:
        """Nothing is known yet, but of what kind of run it is."""
        return cls(grace_seconds=grace_seconds, who="script" if is_script(spec) else "trainer")

    def ask(self, do: Asked, *, drained: bool, needed_by: int | None) -> bool:
        """Note that the end is asked for; False: so much was asked for before."""
        self.drained |= drained
        self.needed_by = needed_by or self.needed_by
        if self.asked in (do, "kill"):
            return False
        self.asked = do
        return True

    def hear(self, message: dict[str, Any]) -> None:
        """Note what the launcher has said."""
        self.started |= "started" in message
        self.lapsed |= "lapsed" in message
        self.busy = message.get("busy", self.busy)
        self.returncode = message.get("exited", self.returncode)
        if "failed" in message:
            self.fault = OSError(message["errno"] or 0, message["failed"])


@dataclass(frozen=True)
class Verdict:
    """`retry_seconds`: how long to wait at least before the run is tried again; `needs`: what it
    was found to need at least.
    """

    reason: Reason
    message: str
    retry_seconds: float = 0.0
    needs: Requirements = NOTHING_KNOWN


def classify(seen: Evidence) -> Verdict:
    """The reason an attempt ended; what the trainer said of itself goes first, unless all that
    failed may have been the artifact root.
    """
    verdict = _by_itself(seen)
    if not seen.root_was_away or verdict.reason not in OF_THE_ROOT:
        return verdict
    again = "It is tried again from the latest checkpoint, and that uses up no retry. "
    return Verdict(
        Reason.checkpoint_error,
        "The artifact root was away when the attempt ended. "
        f"{again if seen.intent is Intent.run else ''}How it ended: {verdict.message}",
    )


def _by_itself(seen: Evidence) -> Verdict:
    said = _said_by_trainer(seen.end)
    if said is not None and said.reason is Reason.killed and seen.oom_kills > 0:
        return Verdict(
            Reason.host_oom, f"{said.message} Here it was the kernel, for want of memory."
        )
    # A drain, a lapsed lease or a preemption that had to kill is that, and no fault of what ran.
    is_ours = seen.drained or seen.lapsed or seen.needed_by is not None
    was_forced = said is not None and said.reason is Reason.killed and is_ours
    if said is not None and said.reason is not Reason.interrupted and not was_forced:
        return said
    if seen.fault is not None:
        return failed_here(seen.fault)
    if seen.busy is not None:
        return Verdict(Reason.slot_busy, seen.busy)
    if seen.hang_seconds is not None:
        stacks = "; its stacks are at the end of the attempt's log" if seen.who == "trainer" else ""
        told = f"The {seen.who} made no progress for {seen.hang_seconds:g} seconds and was ended"
        return Verdict(Reason.hang, f"{told}{stacks}.")
    of_script = "exit_code" in ((seen.end or {}).get("result") or {})
    is_asked = seen.asked == "stop" and not seen.drained and seen.needed_by is None
    if said is not None and of_script and is_asked:
        return said  # how it ended after it was asked to, with its code
    if seen.asked is not None or seen.lapsed:
        return Verdict(*_stopped(seen))
    if said is not None:
        return said
    return _died(seen)


def failed_here(error: Exception) -> Verdict:
    """The end of an attempt that this host, not the trainer, could not go on with."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Verdict(
            Reason.disk_full,
            f"The disk is full: the attempt's folder could not be written ({error}). "
            "Free space below the artifact root and restart the run.",
        )
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Verdict(
            Reason.checkpoint_write_error,
            f"This host refuses what the attempt needs ({error}): its artifact root may be "
            "read-only or another user's, so nothing could be saved. Make it writable for the "
            "worker's user; once the retries are used up, restart the run.",
        )
    return Verdict(
        Reason.crashed,
        f"The worker could not go on with this attempt on its host: {error}. "
        "The worker's log says more; the run's checkpoints are as they were.",
    )


def _said_by_trainer(end: dict[str, Any] | None) -> Verdict | None:
    if end is None:
        return None
    try:
        reason = Reason(str(end.get("reason")))
    except ValueError:
        return None
    return Verdict(reason, str(end.get("message") or ""))


def _stopped(seen: Evidence) -> tuple[Reason, str]:
    """An end that was asked for: a drain, a lease that lapsed, or the user's intent."""
    forced = -signal.SIGKILL in (seen.returncode, seen.launcher_returncode)
    how = "ended without a new checkpoint" if forced or seen.end is None else "saved and ended"
    do, done = ("pause", "Paused") if seen.intent is Intent.pause else ("stop", "Stopped")
    if seen.drained:
        return Reason.drained, f"The worker was shut down; the {seen.who} {how}."
    if seen.needed_by is not None:
        if not seen.started and seen.returncode is None:
            how = "had not started"
        return Reason.preempted, (
            f"Preempted by run {seen.needed_by}, which has a higher priority and needed its slot: "
            f"the {seen.who} {how}. It goes on when a slot is free, and that uses up no retry."
        )
    if seen.lapsed:
        return Reason.interrupted, (
            "The database was out of reach, or this worker or its host stood still, for so long "
            f"that the right to this run had lapsed; the {seen.who} {how}."
        )
    if not seen.started and seen.returncode is None:
        return Reason.interrupted, f"{done} before the {seen.who} had started."
    if forced and seen.asked == "kill":
        return Reason.killed, f"The {seen.who} was killed."
    if forced:
        return Reason.killed, (
            f"The {seen.who} did not stop within {seen.grace_seconds:g} seconds and was killed."
        )
    return Reason.interrupted, f"The {seen.who} was asked to {do}; it {how}."


def _died(seen: Evidence) -> Verdict:
    """An end that nobody asked for and the trainer did not explain."""
    code, who = seen.returncode, _called(seen)
    if code is None:
        return _launcher_died(seen)
    if code == -signal.SIGKILL and seen.oom_kills > 0:
        told = f"The kernel killed the {who} because the host was out of memory."
        return Verdict(Reason.host_oom, told)
    if code == -signal.SIGKILL:
        return Verdict(Reason.killed, f"The {who} was killed by SIGKILL, not by this worker.")
    if code == -signal.SIGTERM:
        return Verdict(Reason.interrupted, f"The {who} was ended by SIGTERM as it started.")
    how = f"by signal {_signal_name(-code)}" if code < 0 else f"with exit code {code}"
    return Verdict(Reason.crashed, f"The {who} ended {how} without saying why.{_hint(seen)}")


def _called(seen: Evidence) -> str:
    """The process that the launcher has started: of a script, who watches it."""
    return "runner of the script" if seen.who == "script" else "trainer"


def _launcher_died(seen: Evidence) -> Verdict:
    """The launcher ended before it could tell how its trainer did."""
    code = seen.launcher_returncode
    if code is None or code < 0:
        by = "" if code is None else f" by {_signal_name(-code)}"
        told = f"The launcher was killed{by}, and the {seen.who} with it."
        return Verdict(Reason.killed, told)
    if code == 0:
        told = f"The launcher was ended before the {seen.who} started."
        return Verdict(Reason.interrupted, told)
    return Verdict(
        Reason.crashed,
        f"The launcher failed with exit code {code}, and the {seen.who} ended with it."
        f"{_hint(seen)}",
    )


def _hint(seen: Evidence) -> str:
    return f" Last line of its log: {seen.last_log_line}" if seen.last_log_line else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
