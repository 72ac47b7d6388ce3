"""Submitting runs and looking at them: submit, plan, ls, show."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import RunId
from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode, issue_lines
from app.cli.output import (
    JsonOption,
    ago,
    best_score,
    between,
    duration,
    metric_line,
    number,
    print_facts,
    print_json,
    print_table,
)
from app.cli.specfile import read_request
from app.cli.watch import watch_run

if TYPE_CHECKING:
    from app.client import StokerClient

Document = dict[str, Any]

SpecPath = Annotated[
    str, typer.Argument(metavar="SPEC", help="A .yaml, .json or .toml file; - for YAML on stdin.")
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="A.B=VALUE", help="Change a value; VALUE is YAML 1.2 or JSON."),
]
NO_CHANGES: list[str] = []


def submit(
    spec: SpecPath,
    assignments: SetOption = NO_CHANGES,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it; end as the run does.")] = False,
    wait: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for a dataset that is still being inspected."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a run."""
    request = read_request(spec, assignments)
    with connect() as client:
        run = client.submit(request, wait_seconds=wait)
        if watch:
            raise typer.Exit(watch_run(client, run["id"], as_json=as_json))
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run['id']} {_named(run)}is {run['status']}.")
    typer.echo(f"  stoker watch {run['id']}")


def plan(
    spec: SpecPath,
    assignments: SetOption = NO_CHANGES,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what the guard finds (later).")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a submission would become, without submitting it."""
    if fix:
        raise CommandFailed(
            "plan --fix is not available yet. `stoker plan` prints the fix of each finding as a "
            "--set option that you can add."
        )
    request = read_request(spec, assignments)
    with connect() as client:
        answer = _planned(client, request)
    if as_json:
        print_json(answer)
    else:
        _print_plan(answer)
    if any(issue["severity"] == "error" for issue in answer["issues"]):
        raise typer.Exit(ExitCode.refused)


def _planned(client: "StokerClient", request: Document) -> Document:
    """The plan, also of what the service cannot parse: then it is its findings alone."""
    from app.client import Problem  # imported late, as in connect

    try:
        return client.plan(request)
    except Problem as problem:
        if not problem.issues:
            raise
        return problem.document


def _print_plan(answer: Document) -> None:
    is_refused = any(issue["severity"] == "error" for issue in answer["issues"])
    typer.echo("This would be refused." if is_refused else "This would be accepted.")
    for line in issue_lines(answer["issues"]):
        typer.echo(line)
    if is_refused:
        return
    estimate = answer.get("estimate") or {}
    print_facts(
        [
            ("queue position", answer.get("queue_position")),
            *((name.replace("_", " "), number(value)) for name, value in estimate.items()),
        ]
    )
    rows = [
        (pointer.strip("/").replace("/", "."), entry["value"], entry["source"])
        for pointer, entry in sorted(answer["provenance"].items())
        if entry["source"] != "default"
    ]
    typer.echo("\nValues that are not defaults:")
    print_table(["setting", "value", "from"], rows, "none")


def ls(
    state: Annotated[
        str | None, typer.Option(help="queued, running, paused, succeeded, failed or stopped.")
    ] = None,
    status: Annotated[str | None, typer.Option(help="The word of the status column.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Only this recipe.")] = None,
    label: Annotated[str | None, typer.Option(help="KEY or KEY=VALUE.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="In name or notes.")] = None,
    parent: Annotated[int | None, typer.Option(help="Only restarts of this run.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500)] = 20,
    after: Annotated[str | None, typer.Option(help="Cursor of the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    filters = {"state": state, "status": status, "recipe": recipe, "label": label}
    with connect() as client:
        page = client.runs(limit=limit, after=after, q=search, parent_id=parent, **filters)
    if as_json:
        print_json(page)
        return
    print_table(
        ["id", "name", "status", "reason", "steps", "loss", "best", "created", "took"],
        [_row(run) for run in page["data"]],
        "No runs. `stoker submit SPEC` creates one.",
    )
    if page["next_cursor"]:
        typer.echo(f"older ones: stoker ls --after {page['next_cursor']}")


def show(run_id: RunId, as_json: JsonOption = False) -> None:
    """Show one run."""
    with connect() as client:
        run = client.run(run_id)
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run['id']} {_named(run)}is {run['status']}.")
    print_facts(_facts(run))
    for name in ("best", "last", "test"):
        values = (run.get("result") or {}).get(name)
        if values:
            typer.echo(f"  {name:<10}  " + metric_line(values))


def _facts(run: Document) -> list[tuple[str, object]]:
    progress = run.get("progress") or {}
    children = ", ".join(str(child) for child in run["child_ids"])
    return [
        ("reason", run.get("reason")),
        ("message", run.get("message")),
        ("recipe", f"{run['recipe']}, mode {run['mode']}"),
        ("labels", ", ".join(f"{key}={value}" for key, value in run["labels"].items())),
        ("restart of", run.get("parent_id")),
        ("restarted as", children),
        ("attempt", run["attempt"] or None),
        ("worker", run.get("worker")),
        ("devices", ", ".join(run.get("devices") or ())),
        ("progress", _steps(progress) if progress else None),
        ("speed", _speed(progress)),
        ("time left", duration(progress["eta_seconds"]) if progress.get("eta_seconds") else None),
        ("loss", number(progress["loss"]) if progress.get("loss") is not None else None),
        ("created", ago(run["created_at"])),
        ("took", between(run["started_at"], run["finished_at"]) if run["started_at"] else None),
        ("notes", run.get("notes")),
    ]


def _row(run: Document) -> tuple[object, ...]:
    progress = run.get("progress") or {}
    return (
        run["id"],
        run["name"] or None,
        run["status"],
        run.get("reason"),
        _steps(progress).removeprefix("step ") if progress else None,
        number(progress.get("loss")),
        best_score(progress.get("best")),
        ago(run["created_at"]),
        between(run["started_at"], run["finished_at"]),
    )


def _steps(progress: Document) -> str:
    return f"step {number(progress.get('step'))} of {number(progress.get('steps'))}"


def _speed(progress: Document) -> str | None:
    rate = progress.get("iterations_per_second")
    if not rate:
        return None
    return f"{number(rate)} it/s, {number(progress.get('samples_per_second'))} samples/s"


def _named(run: Document) -> str:
    return f"({run['name']}) " if run["name"] else ""
