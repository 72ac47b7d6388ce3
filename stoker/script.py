"""What a user's own script may call: exact steps, durable checkpoints, whether to stop.

    import stoker

    run = stoker.init(config={"lr": 3e-4})
    for step in range(start, steps):
        ...
        run.log({"loss": loss}, step=step)
        stopping = run.should_stop()
        if step % 1000 == 0 or stopping:
            with run.checkpoint(step, {"loss": loss}) as folder:
                torch.save(model.state_dict(), folder / "model.pt")
        if stopping:
            break
    else:
        run.finish()

Inside a run of Stoker nothing has to be installed. Elsewhere each call does nothing, so that the
script is the same everywhere. Standard library only, and Python 3.8 or later: it runs in the
environment of the script, whatever that is.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator, Mapping  # noqa: UP035 - Python 3.8

from stoker.manifest import COUNTS, MANIFEST, manifest_bytes
from stoker.ranks import Ranks, rank_and_size, ranks_in
from stoker.secret import masked

METRICS = "metrics.jsonl"
FINISHED = "finished"
CONFIG = "config.json"
LOG = "trainer.log"
"""Its output."""
CHECKPOINT, STEP = "{checkpoint}", "{step}"
"""In the arguments of `stoker run --resume`: the file or folder to go on from, and its step."""
PIECE_BYTES = 1 << 20


def init(config: Mapping[str, Any] | None = None, *, verbose: bool = False) -> ScriptRun:
    """The run that this script is, by its environment; outside of Stoker one that does nothing.

    `config` is shown with the run, see `ScriptRun.keep_config`. `verbose`: outside of Stoker, say
    on standard error what would be logged.
    """
    run = ScriptRun(verbose=verbose)
    if config is not None:
        run.keep_config(config)
    return run


class ScriptRun:
    """A running script; see `init`. Every method is harmless outside of Stoker."""

    def __init__(self, *, verbose: bool = False) -> None:
        folder, checkpoints = _path("STOKER_RUN_DIR"), _path("STOKER_CHECKPOINT_DIR")
        self.folder = folder
        """Files of this attempt, which are kept with the run; None outside of Stoker."""
        self.resume_from = _path("STOKER_RESUME_FROM")
        """The checkpoint to go on from; None at the first start."""
        self._checkpoints = checkpoints
        self._stop_file = _path("STOKER_STOP_FILE")
        self._says = verbose and folder is None
        self._asks = False
        self._said: set[str] = set()
        """What was said of things that could not be kept."""

    @property
    def is_inside(self) -> bool:
        """Whether Stoker runs this script."""
        return self.folder is not None

    @property
    def _is_first(self) -> bool:
        return rank_and_size()[0] == 0

    def _others(self) -> Ranks | None:
        """What this process agrees on with others; None where it is the only one."""
        if self.folder is None or rank_and_size()[1] == 1:
            return None
        return ranks_in(self.folder)

    def keep_config(self, config: Mapping[str, Any]) -> None:
        """Keep what the script was configured with beside its log. What JSON does not know is kept
        as a text, and a text that looks secret as `***`. What cannot be kept is said in the log,
        and ends nothing.
        """
        if self.folder is None or not self._is_first:
            return
        with self._unless_it_fails("the config is not kept"):
            kept = {}
            for key, value in dict(config).items():
                name = _text(key)
                with self._unless_it_fails(f"{name} of the config is not kept"):
                    kept[name] = masked(_plain(value), name)
            _replace(self.folder / CONFIG, json.dumps(kept, indent=1) + "\n")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Numbers of a step, which become points of the run's curves. Of several processes the
        first one counts. Of a value that is not finite the run has a warning, once a name. What is
        no number, or cannot be written, is said in the log once, and ends nothing.
        """
        if self.folder is not None and self._is_first:
            with self._unless_it_fails("numbers of a step are not kept"):
                said = {
                    name: value if math.isfinite(value) else str(value)  # JSON has no number for it
                    for name, value in self._numbers(metrics).items()
                }
                line = json.dumps({"step": int(step), "t": time.time(), **said}) + "\n"
                with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                    file.write(line)
        elif self._says:
            sys.stderr.write(f"stoker: step {step}: {dict(metrics)}\n")

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Without what is none."""
        numbers: dict[str, float] = {}
        with self._unless_it_fails("metrics are left out"):
            for name, value in metrics.items():
                try:
                    numbers[str(name)] = float(value)
                except Exception as error:  # noqa: BLE001 - of a library's own numbers
                    self._say(f"{name} is left out, since it is not a number", error)
        return numbers

    @contextmanager
    def _unless_it_fails(self, otherwise: str) -> Iterator[None]:
        """Where the block fails, say in one line what follows, and go on: the script has more to do
        than to be watched.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a value raises that is looked at
            self._say(otherwise, error)

    def _say(self, what: str, error: Exception) -> None:
        """Once."""
        if what in self._said:
            return
        self._said.add(what)
        with suppress(Exception):  # there may be no standard error, or a full disk behind it
            why = " ".join(f"{type(error).__name__}: {error}".split())
            sys.stderr.write(f"stoker: {what} ({why}); the script goes on\n")

    def should_stop(self) -> bool:
        """Whether to save and end now. Ask once a step, and keep the answer. Each of several
        processes gets the same answer at its call of the same number, so all have to ask equally
        often. From the first call on the stop signal ends nothing by itself, unless the script
        handles it: who asks will see.
        """
        if not self._asks:
            self._asks = True
            self.leave_signal_to_asking()
        wanted = self._stop_file is not None and self._stop_file.exists()
        others = self._others()
        return wanted if others is None else others.all_stop(wanted)

    def leave_signal_to_asking(self, *, whoever_has_it: bool = False) -> None:
        """From now on the stop signal ends nothing by itself. `whoever_has_it`: even if the script,
        or a library, handles it.
        """
        number = getattr(signal, os.environ.get("STOKER_STOP_SIGNAL", ""), None)
        if self._stop_file is None or number is None:
            return
        is_free = signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and (is_free or whoever_has_it):
            signal.signal(number, _note_only)

    @contextmanager
    def checkpoint(self, step: int, metrics: Mapping[str, float] | None = None) -> Iterator[Path]:
        """A folder to save into; it becomes a checkpoint when the block ends, whole and durable, or
        not at all. `metrics` are shown beside it. Of several processes each has to enter the block
        and may write files of its own, under names of its own; they are finished together.

        Raises OSError when the disk refuses, RuntimeError in each process when another fails, and
        ValueError for a step that is none, such as -1: nobody could list it.
        """
        if not 0 <= int(step) <= COUNTS["step"]:
            raise ValueError(f"checkpoint({step}): a step is from 0 to {COUNTS['step']:,}")
        if self._checkpoints is None:
            with tempfile.TemporaryDirectory(prefix="stoker-") as nowhere:
                yield Path(nowhere)
            return
        temporary, others = self._checkpoints / f".step-{int(step)}.tmp", self._others()
        what = f"checkpoint({int(step)})"
        if others is not None:
            others.meet(what)  # then none is in an earlier block, which may have failed
        try:
            with _together(others, what):
                if self._is_first:
                    for left in self._checkpoints.glob(".step-*.tmp"):
                        shutil.rmtree(left, ignore_errors=True)
                    temporary.mkdir(parents=True)
            with _together(others, what):
                yield temporary
            with _together(others, what):
                self._seal(temporary, step, metrics or {})
        except BaseException:
            if others is None:  # they may still write into it; the next checkpoint removes it
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _seal(self, temporary: Path, step: int, metrics: Mapping[str, float]) -> None:
        if self._checkpoints is None or not self._is_first:
            return
        values = self._numbers(metrics)
        body = {
            "run_id": int(os.environ["STOKER_RUN_ID"]),
            "attempt": int(os.environ["STOKER_ATTEMPT"]),
            "step": int(step),
            "curve_bytes": self._curve_bytes(),
            "metrics": {name: value for name, value in values.items() if math.isfinite(value)},
        }
        seal(temporary, self._checkpoints / f"step-{int(step)}", body)

    def _curve_bytes(self) -> dict[str, int]:
        """How long the files are that points of curves are read from: what lies there now belongs
        to what is saved.
        """
        folder, named = self.folder, _path("STOKER_METRICS_FILE")
        paths = [named, folder and folder / LOG, folder and folder / METRICS]
        sizes = {}
        for path in filter(None, paths):
            with suppress(OSError):
                sizes[str(path)] = path.stat().st_size
        return sizes

    def finish(self) -> None:
        """Say that the work is done: a run that was asked to stop meanwhile has then succeeded. Of
        several processes the first one says so.
        """
        if self.folder is not None and self._is_first:
            with self._unless_it_fails("that the work is done could not be noted"):
                (self.folder / FINISHED).touch()


@contextmanager
def _together(others: Ranks | None, what: str) -> Iterator[None]:
    """Do this in each process, and go on when all have. Who fails says so to the others."""
    try:
        yield
    except BaseException:
        if others is not None:
            others.fail()
        raise
    if others is not None:
        others.meet(what)


def _note_only(number: int, frame: object) -> None:
    """The stop file says the rest. Not SIG_IGN, which children would inherit."""


def seal(temporary: Path, folder: Path, body: Mapping[str, Any]) -> None:
    """Make the files of a folder a checkpoint: hashed, synced, under its final name. One of that
    name is replaced. `body`: run_id, attempt, step, metrics and what else the manifest shall say.

    Raises OSError, and ValueError where a file has the manifest's name.
    """
    paths = sorted(temporary.rglob("*"))
    if (temporary / MANIFEST).exists():
        raise ValueError(f"{MANIFEST} is a name of Stoker's own: save that file under another one")
    files = {
        path.relative_to(temporary).as_posix(): _synced(path) for path in paths if path.is_file()
    }
    (temporary / MANIFEST).write_bytes(manifest_bytes({**body, "files": files}))
    _synced(temporary / MANIFEST)
    for inside in (path for path in paths if path.is_dir()):
        _sync(inside)
    _sync(temporary)
    replaced = folder.with_name(f".{folder.name}.replaced.tmp")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():  # the script came by this step again
        folder.rename(replaced)
    temporary.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _synced(path: Path) -> dict[str, Any]:
    """The size and hash of a file that is durable now."""
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while True:
            piece = file.read(PIECE_BYTES)
            if not piece:
                break
            hashed.update(piece)
            size += len(piece)
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": hashed.hexdigest()}


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None


def _plain(value: Any) -> Any:
    """As JSON has it; what that does not know becomes a text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Mapping):
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    """One that UTF-8 can say."""
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-8", "replace").decode("utf-8")


def _replace(path: Path, text: str) -> None:
    """Write a file whole, or leave the one that is there. OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
