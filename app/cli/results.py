"""What a run leaves: logs, metrics, checkpoints, download."""

import json
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from app.cli.arguments import CheckpointId, RunId
from app.cli.connect import connect
from app.cli.failures import CommandFailed
from app.cli.logtext import LogPrinter
from app.cli.output import (
    JsonOption,
    ago,
    metric_line,
    number,
    print_json,
    print_lines,
    print_table,
    size,
    table_columns,
)
from app.lifecycle import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from stoker import Client, Which
    from stoker.download import Told

LOG_WAIT_SECONDS = 20.0
ALL_NAMES: list[str] = []
HOW_MANY_ARE_KEPT = (
    "A curve keeps about one point a second (of a very long run fewer), and its last one; those of "
    "val_ and test_ keep all of up to 10,000."
)
SOME_MAY_BE_LEFT_OUT = 100  # points
# Marks of a metric's course; what stands before it is at most so wide.
LEAST_COURSE, WIDEST_COURSE, FIGURES_WIDTH = 5, 32, 75


def logs(
    run_id: RunId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the run has ended.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Only this attempt; default all of them, in order.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the log of a run; with --json a line for each piece of it."""
    with connect() as client:
        pieces = _followed(client, run_id, attempt) if follow else _rest(client, run_id, attempt)
        is_empty, printer = True, LogPrinter()
        for piece in pieces:
            is_empty = False
            if as_json:
                typer.echo(json.dumps(piece, ensure_ascii=False))
                continue
            if piece["dropped_bytes"]:
                printer.print(f"[… {size(piece['dropped_bytes'])} were not kept …]\n")
            printer.print(piece["text"])
        printer.close()
        if is_empty and not as_json:
            typer.echo("No output." if _has_ended(client, run_id) else "No output yet.", err=True)


def _followed(client: "Client", run_id: int, attempt: int | None) -> "Iterator[dict[str, Any]]":
    """All pieces until the run has ended, as they come."""
    offset = yield from _rest(client, run_id, attempt)
    while not _has_ended(client, run_id):
        offset = yield from _rest(client, run_id, attempt, offset, LOG_WAIT_SECONDS)
    yield from _rest(client, run_id, attempt, offset)


def _rest(
    client: "Client",
    run_id: int,
    attempt: int | None,
    offset: int = 0,
    wait_seconds: float | None = None,
) -> "Generator[dict[str, Any], None, int]":
    """All pieces that there are after a position; returns the next one."""
    while True:
        piece = client.logs(run_id, attempt=attempt, after=offset, wait_seconds=wait_seconds)
        offset, wait_seconds = piece["next_offset"], None
        if not piece["text"]:
            return offset
        yield piece


def _has_ended(client: "Client", run_id: int) -> bool:
    return client.run(run_id)["state"] in (*TERMINAL, "paused")


def _not_taken(run_id: int, words: list[str]) -> typer.BadParameter:
    """Of words behind the run: names of metrics, or other runs."""
    if words[0].isdecimal():
        told = f"it takes one run: stoker metrics {run_id}, then stoker metrics {words[0]}"
        return typer.BadParameter(told, param_hint="RUN")
    named = " ".join(f"--name {shlex.quote(name)}" for name in words)
    told = f"name metrics by it: stoker metrics {run_id} {named}"
    return typer.BadParameter(told, param_hint="--name")


def metrics(
    context: typer.Context,
    run_id: RunId,
    names: Annotated[
        list[str], typer.Option("--name", help="Only this metric. Can be repeated.")
    ] = ALL_NAMES,
    csv: Annotated[bool, typer.Option("--csv", help="All points that are kept, as CSV.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the metrics of a run, each with its curve."""
    if csv and as_json:
        raise typer.BadParameter("give one of the two", param_hint="--csv, --json")
    if context.args:
        raise _not_taken(run_id, context.args)
    with connect() as client:
        if csv and not names:
            sys.stdout.write(client.metrics_csv(run_id))
            return
        series = client.metrics(run_id, names=names, max_points=1000)["series"]
        unknown = [name for name in names if name not in series]
        if unknown:
            raise CommandFailed(_no_series(client, run_id, unknown))
        if csv:
            sys.stdout.write(client.metrics_csv(run_id, names=names))
            return
    if as_json:
        print_json({"series": series})
        return
    rows, width = [], max(LEAST_COURSE, min(WIDEST_COURSE, table_columns() - FIGURES_WIDTH))
    for name, points in sorted(series.items()):
        values = [value for _, _, value in points if value is not None]
        if values:
            text = size if name.endswith("_bytes") else number
            ends = (text(values[0]), text(min(values)), text(max(values)), text(values[-1]))
            rows.append((name, len(values), *ends, sparkline(values, width)))
    print_table(
        ["metric", "points", "first", "least", "most", "last", "trend"], rows, "No metrics yet."
    )
    if any(points >= SOME_MAY_BE_LEFT_OUT for _, points, *_ in rows):
        print_lines([HOW_MANY_ARE_KEPT], err=True)


def _no_series(client: "Client", run_id: int, unknown: list[str]) -> str:
    known = ", ".join(sorted(client.metrics(run_id, max_points=2)["series"]))
    there = f"there are {known}" if known else "it has none yet"
    return f"Run {run_id} has no metric {', '.join(unknown)}; {there}."


def sparkline(values: list[float], width: int = WIDEST_COURSE) -> str:
    """The course of a series in eight heights; each mark is the mean of its part."""
    count = min(width, len(values))
    means = []
    for mark in range(count):
        part = values[mark * len(values) // count : (mark + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, span = min(means), max(means) - min(means)
    heights = "▁▂▃▄▅▆▇█"
    return "".join(heights[round((mean - low) / span * 7) if span else 0] for mean in means)


def checkpoints(run_id: RunId, as_json: JsonOption = False) -> None:
    """List a run's checkpoints."""
    with connect() as client:
        rows = list(client.every(client.checkpoints, run_id))
    if as_json:
        print_json({"data": rows})
        return
    print_table(
        ["id", "step", "epoch", "size", "metrics", "which", "saved"],
        [
            (
                row["id"],
                row["step"],
                row["epoch"],
                size(row["bytes"]),
                metric_line(row["metrics"]) or None,
                ", ".join(
                    word
                    for word, is_so in (
                        ("latest", row["is_latest"]),
                        ("best", row["is_best"]),
                        ("pinned", row["pinned"]),
                        (f"damaged: {row['damage']}", row["state"] == "damaged"),
                        ("being removed", row["state"] == "removing"),
                    )
                    if is_so
                )
                or None,
                None if row["state"] == "damaged" else ago(row["created_at"]),
            )
            for row in rows
        ],
        "No checkpoints.",
    )


def pin(checkpoint_id: CheckpointId, as_json: JsonOption = False) -> None:
    """Keep a checkpoint until it is unpinned, however many newer ones there are."""
    with connect() as client:
        _print_pinned(client.pin_checkpoint(checkpoint_id), as_json=as_json)


def unpin(checkpoint_id: CheckpointId, as_json: JsonOption = False) -> None:
    """Let a checkpoint go when newer ones, or better ones, are kept in its place."""
    with connect() as client:
        _print_pinned(client.unpin_checkpoint(checkpoint_id), as_json=as_json)


def _print_pinned(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    which = f"Checkpoint {row['id']} of run {row['run_id']}, step {row['step']},"
    typer.echo(f"{which} is {'' if row['pinned'] else 'no longer '}pinned.")


def download(
    run_id: RunId,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint, not the latest.")
    ] = False,
    checkpoint: Annotated[
        int | None, typer.Option(min=1, help="This checkpoint, by its id (of any run).")
    ] = None,
    export: Annotated[
        int | None, typer.Option(min=1, help="This export (`stoker exports RUN`), by its id.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; default run-N-latest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the files of a checkpoint, or of an export, into a folder here, and check them.

    The folder must not be there, or be empty. A download that broke off goes on when the same
    checkpoint is asked for again, into the same folder; while the run trains, its latest changes,
    so name it with --checkpoint.
    """
    if best + (checkpoint is not None) + (export is not None) > 1:
        raise typer.BadParameter("give one of them", param_hint="--best, --checkpoint, --export")
    which: Which | int = checkpoint or ("best" if best else "latest")
    folder = output or Path(f"run-{run_id}-{which if export is None else f'export-{export}'}")
    with connect() as client, download_bar(as_json) as told:
        if export is None:
            client.download(run_id, which, folder, told)
        else:
            client.save_export(export, folder, told)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in files)
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in files], "bytes": total})
        return
    typer.echo(f"{folder}: {len(files)} files, {size(total)}")


@contextmanager
def download_bar(is_quiet: bool) -> "Iterator[Told]":
    """A bar on a terminal, from the first bytes on; nothing where nobody looks."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    bar = Progress(*columns, console=screen, disable=is_quiet or not screen.is_terminal)
    task = bar.add_task("download")

    def told(here: int, whole: int) -> None:
        bar.start()
        bar.update(task, completed=here, total=whole)

    try:
        yield told
    finally:
        if bar.live.is_started:
            bar.stop()
