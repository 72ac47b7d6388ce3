"""What waits, in which order, what starts next, and how a run is moved."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.arguments import RunId, parse_run_id
from app.cli.connect import connect
from app.cli.failures import StokerGroup
from app.cli.output import (
    JsonOption,
    ago,
    cut,
    duration,
    fitted_arguments,
    print_explained,
    print_json,
    print_lines,
    table_columns,
    width_of,
)

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
# Of what is shown of a name and of a script's arguments, however narrow the terminal is; a name may
# have a third of a wider one.
LEAST_NAME, LEAST_ARGUMENTS = 40, 20

app = typer.Typer(cls=StokerGroup, help="List waiting runs as they will be claimed, or move one.")

BeforeOption = Annotated[
    int | None,
    typer.Option(metavar="RUN", parser=parse_run_id, help="Before this run, which waits too."),
]
AfterOption = Annotated[
    int | None,
    typer.Option(metavar="RUN", parser=parse_run_id, help="Behind this run, which waits too."),
]


@app.callback(invoke_without_command=True)
def queue(context: typer.Context, as_json: JsonOption = False) -> None:
    """List waiting runs in the order in which they will be claimed."""
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        waiting = list(client.every(client.queue))
        starts = starts_next(client, waiting)
    if as_json:
        print_json({"data": waiting, "next": starts})
        return
    print_explained(*_listed(waiting, table_columns()), "Nothing waits.")
    if starts is not None:
        print_lines([starts])


def _listed(waiting: Sequence[Document], room: int) -> tuple[list[str], list[list[str]]]:
    """Headers and rows; names and the arguments of scripts as wide as `room` lets them be, and why
    each waits only where that is said of any.
    """
    headers = ["place", "id", "name", "status", "priority", "created"]
    rows = [
        [
            str(place),
            str(run["id"]),
            cut(run["name"], max(LEAST_NAME, room // 3)) or "–",
            run["status"],
            str(run["priority"]),
            ago(run["created_at"]),
        ]
        for place, run in enumerate(waiting, start=1)
    ]
    taken = sum(max(map(width_of, column)) + 2 for column in zip(headers, *rows, strict=True))
    arguments = fitted_arguments(waiting, max(LEAST_ARGUMENTS, room - taken))
    for name, told in (("arguments", arguments), ("why", [run["message"] for run in waiting])):
        if any(told):
            headers.append(name)
            rows = [[*row, one or ""] for row, one in zip(rows, told, strict=True)]
    return headers, rows


@app.command()
def move(
    run_id: RunId,
    first: Annotated[bool, typer.Option("--first", help="Before all others.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Behind all others.")] = False,
    before: BeforeOption = None,
    after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a run that waits; it gets the priority of its new neighbours."""
    if first + last + (before is not None) + (after is not None) != 1:
        raise typer.BadParameter("say where: one of --first, --last, --before RUN and --after RUN")
    to: Literal["first", "last"] | None = "first" if first else "last" if last else None
    with connect() as client:
        old = client.run(run_id)
        run = client.move_in_queue(run_id, to=to, before=before, after=after)
    if as_json:
        print_json(run)
        return
    beside = f"before run {before}" if before is not None else f"after run {after}"
    place = to or beside
    is_new = run["priority"] != old["priority"]
    changed = f", with the priority {run['priority']}" if is_new else ""
    typer.echo(f"Run {run_id} now waits {place}{changed}.")


def starts_next(client: "Client", waiting: Sequence[Document]) -> str | None:
    """Which of the waiting runs starts next, and when; None where none waits for its turn alone."""
    run = next((run for run in waiting if run["status"] == "queued"), None)
    if run is None:
        return None
    slots = [slot for worker in client.every(client.workers) for slot in worker["slots"]]
    if not slots:
        return "Nothing starts: no worker is alive. `stoker up` starts one."
    if run["message"]:
        return f"Run {run['id']} is next, and waits: {run['message']}"
    if any(not slot.get("run_id") and not slot.get("waiting") for slot in slots):
        return f"Run {run['id']} starts next, at once."
    ids = sorted({slot["run_id"] for slot in slots if slot.get("run_id")})
    return f"Run {run['id']} starts next, when {_which_ends(client, ids)}."


def _which_ends(client: "Client", ids: Sequence[int]) -> str:
    """Of the runs that train, which ends first, as far as they know."""
    if not ids:
        return "a slot is free"
    left = {run_id: (client.run(run_id)["progress"] or {}).get("eta_seconds") for run_id in ids}
    known = {run_id: seconds for run_id, seconds in left.items() if seconds is not None}
    soonest = min(known, key=lambda run_id: known[run_id]) if known else None
    if len(ids) == 1:
        about = "" if soonest is None else f" ({duration(known[soonest])} left)"
        return f"run {ids[0]} ends{about}"
    about = "" if soonest is None else f" (run {soonest} has {duration(known[soonest])} left)"
    return f"one of the runs {', '.join(map(str, ids))} ends{about}"
