"""A run's progress on the screen: a live bar in a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import typer

from app.cli.output import STATUS_STYLES, best_score, duration, number, wrapped
from stoker import Event

if TYPE_CHECKING:
    from rich.progress import TaskID

Document = dict[str, Any]
PLAIN_LINE_SECONDS = 2.0
# A running worker reports more often than this; without news its last figures are no longer true.
NEWS_SECONDS = 5.0
# In which the run makes its own steps; in the others it counts those of the phase.
OF_STEPS = ("training", "running")
CACHES = {
    "hit": "all from the cache",
    "partial": "some of it from the cache",
    "miss": "nothing was in the cache",
    None: "there was nothing to compile",
}
# What is done before the first step and may take a while.
LONG_PHASES = {
    "preparing": "what the recipe wants of the data beforehand",
    "compiling": "the steps, before the first of them",
    "capturing": "a step, and trying it against launched ones",
}
# What stands beside the figures: phase, percentage, and the spaces between.
PHASE_WIDTH, PERCENT_WIDTH, SPACES = 12, 5, 3
NOTE_WIDTH = 13  # of the word that a note begins with, and the space behind it
LEAST_BAR, WIDEST_BAR, FIGURES_WIDTH = 6, 30, 76


class View(Protocol):
    """Where watching shows what it sees."""

    def note(self, text: str, style: str = "") -> None:
        """Something that happened and stays to be read."""

    def doing(self, what: str) -> None:
        """What the run does without counting steps: queued, starting, restoring."""

    def progress(self, progress: Document) -> None:
        """Where the run is now."""

    def close(self) -> None:
        """Leave the screen as it is."""


def make_view() -> View:
    return LiveView() if sys.stdout.isatty() else PlainView()


class Teller:
    """Tells a view what events say; `indent` goes before every note, and findings in `told` have
    been shown.

    Progress counts only while the run runs: what is left of an attempt that died is not shown, nor
    what is older than the last note of its attempt.
    """

    def __init__(self, view: View, indent: str = "", told: Sequence[Document] = ()) -> None:
        self._view = view
        self._indent = indent
        self._told = [_place_of(finding) for finding in told]
        self._is_running = False
        self._noted_step = 0

    def tell(self, event: Event) -> None:
        if event.kind == "progress":
            if self._is_running and (event.data.get("step") or 0) >= self._noted_step:
                self._view.progress(event.data)
            return
        if event.kind == "issue" and _place_of(event.data) in self._told:
            return
        if note := note_of(event.kind, event.data):
            self._view.note(self._indent + note[0], note[1])
            self._noted_step = event.data.get("step") or self._noted_step
        if event.kind == "state":
            self._is_running = event.data["to"] == "running"
            self._noted_step = 0
            self._view.doing("starting" if self._is_running else event.data["to"])
        elif event.kind == "phase" and self._is_running:
            self._view.doing(event.data["phase"])


def _place_of(finding: Document) -> tuple[object, object]:
    """What it is, and of which part of the spec; an event also tells when."""
    return finding["code"], finding["loc"]


class PlainView:
    """Lines for a log file: everything noted, and the progress every few seconds."""

    def __init__(self) -> None:
        self._said_at = 0.0
        self._said: tuple[object, ...] | None = None
        self._phase = ""

    def note(self, text: str, style: str = "") -> None:
        typer.echo("\n".join(wrapped(text, hanging=NOTE_WIDTH)))
        if " " not in text:
            self._phase = text

    def doing(self, what: str) -> None:
        return None  # the notes say it

    def progress(self, progress: Document) -> None:
        place = (progress.get("phase"), progress.get("step"), progress.get("ratio"))
        if place == self._said or time.monotonic() - self._said_at < PLAIN_LINE_SECONDS:
            return
        line = plain_line(progress)
        if line != self._phase:  # a script may tell no more than that it is running
            self._said, self._said_at = place, time.monotonic()
            typer.echo("\n".join(wrapped(line)))

    def close(self) -> None:
        return None


def plain_line(progress: Document) -> str:
    """`evaluating 3/8 · epoch 2/6 · …`; while it trains the figures hold the steps already."""
    phase, done, total = where(progress)
    place = "" if phase in OF_STEPS or not total else f" {done}/{total}"
    shown = figures(progress)
    return f"{phase}{place}" + (f" · {shown}" if shown else "")


class LiveView:
    """One bar that moves, with the notes above it."""

    def __init__(self) -> None:
        # Imported late: only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(highlight=False)
        beside = PHASE_WIDTH + PERCENT_WIDTH + SPACES
        bar_width = max(LEAST_BAR, min(WIDEST_BAR, console.width - beside - FIGURES_WIDTH))
        self._room = console.width - beside - bar_width
        self._bar = Progress(
            TextColumn(f"{{task.description:<{PHASE_WIDTH}}}", style="cyan"),
            BarColumn(bar_width=bar_width),
            TextColumn("{task.fields[percent]}"),
            TextColumn("{task.fields[figures]}", style="dim"),
            console=console,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("waiting", total=None, percent="", figures="")
        self._bar.start()

    def note(self, text: str, style: str = "") -> None:
        from rich.text import Text  # imported late: only a terminal needs it

        lines = wrapped(text, hanging=NOTE_WIDTH)
        self._bar.console.print(Text("\n".join(lines), style=style))

    def doing(self, what: str) -> None:
        # A new task rather than an update, which cannot take a total away again.
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=None, percent="", figures="")

    def progress(self, progress: Document) -> None:
        phase, done, total = where(progress)
        if not total:
            shown = Figures(progress, self._room, time.monotonic())
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(phase, total=None, percent="", figures=shown)
            return
        self._bar.update(
            self._task,
            description=phase,
            completed=done,
            total=total,
            percent=percent(done / total),
            figures=Figures(progress, self._room, time.monotonic()),
        )

    def close(self) -> None:
        self._bar.stop()


@dataclass(frozen=True)
class Figures:
    """Figures as they are when they are drawn: old ones only say how old they are."""

    progress: Document
    width: int
    heard_at: float

    def __str__(self) -> str:
        age = time.monotonic() - self.heard_at
        phase = self.progress.get("phase")
        if age > NEWS_SECONDS and phase == "training":
            return f"no news for {duration(age)}"[: self.width]
        return figures(self.progress, self.width)


def percent(ratio: float) -> str:
    """` 70 %` of 0.7."""
    return f"{ratio:>3.0%}".replace("%", " %")


def where(progress: Document) -> tuple[str, int, int | None]:
    """Phase, steps done and steps in all: of the run while it makes steps, else of the phase."""
    phase = progress.get("phase") or "starting"
    if phase in OF_STEPS:
        if not progress.get("steps") and progress.get("ratio") is not None:
            return phase, round(100 * progress["ratio"]), 100
        return phase, progress.get("step") or 0, progress.get("steps")
    return phase, progress.get("phase_step") or 0, progress.get("phase_steps")


def figures(progress: Document, width: int | None = None) -> str:
    """`epoch 2/6 · step 38/144 · 29.1 it/s · loss 0.412 · best val_mae 3.49 · 4 s left`.

    Where that is wider than `width`, what matters least is left out: first the step, which the
    bar shows too, and the time that is left last.
    """
    parts = []
    if progress.get("epochs"):
        parts.append(("epoch", f"epoch {progress.get('epoch', 0)}/{progress['epochs']}"))
    if place := _place(progress):
        parts.append(("step", place))
    rate = progress.get("phase_rate") or progress.get("iterations_per_second")
    if rate:
        parts.append(("rate", f"{rate:.3g} it/s"))
    if progress.get("loss") is not None:
        parts.append(("loss", f"loss {progress['loss']:.3g}"))
    if best := best_score(progress.get("best")):
        parts.append(("best", f"best {best}"))
    if progress.get("eta_seconds") is not None:
        parts.append(("left", f"{duration(progress['eta_seconds'])} left"))
    for dropped in ("", "step", "best", "epoch", "loss", "rate"):
        parts = [(name, text) for name, text in parts if name != dropped]
        line = " · ".join(text for _, text in parts)
        if width is None or len(line) <= width:
            break
    return line


def _place(progress: Document) -> str:
    """The step, of how many; of a script that has not said how many, the share that it says."""
    step, ratio = progress.get("step"), progress.get("ratio")
    if progress.get("steps"):
        return f"step {step or 0}/{progress['steps']}"
    known = [f"step {step}"] if step and progress.get("phase") == "running" else []
    return " · ".join(known if ratio is None else [*known, percent(ratio).strip()])


def steps_done(progress: Document) -> str | None:
    """None before a script has told of a step, or how far it is, which it may never do."""
    step, steps, ratio = (progress.get(name) for name in ("step", "steps", "ratio"))
    if steps is not None:
        return f"step {number(step)} of {number(steps)}"
    told = [f"step {number(step)}"] if step else []
    return ", ".join(told if ratio is None else [*told, percent(ratio).strip()]) or None


def note_of(kind: str, data: Document) -> tuple[str, str] | None:
    """The line and its style for an event worth reading; None for the others."""
    match kind:
        case "state":
            line = f"{data['to']:<12}"
            said = data.get("message") or _reason_text(data.get("reason"))
            return f"{line} {said}".rstrip(), STATUS_STYLES.get(data["to"], "")
        case "epoch":
            return f"{'epoch':<12} {_epoch_text(data)}", ""
        case "checkpoint" if data.get("action") == "saved":
            return f"{'checkpoint':<12} {_saved_text(data)}", "dim"
        case "checkpoint" if data.get("action") == "quarantined":
            name = str(data.get("path")).rpartition("/")[2]
            return f"{'damaged':<12} {name} is passed over: {data.get('message')}", "yellow"
        case "phase" if data.get("phase") in LONG_PHASES:
            return f"{data['phase']:<12} {_long_phase_text(data)}", "dim"
        case "applied" if made := _compiled_text(data) or _captured_text(data):
            return made, "dim"
        case "connection_lost":
            return "connection lost, trying again", "yellow"
        case "restored" | "rollback":
            return _going_on(kind, data)
        case "issue" | "warning" | "retry" | "verdict" | "code_changed":
            said = data.get("message") or _reason_text(data.get("reason"))
            name = kind.replace("_", " ")
            return f"{name:<12} {_retry_text(data) if kind == 'retry' else said}", "yellow"
    return None


def _saved_text(data: Document) -> str:
    if "of_run" in data:
        return f"the best so far, of step {data['step']} of run {data['of_run']}, is kept here"
    provisional = ", provisional until the training goes on" if data.get("provisional") else ""
    return f"{'seen' if data.get('seen') else 'saved'} at step {data['step']}{provisional}"


def _going_on(kind: str, data: Document) -> tuple[str, str]:
    """From which checkpoint; and past what, where the loss was not finite there."""
    if kind == "restored":
        if data.get("carry") == "init":
            return f"{'begins':<12} with the weights of step {data['step']} of another run", "dim"
        return f"{kind:<12} from step {data['step']}", "dim"
    left_out = f"without the data of the {data['steps']} steps before it"
    return f"{kind:<12} on after step {data['step']}, {left_out}", "yellow"


def _retry_text(data: Document) -> str:
    """When, and what it does otherwise; the line before it says what went wrong."""
    seconds = data["delay_seconds"]
    when = f"in {duration(seconds)}" if round(seconds) else "at once"
    when = "when it is resumed" if data.get("paused") else when
    told = (
        f"It is tried again {when}; {data['retries_used']} of {data['max_retries']} retries used."
    )
    return f"{told} {data['change']}" if data.get("change") else told


def _reason_text(reason: object) -> str:
    return str(reason).replace("_", " ") if reason else ""


def _long_phase_text(data: Document) -> str:
    """Returns the note of a long phase; for compiling, what it is for, and its earlier time."""
    counts = data.get("shapes")
    if not counts:
        return LONG_PHASES[data["phase"]]
    listed = ", ".join(name if n == 1 else f"{n} for the {name}" for name, n in counts.items())
    total = sum(counts.values())
    text = f"for {total} shape{'s' if total > 1 else ''} of batches ({listed})"
    earlier = data.get("earlier")
    if not earlier:
        return f"{text}; no earlier time is known on this machine"
    took, graphs, cache = duration(earlier["seconds"]), earlier["graphs"], CACHES[earlier["cache"]]
    built = f"{graphs} graph{'' if graphs == 1 else 's'}"
    return f"{text}; {built} took {took} before on this machine, {cache}"


def _compiled_text(data: Document) -> str | None:
    """Of what an attempt used: how its steps were compiled; None where they were not."""
    done = (data.get("applied") or {}).get("compile") or {}
    if done.get("seconds") is None:
        return None
    return f"{'compiled':<12} in {duration(done['seconds'])}, {CACHES[done['cache']]}"


def _captured_text(data: Document) -> str | None:
    """Of what an attempt used: what its CUDA graph gave; None where it has none."""
    done = (data.get("applied") or {}).get("cuda_graphs") or {}
    if not done.get("captured"):
        return None
    before, now = (1e3 * done[f"{name}_step_seconds"] for name in ("launched", "replayed"))
    return (
        f"{'captured':<12} {now:.3g} ms a step when tried, where launched it took {before:.3g} ms"
    )


def _epoch_text(data: Document) -> str:
    shown = {"train_loss": "train", "val_loss": "val"}
    parts = [f"{data['epoch']} of {data['epochs']}"]
    for name, value in data.items():
        if name in shown or name.startswith("val_"):
            parts.append(f"{shown.get(name, name)} {number(value)}")
    return " · ".join(parts)
