"""One attempt of a script, from spec.json to its end: start, watch, stop, and say how it ended."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.codestate import changes_since
from app.lifecycle import Reason
from stoker.script import CONFIG, FINISHED, LOG
from worker.launch.launcher import PR_SET_CHILD_SUBREAPER, prctl
from worker.reporting import EventLog, Pulse
from worker.script.beginning import Beginning
from worker.script.config import ScriptConfig
from worker.script.curves import Curves
from worker.script.ending import (
    ScriptEnd,
    doubt_of,
    end_by_itself,
    end_of,
    how_it_ended,
    not_run,
    on_what_was_left,
    with_doubts,
    with_what_is_lost,
)
from worker.script.event_log import FULL, ScriptEventLog, ScriptPulse
from worker.script.not_started import why_not_started
from worker.script.processes import Leader, ScriptSignals, kill_all, memory_of
from worker.script.progress import ScriptProgress
from worker.script.restoring import adopt, choose, newest_last_if_it_fails
from worker.script.saved import Past, Saved
from worker.script.saves import FilesBefore, older_saves, saves_of, unmatched
from worker.script.shim import Shim
from worker.script.status import StatusServer
from worker.script.stopping import Rest, Stopping
from worker.script.work import ScriptWork, Start

LOOK_SECONDS = 1.0
# Its memory is looked at after a tenth of the time that it has run, and at least so often.
MEMORY_SECONDS = 5.0
# What it takes counts as measured from here on: until then it imports. Two beats, at which the
# agent looks at the GPUs.
MEASURED_SECONDS = 4.0
# What a script leaves behind when it ends by itself has so long.
REST_SECONDS = 10.0


class Runner:
    """A script under way. Everything is told by `events`, as a trainer tells it."""

    def __init__(
        self, work: ScriptWork, events: EventLog, pulse: Pulse, signals: ScriptSignals
    ) -> None:
        self._work, self._events, self._pulse, self._signals = work, events, pulse, signals
        self._began, self._began_at = time.monotonic(), time.time()
        self._stop_at: float | None = None
        """When the script was asked to stop (monotonic seconds)."""
        self._why_stop: Reason | None = None
        self._silence = ""
        """By what it would be known that it hangs."""
        self._log_size = 0
        self._printed_at = self._began
        self.last_step: int | None = None
        """Of the newest loss, where its curve ends."""
        self._memory = self._peak_memory = 0
        self._is_measured = False
        self._memory_at = 0.0
        self._past = Past()
        self._files_before = FilesBefore({})
        self._config = ScriptConfig(work.folder / CONFIG, self._warn)
        self._applied: dict[str, Any] = {}
        self._left = ""
        """What is said of processes that outlived the script."""
        self._doubts: list[str] = []
        """Sentences that speak against an exit code of 0."""

    def run(self) -> ScriptEnd:
        """The whole attempt, to its end."""
        work = self._work
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        work.checkpoints_folder.mkdir(exist_ok=True)
        work.hold_stop_file()
        try:
            with beating(self._pulse):
                self._past = adopt(work, self._events, self._warn)
                restore = newest_last_if_it_fails(
                    work, (*self._past.folders, *work.restore), self._warn
                )
                start = choose(restore, self._passed_over)
        except OSError as error:
            return ScriptEnd(
                Reason.checkpoint_error,
                f"A checkpoint of this run could not be read ({error}). It may be whole, so "
                "nothing starts from an earlier one; the run is tried again until it can be read.",
            )
        if (refused := self._refuse(start)) is not None:
            return refused
        status = StatusServer(work.folder, work.run_id)
        try:
            return self._start(start, status)
        finally:
            status.close()

    def _start(self, start: Start | None, status: StatusServer) -> ScriptEnd:
        """Start the script and see it through. What lies there is looked at before: the script may
        write at once.
        """
        work = self._work
        with beating(self._pulse):
            self._tell_changes()
            self._note_files_before()
            beginning = Beginning(work, start, self._events)
            curves = Curves(work, self._began_at, beginning.folder, self._warn)
        try:
            kept = work.kept()
        except (OSError, ValueError) as error:
            return self._for_good(
                f"The environment that was kept with the command cannot be read ({error}).",
                f"Put {work.environment_file} back and restart the run, or submit the command "
                "again.",
            )
        try:
            shim = Shim(work.shim_file) if work.shim else None
            told = status.url, status.token_file
            environment = work.environment(kept.environment, start, told)
            command = work.command(start)
            leader = Leader(command, work.cwd, kept._replace(environment=environment))
        except OSError as error:
            return self._not_started(error)
        try:
            self._tell_start(start)
            progress = ScriptProgress(curves, status, shim, self._events, beginning.step)
            return self._see_through(leader, progress, beginning)
        finally:
            kill_all(leader)
            leader.close()

    def _refuse(self, start: Start | None) -> ScriptEnd | None:
        """Never a start from nothing where there is something that the script should go on from."""
        work = self._work
        if start is not None:
            return None
        if work.restore:
            return ScriptEnd(
                Reason.checkpoint_unusable,
                f"All {len(work.restore)} checkpoints of this run are damaged or gone. Nothing "
                f"begins anew by itself: `stoker restart {work.run_id} --from scratch` does.",
            )
        is_later = work.attempt > 1 and bool(work.resume) and not work.has_saved
        before = FilesBefore.read(work.run_folder / "attempt-1") if is_later else None
        left = [save for save in saves_of(work) if before.new_files(save)] if before else []
        if left:
            return ScriptEnd(
                Reason.checkpoint_error,
                f"{left[-1].path} was being written when an earlier attempt ended, and is not "
                "whole; there is no other. Repair or remove it, and the run goes on by itself; "
                f"or begin anew: `stoker restart {work.run_id} --from scratch`.",
            )
        return None

    def _not_started(self, error: OSError) -> ScriptEnd:
        work = self._work
        if error.errno in FULL:
            return not_run(error)
        if work.cwd.is_dir():
            told, advice = why_not_started(work.argv, work.cwd, error)
        else:
            told = (
                f"The folder {work.cwd} in which the command was submitted is not there any more."
            )
            advice = "Put it back and restart the run, or submit the command again where it is now."
        return self._for_good(told, advice)

    def _for_good(self, told: str, advice: str) -> ScriptEnd:
        """At a first attempt; at a later one a drive may not be mounted yet."""
        if self._work.attempt == 1:
            return ScriptEnd(Reason.spec_error, f"{told} {advice}")
        return ScriptEnd(Reason.crashed, f"{told} A drive may be missing. {advice}")

    def _note_files_before(self) -> None:
        """Notes which files lie there before the script starts. Raises OSError."""
        work = self._work
        self._files_before = FilesBefore.look(work)
        self._files_before.write(work.folder)
        is_first = work.attempt == 1 and not work.restore
        if is_first and (older := older_saves(work)) is not None:
            self._warn("older_saves", older)

    def _tell_start(self, start: Start | None) -> None:
        work = self._work
        self._pulse.enter("running")
        self._applied = {
            "argv": work.command(start),
            "cwd": str(work.cwd),
            "device": ", ".join(work.gpus) or "cpu",
            "gpus": len(work.gpus),
            "checkpoint": None if start is None else str(start.folder),
            "resume_from": None if start is None else str(start.path),
            "shim": work.shim,
        }
        self._tell_applied()
        self._events.emit("phase", phase="running")

    def _tell_applied(self) -> None:
        code = self._work.code or {}
        environment = {"git_sha": code.get("git_sha"), "git_dirty": code.get("dirty")}
        self._events.emit("applied", applied=self._applied, environment=environment)

    def _tell_config(self, *, is_last: bool = False) -> None:
        """Of what the script was configured with, by its own word, when that is there."""
        if (config := self._config.news(is_last=is_last)) is not None:
            self._applied["config"] = config
            self._tell_applied()

    def _tell_changes(self) -> None:
        """Whether the code is another one by now than that which was submitted."""
        before = self._work.code
        now = None if not before else changes_since(before, self._work.cwd)
        if not before or now is None:
            return
        message = "The code has changed since the command was submitted, and runs as it is now."
        told = {"git_sha": now["git_sha"], "was": before["git_sha"], "diff": now["diff"]}
        self._events.emit("code_changed", message=message, **told)

    def _passed_over(self, folder: Path, why: str) -> None:
        path = folder.relative_to(self._work.folder) if folder.is_relative_to(
            self._work.folder) else folder  # fmt: skip
        self._events.emit("checkpoint", action="quarantined", path=str(path), message=why)

    def _see_through(
        self, leader: Leader, progress: ScriptProgress, beginning: Beginning
    ) -> ScriptEnd:
        work = self._work
        past = replace(self._past, step=beginning.step)
        stopping = Stopping(leader, signal.Signals[work.stop_signal])
        before = self._files_before
        saved = Saved(work, before, self._events, self._warn, progress.now, past)
        grace_over = False
        look_at = self._began
        while not leader.has_ended():
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                self._look(leader, progress)
                beginning.look(
                    now - self._began, has_moved=progress.has_begun or bool(saved.folders)
                )
            if self._stop_at is not None:
                stopping.go_on()
            elif (why := self._why_to_stop(now, progress)) is not None:
                self._ask_to_stop(stopping, why)
            grace_over = self._stop_at is not None and now > self._stop_at + work.grace_seconds
            if grace_over:
                stopping.kill()
            self._signals.wait(leader, LOOK_SECONDS / 2)
        code = leader.returncode()
        took = (ended := time.monotonic()) - self._began
        with beating(self._pulse):
            rest = self._end_rest(stopping, code)
            self._tell_config(is_last=True)
            progress.read(all_of_it=True)
            saved.close(was_cut=stopping.was_cut(code, rest))
        has_moved = code == 0 or progress.has_begun or bool(saved.folders)
        beginning.look(took, has_moved=has_moved)
        progress.tell(self._memory, self._measured_peak)
        if saved.error is not None:
            self._warn("checkpoint_not_kept", f"A save could not be kept: {saved.error}.")
        # One that may go on from what it has saved before may end before it saves again.
        goes_on = bool(work.restore or self._past.folders)
        if not_found := unmatched(work, None if goes_on else before):
            self._warn("no_checkpoints_found", not_found)
        times = took, ended
        end = self._end(code, times, progress, grace_over=grace_over, has_moved=has_moved)
        if self._stop_at is None:
            return beginning.judge(self._with_doubts(end, by_shell=stopping.by_shell), code)
        newest = saved.known_step if saved.folders else beginning.step
        return with_what_is_lost(end, progress.step, newest)

    def _why_to_stop(self, now: float, progress: ScriptProgress) -> Reason | None:
        work, ran = self._work, now - self._began
        if self._signals.asked:
            return Reason.interrupted
        if work.max_duration_seconds is not None and ran > work.max_duration_seconds:
            return Reason.max_duration
        since, self._silence = progress.silence(self._printed_at)
        if work.hang_timeout_seconds and now - since > work.hang_timeout_seconds:
            return Reason.hang
        return None

    def _ask_to_stop(self, stopping: Stopping, why: Reason) -> None:
        """The stop file first, then the signal: a script that asks for the file sees it."""
        self._stop_at, self._why_stop = time.monotonic(), why
        with suppress(OSError):  # then the signal alone says so
            self._work.show_stop_file()
        stopping.begin()

    def _end_rest(self, stopping: Stopping, code: int) -> Rest:
        """Descendants that outlive the leader get the signal and the rest of the grace time."""
        now, was_stopped = time.monotonic(), self._stop_at is not None
        until = self._stop_at + self._work.grace_seconds if self._stop_at else now + REST_SECONDS
        rest = stopping.end_rest(until, at_once=was_stopped)
        if rest.commands:
            self._left, message = on_what_was_left(rest.commands, code, was_stopped=was_stopped)
            self._warn("processes_left", message)
            self._doubts.append(message)
        return rest

    def _with_doubts(self, end: ScriptEnd, *, by_shell: bool) -> ScriptEnd:
        """Adds caveats to an end with exit code 0 if its log, or what was left, contradicts it."""
        if end.reason is not Reason.completed:
            return end
        log = end_of(self._work.folder / LOG)
        if (doubt := doubt_of(log, by_shell=by_shell)) is not None:
            self._warn("may_have_failed", doubt)
            self._doubts.append(doubt)
        return with_doubts(end, self._doubts)

    def _look(self, leader: Leader, progress: ScriptProgress) -> None:
        self._pulse.beat()
        self._tell_config()
        progress.read()
        now = time.monotonic()
        with suppress(OSError):  # the script has removed it
            log_size = (self._work.folder / LOG).stat().st_size
            if log_size != self._log_size:
                self._log_size, self._printed_at = log_size, now
        if now >= self._memory_at:
            self._memory_at = now + min(MEMORY_SECONDS, (now - self._began) / 10)
            self._memory = memory_of(leader)
            self._peak_memory = max(self._peak_memory, self._memory)
        self._is_measured = now - self._began >= MEASURED_SECONDS
        progress.tell(self._memory, self._measured_peak)

    @property
    def _measured_peak(self) -> int | None:
        """None of a script that has not lived long enough to be measured."""
        return self._peak_memory or None if self._is_measured else None

    def _warn(self, code: str, message: str) -> None:
        self._events.emit("warning", code=code, message=message)

    def _end(
        self,
        code: int,
        times: tuple[float, float],
        progress: ScriptProgress,
        *,
        grace_over: bool,
        has_moved: bool,
    ) -> ScriptEnd:
        took, ended = times
        how = how_it_ended(code)
        step, self.last_step = progress.step, progress.last_step
        last = {"step": step, **progress.last} if step else progress.last
        result = {"last": last, "exit_code": code}
        done = (self._work.folder / FINISHED).exists() or progress.is_through
        if self._stop_at is None:
            told = f"The script ended {how} after {took:.0f} s.{self._left}"
            return end_by_itself(self._work, code, told, result, has_moved=has_moved)
        waited = ended - self._stop_at
        if done and self._why_stop is not Reason.hang:
            told = "It was asked to stop, and had said by then that it was done."
            return ScriptEnd(Reason.completed, f"The script ended {how}. {told}", result)
        if grace_over:
            told = (
                f"The script did not stop within {self._work.grace_seconds:g} seconds and was "
                "killed, with everything that it had started."
            )
            return ScriptEnd(_forced(self._why_stop), told, result)
        if self._why_stop is Reason.max_duration:
            limit = self._work.max_duration_seconds
            told = f"The script ran for the {limit:g} seconds that were allowed; it ended {how}."
            return ScriptEnd(Reason.max_duration, told, result)
        if self._why_stop is Reason.hang:
            told = (
                f"The script {self._silence} for {self._work.hang_timeout_seconds:g} seconds, and "
                f"was ended ({how})."
            )
            return ScriptEnd(Reason.hang, told, result)
        return ScriptEnd(
            Reason.interrupted,
            f"The script was asked to stop; it ended {how} {waited:.1f} s later.",
            result,
        )


@contextmanager
def beating(pulse: Pulse) -> Iterator[None]:
    """While processes are waited for, or large files read and hashed, which may take minutes, the
    pulse goes on.
    """
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(LOOK_SECONDS):
            pulse.beat()

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _forced(why: Reason | None) -> Reason:
    return why if why in (Reason.max_duration, Reason.hang) else Reason.killed


def run_attempt(folder: Path) -> int:
    """0 when the attempt's end could be told."""
    events, signals = ScriptEventLog(folder / "events.jsonl"), ScriptSignals()
    last_step = None
    try:
        pulse = ScriptPulse(folder / "pulse")
        pulse.enter("starting")
        events.emit("phase", phase="starting")
        runner = Runner(ScriptWork.read(folder), events, pulse, signals)
        end, last_step = runner.run(), runner.last_step
    except (OSError, ValueError, LookupError) as error:
        end = not_run(error)
    events.end(reason=end.reason, message=end.message, result=end.result, step=last_step)
    with suppress(OSError):  # of a full disk
        begins = "" if end_of(folder / LOG)[-1:] in (b"", b"\n") else "\n"
        print(f"{begins}stoker: {end.message}", flush=True)  # noqa: T201 - the log of the run
    return 0
