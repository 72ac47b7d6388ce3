"""What an attempt of a script goes on from: the newest whole checkpoint of those before it."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.lifecycle import Reason
from app.plainjson import load_json
from stoker.manifest import MANIFEST, BadManifest, parse_manifest
from worker.regular_files import NotReadable, open_regular, read_regular
from worker.reporting import EventLog
from worker.script.points import EPOCH, LastPoint
from worker.script.saved import LARGEST_MANIFEST, Past, Saved, step_of
from worker.script.saves import FilesBefore, without_numbers
from worker.script.shim import Steps
from worker.script.sources import Warn
from worker.script.whole import NotWhole
from worker.script.work import ScriptWork, Start

LONGEST_EVENT, MOST_EVENT_BYTES = 2**20, 2**28
TELLS = re.compile(r'"kind": ?"(metrics|applied|restored|checkpoint|end)"')


def adopt(work: ScriptWork, events: EventLog, warn: Warn) -> Past:
    """The past of an attempt. What an earlier one has saved, and nobody kept since its runner was
    killed, is kept now. OSError.
    """
    past, newest_kept = _told(work)
    earlier = work.run_folder / f"attempt-{work.attempt - 1}"
    before = FilesBefore.read(earlier)
    if before is None or _has_ended(earlier):
        return past
    saved = Saved(work, before, events, warn, Steps, past, newest_kept)
    saved.close(was_cut=True)
    if saved.error is not None:
        raise saved.error
    return replace(past, folders=tuple(reversed(saved.folders)))


def _told(work: ScriptWork) -> tuple[Past, float]:
    """Returns the past by the newest checkpoint to go on from, and its time (unix seconds)."""
    for folder in work.restore[:1]:
        with suppress(OSError, BadManifest):
            manifest = parse_manifest(read_regular(folder / MANIFEST, LARGEST_MANIFEST))
            names = without_numbers(manifest["files"])
            patterns = manifest.get("patterns", [str(manifest.get("pattern"))])
            past = Past(step_of(folder), dict.fromkeys(patterns, names))
            return past, manifest.get("saved_at", 0.0)
    return Past(), 0.0


def _has_ended(attempt: Path) -> bool:
    """True if its runner has said how it ended, after a last look at what lay there."""
    try:
        with open_regular(attempt / "events.jsonl") as file:
            file.seek(max(0, file.seek(0, 2) - LONGEST_EVENT))
            *_, last = file.read(LONGEST_EVENT).splitlines()
        return bool(json.loads(last)["kind"] == "end")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def choose(restore: Sequence[Path], told: Callable[[Path, str], None]) -> Start | None:
    """Returns the first of the checkpoints that is whole; None if none is. `told` gets each one
    that is passed over, and why. Raises OSError.
    """
    for folder in restore:
        try:
            manifest = parse_manifest(read_regular(folder / MANIFEST, LARGEST_MANIFEST))
            _require_as_written(folder, manifest)
        except FileNotFoundError as error:
            told(folder, f"{Path(error.filename).name} is gone")
        except (BadManifest, NotWhole, NotReadable) as why:
            told(folder, str(why))
        else:
            kept = folder / (manifest.get("entry") or "")
            return Start(folder, kept, _own_path(manifest) or kept)
    return None


def event_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file that a script could write to, within bounds. Raises OSError."""
    with open_regular(path) as file:
        left = MOST_EVENT_BYTES
        while left > 0 and (line := file.readline(LONGEST_EVENT)):
            left -= len(line)
            yield line.decode("utf-8", "replace")


def newest_last_if_it_fails(
    work: ScriptWork, restore: Sequence[Path], warn: Warn
) -> Sequence[Path]:
    """Returns the checkpoints in the order in which to try them. The newest is tried last if two
    attempts in a row ended before their first step after they were given it.
    """
    failed = {failed_at_start(work, work.attempt - back) for back in (1, 2)}
    if len(restore) < 2 or failed != {str(restore[0])}:
        return restore
    warn(
        "checkpoint_passed_over",
        f"Two attempts in a row ended before their first step after they were given the save of "
        f"step {step_of(restore[0])}. This attempt goes on from step {step_of(restore[1])}, the "
        "one before.",
    )
    return (*restore[1:], restore[0])


def failed_at_start(work: ScriptWork, attempt: int) -> str | None:
    """Returns the checkpoint that an earlier attempt was given, if its script failed before its
    first step; else None. Without `resume` only the script knows whether it reads a checkpoint.
    """
    if not work.resume:
        return None
    try:
        events = _events_of(work.run_folder / f"attempt-{attempt}")
        by_kind = {event["kind"]: event for event in events}
        checkpoint: str | None = by_kind["applied"]["applied"]["checkpoint"]
        has_failed = by_kind["end"]["reason"] == Reason.crashed
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return checkpoint if has_failed and "restored" not in by_kind else None


def _own_path(manifest: dict[str, Any]) -> Path | None:
    """The save of the script if its files are still as they were kept. A script may read settings
    that lie beside it.
    """
    with suppress(OSError, KeyError, NotWhole):
        root = Path(manifest["root"])
        _require_as_written(root, manifest)
        return root / (manifest.get("entry") or "")
    return None


def is_of_a_pattern(folder: Path) -> bool:
    """Whether the script saved it where its patterns say, and not by `stoker`, which knows itself
    how to go on from one.
    """
    return "source" in parse_manifest(read_regular(folder / MANIFEST, LARGEST_MANIFEST))


def last_points(checkpoint: Path) -> dict[str, LastPoint]:
    """By name, where the curves of a run ended when this checkpoint was made, as far as the events
    of its attempt are there, and of those that it went on from.
    """
    found: dict[str, LastPoint] = {}
    folder: Path | None = checkpoint
    while folder is not None:
        try:
            told, folder = _told_before(folder)
        except (OSError, ValueError, LookupError, TypeError):
            break
        found = told | found
    return found


def _told_before(folder: Path) -> tuple[dict[str, LastPoint], Path | None]:
    """The last points that its attempt had told when a checkpoint was made; and the checkpoint that
    this attempt went on from. OSError, ValueError, LookupError, TypeError.
    """
    attempt, was_told_at = folder.parent.parent, _was_told_at(folder)
    events = _events_of(attempt)
    if _is_adopted(folder, events):
        number = int(attempt.name.removeprefix("attempt-")) - 1
        events = _events_of(attempt.with_name(f"attempt-{number}"))
    told: dict[str, LastPoint] = {}
    before: Path | None = None
    for event in events:
        if event["kind"] == "restored":
            path = Path(event["path"])
            before = path if path.parent.name == folder.parent.name else path.parent
        elif event["kind"] == "metrics" and was_told_at(event):
            point = LastPoint(event["step"], event["values"].get(EPOCH))
            told |= dict.fromkeys(event["values"], point)
    return told, before


def _was_told_at(checkpoint: Path) -> Callable[[dict[str, Any]], bool]:
    """Whether a point that an event tells of belongs to what a checkpoint has saved. One that was
    made by `stoker` says how long the files were that points are read from. Else the time has to
    tell: when the script had saved, and when the point had been written. OSError, ValueError.
    """
    manifest = parse_manifest(read_regular(checkpoint / MANIFEST, LARGEST_MANIFEST))
    sizes: dict[str, int] = dict(manifest.get("curve_bytes", {}))
    saved_at: float = manifest.get("saved_at", (checkpoint / MANIFEST).stat().st_mtime)

    def was_told(event: dict[str, Any]) -> bool:
        if (size := sizes.get(event.get("source", ""))) is not None:
            return bool(event["offset"] <= size)
        return bool(event.get("written", event["t"]) <= saved_at)

    return was_told


def _is_adopted(checkpoint: Path, events: list[dict[str, Any]]) -> bool:
    """Whether it was kept before the script of the attempt began in which it lies: that of the one
    before has saved it.
    """
    place = f"{checkpoint.parent.name}/{checkpoint.name}"
    for event in events:
        if event["kind"] == "applied":
            return False
        if event["kind"] == "checkpoint" and event["path"] == place:
            return True
    return True


def _events_of(attempt: Path) -> list[dict[str, Any]]:
    """Returns what tells where curves ended; lines that are cut are left out. Raises OSError."""
    events = []
    for line in event_lines(attempt / "events.jsonl"):
        if TELLS.search(line):
            with suppress(ValueError, RecursionError):
                events.append(load_json(line))
    return events


def _require_as_written(folder: Path, manifest: dict[str, Any]) -> None:
    for name, entry in manifest["files"].items():
        with open_regular(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry["bytes"]:
                raise NotWhole(f"{name} has {size} bytes, and {entry['bytes']} were written")
            if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                raise NotWhole(f"{name} is not as it was written")
