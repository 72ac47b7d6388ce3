"""`stoker watch`: follow a run to its end, and end as it did."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from app.cli.arguments import RunId
from app.cli.connect import connect
from app.cli.failures import OUTCOMES, ExitCode
from app.cli.output import (
    STATUS_STYLES,
    JsonOption,
    between,
    metric_line,
    number,
    print_facts,
)
from app.cli.progress import Teller, View, make_view
from stoker import ClientError, Event

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
RESULTS = ("best", "last", "test")


def watch(
    run_id: RunId,
    as_json: JsonOption = False,
) -> None:
    """Follow a run. Ends with 0 when it succeeded, 1 failed, 3 stopped, 4 paused."""
    with connect() as client:
        raise typer.Exit(watch_run(client, run_id, as_json=as_json))


def watch_run(
    client: "Client", run_id: int, told: Sequence[Document] = (), *, as_json: bool
) -> ExitCode:
    """Show a run until it is over or paused; the exit code that says how it ended. `told`: findings
    that were shown already.
    """
    if as_json:
        return _print_events(client, run_id)
    view = make_view()
    try:
        tell_what_it_waits_for(client, run_id, view)
        run = follow(client, run_id, view, told)
    except KeyboardInterrupt:
        run = None
    finally:
        view.close()
    if run is None:
        typer.echo(f"Run {run_id} goes on; `stoker watch {run_id}` follows it again.", err=True)
        return ExitCode.interrupted
    print_outcome(run)
    return OUTCOMES[run["state"]]


def follow(client: "Client", run_id: int, view: View, told: Sequence[Document] = ()) -> Document:
    """Feed a view with a run's events until it is over or paused; returns the run as it is then."""
    teller = Teller(view, told=told)
    for event in client.watch(run_id):
        teller.tell(event)
        if _says_paused(event) and (run := client.run(run_id))["state"] == "paused":
            return run
    return client.run(run_id)


def tell_what_it_waits_for(client: "Client", run_id: int, view: View) -> None:
    """What a person has to do where the run waits for one that does not go on by itself."""
    try:
        run = client.run(run_id)
    except ClientError:
        return  # following it tells what is wrong, and waits for a service that is starting
    if run["waits_for"] is not None and run["message"]:
        view.note(f"{'waiting':<12} {run['message']}", "yellow")


def _says_paused(event: Event) -> bool:
    """Whether the run came to rest here; it may have been resumed since."""
    return event.kind == "state" and event.data["to"] == "paused"


def _print_events(client: "Client", run_id: int) -> ExitCode:
    """A line of JSON for each event, and one for the run at the end."""
    for event in client.watch(run_id):
        typer.echo(json.dumps({"seq": event.seq, "kind": event.kind, "data": event.data}))
        if _says_paused(event) and client.run(run_id)["state"] == "paused":
            break
    run = client.run(run_id)
    typer.echo(json.dumps({"seq": None, "kind": "run", "data": run}))
    return OUTCOMES[run["state"]]


def result_facts(result: Document) -> list[tuple[str, object]]:
    """The lines of a result: its scores, the best baseline of each metric, and its caveats."""
    scores = [(name, metric_line(result.get(name) or {})) for name in RESULTS]
    # Of equally good baselines the first is named, as in the run's message: it is the simplest.
    scored = reversed(result.get("baselines") or ())
    names = {(one["metric"], one["value"]): one["name"] for one in scored}
    baselines = [
        f"{metric} {number(value)} ({names.get((metric, value), 'last value')})"
        for metric, value in (result.get("naive") or {}).items()
    ]
    caveats = [("caveat", sentence) for sentence in result.get("caveats") or ()]
    return [*scores, ("best baseline", " · ".join(baselines)), *caveats]


def print_outcome(run: Document) -> None:
    """How a run ended, or that it is paused, and what can be done now."""
    state = run["state"]
    took = between(run["started_at"], run["finished_at"])
    head = f"Run {run['id']} {state}" + (f" after {took}" if run["started_at"] else "")
    typer.secho(f"{head}.", fg=STATUS_STYLES[state])  # its last note has said why
    result = run["result"] or {}
    if run["recipe"] == "script":  # its caveats were told as warnings
        result = {**result, "caveats": []}
    print_facts(result_facts(result))
    if (run.get("code") or {}).get("ran"):
        typer.echo(
            "  It ran code that was edited after it was queued; "
            f"`stoker show {run['id']} --diff` shows that code."
        )
    if run["child_ids"]:
        typer.echo(f"  It goes on as run {run['child_ids'][-1]}.")
    elif state in ("failed", "stopped"):
        # What cannot run as submitted would end the same: its message says what helps.
        again = "" if run["reason"] == "spec_error" else f"    stoker restart {run['id']}"
        typer.echo(f"  stoker logs {run['id']}{again}")
    elif state == "paused":
        typer.echo(f"  stoker resume {run['id']}")
