"""Submitting runs and looking at them: submit, ls, show."""

import json
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import RunId, parse_seconds
from app.cli.connect import connect
from app.cli.failures import CommandFailed, issue_lines
from app.cli.filters import BeforeOption, SinceOption, as_typed, moment, one_each, refusal
from app.cli.output import (
    JsonOption,
    ago,
    best_score,
    between,
    cut,
    duration,
    fitted_arguments,
    in_words,
    label_line,
    metric_line,
    number,
    one_line,
    print_facts,
    print_json,
    print_lines,
    print_table,
    shell_line,
    size,
    table_columns,
    width_of,
)
from app.cli.progress import percent
from app.cli.specs.assigned import with_own_fixes
from app.cli.specs.specfile import NO_CHANGES, NameOption, SetOption, SpecPath, read_request
from app.cli.watch import RESULTS, watch_run
from stoker import Problem

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
LONGEST_CONFIG = 500
SHOWN = 3  # of a run's warnings, and of its attempts
# Of what `ls` shows of a name and of a script's arguments, however narrow it is.
SHORTEST_NAME, LEAST_ARGUMENTS = 12, 20
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
    typer.echo(f"Run {run['id']} {_named(run)}{in_words(run['status'], run['waits_for'])}.")
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


def show(
    run_id: RunId,
    diff: Annotated[
        bool, typer.Option("--diff", help="Only the changes its code had when it was submitted.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its state, progress, speed, memory and result."""
    with connect() as client:
        run = client.run(run_id)
        documents = {} if as_json else client.spec(run_id)
        is_whole = not as_json and not diff
        warnings = list(client.every(client.events, run_id, kind="warning")) if is_whole else []
        attempts = list(client.every(client.attempts, run_id)) if is_whole else []
    if diff:
        if as_json:
            raise typer.BadParameter("--diff goes without --json")
        typer.echo((documents["code"] or {}).get("diff") or "", nl=False)
        return
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run['id']} {_named(run)}{in_words(run['status'], run['waits_for'])}.")
    # Until its end a run has no result; but what was best so far.
    result = run.get("result") or {"best": (run.get("progress") or {}).get("best")}
    reached = [(name, metric_line(result.get(name) or {})) for name in RESULTS]
    print_facts([*_facts(run, documents, attempts), *reached, *_warnings(warnings)])


def _warnings(events: list[Document]) -> list[tuple[str, object]]:
    """The newest of different words, and where the others are told."""
    told = list(dict.fromkeys(event["data"]["message"] for event in reversed(events)))
    shown = told[:SHOWN]
    if len(told) > SHOWN:
        shown.append(f"{len(told) - SHOWN} more: `stoker watch` tells them all")
    return [("warning", message) for message in shown]


def _attempt(run: Document, attempts: list[Document]) -> str | None:
    """Its number, and how the last ones before it have ended."""
    if not run["attempt"]:
        return None
    before = [one for one in attempts if one["number"] != run["attempt"]][-SHOWN:]
    ended = ", ".join(f"{one['number']} {one['reason'] or one['state']}" for one in before)
    return f"{run['attempt']} (before: {ended})" if ended else str(run["attempt"])


def _facts(
    run: Document, documents: Document, attempts: list[Document]
) -> list[tuple[str, object]]:
    progress, recipe = run.get("progress") or {}, documents["spec"]["recipe"]
    left = progress.get("eta_seconds") if run["state"] == "running" else None
    children = ", ".join(str(child) for child in run["child_ids"])
    return [
        ("reason", _reason(run.get("reason"))),
        ("message", run.get("message")),
        ("recipe", f"{run['recipe']}, mode {run['mode']}"),
        ("dataset", run.get("dataset")),
        ("command", shell_line(recipe.get("argv") or ()) or None),
        ("folder", recipe.get("cwd")),
        ("labels", label_line(run["labels"])),
        ("accepted risks", ", ".join(run["accepted_risks"])),
        ("restart of", run.get("parent_id")),
        ("restarted as", children),
        ("attempt", _attempt(run, attempts)),
        ("worker", run.get("worker")),
        ("devices", ", ".join(run.get("devices") or ())),
        ("memory", _memory(run, documents["memory"])),
        ("memory before", (run.get("profile") or {}).get("message")),
        ("code", _code(run["code"]) if run.get("code") else None),
        ("config", _config(run.get("config") or {})),
        ("memory rung", _memory_rung(documents["applied"])),
        ("progress", _steps(progress)),
        ("speed", _speed(run["state"], progress)),
        ("time left", duration(left) if left else None),
        ("loss", number(progress["loss"]) if progress.get("loss") is not None else None),
        ("created", ago(run["created_at"])),
        ("took", between(run["started_at"], run["finished_at"]) if run["started_at"] else None),
        ("notes", run.get("notes")),
    ]


def _reason(reason: str | None) -> str | None:
    """With what it means where there is no spec file, as for scripts."""
    return "spec_error (it cannot run as submitted)" if reason == "spec_error" else reason


def _config(config: Document) -> str:
    """What a script said that it was configured with, in short."""
    told = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()
    }
    line = label_line(told)
    return line if len(line) <= LONGEST_CONFIG else f"{line[:LONGEST_CONFIG]}… (--json has all)"


def _code(code: Document) -> str:
    """The commit, and how far the code was from it."""
    if code["git_sha"] is None:
        return "in no git repository"
    parts = [f"commit {code['git_sha'][:12]}"]
    if code["diff_bytes"]:
        parts.append(f"with a diff of {size(code['diff_bytes'])}")
    if code["untracked"]:
        files = "file" if code["untracked"] == 1 else "files"
        parts.append(f"{number(code['untracked'])} untracked {files}")
    return ", ".join(parts)


def _memory(run: Document, memory: Document) -> str:
    """What was planned, and what an attempt has measured; empty where neither is known."""
    if run["recipe"] == "script":
        peak = (run.get("progress") or {}).get("peak_memory") or {}
        where = (("device_bytes", "of GPU memory"), ("host_bytes", "of the host's"))
        known = [(peak[name], words) for name, words in where if peak.get(name)]
        return f"{' and '.join(_sizes(known))}, at the peak" if known else ""
    told = (("planned_bytes", "planned"), ("measured_bytes", "measured at the peak"))
    known = [(memory[name], words) for name, words in told if memory[name] is not None]
    return f"{', '.join(_sizes(known))}, on top of the trainer's libraries" if known else ""


def _sizes(known: list[tuple[int, str]]) -> list[str]:
    """Each with its words, all in the unit of the largest, so that they can be compared."""
    return [f"{size(count, max(known)[0])} {words}" for count, words in known]


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


def _row(run: Document) -> dict[str, object]:
    progress = run.get("progress") or {}
    ended_well = run.get("reason") in (None, "completed") or run["state"] in ("stopped", "paused")
    return {
        "id": run["id"],
        "name": run["name"] or None,
        "status": run["status"] if ended_well else f"{run['status']}: {run['reason']}",
        "steps": (_steps(progress) or "").removeprefix("step ") or None,
        "loss": number(progress.get("loss")),
        "best": best_score(progress.get("best")),
        "created": ago(run["created_at"]),
        "took": between(run["started_at"], run["finished_at"]),
    }


def _fitted(runs: list[Document], room: int) -> tuple[list[str], list[list[object]]]:
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


def _steps(progress: Document) -> str | None:
    """None before a script has told of a step, or how far it is, which it may never do."""
    step, steps, ratio = (progress.get(name) for name in ("step", "steps", "ratio"))
    if steps is not None:
        return f"step {number(step)} of {number(steps)}"
    told = [f"step {number(step)}"] if step else []
    return ", ".join(told if ratio is None else [*told, percent(ratio).strip()]) or None


def _speed(state: str, progress: Document) -> str | None:
    """Of the last second while it runs; afterwards that of the whole attempt. Of a script nobody
    knows its samples.
    """
    mean = "" if state == "running" else "mean_"
    told = (("iterations", "it/s"), ("samples", "samples/s"))
    rates = [(progress.get(f"{mean}{of}_per_second"), unit) for of, unit in told]
    return ", ".join(f"{number(rate)} {unit}" for rate, unit in rates if rate) or None


def _named(run: Document) -> str:
    return f"({one_line(run['name'])}) " if run["name"] else ""
