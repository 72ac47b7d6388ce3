"""How a plan looks in a terminal: findings, what could not be checked, values, memory, time."""

import json
from typing import Any

import typer

from app.cli.failures import issue_lines
from app.cli.output import duration, number, print_facts, print_lines, print_table, size
from app.guard.wording import share

Document = dict[str, Any]
# What a restart of a script that has saved nothing may do better the next time.
SAVES = (
    "For the next time, say where it saves and how it resumes: --checkpoints and --resume, see "
    "docs/scripts.md."
)
NOT_WHERE = "For the next time, say where it saves: --checkpoints 'out/checkpoint-*'."
NOT_HOW = "For the next time, say how it resumes: --resume '--resume {checkpoint}'."


def print_plan(answer: Document, *, everything: bool) -> None:
    """The answer of a dry run; of a refused one its findings alone."""
    is_refused = any(issue["severity"] == "error" for issue in answer["issues"])
    typer.echo("This would be refused." if is_refused else "This would be accepted.")
    print_lines(issue_lines(answer["issues"]))
    if "spec" not in answer:
        typer.echo(
            "\nThe other rules have not been applied yet: they need a spec that can be read."
        )
        return
    _print_unchecked(answer["unchecked"])
    memory = answer["memory"]
    if is_refused:
        if memory and any(issue["code"].startswith("memory.") for issue in answer["issues"]):
            _print_memory(memory)
        return
    _print_estimate(answer)
    if profile := answer.get("profile"):
        print_lines(["", profile["message"]])
    if memory:
        _print_memory(memory)
    _print_values(answer["provenance"], everything=everything)


def _print_unchecked(unchecked: list[Document]) -> None:
    """Grouped by the fact that is missing, for that is what somebody can see to."""
    by_fact: dict[str, list[str]] = {}
    for entry in unchecked:
        by_fact.setdefault(entry["missing"], []).append(entry["code"])
    if by_fact:
        typer.echo("\nNot checked, because this is not known")
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
            ("a batch", _batch_worth(estimate.get("batch_worth"))),
            ("time", _time(estimate) if estimate else None),
            ("computes in", _formats(answer.get("computes_in") or {})),
            ("place in the queue", answer.get("queue_position")),
        ]
    )


def _batch_worth(worth: Document | None) -> str | None:
    """The samples of a step beside those that are worth as much; None where that is not known."""
    if worth is None:
        return None
    return (
        f"{number(worth['samples'])} samples, worth about {number(worth['independent'])} "
        f"independent ones of {worth['target']!r}"
    )


def _formats(by_part: Document) -> str | None:
    return ", ".join(f"{part} {name}" for part, name in by_part.items()) or None


def _time(estimate: Document) -> str:
    if estimate.get("seconds") is None:
        return "unknown: no run like it has trained for 100 steps or a minute yet"
    runs = [str(run) for run in estimate.get("from_runs") or ()]
    word = "run" if len(runs) == 1 else "runs"
    by = f", by {word} {', '.join(runs)}" if runs else ""
    return f"about {duration(estimate['seconds'])}{by}"


def _print_memory(memory: Document) -> None:
    """What is planned against the budget, and what it is made of, the largest first."""
    typer.echo("\nMemory for training, on top of the trainer's libraries:")
    for place in ("device", "host"):
        plan = memory.get(place)
        if plan is None:
            continue
        print_lines([f"  {place}: {_against(plan)}. No phase holds all of these at once:"])
        items = sorted(plan["items"].items(), key=lambda item: -item[1])
        width = max((len(name) for name, _ in items), default=0)
        for name, count in items:
            typer.echo(f"    {name.replace('_', ' '):<{width}}  {size(count):>10}")
    _print_who_measured(memory)
    _print_how_it_is_read(memory)


def _against(plan: Document) -> str:
    """The peak and what is available; where a part was never measured, what is known alone."""
    phase = max(plan["phases"], key=plan["phases"].get)
    known = plan["planned_bytes"] is not None
    peak = max(plan["phases"].values())
    told = f"{size(peak)} at the peak, while {phase}"
    if not known:
        told = f"{size(peak)} are exact, while {phase}; what comes on top was never measured"
    budget = plan.get("budget_bytes")
    if not budget:
        return f"{told}, and how much is available is not known"
    return f"{told}, {share(peak / budget)} of the {size(budget)} that are available"


def _print_who_measured(memory: Document) -> None:
    if unknown := memory.get("unknown"):
        names = ", ".join(unknown)
        typer.echo(f"  Not known: {names}. `stoker plan SPEC --probe` measures a step.")
    if measured := memory.get("measured"):
        sizes = ", ".join(number(size) for size in measured["batch_sizes"])
        runs = ", ".join(str(run) for run in measured["runs"])
        who = f"run{'s' if len(measured['runs']) > 1 else ''} {runs}" if runs else "a probe"
        typer.echo(
            f"  Measured by {who}, last on {measured['worker']} at {measured['at']}, "
            f"with batches of {sizes}."
        )


def _print_how_it_is_read(memory: Document) -> None:
    if memory.get("residency") == "stream":
        chunk = f"in chunks of {number(memory['chunk_samples'])} samples"
        typer.echo(f"  The data streams through the device {chunk}.")
    elif memory.get("residency") == "batches":
        typer.echo("  The data comes to the device batch by batch.")
    elif memory.get("residency"):
        typer.echo("  The data stays on the device.")
    print_lines([f"  Assumed: {assumed}" for assumed in memory.get("assumed") or ()])


def _print_values(provenance: Document, *, everything: bool) -> None:
    registered = provenance.get("/recipe/command", {}).get("value")
    # What fills in the values of a script that the request does not give.
    words = {"script": "registration" if registered else "--like"}
    rows = [
        (
            pointer.strip("/").replace("/", "."),
            _shown(entry["value"]),
            words.get(entry["source"], entry["source"]),
        )
        for pointer, entry in sorted(provenance.items())
        if everything or entry["source"] != "default"
    ]
    typer.echo("\nValues:" if everything else "\nValues that are not defaults:")
    print_table(["setting", "value", "from"], rows, "none")
    if not everything:
        typer.echo(f"The other {len(provenance) - len(rows)} are defaults; --all shows them.")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def carry_lines(carry: Document | None, source: str | int, recipe: Document) -> list[str]:
    """What a restart takes over, and what starts anew. `recipe`: of its spec."""
    if carry is None:
        return []
    lines = [f"  {_carried(carry, source, recipe)}"]
    dataset, of_file = "/data/dataset", "data.dataset, or the file behind it"
    if carry["kind"] == "scratch" and dataset in carry["changed"]:
        lines.append(f"  Its data is not its parent's: {of_file}, differs.")
    if carry["kind"] == "weights" and (carry["waits_for_parent"] or carry["step"] is not None):
        files = {dataset: of_file}
        differ = [files.get(path, path.strip("/").replace("/", ".")) for path in carry["changed"]]
        lines.append(f"  These differ from its parent's: {'; '.join(differ)}.")
        lines.append(f"  These start anew: {', '.join(carry['starts_anew'])}.")
    return lines


def _carried(carry: Document, source: str | int, recipe: Document) -> str:
    is_script = recipe.get("kind") == "script"
    if carry["kind"] == "scratch":
        return "It starts from scratch."
    what = "the full training state" if carry["kind"] == "full" else "the weights alone"
    takes = (
        "It can go on from what was saved" if is_script else f"It continues with {what}, as saved"
    )
    if carry["waits_for_parent"] and source in ("latest", "best"):
        which = "latest" if source == "latest" else "best by then"
        return f"{takes} ({which}) once its parent has stopped."
    if carry["step"] is None:
        told = "Nothing is saved that it could go on from: it starts from the beginning."
        return f"{told} {_advice_on_saves(recipe)}" if is_script else told
    takes = "It can go on from the checkpoint at" if is_script else f"It continues with {what} from"
    return f"{takes} step {number(carry['step'])}."


def _advice_on_saves(recipe: Document) -> str:
    """Never names an option that was given."""
    patterns, resume = recipe.get("checkpoints"), recipe.get("resume")
    if patterns and resume:
        named = ", ".join(patterns)
        return f"No whole save matched --checkpoints ({named}); its parent's warnings may say why."
    if patterns:
        return NOT_HOW
    return NOT_WHERE if resume else SAVES


def has_nothing(carry: Document) -> bool:
    """Whether its parent has saved nothing, and will not."""
    return carry["step"] is None and not carry["waits_for_parent"]
