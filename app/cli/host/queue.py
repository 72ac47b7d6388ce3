"""What waits, in which order, what starts next, and how a run is moved."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import RunId, parse_run_id
from app.cli.connect import connect
from app.cli.output import JsonOption, ago, duration, print_json, print_lines, print_table

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]

app = typer.Typer(help="Waiting runs in the order in which they will be claimed.")

BeforeOption = Annotated[
    int | None,
    typer.Option(metavar="RUN", parser=parse_run_id, help="Before this run, which waits too."),
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
    print_table(
        ["place", "id", "name", "status", "priority", "created", "why"],
        [
            (
                place,
                run["id"],
                run["name"] or None,
                run["status"],
                run["priority"],
                ago(run["created_at"]),
                run["message"],
            )
            for place, run in enumerate(waiting, start=1)
        ],
        "Nothing waits.",
    )
    if starts is not None:
        print_lines([starts])


@app.command()
def move(
    run_id: RunId,
    first: Annotated[bool, typer.Option("--first", help="Before all others.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Behind all others.")] = False,
    before: BeforeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a run that waits; it gets the priority of its new neighbours."""
    if first + last + (before is not None) != 1:
        raise typer.BadParameter("say where: one of --first, --last and --before RUN")
    with connect() as client:
        old = client.run(run_id)
        if before is not None:
            run = client.move_in_queue(run_id, before=before)
        else:
            run = client.move_in_queue(run_id, to="first" if first else "last")
    if as_json:
        print_json(run)
        return
    place = f"before run {before}" if before is not None else "first" if first else "last"
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
