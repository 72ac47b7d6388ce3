"""How a plan looks in a terminal: findings, what could not be checked, values, memory, time."""

import json
from typing import Any

import typer

from app.cli.failures import issue_lines
from app.cli.output import duration, number, print_facts, print_lines, print_table

Document = dict[str, Any]


def print_plan(answer: Document, *, everything: bool) -> None:
    """The answer of a dry run; of a refused one its findings alone."""
    is_refused = any(issue["severity"] == "error" for issue in answer["issues"])
    typer.echo("This would be refused." if is_refused else "This would be accepted.")
    print_lines(issue_lines(answer["issues"]))
    _print_unchecked(answer.get("unchecked") or [])
    if is_refused:
        if any(issue["fix"] for issue in answer["issues"]):
            typer.echo("\nWith --fix the fixes are applied, and shown as a diff.")
        return
    _print_estimate(answer)
    _print_values(answer["provenance"], everything=everything)


def _print_unchecked(unchecked: list[Document]) -> None:
    """Grouped by the fact that is missing, for that is what somebody can see to."""
    by_fact: dict[str, list[str]] = {}
    for entry in unchecked:
        by_fact.setdefault(entry["missing"], []).append(entry["code"])
    if by_fact:
        typer.echo("\nCould not be checked, for nobody knows")
        print_lines([f"  {fact}: {', '.join(codes)}" for fact, codes in by_fact.items()])


def _print_estimate(answer: Document) -> None:
    estimate = answer.get("estimate") or {}
    samples = [
        f"{number(estimate[f'{part}_samples'])} {word}"
        for part, word in (("training", "to train on"), ("validation", "to validate"),
                           ("test", "to test"))
        if estimate.get(f"{part}_samples")
    ]  # fmt: skip
    steps = None
    if estimate.get("steps") is not None:
        steps = f"{number(estimate['steps'])}, {number(estimate['steps_per_epoch'])} an epoch"
    typer.echo()
    print_facts(
        [
            ("samples", ", ".join(samples)),
            ("steps", steps),
            ("time", _time(estimate) if estimate else None),
            ("place in the queue", answer.get("queue_position")),
        ]
    )


def _time(estimate: Document) -> str:
    if estimate.get("seconds") is None:
        return "not known: no run like it has been trained yet"
    runs = ", ".join(str(run) for run in estimate.get("from_runs") or ())
    return f"about {duration(estimate['seconds'])}" + (f", as runs like it: {runs}" if runs else "")


def _print_values(provenance: Document, *, everything: bool) -> None:
    rows = [
        (pointer.strip("/").replace("/", "."), _shown(entry["value"]), entry["source"])
        for pointer, entry in sorted(provenance.items())
        if everything or entry["source"] != "default"
    ]
    typer.echo("\nValues:" if everything else "\nValues that are not defaults:")
    print_table(["setting", "value", "from"], rows, "none")
    if not everything:
        typer.echo(f"The other {len(provenance) - len(rows)} are defaults; --all shows them.")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
