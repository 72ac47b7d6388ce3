"""`stoker show`: all that is known of a run."""

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.arguments import RunId
from app.cli.connect import connect
from app.cli.output import (
    JsonOption,
    ago,
    between,
    duration,
    headline,
    label_line,
    number,
    print_facts,
    print_json,
    restart_facts,
    shell_line,
    size,
)
from app.cli.progress import steps_done
from app.cli.watch import result_facts
from stoker import Problem

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]
LONGEST_CONFIG = 500
ENDED_EARLY = {"failed": "that run failed", "stopped": "that run was stopped before its end"}
SHOWN = 3  # of a run's warnings, and of its attempts


def show(
    run_id: RunId,
    diff: Annotated[
        bool, typer.Option("--diff", help="Only how the code that it ran differs from its commit.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its state, progress, speed, memory and result."""
    with connect() as client:
        run = client.run(run_id)
        documents = {} if as_json else client.spec(run_id)
        changes = list(client.every(client.events, run_id, kind="code_changed")) if diff else []
        is_whole = not as_json and not diff
        warnings = list(client.every(client.events, run_id, kind="warning")) if is_whole else []
        attempts = list(client.every(client.attempts, run_id)) if is_whole else []
        weights = _weights_from(client, run, documents["applied"]) if is_whole else None
    if diff:
        if as_json:
            raise typer.BadParameter("--diff goes without --json")
        _print_diff(run, documents["code"] or {}, changes)
        return
    if as_json:
        print_json(run)
        return
    typer.echo(headline(run))
    # Until its end a run has no result; but what was best so far.
    result = run.get("result") or {"best": (run.get("progress") or {}).get("best")}
    facts = _facts(run, documents, attempts, weights)
    print_facts([*facts, *result_facts(result), *_warnings(warnings, result)])


def _print_diff(run: Document, submitted: Document, changes: list[Document]) -> None:
    """Print the diff of the code that the newest attempt ran; before an attempt, the submitted one.

    `git apply` passes over the lines before a diff.
    """
    diff = submitted.get("diff")
    if (ran := _ran(run)) is not None:
        diff = changes[-1]["data"]["diff"] if changes else ran["diff"]
        typer.echo(f"# {ran['message']}")
        typer.echo(f"# Attempt {ran['attempt']} ran {_commit(ran)}{_difference(run, diff)}")
    typer.echo(diff or "", nl=False)


def _ran(run: Document) -> Document | None:
    """The code that the newest attempt ran, if it is not the submitted code."""
    ran: Document | None = (run.get("code") or {}).get("ran")
    return ran


def _commit(code: Document) -> str:
    return f"commit {code['git_sha'][:12]}" if code["git_sha"] else "code in no git repository"


def _difference(run: Document, diff: str | None) -> str:
    """The end of the sentence that says which code ran."""
    moved = run["code"]["ran"]["git_sha"] != run["code"]["git_sha"]
    submitted = f", and not {_commit(run['code'])}" if moved else ""
    return f"{submitted}, {'with these changes:' if diff else 'without changes.'}"


def _weights_from(client: "Client", run: Document, applied: list[Document | None]) -> str | None:
    """The checkpoint that an attempt began with by `init_from`, and what to know of its run."""
    began = [one["init_from"] for one in applied if one and one.get("init_from")]
    source = run["init_from_run"]
    if not began or source is None:
        return None
    line = f"run {source}, step {number(began[-1]['step'])}"
    try:
        state = client.run(source)["state"]
    except Problem as problem:
        if problem.status != HTTPStatus.NOT_FOUND:
            raise
        return f"{line} (that run is deleted)"
    return f"{line} ({ENDED_EARLY[state]})" if state in ENDED_EARLY else line


def _warnings(events: list[Document], result: Document) -> list[tuple[str, object]]:
    """The newest of different words that are no caveat, and where the others are told."""
    messages = dict.fromkeys(event["data"]["message"] for event in reversed(events))
    told = [message for message in messages if message not in (result.get("caveats") or ())]
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
    run: Document, documents: Document, attempts: list[Document], weights: str | None
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
        ("restart of", restart_facts(run)),
        ("weights from", weights),
        ("restarted as", children),
        ("attempt", _attempt(run, attempts)),
        ("worker", run.get("worker")),
        ("devices", ", ".join(run.get("devices") or ())),
        ("memory", _memory(run, documents["memory"])),
        ("memory before", (run.get("profile") or {}).get("message")),
        ("code", _code(run["code"]) if run.get("code") else None),
        ("code that ran", _code_that_ran(run)),
        ("config", _config(run.get("config") or {})),
        ("memory rung", _memory_rung(documents["applied"])),
        ("progress", steps_done(progress)),
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
    parts = [_commit(code)]
    if code["diff_bytes"]:
        parts.append(f"with a diff of {size(code['diff_bytes'])}")
    if code["untracked"]:
        files = "file" if code["untracked"] == 1 else "files"
        parts.append(f"{number(code['untracked'])} untracked {files}")
    return ", ".join(parts)


def _code_that_ran(run: Document) -> str | None:
    """The commit and the difference; None if the newest attempt ran the submitted code."""
    if (ran := _ran(run)) is None:
        return None
    return f"{_commit(ran)}. {ran['message']} `stoker show {run['id']} --diff` shows it."


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


def _speed(state: str, progress: Document) -> str | None:
    """Of the last second while it runs; afterwards that of the whole attempt. Of a script nobody
    knows its samples.
    """
    mean = "" if state == "running" else "mean_"
    told = (("iterations", "it/s"), ("samples", "samples/s"))
    rates = [(progress.get(f"{mean}{of}_per_second"), unit) for of, unit in told]
    return ", ".join(f"{number(rate)} {unit}" for rate, unit in rates if rate) or None
