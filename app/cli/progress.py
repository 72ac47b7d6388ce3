"""A run's progress on the screen: a live bar in a terminal, plain lines anywhere else."""

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import typer

from app.cli.output import STATUS_STYLES, best_score, duration, number

if TYPE_CHECKING:
    from rich.progress import TaskID

Document = dict[str, Any]
PLAIN_LINE_SECONDS = 2.0
# What stands beside the bar: phase, percentage and a line of figures.
FIGURES_WIDTH = 96


class View(Protocol):
    """Where watching shows what it sees."""

    def note(self, text: str, style: str = "") -> None:
        """Something that happened and stays to be read."""

    def progress(self, progress: Document) -> None:
        """Where the run is now."""

    def close(self) -> None:
        """Leave the screen as it is."""


def make_view() -> View:
    return LiveView() if sys.stdout.isatty() else PlainView()


class PlainView:
    """Lines for a log file: everything noted, and the progress every few seconds."""

    def __init__(self) -> None:
        self._said_at = 0.0
        self._said: tuple[object, object] | None = None

    def note(self, text: str, style: str = "") -> None:
        typer.echo(text)

    def progress(self, progress: Document) -> None:
        place = (progress.get("phase"), progress.get("step"))
        if place == self._said or time.monotonic() - self._said_at < PLAIN_LINE_SECONDS:
            return
        self._said, self._said_at = place, time.monotonic()
        phase, done, total = where(progress)
        typer.echo(f"{phase} {done}/{total or '?'} · {figures(progress)}")

    def close(self) -> None:
        return None


class LiveView:
    """One bar that moves, with the notes above it."""

    def __init__(self) -> None:
        # Imported late: only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(highlight=False)
        self._bar = Progress(
            TextColumn("{task.description:<12}", style="cyan"),
            BarColumn(bar_width=max(6, min(30, console.width - FIGURES_WIDTH))),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[figures]}", style="dim"),
            console=console,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("waiting", total=None, figures="")
        self._bar.start()

    def note(self, text: str, style: str = "") -> None:
        from rich.text import Text  # imported late: only a terminal needs it

        self._bar.console.print(Text(text, style=style))

    def progress(self, progress: Document) -> None:
        phase, done, total = where(progress)
        self._bar.update(
            self._task,
            description=phase,
            completed=done,
            total=total,
            figures=figures(progress),
        )

    def close(self) -> None:
        self._bar.stop()


def where(progress: Document) -> tuple[str, int, int | None]:
    """Phase, steps done and steps in all: of the run while it trains, else of the phase."""
    phase = progress.get("phase") or "starting"
    if phase == "training" or not progress.get("phase_steps"):
        return phase, progress.get("step") or 0, progress.get("steps")
    return phase, progress.get("phase_step") or 0, progress["phase_steps"]


def figures(progress: Document) -> str:
    """`epoch 2/6 · step 38/144 · 29.1 it/s · loss 0.412 · best val_mae 3.49 · 4 s left`."""
    parts = []
    if progress.get("epochs"):
        parts.append(f"epoch {progress.get('epoch', 0)}/{progress['epochs']}")
    if progress.get("steps"):
        parts.append(f"step {progress.get('step', 0)}/{progress['steps']}")
    rate = progress.get("phase_rate") or progress.get("iterations_per_second")
    if rate:
        parts.append(f"{rate:.3g} it/s")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.3g}")
    if best := best_score(progress.get("best")):
        parts.append(f"best {best}")
    if progress.get("eta_seconds") is not None:
        parts.append(f"{duration(progress['eta_seconds'])} left")
    return " · ".join(parts)


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
            return f"{'checkpoint':<12} saved at step {data['step']}", "dim"
        case "restored":
            return f"{'restored':<12} from step {data['step']}", "dim"
        case "issue" | "warning" | "retry" | "verdict":
            said = data.get("message") or _reason_text(data.get("reason"))
            return f"{kind:<12} {said}", "yellow"
    return None


def _reason_text(reason: object) -> str:
    return str(reason).replace("_", " ") if reason else ""


def _epoch_text(data: Document) -> str:
    shown = {"train_loss": "train", "val_loss": "val"}
    parts = [f"{data['epoch']} of {data['epochs']}"]
    for name, value in data.items():
        if name in shown or name.startswith("val_"):
            parts.append(f"{shown.get(name, name)} {number(value)}")
    return " · ".join(parts)
