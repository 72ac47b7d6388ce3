"""Checkpoints of a script: noticed in its folder, proved whole, and kept with the run.

A save is kept when its files can be read as what they are, and it has not changed for two looks,
or nobody writes any more; a single file of a kind that proves itself needs no second look. Of a
script that did not end well, the last folder may lack files that were to follow: unless two seconds
lie between, those of the save before it have to be written. A save is copied, since the script may
write over it or remove it; where the file system can, the copy shares its blocks. What is kept has
a manifest with hashes like any checkpoint of Stoker's: it is listed, pinned, downloaded and removed
like those.
"""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.manifest import COUNTS, MANIFEST, parse_manifest
from stoker.script import seal
from worker.reporting import EventLog
from worker.script.event_log import FULL
from worker.script.points import number_of, usual_name
from worker.script.saves import Save, Signature, bring, saves_of, signature_of, without_numbers
from worker.script.sources import Warn
from worker.script.whole import NotWhole, require_whole
from worker.script.work import ScriptWork

LOOK_SECONDS = 2.0
# Copies take up so much of the time at most, but for the last.
COPYING = 0.05
STEP = re.compile(r"(?:step|checkpoint|ckpt|iter)[=_-]?(\d+)", re.IGNORECASE)
NUMBER = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True)
class Past:
    """What was kept before: the step that the script goes on from, 0 for none; the names of the
    files of the last save of each pattern; and what of it lies in this attempt's own folder.
    """

    step: int = 0
    names: dict[str, frozenset[str]] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()


class Saved:
    """Looks for checkpoints beside the script, in a thread of its own. `error`: what a look failed
    with last, such as a full disk.
    """

    def __init__(
        self,
        work: ScriptWork,
        began: float,
        events: EventLog,
        warn: Warn,
        step: Callable[[], int],
        past: Past,
    ) -> None:
        """`began`: unix seconds; older saves are of earlier runs. `step`: the script's, now."""
        self._work, self._began, self._events, self._warn, self._step = (
            work, began, events, warn, step,
        )  # fmt: skip
        self._before: dict[Path, Signature] = {}
        self._looked_at_step, self._since = past.step or 0, dict[Path, int]()
        """The script's step at the last look, and at the last look before each save."""
        self._names = dict(past.names)
        """Of the files of the last kept save of each pattern."""
        self._kept: dict[Path, Signature] = {}
        self._newest_kept = 0.0
        self._steps = {step_of(folder) for folder in past.folders}
        self._restored = past.step
        self._copy_at = 0.0
        self._overwritten = 0
        self.folders: list[Path] = []
        """Of what was kept, in its order."""
        self.known_step = 0
        """Of the newest, where it counts as the script does; 0 elsewhere."""
        self.error: OSError | None = None
        self._ended = threading.Event()
        self._cut_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="saved", daemon=True)
        self._thread.start()

    def close(self, *, was_cut: bool) -> None:
        """Look a last time, when nobody writes any more. `was_cut`: whoever wrote did not end
        well, maybe in the middle of a save.
        """
        self._ended.set()
        self._thread.join()
        self._cut_at = time.time() if was_cut else None
        self._look(is_last=True)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._look(is_last=False)

    def _look(self, *, is_last: bool) -> None:
        try:
            self._look_at_own()
            saves = saves_of(self._work, self._began)
        except OSError as error:
            self.error = error
            return
        new = (save for save in saves if self._before.get(save.path) != save.signature)
        self._since |= dict.fromkeys((save.path for save in new), self._looked_at_step)
        self._looked_at_step = self._step()
        if is_last or time.monotonic() >= self._copy_at:
            for save in self._due(saves, is_last=is_last):
                self._try_to_keep(save)
        self._before = {save.path: save.signature for save in saves}

    def _due(self, saves: list[Save], *, is_last: bool) -> list[Save]:
        """Of each pattern the newest that is whole, the oldest first. Those that are older than
        what is kept stay out: steps would no longer rise with the time of the save.
        """
        found = dict[str, Save]()
        newest = {save.pattern: save for save in saves}
        names = self._names | {s.pattern: s.names for s in saves if s is not newest[s.pattern]}
        for save in reversed(saves):
            if save.pattern in found or save.newest <= self._newest_kept:
                continue
            is_ready = (
                save.proves_itself
                or self._before.get(save.path) == save.signature
                or (is_last and not self._may_be_cut(save, newest, names))
            )
            if is_ready and self._is_whole(save, is_last=is_last):
                found[save.pattern] = save
        return sorted(found.values(), key=lambda save: save.newest)

    def _may_be_cut(
        self, save: Save, newest: dict[str, Save], names: dict[str, frozenset[str]]
    ) -> bool:
        """Whether the end of the script may have come in the middle of it. `newest`: of each
        pattern; `names`: of the files of the one before that.
        """
        if (
            self._cut_at is None
            or save.newest < self._cut_at - LOOK_SECONDS
            or save is not newest[save.pattern]
        ):
            return False
        before = names.get(save.pattern)
        if save.path.is_dir() and before and before <= self._written(save):
            return False
        self._tell_not_whole(save, "the script ended while it may have been writing it")
        return True

    def _written(self, save: Save) -> frozenset[str]:
        """The names of its files without those that an earlier save has left in the folder."""
        left = set(self._kept.get(save.path, ()))
        new = (file for file in save.signature if file not in left)
        return without_numbers(name for name, _, time in new if time / 1e9 >= self._began)

    def _tell_not_whole(self, save: Save, why: object) -> None:
        self._warn(
            "checkpoint_not_whole",
            f"{save.path} is not kept: {why}. The checkpoint before it counts.",
        )

    def _is_whole(self, save: Save, *, is_last: bool) -> bool:
        try:
            require_whole(save.path)
        except NotWhole as why:
            if is_last:
                self._tell_not_whole(save, why)
            return False
        except OSError as error:
            self.error = error
            return False
        return True

    def _try_to_keep(self, save: Save) -> None:
        try:
            self._keep(save)
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

    def _look_at_own(self) -> None:
        """Those that the script made by `stoker`, which are whole once they have their names."""
        for path in sorted(_entries(self._work.checkpoints_folder)):
            match = re.fullmatch(r"step-(\d+)", path.name)
            if match is None or int(match[1]) in self._steps or path in self._kept:
                continue
            try:
                self._tell(path, int(match[1]))
                self.known_step = int(match[1])
            except (FileNotFoundError, ValueError):
                self._kept[path] = ()
                self._warn(
                    "checkpoint_not_kept",
                    f"{path} was not made by stoker.init().checkpoint(…), so nothing says that it "
                    "is whole: it is no checkpoint of this run.",
                )

    def _keep(self, save: Save) -> None:
        step, is_seen = self._step_of(save)
        target = self._work.checkpoints_folder / f"step-{step}"
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            began = time.monotonic()
            bring(save, temporary)
            self._copy_at = time.monotonic() + (time.monotonic() - began) / COPYING
            if signature_of(save.path) != save.signature:
                return  # it was being written after all: the next look sees it again
            require_whole(temporary)
            body = {
                "run_id": self._work.run_id,
                "attempt": self._work.attempt,
                "step": step,
                "epoch": 0,
                "metrics": _metrics_of(save.path),
                "entry": None if save.path.is_dir() else save.path.name,
                "source": str(save.path),
                "pattern": save.pattern,
                "seen": is_seen,
                "saved_at": save.newest,
            }
            seal(temporary, target, body)
        except NotWhole:
            return  # as above
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._note(save)
        self._tell(target, step)
        # Else its name may count epochs, or the script samples.
        is_own = not is_seen and self._since[save.path] <= step <= self._step() <= 2 * step
        self.known_step = step if is_own else 0

    def _note(self, save: Save) -> None:
        if save.path in self._kept and not save.path.is_dir():
            self._overwritten += 1
            if self._overwritten == 1:
                self._warn(
                    "checkpoint_overwritten",
                    f"The script writes over {save.path}. A kill in the middle of that would leave "
                    "a damaged file, so Stoker keeps a copy of each save. Saving under a new name "
                    "each time, or to a temporary name first, costs no copy.",
                )
        self._kept[save.path] = save.signature
        self._names[save.pattern] = save.names
        self._newest_kept = save.newest

    def _step_of(self, save: Save) -> tuple[int, bool]:
        """The step that its name tells: a number beside a word for steps, or any that can be a step
        that was just made; else the script's own, now that it is seen, and True. Always above those
        before it, for the newest save is the one to go on from.
        """
        name, own, since = save.path.name, self._step(), self._since[save.path]
        told, other = _number_in(name, STEP), _number_in(name, NUMBER)
        if other is not None and own and not (since <= other <= 2 * own <= 4 * other):
            other = None  # an epoch, or a number of something else
        told = other if told is None else told
        step = max(own if told is None else told, max(self._steps, default=self._restored) + 1)
        return step, step != told

    def _tell(self, folder: Path, step: int) -> None:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
        self._steps.add(step)
        self.folders.append(folder)
        self._events.emit(
            "checkpoint",
            action="saved",
            by_stoker="source" not in manifest,
            seen=manifest.get("seen", False),
            path=str(folder.relative_to(self._work.folder)),
            step=step,
            epoch=manifest.get("epoch") or 0,
            bytes=sum(entry["bytes"] for entry in manifest["files"].values()),
            seconds=0.0,
            metrics={usual_name(n): v for n, v in manifest.get("metrics", {}).items()},
        )


def _number_in(name: str, pattern: re.Pattern[str]) -> int | None:
    """None where there is none that a step can be, such as a time in nanoseconds."""
    match = pattern.search(name)
    number = COUNTS["step"] if match is None else int(match[1])
    return number if number < COUNTS["step"] else None


def step_of(folder: Path) -> int:
    """Of a checkpoint, by its name."""
    return int(folder.name.removeprefix("step-"))


def _metrics_of(path: Path) -> dict[str, float]:
    """What Hugging Face's Trainer has noted beside it last."""
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        history = json.loads((path / "trainer_state.json").read_bytes())["log_history"]
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
