"""Submitting runs and looking at them: submit, ls, show."""

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import RunId
from app.cli.connect import connect
from app.cli.failures import CommandFailed, issue_lines
from app.cli.filters import BeforeOption, SinceOption, as_typed, moment, one_each, refusal
from app.cli.output import (
    JsonOption,
    ago,
    best_score,
    between,
    duration,
    in_words,
    metric_line,
    number,
    print_facts,
    print_json,
    print_lines,
    print_table,
    size,
)
from app.cli.specfile import NO_CHANGES, SetOption, SpecPath, read_request
from app.cli.watch import watch_run
from stoker import Problem

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
PAGE = 20  # runs of a page where `ls` is not told


def submit(
    spec: SpecPath,
    assignments: SetOption = NO_CHANGES,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it; the exit code is the outcome.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for a dataset that is still being inspected."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a run."""
    request = read_request(spec, assignments)
    with connect() as client:
        run = _submitted(client, request, wait, _fixing_command(spec, assignments))
        warnings = [] if as_json else client.issues(run["id"])
        if watch:
            print_lines(issue_lines(warnings))
            raise typer.Exit(watch_run(client, run["id"], as_json=as_json))
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run['id']} {_named(run)}{in_words(run['status'])}.")
    if run["state"] == "queued" and run["message"]:
        print_lines([f"  It waits: {run['message']}"])
    print_lines(issue_lines(warnings))
    typer.echo(f"  stoker watch {run['id']}")


def _submitted(
    client: "Client", request: Document, wait: float | None, fixing: str | None
) -> Document:
    """The new run; a refusal ends with the command that mends the spec, where there is a fix."""
    try:
        return client.submit(request, wait_seconds=wait)
    except Problem as problem:
        if fixing is None or not any(issue.get("fix") for issue in problem.issues):
            raise
        raise CommandFailed(
            f"{problem.title.rstrip('.')}.",
            hints=[*issue_lines(problem.issues), f"  all fixes, as a diff: {fixing}"],
        ) from None


def _fixing_command(spec: str, assignments: list[str]) -> str | None:
    """`stoker plan --fix` for the same spec; None for one that came on standard input."""
    if spec == "-":
        return None
    changes = [word for assignment in assignments for word in ("--set", assignment)]
    return shlex.join(["stoker", "plan", "--fix", spec, *changes])


def ls(
    state: Annotated[
        str | None, typer.Option(help="queued, running, paused, succeeded, failed or stopped.")
    ] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="The word of the status column; may come again.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Only this recipe.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only with this data.")] = None,
    label: Annotated[str | None, typer.Option(help="KEY or KEY=VALUE.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="In name or notes.")] = None,
    parent: Annotated[int | None, typer.Option(help="Only restarts of this run.")] = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    by: Annotated[str | None, typer.Option(help="Only of the token with this name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500)] = PAGE,
    after: Annotated[str | None, typer.Option(help="Cursor of the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    filters: dict[str, Any] = {
        "state": state,
        "status": one_each(status),
        "recipe": recipe,
        "dataset": dataset,
        "label": label,
        "q": search,
        "parent_id": parent,
        "created_after": moment(since, "--since"),
        "created_before": moment(before, "--before"),
        "created_by": by,
    }
    page = _page(limit=limit, after=after, **filters)
    if as_json:
        print_json(page)
        return
    given = as_typed({**filters, "after": after})
    print_table(
        ["id", "name", "status", "reason", "steps", "loss", "best", "created", "took"],
        [_row(run) for run in page["data"]],
        f"No run matches {given}." if given else "No runs. `stoker submit SPEC` creates one.",
    )
    if page["next_cursor"]:
        size_given = None if limit == PAGE else limit
        further = as_typed({**filters, "limit": size_given, "after": page["next_cursor"]})
        typer.echo(f"older ones: stoker ls {further}")
    if why := why_they_wait(page["data"]):
        print_lines([why], err=True)


def _page(**parameters: Any) -> Document:
    with connect() as client:
        try:
            return client.runs(**parameters)
        except Problem as problem:
            if not problem.issues:
                raise
            raise refusal(problem) from None


def why_they_wait(runs: list[Document]) -> str | None:
    """One line with what most of the queued runs wait for; None where nothing is said of any."""
    told = {run["id"]: run["message"] for run in runs if run["state"] == "queued"}
    counted = Counter(message for message in told.values() if message)
    if not counted:
        return None
    [(why, count)] = counted.most_common(1)
    ids = ", ".join(str(run_id) for run_id, message in sorted(told.items()) if message == why)
    who = f"Runs {ids} wait" if count > 1 else f"Run {ids} waits"
    others = " `stoker queue` says why the others wait." if count < counted.total() else ""
    return f"{who}: {why}{others}"


def show(run_id: RunId, as_json: JsonOption = False) -> None:
    """Show one run."""
    with connect() as client:
        run = client.run(run_id)
        documents = {} if as_json else client.spec(run_id)
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run['id']} {_named(run)}{in_words(run['status'])}.")
    print_facts(_facts(run, documents))
    # Until its end a run has no result; but what was best so far.
    result = run.get("result") or {"best": (run.get("progress") or {}).get("best")}
    for name in ("best", "last", "test"):
        if values := result.get(name):
            typer.echo(f"  {name:<10}  " + metric_line(values))


def _facts(run: Document, documents: Document) -> list[tuple[str, object]]:
    progress = run.get("progress") or {}
    left = progress.get("eta_seconds") if run["state"] == "running" else None
    children = ", ".join(str(child) for child in run["child_ids"])
    return [
        ("reason", run.get("reason")),
        ("message", run.get("message")),
        ("recipe", f"{run['recipe']}, mode {run['mode']}"),
        ("labels", ", ".join(f"{key}={value}" for key, value in run["labels"].items())),
        ("accepted risks", ", ".join(run["accepted_risks"])),
        ("restart of", run.get("parent_id")),
        ("restarted as", children),
        ("attempt", run["attempt"] or None),
        ("worker", run.get("worker")),
        ("devices", ", ".join(run.get("devices") or ())),
        ("memory", _memory(documents["memory"])),
        ("memory rung", _memory_rung(documents["applied"])),
        ("progress", _steps(progress) if progress else None),
        ("speed", _speed(run["state"], progress)),
        ("time left", duration(left) if left else None),
        ("loss", number(progress["loss"]) if progress.get("loss") is not None else None),
        ("created", ago(run["created_at"])),
        ("took", between(run["started_at"], run["finished_at"]) if run["started_at"] else None),
        ("notes", run.get("notes")),
    ]


def _memory(memory: Document) -> str:
    """What was planned, and what an attempt has measured; empty where neither is known."""
    told = (("planned_bytes", "planned"), ("measured_bytes", "measured at the peak"))
    listed = [f"{size(memory[name])} {words}" for name, words in told if memory[name] is not None]
    return f"{', '.join(listed)}, on top of the trainer's libraries" if listed else ""


def _memory_rung(applied: list[Document | None]) -> str | None:
    """What the newest attempt makes smaller, since others before it ran out of memory."""
    rung = (applied[-1] or {}).get("memory_rung") if applied else None
    if rung is None:
        return None
    told = (
        ("data_bytes", size, "at most {} of data at once"),
        ("batch", number, "micro-batches of {}"),
        ("evaluation_batch", number, "evaluation batches of {}"),
        ("staging_bytes", size, "page-locked pieces of {}"),
        ("workers", number, "{} loader processes for each part"),
        ("prefetch_factor", number, "loader processes {} batch ahead"),
    )
    listed = (
        words.format(text(rung[name])) for name, text, words in told if rung.get(name) is not None
    )
    return f"{rung['number']}: {', '.join(listed)}"


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


def _speed(state: str, progress: Document) -> str | None:
    """Of the last second while it runs; afterwards that of the whole attempt."""
    mean = "" if state == "running" else "mean_"
    rate, samples = (progress.get(f"{mean}{of}_per_second") for of in ("iterations", "samples"))
    return f"{number(rate)} it/s, {number(samples)} samples/s" if rate else None


def _named(run: Document) -> str:
    return f"({run['name']}) " if run["name"] else ""
