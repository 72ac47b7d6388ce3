"""The start of a script that is given a checkpoint: whether it comes past it, and what that tells.

A script that does not know the arguments of `--resume` ends at once, with a usage error. It has not
gone on from anything then, and would end the same however often it is tried. Any other early end
may be a passing one, such as a folder that is not mounted yet: it is tried again as usual.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.lifecycle import Reason
from stoker.script import LOG
from worker.reporting import EventLog
from worker.script.ending import ScriptEnd, refuses
from worker.script.restoring import event_lines, is_of_a_pattern
from worker.script.work import ScriptWork, Start

# A script that ran for so long has read its arguments, also if it imports a lot before.
START_SECONDS = 20.0


class Beginning:
    """Of one attempt. `step`: what it goes on from, 0 for nothing; `folder`: that checkpoint's."""

    def __init__(self, work: ScriptWork, start: Start | None, events: EventLog) -> None:
        self._work, self._events = work, events
        self._arguments = work.command(start)[len(work.argv) :]
        """Those that resume it."""
        self._restored: dict[str, Any] | None = None
        self._is_past = False
        self.step = 0
        self.folder: Path | None = None
        if start is None:
            return
        folder = start.folder
        if not work.resume and is_of_a_pattern(folder):
            return  # only the script knows whether it reads it
        self.step, self.folder = start.step, folder
        self._restored = {
            "path": str(start.kept),
            "given": str(start.path),
            "step": start.step,
            "carry": "full",
            "by_stoker": not is_of_a_pattern(folder),
        }

    def look(self, ran: float, *, has_moved: bool) -> None:
        """Tell that it goes on from its checkpoint once it is past its start. `ran`: seconds;
        `has_moved`: it has made a step, told a number, saved, or ended well.
        """
        if self._is_past or not (has_moved or ran >= START_SECONDS):
            return
        self._is_past = True
        if self._restored is not None:
            self._events.emit("restored", **self._restored)

    def judge(self, end: ScriptEnd, code: int) -> ScriptEnd:
        """The end of a script that nobody asked to stop: with what it was given where it did not
        come past its start, and for good where it refused that before, too.
        """
        if self._is_past or not self._arguments or code <= 0 or end.reason is not Reason.crashed:
            return end
        told = (
            f"{end.message} It had been given `{shlex.join(self._arguments)}`, as --resume says, "
            "and ended before its first step"
        )
        if not refuses(self._work.folder / LOG, self._arguments):
            return replace(end, message=f"{told}.")
        told += ": its log says that it does not take these arguments"
        if not _ended_so(self._work, code):
            return replace(end, message=f"{told}.")
        return ScriptEnd(
            Reason.spec_error,
            f"{told}, as at the attempt before. It is not tried again. Submit the command with "
            "the --resume that it understands, or begin anew: "
            f"`stoker restart {self._work.run_id} --from scratch`.",
            end.result,
        )


def _ended_so(work: ScriptWork, code: int) -> bool:
    """Whether the attempt before this one was given a checkpoint, too, and ended with the same code
    before it came past its start.
    """
    path = work.run_folder / f"attempt-{work.attempt - 1}" / "events.jsonl"
    try:
        events = [json.loads(line) for line in event_lines(path)]
        by_kind = {event["kind"]: event for event in events}
        was_given = by_kind["applied"]["applied"]["resume_from"] is not None
        same = by_kind["end"]["result"]["exit_code"] == code
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
    return was_given and same and "restored" not in by_kind
