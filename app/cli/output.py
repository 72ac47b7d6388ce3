"""How answers look: JSON, tables, and numbers, sizes and times for people."""

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

# Where a command's context holds that it was asked for JSON: errors are then told so, too.
AS_JSON = "stoker.as_json"


def _noted(context: typer.Context, value: bool) -> bool:
    context.meta[AS_JSON] = value
    return value


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the answer as JSON.", callback=_noted)
]

NARROWEST = 40
STATUS_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "stopped": "yellow",
    "paused": "yellow",
    "running": "cyan",
    "starting": "cyan",
}


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def console() -> "Console":
    """A console on stdout; lines are not cut where nobody looks at them."""
    from rich.console import Console  # imported late: start-up of every command

    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=not is_terminal, width=None if is_terminal else 500)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Columns without lines; numbers to the right. `empty` is said when there are no rows."""
    if not rows:
        typer.echo(empty)
        return
    from rich.table import Table  # imported late: start-up of every command
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, header in enumerate(headers):
        numeric = all(isinstance(row[position], int | float) for row in rows)
        one_word = all(" " not in str(row[position]) for row in rows)
        table.add_column(header, justify="right" if numeric else "left", no_wrap=one_word)
    for row in rows:
        cells = ["–" if cell is None else str(cell) for cell in row]
        table.add_row(*(Text(cell, style=_style(cell)) for cell in cells))
    console().print(table)


def _style(cell: str) -> str:
    """Of a status, also with its reason: "failed: hang"."""
    return STATUS_STYLES.get(cell.partition(":")[0], "")


def columns() -> int:
    """Of the terminal, or as COLUMNS says; without either as many as there may be."""
    return max(NARROWEST, shutil.get_terminal_size((sys.maxsize, 0)).columns)


def print_explained(headers: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """A table whose last column is prose, which stands below its row where a line has no room.

    COLUMNS bounds the lines where nobody looks at them too; they are whole where it is not set.
    """
    room = columns()
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    if not rows or sum(widths) + 2 * len(widths) <= room:
        print_table(headers, rows, empty)
        return
    for row in (headers, *rows):
        head = "  ".join(f"{cell:<{width}}" for cell, width in zip(row[:-1], widths, strict=False))
        lines = _broken(head, room, "", "  ")
        if row is headers:
            lines = [typer.style(line, bold=True) for line in lines]
        else:
            lines += _broken(row[-1], room, "    ", "    ")
        typer.echo("\n".join(lines))


def print_lines(lines: Sequence[str], *, err: bool = False) -> None:
    """Lines, broken between words where somebody looks; what follows is indented as deep."""
    for line in lines:
        for piece in wrapped(line, err=err):
            typer.echo(piece, err=err)


def wrapped(line: str, hanging: int = 2, *, err: bool = False) -> list[str]:
    """A line as the terminal's width allows; whole where it is none."""
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        return [line]
    depth = len(line) - len(line.lstrip()) + hanging
    width = max(NARROWEST, shutil.get_terminal_size().columns)
    return _broken(line, width, "", " " * depth) or [""]


def _broken(text: str, width: int, first: str, others: str) -> list[str]:
    """The lines of a text, broken between words; `first` and `others` are their indents."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Name and value, a line each; what is None is left out."""
    known = [(name, value) for name, value in facts if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        for piece in wrapped(f"  {name:<{width}}  {value}", hanging=width + 2):
            typer.echo(piece)


def number(value: object) -> str:
    """Four significant digits, or all before the point up to 9; a dash for nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def metric_line(values: Mapping[str, object]) -> str:
    """Metrics in one line: `step 144 · val_mae 3.49`."""
    return " · ".join(f"{name} {number(value)}" for name, value in values.items())


def label_line(labels: Mapping[str, str]) -> str:
    """As `--label` takes them: `sweep=lr, team=weather`."""
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def in_words(status: str, waits_for: int | None = None) -> str:
    """A status as what follows "Run 7 …"; `waits_for`: the run that has to be over before."""
    if status in ("succeeded", "failed", "stopped"):
        return f"has {status}"
    word = {
        "killing": "being killed",
        "waiting_for_parent": f"waiting for run {waits_for}",
        "waiting_for_memory": "waiting for memory",
    }.get(status, status)
    return f"is {word}"


def best_score(best: Mapping[str, object] | None) -> str | None:
    """The best evaluation by its first metric, in the data's units, else by its loss."""
    scores = {name: x for name, x in (best or {}).items() if name.startswith("val_")}
    name = next((name for name in scores if name != "val_loss"), "val_loss")
    return f"{name} {number(scores[name])}" if name in scores else None


def size(value: object) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    if not isinstance(value, int | float):
        return "–"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(seconds: object) -> str:
    """Seconds as 4 s, 2:05 or 3:02:05."""
    if not isinstance(seconds, int | float):
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def parse_time(moment: object) -> datetime | None:
    """An RFC 3339 time of the service; None for nothing."""
    return datetime.fromisoformat(moment) if isinstance(moment, str) else None


def ago(moment: object) -> str:
    """How long ago a time of the service was."""
    then = parse_time(moment)
    if then is None:
        return "–"
    seconds = (datetime.now(UTC) - then).total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def between(start: object, end: object) -> str:
    """The time from start to end, or to now while there is no end."""
    begun, ended = parse_time(start), parse_time(end)
    if begun is None:
        return "–"
    return duration(((ended or datetime.now(UTC)) - begun).total_seconds())
