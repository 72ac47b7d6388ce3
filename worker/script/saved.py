"""Checkpoints of a script: noticed in its folder, proved whole, and kept with the run.

A save is kept once it is proved:

- no process of the run has a file of it open for writing,
- each file is whole by its own format, or has not changed for two looks,
- no file is missing that the kept save before it had, or that it names itself.

A first folder shows what belongs to a save only when the training goes on, the next save begins, or
the script ends well. Until then it is provisional: kept if there is nothing else.

A save is copied, because the script may write over it or remove it. Where the file system can, the
copy shares its blocks. What is kept has a manifest with hashes like any checkpoint of Stoker's: it
is listed, pinned, downloaded and removed like those.
"""

import json
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.durable import sync
from stoker.manifest import COUNTS, MANIFEST, manifest_bytes, parse_manifest
from stoker.script import seal
from worker.regular_files import read_regular
from worker.reporting import EventLog
from worker.script.event_log import FULL
from worker.script.points import number_of, usual_name
from worker.script.saves import (
    FilesBefore,
    FileState,
    Save,
    bring,
    number_in,
    saves_of,
    without_numbers,
)
from worker.script.shim import Steps
from worker.script.sources import Warn
from worker.script.whole import TRAINER_STATE, NotWhole, is_proved, require_free_name
from worker.script.work import ScriptWork
from worker.script.writers import OpenFiles, open_for_writing

LOOK_SECONDS = 2.0
# Copies take up so much of the time at most, but for the last.
COPYING = 0.05
# A file that changes from look to look, so often in a row, is copied between two of its writes.
RESTLESS_LOOKS = 3
# After so long without one that could be kept, a warning says why.
UNKEPT_SECONDS = 45.0
LARGEST_MANIFEST = LARGEST_STATE = 2**28
STEP = re.compile(r"(?:step|checkpoint|ckpt|iter)[=_-]?(\d+)", re.IGNORECASE)

WILD = re.compile(r"[*?[]")
NOT_SHOWN = NotWhole("nothing showed that all of its files are there")

Paths = tuple[Path, ...]


@dataclass(frozen=True)
class Past:
    """What was kept before: the step that the script goes on from, 0 for none; the names of the
    files of the last save of each pattern; and what of it lies in this attempt's own folder.
    """

    step: int = 0
    names: dict[str, Counter[str]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()


@dataclass
class _Seen:
    """A save as the last look found it."""

    save: Save
    since: int
    """The script's step at the last look before this form of it was there."""
    steps: Steps
    """How far the script was at the first look that found this form."""
    changes: int = 0
    """How many looks in a row found it changed."""
    proof: bool | NotWhole | None = None
    """What its formats say; None if nobody has read it yet."""

    def is_same(self, save: Save) -> bool:
        return self.save.files == save.files


class Saved:
    """Looks for checkpoints beside the script, in a thread of its own. `error`: what a look failed
    with last, such as a full disk.
    """

    def __init__(
        self,
        work: ScriptWork,
        before: FilesBefore,
        events: EventLog,
        warn: Warn,
        steps: Callable[[], Steps],
        past: Past,
        newest_kept: float = 0.0,
    ) -> None:
        """`before`: files of earlier attempts and runs. `steps`: how far the script is now.
        `newest_kept`: unix seconds; older saves are kept already, or were passed over.
        """
        self._work, self._files_before, self._events, self._warn, self._steps_now = (
            work, before, events, warn, steps,
        )  # fmt: skip
        self._past = past
        self._seen = dict[Paths, _Seen]()
        self._now = Steps(past.step)
        """At the last look."""
        self._names = dict(past.names)
        self._lacked = dict[str, tuple[Save, Counter[str]]]()
        """By pattern, the last save that lacked files of the one before it."""
        self._left_alone = dict[Paths, Counter[str]]()
        """Files of a save that is written in place which the last kept form had from before."""
        self._kept = dict[Paths, dict[str, FileState]]()
        self._provisional: tuple[Save, Path] | None = None
        """A kept save that is not proved yet, and its folder."""
        self._newest_kept = newest_kept
        self._steps = {step_of(folder) for folder in past.folders}
        earlier = (*past.folders, *work.restore) if past.step else ()
        self._highest = max(map(step_of, earlier), default=0)
        """The highest step of what the script goes on behind. Later saves come after it."""
        self._copy_at = 0.0
        self._unkept_at: float | None = None
        self._told = set[str]()
        self.folders: list[Path] = []
        """Folders of what was kept, in that order."""
        self.known_step = 0
        """Of the newest, where it counts as the script does; 0 elsewhere."""
        self.error: OSError | None = None
        self._ended = threading.Event()
        self._was_cut = False
        self._thread = threading.Thread(target=self._run, name="saved", daemon=True)
        self._thread.start()

    def close(self, *, was_cut: bool) -> None:
        """Look a last time, when nobody writes any more. `was_cut`: whoever wrote did not end
        well, maybe in the middle of a save.
        """
        self._ended.set()
        self._thread.join()
        self._was_cut = was_cut
        self._look(is_last=True)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._look(is_last=False)

    def _look(self, *, is_last: bool) -> None:
        try:
            self._look_at_own()
            saves = [s for s in saves_of(self._work) if self._files_before.new_files(s)]
            before, now = self._seen, self._steps_now()
            self._seen = {save.paths: self._seen_as(save, now) for save in saves}
            self._now = now
            if is_last or time.monotonic() >= self._copy_at:
                self._keep_what_is_due(saves, before, is_last=is_last)
        except OSError as error:
            self.error = error
        except (ValueError, LookupError) as error:  # somebody has written over a manifest
            self._warn_once("checkpoint_not_kept", f"A look for saves has failed: {error}.")

    def _seen_as(self, save: Save, now: Steps) -> _Seen:
        seen = self._seen.get(save.paths)
        if seen is not None and seen.is_same(save):
            return replace(seen, save=save, changes=0)
        changes = 0 if seen is None else seen.changes + 1
        return _Seen(save, self._now.step, now, changes)

    def _keep_what_is_due(
        self, saves: list[Save], before: dict[Paths, _Seen], *, is_last: bool
    ) -> None:
        """Keeps of each pattern the newest that is proved, the oldest first. Those that are older
        than what is kept stay out: steps would no longer rise with the time of the save.
        """
        newest = {pattern: save for save in saves for pattern in save.patterns}
        self._confirm_provisional(newest, is_last=is_last)
        candidates = [save for save in saves if self._is_news(save)]
        if not candidates:
            self._unkept_at = None
            return
        writers = OpenFiles(frozenset()) if is_last else open_for_writing()
        self._warn_of_unknown(writers)
        proved, unproved, patterns = list[Save](), list[Save](), set[str]()
        for save in reversed(candidates):
            if not patterns.isdisjoint(save.patterns):
                continue
            seen = before.get(save.paths)
            is_settled = seen is not None and seen.is_same(save)
            is_closed = self._is_closed(save, newest, is_last=is_last)
            try:
                if self._is_proved(save, writers, is_settled, is_closed, is_last):
                    proved.append(save)
                    patterns.update(save.patterns)
                else:
                    unproved.append(save)
            except NotWhole as why:
                self._tell_why_not(save, why, is_last=is_last)
            except OSError as error:
                self.error = error
        for save in reversed(proved):
            self._try_to_keep(save, is_provisional=False)
        if unproved and proved:
            self._tell_why_not(unproved[0], NOT_SHOWN, is_last=is_last)
        elif unproved:
            self._try_to_keep(unproved[0], is_provisional=True)

    def _is_closed(self, save: Save, newest: dict[str, Save], *, is_last: bool) -> bool:
        """True if nobody adds to the save any more: the next one has begun, a step was made after
        its last write, or the script has ended well.
        """
        is_over = all(newest[pattern] is not save for pattern in save.patterns)
        has_gone_on = self._now.counted > self._seen[save.paths].steps.counted
        return is_over or has_gone_on or (is_last and not self._was_cut)

    def _is_news(self, save: Save) -> bool:
        return save.newest > self._newest_kept and self._kept.get(save.paths) != save.files

    def _is_proved(
        self, save: Save, writers: OpenFiles, is_settled: bool, is_closed: bool, is_last: bool
    ) -> bool:
        """Returns False if the save may be kept provisionally.

        Raises NotWhole, which says why it cannot be kept now, and OSError.
        """
        require_free_name(save.files)
        for name in save.files:
            if writers.hold(save.root / name):
                raise NotWhole(f"{name} was open for writing")
        required = Counter[str]()
        for pattern in save.patterns:
            required |= self._names.get(pattern, Counter())
        is_kept = save.paths in self._kept and self._provisional_folder(save) is None
        in_place = is_kept and len(save.files) > 1
        if not is_closed and (is_last or in_place):
            present = self._written(save) | self._left_alone.get(save.paths, Counter())
        else:
            present = without_numbers(save.files)
        lacking = required - present
        if lacking and not ((is_closed or in_place) and self._lacks_again(save, lacking)):
            raise NotWhole(_on_lacking(min(lacking), save))
        if in_place and not is_closed and self._counts_steps and not is_last:
            raise NOT_SHOWN
        seen = self._seen[save.paths]
        is_restless = seen.changes >= RESTLESS_LOOKS and not writers.unknown
        may_be_whole = is_settled or is_restless or is_closed or save.says_it_is_done
        if not self._proof_of(seen) and not may_be_whole:
            raise NotWhole("it was changed shortly before, and its format has no mark of its end")
        if required or is_closed or save.says_it_is_done or self._is_complete_alone(save):
            return True
        if self._has_other(save):
            raise NOT_SHOWN
        return False

    @property
    def _counts_steps(self) -> bool:
        """True if the shim counts this attempt's steps."""
        return self._now.counted > 0

    def _proof_of(self, seen: _Seen) -> bool:
        """Reads each form of a save once. Raises NotWhole, OSError."""
        if seen.proof is None:
            try:
                seen.proof = seen.save.require_whole()
            except NotWhole as why:
                seen.proof = why
        if isinstance(seen.proof, NotWhole):
            raise seen.proof
        return seen.proof

    def _is_complete_alone(self, save: Save) -> bool:
        """True of a file that no other pattern may add to."""
        wild = {pattern for pattern in self._work.checkpoints if WILD.search(pattern)}
        may_join = save.number is not None and self._work.like is None
        joins = may_join and wild.issuperset(save.patterns) and wild.difference(save.patterns)
        return not joins and not save.path.is_dir()

    def _has_other(self, save: Save) -> bool:
        """True if the run has a checkpoint besides this save."""
        others = len(self.folders) - (self._provisional_folder(save) is not None)
        return bool(others or self._past.folders or self._work.restore)

    def _provisional_folder(self, save: Save) -> Path | None:
        """The folder of an earlier form of this save, if that was kept provisionally."""
        if self._provisional is None or self._provisional[0].paths != save.paths:
            return None
        return self._provisional[1]

    def _lacks_again(self, save: Save, lacking: Counter[str]) -> bool:
        """True if the save before it lacked the same files: they are not written every time."""
        known = [self._lacked.get(pattern) for pattern in save.patterns]
        self._lacked |= dict.fromkeys(save.patterns, (save, lacking))
        return all(one and one[1] == lacking and one[0].files != save.files for one in known)

    def _written(self, save: Save) -> Counter[str]:
        """The names of its files without those that an earlier save has left in the folder."""
        kept = self._kept.get(save.paths, {})
        new = self._files_before.new_files(save)
        return without_numbers(
            n for n, state in save.files.items() if n in new and kept.get(n) != state
        )

    def _tell_why_not(self, save: Save, why: NotWhole, *, is_last: bool) -> None:
        """At the end, or when none could be kept for long."""
        has_other = self._has_other(save)
        counts = (
            "The checkpoint before it counts." if has_other else "No other is kept of this run."
        )
        if is_last:
            self._warn("checkpoint_not_whole", f"{save.path} is not kept: {why}. {counts}")
            return
        now = time.monotonic()
        self._unkept_at = now if self._unkept_at is None else self._unkept_at
        if now - self._unkept_at >= UNKEPT_SECONDS:
            self._warn_once(
                "checkpoint_not_kept",
                f"{save.path} matches, and could not be kept for {UNKEPT_SECONDS:.0f} seconds: "
                f"{why}. {counts} A script that writes over its saves without a pause should save "
                "under a new name each time, or under a temporary one first.",
            )

    def _warn_once(self, code: str, message: str) -> None:
        if code not in self._told:
            self._told.add(code)
            self._warn(code, message)

    def _warn_of_unknown(self, writers: OpenFiles) -> None:
        if writers.unknown:
            self._warn_once(
                "writers_unknown",
                f"Stoker cannot see which files {writers.unknown} has open, because it runs as "
                "another user. A save counts once it has not changed for "
                f"{LOOK_SECONDS:g} seconds.",
            )

    def _try_to_keep(self, save: Save, is_provisional: bool) -> None:
        try:
            self._keep(save, is_provisional)
            self.error = None
        except OSError as error:
            if error.errno in FULL and self.error is None:
                self._warn(
                    "checkpoint_not_kept",
                    f"{save.path} is not kept: the disk of the run is full. Free space; the newest "
                    "save is tried again at each look, and one before it counts until then.",
                )
            self.error = error
        except ValueError as error:  # a name or a number that no manifest can say
            self._newest_kept = save.newest
            self._warn("checkpoint_not_kept", f"{save.path} is not kept: {error}.")

    def _confirm_provisional(self, newest: dict[str, Save], *, is_last: bool) -> None:
        """Says that the provisional one is whole if that has shown itself."""
        if self._provisional is None:
            return
        save, folder = self._provisional
        seen = self._seen.get(save.paths)
        if seen is None or not seen.is_same(save):
            return
        if self._is_closed(seen.save, newest, is_last=is_last):
            self._provisional = None
            self._note(save, is_proved=True)
            body = parse_manifest(read_regular(folder / MANIFEST, LARGEST_MANIFEST))
            body.pop("provisional", None)
            temporary = folder / f".{MANIFEST}.tmp"
            temporary.write_bytes(manifest_bytes(body))
            sync(temporary)
            temporary.replace(folder / MANIFEST)

    def _look_at_own(self) -> None:
        """Those that the script made by `stoker`, which are whole once they have their names."""
        for path in sorted(_entries(self._work.checkpoints_folder)):
            match = re.fullmatch(r"step-(\d+)", path.name)
            if match is None or int(match[1]) in self._steps or (path,) in self._kept:
                continue
            try:
                self._tell(path, int(match[1]))
                self.known_step = int(match[1])
            except (FileNotFoundError, ValueError):
                self._kept[(path,)] = {}
                self._warn(
                    "checkpoint_not_kept",
                    f"{path} was not made by stoker.init().checkpoint(…), so nothing says that it "
                    "is whole: it is no checkpoint of this run.",
                )

    def _keep(self, save: Save, is_provisional: bool) -> None:
        self._require_room(save)
        replaced = self._provisional_folder(save)
        step, is_seen = self._step_of(save) if replaced is None else (step_of(replaced), True)
        target = self._work.checkpoints_folder / f"step-{step}"
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            began = time.monotonic()
            bring(save, temporary)
            self._copy_at = time.monotonic() + (time.monotonic() - began) / COPYING
            if not save.is_unchanged:
                return  # it was being written after all: the next look sees it again
            for name in save.files:
                is_proved(temporary / name)
            body = {
                "run_id": self._work.run_id,
                "attempt": self._work.attempt,
                "step": step,
                "epoch": 0,
                "metrics": _metrics_of(save.path),
                "entry": save.entry,
                "source": str(save.path),
                "root": str(save.root),
                "patterns": list(save.patterns),
                "seen": is_seen,
                "saved_at": save.newest,
                **({"provisional": True} if is_provisional else {}),
            }
            seal(temporary, target, body)
        except NotWhole:
            return  # as above
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._warn_of_overwriting(save)
        if replaced is None and save.paths in self._kept:
            self._left_alone[save.paths] = without_numbers(save.files) - self._written(save)
        self._note(save, is_proved=not is_provisional)
        if replaced is None:
            self._tell(target, step)
        self._provisional = (save, target) if is_provisional else None
        self._unkept_at = None
        # Else its name may count epochs, or the script samples.
        seen = self._seen[save.paths]
        is_own = not is_seen and seen.since <= step <= seen.steps.step <= 2 * step
        self.known_step = step if is_own else 0

    def _require_room(self, save: Save) -> None:
        """Raises ValueError for more than a disk can hold, such as a file with a hole of terabytes.
        To copy and hash that would take hours.
        """
        size = sum(state.size for state in save.files.values())
        disk = shutil.disk_usage(self._work.checkpoints_folder).total
        if size > disk:
            raise ValueError(f"it has {size:,} bytes, and the run's disk {disk:,} in all")

    def _note(self, save: Save, is_proved: bool) -> None:
        for pattern in save.patterns:
            self._lacked.pop(pattern, None)
        self._kept[save.paths] = dict(save.files)
        if is_proved:
            self._names |= dict.fromkeys(save.patterns, without_numbers(save.files))
        self._newest_kept = max(self._newest_kept, save.newest)

    def _warn_of_overwriting(self, save: Save) -> None:
        if save.paths in self._kept and not save.path.is_dir() and self._provisional is None:
            self._warn_once(
                "checkpoint_overwritten",
                f"The script writes over {save.path}. A kill in the middle of that would leave "
                "a damaged file, so Stoker keeps a copy of each save. Saving under a new name "
                "each time, or to a temporary name first, costs no copy.",
            )

    def _step_of(self, save: Save) -> tuple[int, bool]:
        """Returns the step of a save, and True if it is the script's own at this look.

        A number in its name counts if it can be the step just made: first one beside a word for
        steps, then the last one. Without such a number the step at `torch.save` counts. Steps rise,
        because the newest save is the one to go on from.
        """
        name, seen = save.path.resolve().name, self._seen[save.paths]
        match = STEP.search(name)
        numbers = [None if match is None else int(match[1]), number_in(name), seen.steps.at_save]
        known = next((n for n in numbers if n and self._can_be(n, seen)), None)
        lowest = max(self._highest, *self._steps, self._past.step) + 1
        step = max(seen.steps.step if known is None else known, lowest)
        return step, step != known

    def _can_be(self, number: int, seen: _Seen) -> bool:
        """True if a number can be a step made between two looks, as far as steps are known."""
        step = seen.steps.step
        can_be = step <= self._past.step or seen.since <= number <= 2 * step <= 4 * number
        return can_be and number < COUNTS["step"]

    def _tell(self, folder: Path, step: int) -> None:
        manifest = parse_manifest(read_regular(folder / MANIFEST, LARGEST_MANIFEST))
        self._steps.add(step)
        self.folders.append(folder)
        self._events.emit(
            "checkpoint",
            action="saved",
            by_stoker="source" not in manifest,
            seen=manifest.get("seen", False),
            provisional=manifest.get("provisional", False),
            path=str(folder.relative_to(self._work.folder)),
            step=step,
            epoch=manifest.get("epoch") or 0,
            bytes=sum(entry["bytes"] for entry in manifest["files"].values()),
            seconds=0.0,
            metrics={usual_name(n): v for n, v in manifest.get("metrics", {}).items()},
        )


def _on_lacking(name: str, save: Save) -> str:
    if without_numbers(save.files)[name]:
        return f"its {name} is of the save before it, or one of several is not there"
    return f"it lacks {name}, which the save before it has"


def step_of(folder: Path) -> int:
    """Of a checkpoint, by its name."""
    return int(folder.name.removeprefix("step-"))


def _metrics_of(path: Path) -> dict[str, float]:
    """What Hugging Face's Trainer has noted beside it last."""
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        history = json.loads(read_regular(path / TRAINER_STATE, LARGEST_STATE))["log_history"]
        merged: dict[str, Any] = {}
        for entry in history[-4:]:
            merged |= entry
        kept = {"eval_loss": "val_loss", "loss": "train_loss"}
        found = {ours: number_of(merged.get(name)) for name, ours in kept.items()}
        return {name: value for name, value in found.items() if value is not None}
    return {}


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
