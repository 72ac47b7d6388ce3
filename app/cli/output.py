"""How answers look: JSON, tables, and numbers, sizes and times for people."""

import json
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.lifecycle import TERMINAL

# Where a command's context holds that it was asked for JSON: errors are then told so, too.
AS_JSON = "stoker.as_json"


def _noted(context: typer.Context, value: bool) -> bool:
    context.meta[AS_JSON] = value
    return value


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the answer as JSON.", callback=_noted)
]

NARROWEST, PAGE_WIDTH = 40, 100
# What is copied into a shell, and so never broken: what stands in backticks, an option with its
# quoted value, a command up to the end of its line.
COPIED = re.compile(r"`[^`]*`|--\S+ '[^']*'|(?<=\s)stoker [a-z].*")
HELD = "\x1f"  # in place of a space at which no line is broken
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


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Columns without lines; numbers to the right. `empty` is said when there are no rows.

    Where nobody looks a row is a line, and where COLUMNS is set to less, no word is cut.
    """
    if not rows:
        typer.echo(empty)
        return
    from rich.console import Console  # imported late: start-up of every command
    from rich.table import Table
    from rich.text import Text

    shown = [["–" if cell is None else str(cell) for cell in row] for row in rows]
    cells = list(zip(headers, *shown, strict=True))
    longest = [_longest_word(column) for column in cells]
    whole = [max(map(width_of, column)) for column in cells]
    is_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, header in enumerate(headers):
        numeric = all(isinstance(row[position], int | float) for row in rows)
        table.add_column(
            header,
            justify="right" if numeric else "left",
            no_wrap=all(" " not in row[position] for row in shown),
            min_width=None if is_terminal else longest[position],
        )
    for row in shown:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    gaps = 2 * len(headers)
    width = max(sum(longest) + gaps, min(sum(whole) + gaps, table_columns()))
    Console(highlight=False, width=None if is_terminal else width).print(table)


def _longest_word(cells: Sequence[str]) -> int:
    return max(width_of(word) for cell in cells for word in (cell.split() or [""]))


def _style(cell: str) -> str:
    """Of a status, also with its reason: "failed: hang"."""
    return STATUS_STYLES.get(cell.partition(":")[0], "")


def columns() -> int:
    """For sentences: of the terminal, or as COLUMNS says; without either what fits a page."""
    return max(NARROWEST, shutil.get_terminal_size((PAGE_WIDTH, 0)).columns)


def table_columns() -> int:
    """For tables: the same; without either room without end, for programs read them by the line."""
    return max(NARROWEST, shutil.get_terminal_size((sys.maxsize, 0)).columns)


def print_explained(headers: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """A table whose last column is prose, which stands below its row where a line has no room."""
    room = table_columns()
    widths = [max(map(width_of, column)) for column in zip(headers, *rows, strict=True)]
    if not rows or sum(widths) + 2 * len(widths) <= room:
        print_table(headers, rows, empty)
        return
    for row in (headers, *rows):
        padded = (
            cell + " " * (width - width_of(cell))
            for cell, width in zip(row[:-1], widths, strict=False)
        )
        head = "  ".join(padded)
        lines = _broken(head, room, "", "  ")
        if row is headers:
            lines = [typer.style(line, bold=True) for line in lines]
        else:
            lines += _broken(row[-1], room, "    ", "    ")
        typer.echo("\n".join(lines))


def print_lines(lines: Sequence[str], *, err: bool = False) -> None:
    """Lines, broken between words; what follows is indented as deep."""
    for line in lines:
        for piece in wrapped(line, err=err):
            typer.echo(piece, err=err)


def wrapped(line: str, hanging: int = 2, *, err: bool = False) -> list[str]:
    """A line as the terminal's width allows; errors are whole where a log takes them."""
    if err and not sys.stderr.isatty():
        return [line]
    depth = len(line) - len(line.lstrip()) + hanging
    return _broken(line, columns(), "", " " * depth) or [""]


def _broken(text: str, width: int, first: str, others: str) -> list[str]:
    """The lines of a text, broken between words; `first` and `others` are their indents."""
    lines = textwrap.wrap(
        COPIED.sub(lambda found: found[0].replace(" ", HELD), text),
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(HELD, " ") for line in lines]


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Name and value, a line each; what is None is left out."""
    known = [(name, value) for name, value in facts if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        line = f"  {name:<{width}}  {value}"
        is_copied = name in ("command", "folder") and not sys.stdout.isatty()
        for piece in [line] if is_copied else wrapped(line, hanging=width + 2):
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


def width_of(text: str) -> int:
    """Columns that it takes in a terminal: two for each wide character."""
    from rich.cells import cell_len  # imported late: start-up of every command

    return cell_len(text)


def one_line(text: str) -> str:
    """A text that somebody else wrote, without line breaks and the like."""
    return "".join(one if one.isprintable() else " " for one in text)


def cut(text: str, most: int) -> str:
    """A text in one line of at most so many columns."""
    from rich.cells import set_cell_size  # imported late: start-up of every command

    line = one_line(text)
    return line if width_of(line) <= most else f"{set_cell_size(line, most - 1).rstrip()}…"


def shell_line(words: Sequence[str]) -> str:
    """A command as a shell takes it, in one line: line breaks and the like as bash writes them."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """`$'first\\nsecond'`."""
    quoted = word.replace("\\", "\\\\").replace("'", "\\'")
    shown = (one if one.isprintable() else ascii(one)[1:-1] for one in quoted)
    return f"$'{''.join(shown)}'"


def fitted_arguments(runs: Sequence[Mapping[str, Any]], room: int = sys.maxsize) -> list[str]:
    """The arguments of each run's script, as a shell takes them; empty of other runs. Where they
    are wider than `room`, what all of one name begin with alike gives way first, then the end.
    """
    words = [_arguments(run) for run in runs]
    lines = [shell_line(one) for one in words]
    long = [run for run, line in zip(runs, lines, strict=True) if width_of(line) > room]
    for name in {run["name"] for run in long}:
        same = [place for place, run in enumerate(runs) if run["name"] == name]
        alike = _alike([words[place] for place in same])
        for place in same if alike else ():
            lines[place] = f"… {shell_line(words[place][alike:])}".rstrip()
    return [cut(line, room) for line in lines]


def _arguments(run: Mapping[str, Any]) -> list[str]:
    """What follows the file that a script is named after, else all that follows its program."""
    argv = run.get("argv") or []
    names = [word.rpartition("/")[2] for word in argv]
    return argv[(names.index(run["name"]) if run["name"] in names else 0) + 1 :]


def _alike(each: Sequence[Sequence[str]]) -> int:
    """How many words all begin with; an option stays before the value that differs."""
    count = 0
    while len({tuple(one[: count + 1]) for one in each}) == 1 and count < len(each[0]):
        count += 1
    if count == len(max(each, key=len)):
        return 0
    return count - 1 if count and each[0][count - 1].startswith("-") else count


def restart_line(run: Mapping[str, Any]) -> str | None:
    """The parent of a restart and the values that are not its own, in short: `3: optimizer.lr=0.1`.

    None for a run that is no restart.
    """
    if run.get("parent_id") is None:
        return None
    values = ", ".join(
        f"{_field(one)}: another file" if _is_file(one) else f"{_field(one)}={_value(one['after'])}"
        for one in run.get("differences") or ()
    )
    return f"{run['parent_id']}: {values}" if values else str(run["parent_id"])


def restart_facts(run: Mapping[str, Any]) -> str | None:
    """The parent of a restart, and each difference with both values; None for other runs."""
    if run.get("parent_id") is None:
        return None
    differences = run.get("differences")
    told = ", ".join(
        f"{_field(one)} (another file)"
        if _is_file(one)
        else f"{_field(one)} {_value(one['before'])} → {_value(one['after'])}"
        for one in differences or ()
    )
    if differences is None:  # of an earlier version, which kept no values
        changed = (run.get("carry") or {}).get("changed") or ()
        told = ", ".join(_field({"pointer": pointer}) for pointer in changed)
        return f"{run['parent_id']}; different: {told}" if told else str(run["parent_id"])
    return f"{run['parent_id']}; {told}" if told else f"{run['parent_id']}, with the same spec"


def _field(difference: Mapping[str, Any]) -> str:
    return str(difference["pointer"]).strip("/").replace("/", ".")


def _is_file(difference: Mapping[str, Any]) -> bool:
    """True if it is another file under the same name."""
    return bool(difference["before"] == difference["after"])


def _value(value: object) -> str:
    """In short; a value that is not set is a dash."""
    if value is None:
        return "–"
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 40)


def in_words(status: str, waits_for: int | None = None) -> str:
    """A status as what follows "Run 7 …"; `waits_for`: the run that has to be over before."""
    if status in TERMINAL:
        return f"has {status}"
    word = {
        "killing": "being killed",
        "waiting_for_parent": f"waiting for run {waits_for}",
        "waiting_for_memory": "waiting for memory",
    }.get(status, status)
    return f"is {word}"


def headline(run: Mapping[str, Any]) -> str:
    """The number and name of a run, and how it is, as a sentence."""
    name = f"({one_line(run['name'])}) " if run["name"] else ""
    return f"Run {run['id']} {name}{in_words(run['status'], run['waits_for'])}."


def best_score(best: Mapping[str, object] | None) -> str | None:
    """The best evaluation by its first metric, in the data's units, else by its loss."""
    scores = {name: x for name, x in (best or {}).items() if name.startswith("val_")}
    name = next((name for name in scores if name != "val_loss"), "val_loss")
    return f"{name} {number(scores[name])}" if name in scores else None


def size(value: object, beside: float = 0) -> str:
    """Bytes in the unit that leaves one to three digits before the point of the larger one: of
    these, or of those that they are compared with.
    """
    if not isinstance(value, int | float):
        return "–"
    amount, largest = float(value), max(abs(value), beside)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if largest < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{_tenths(amount)} {unit}"
        amount, largest = amount / 1024, largest / 1024
    return f"{_tenths(amount)} TiB"


def _tenths(amount: float) -> str:
    return f"{amount:.1f}" if abs(amount) >= 0.1 or amount == 0 else f"{amount:.2g}"


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
