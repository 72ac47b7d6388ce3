"""Submitting runs and listing them: submit, ls."""

import json
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import parse_seconds
from app.cli.connect import connect
from app.cli.failures import CommandFailed, issue_lines
from app.cli.filters import BeforeOption, SinceOption, as_typed, moment, one_each, refusal
from app.cli.output import (
    JsonOption,
    ago,
    best_score,
    between,
    cut,
    fitted_arguments,
    headline,
    number,
    print_json,
    print_lines,
    print_table,
    restart_line,
    table_columns,
    width_of,
)
from app.cli.progress import steps_done
from app.cli.specs.assigned import with_own_fixes
from app.cli.specs.specfile import NO_CHANGES, NameOption, SetOption, SpecPath, read_request
from app.cli.watch import watch_run
from stoker import Problem

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
# Of what `ls` shows of a name and of a script's arguments, however narrow it is.
SHORTEST_NAME, LEAST_ARGUMENTS = 12, 20
RESTART = "restart of"
PAGE = 20  # runs of a page where `ls` is not told


def submit(
    spec: SpecPath,
    name: NameOption = None,
    assignments: SetOption = NO_CHANGES,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it to its end; the exit code is the outcome.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds,
            metavar="SECONDS",
            help="Wait so long for a dataset that is still being inspected.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Submit a run: stoker submit spec.yaml --watch."""
    if name is not None:
        assignments = [*assignments, f"name={json.dumps(name)}"]
    request = read_request(spec, assignments)
    with connect() as client:
        run = _submitted(client, request, wait, spec, assignments)
        warnings = [] if as_json else client.issues(run["id"])
        if watch:
            print_lines(issue_lines(warnings))
            raise typer.Exit(watch_run(client, run["id"], warnings, as_json=as_json))
    if as_json:
        print_json(run)
        return
    typer.echo(headline(run))
    if run["state"] == "queued" and run["message"]:
        print_lines([f"  {run['message']}"])
    print_lines(issue_lines(warnings))
    typer.echo(f"  stoker watch {run['id']}")


def _submitted(
    client: "Client", request: Document, wait: float | None, spec: str, assignments: list[str]
) -> Document:
    """The new run; a refusal ends with the command that mends the spec, where there is a fix."""
    try:
        return client.submit(request, wait_seconds=wait)
    except Problem as problem:
        issues = with_own_fixes(problem.issues, request, assignments)
        if not any(issue.get("fix") for issue in issues):
            raise
        hints, fixing = issue_lines(issues), _fixing_command(spec, assignments)
        if fixing is not None and any(issue.get("fix") for issue in problem.issues):
            hints.append(f"  all fixes, as a diff: {fixing}")
        raise CommandFailed(
            f"{problem.title.rstrip('.')}.", hints=hints, document=problem.document
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
        list[str] | None,
        typer.Option(metavar="STATUS", help="A word from the status column. Can be repeated."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Only runs of this recipe.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Only runs on this dataset.")] = None,
    label: Annotated[str | None, typer.Option(help="KEY or KEY=VALUE.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="In name or notes.")] = None,
    parent: Annotated[int | None, typer.Option(help="Only restarts of this run.")] = None,
    since: SinceOption = None,
    before: BeforeOption = None,
    by: Annotated[str | None, typer.Option(help="Only those of this token.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="How many.")] = PAGE,
    after: Annotated[str | None, typer.Option(help="Where the next page begins.")] = None,
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
    none = f"No run matches {given}." if given else "No runs. `stoker submit SPEC` creates one."
    print_table(*_fitted(page["data"], table_columns()), none)
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


def _row(run: Document) -> dict[str, object]:
    progress = run.get("progress") or {}
    ended_well = run.get("reason") in (None, "completed") or run["state"] in ("stopped", "paused")
    return {
        "id": run["id"],
        "name": run["name"] or None,
        "status": _status(run) if ended_well else f"{run['status']}: {run['reason']}",
        "steps": (steps_done(progress) or "").removeprefix("step ") or None,
        "loss": number(progress.get("loss")),
        "best": best_score(progress.get("best")),
        "created": ago(run["created_at"]),
        "took": between(run["started_at"], run["finished_at"]),
    }


def _status(run: Document) -> str:
    """A script that may have failed despite its exit code 0 is marked; `show` says why."""
    is_doubtful = (run.get("result") or {}).get("caveats") and run["recipe"] == "script"
    return f"{run['status']}, with a warning" if is_doubtful else str(run["status"])


def _fitted(runs: list[Document], room: int) -> tuple[list[str], list[list[object]]]:
    """Headers and rows that are no wider than `room`; with what restarts change, if it fits."""
    restarts = [restart_line(run) or "" for run in runs]
    if not any(restarts):
        return _table(runs, room)
    least = max(len(RESTART), min(LEAST_ARGUMENTS, max(map(width_of, restarts))))
    headers, rows = _table(runs, room - least - 2)
    columns = zip(headers, *rows, strict=True)
    taken = sum(max(width_of(str(one or "–")) for one in column) + 2 for column in columns)
    if room - taken < len(RESTART):
        return _table(runs, room)
    texts = [cut(text, room - taken) for text in restarts]
    return [*headers, RESTART], [
        [*row, text or None] for row, text in zip(rows, texts, strict=True)
    ]


def _table(runs: list[Document], room: int) -> tuple[list[str], list[list[object]]]:
    """Headers and rows that are no wider than `room`: of what `show` has too, the loss and
    the time go first, and names and the arguments of scripts are cut; arguments that most runs
    do not have go before.
    """
    rows, arguments = [_row(run) for run in runs], fitted_arguments(runs)
    least = min(LEAST_ARGUMENTS, max(map(width_of, arguments), default=0))
    beside = least + 2 if 2 * sum(map(bool, arguments)) > len(runs) else 0
    headers = list(rows[0]) if rows else []
    for left_out in (None, "loss", "took"):
        headers = [header for header in headers if header != left_out]
        width = {
            header: max(len(header), *(width_of(str(row[header] or "–")) for row in rows))
            for header in headers
        }
        left = room - sum(width.values()) - 2 * (len(headers) - 1) + width["name"] if rows else 0
        if left - beside >= min(SHORTEST_NAME, width.get("name", 0)):
            break
    most = max(SHORTEST_NAME, left - beside)
    for row in rows:
        row["name"] = cut(str(row["name"] or "–"), most)
    name = max((width_of(str(row["name"])) for row in rows), default=0)
    if least and left - name - 2 >= len("arguments"):
        headers.append("arguments")
        for row, words in zip(rows, fitted_arguments(runs, left - name - 2), strict=True):
            row["arguments"] = words or None
    return headers, [[row[header] for header in headers] for row in rows]
