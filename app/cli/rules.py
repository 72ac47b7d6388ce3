"""What the guard looks for: `stoker rules`, all of them or one in full."""

from difflib import unified_diff
from typing import Annotated, Any

import typer

from app.cli.connect import connect
from app.cli.failures import CommandFailed, issue_lines
from app.cli.output import JsonOption, print_explained, print_facts, print_json, print_lines
from app.suggest import did_you_mean

Document = dict[str, Any]
INDENT = "  "
TOPICS = ("correctness", "memory", "speed", "learning")


def rules(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="One in full, or a topic: speed.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what needs no rule, and rules to come.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the rules of the guard, or explain one with an example that it refuses."""
    with connect() as client:
        page = client.rules()
    topic = (code or "").removesuffix(".*")
    of_topic = [rule for rule in page["data"] if rule["topic"] == topic]
    if code is not None and not of_topic:
        _explain(page, code, as_json=as_json)
    elif as_json:
        print_json({**page, "data": of_topic} if of_topic else page)
    else:
        _print_rules(of_topic or page["data"])
        if everything:
            _print_rest(page)
        else:
            typer.echo("\nOne in full: stoker rules CODE. What needs no rule: stoker rules --all")


def _print_rules(rows: list[Document]) -> None:
    print_explained(
        ["code", "finds", "accepted", "what should hold"],
        [
            (
                row["code"],
                row["severity"],
                "may be" if row["overridable"] else "never",
                row["summary"],
            )
            for row in sorted(rows, key=lambda row: TOPICS.index(row["topic"]))
        ],
        "No rules.",
    )


def _print_rest(page: Document) -> None:
    typer.echo("\nFound before the rules:")
    print_explained(
        ["code", "finds", "what should hold"],
        [(row["code"], row["severity"], row["summary"]) for row in page["before_rules"]],
        "None.",
    )
    typer.echo("\nImpossible by construction:")
    print_explained(
        ["what", "why it cannot be"],
        [(row["what"], row["how"]) for row in page["by_construction"]],
        "None.",
    )
    typer.echo("\nPlanned, for options that do not exist yet:")
    print_explained(
        ["option", "rules"],
        [(row["option"], "; ".join(row["rules"])) for row in page["to_come"]],
        "None.",
    )


def _explain(page: Document, code: str, *, as_json: bool) -> None:
    found = {row["code"]: row for row in [*page["before_rules"], *page["data"]]}
    if code not in found:
        raise CommandFailed(_no_rule(code, list(found)))
    row = found[code]
    if as_json:
        print_json(row)
        return
    typer.echo(row["code"])
    print_lines([INDENT + row["summary"]])
    if "stands_on" not in row:  # found before the rules
        typer.echo(f"\n{INDENT}{row['severity']}, found in the request before any rule")
        return
    accepted = "accept_risks may override it" if row["overridable"] else "nothing overrides it"
    typer.echo()
    print_facts(
        [
            ("finds", f"{row['severity']}; {accepted}"),
            ("stands on", row["stands_on"]),
            ("measured by", row["measured_by"] and f"benchmark {row['measured_by']}"),
        ]
    )
    if row["example"] is not None:
        _print_example(row["example"])


def _no_rule(code: str, known: list[str]) -> str:
    from app.guard.judge import closest_code  # imported late: pydantic

    meant = did_you_mean(closest_code(code, known))
    return f"There is no rule {code!r}.{meant} `stoker rules` lists them."


def _print_example(example: Document) -> None:
    from app.cli.specs.yamltext import dump_yaml  # imported late: start-up of every command

    before = dump_yaml(example["request"])
    where = f", for the device {example['device']}" if example["device"] else ""
    typer.echo(f"\nAn example{where}:\n")
    for line in before.splitlines():
        typer.echo(INDENT + line)
    typer.echo()
    print_lines(issue_lines([{**example["issue"], "fix": []}]))
    if example["fixed"] is None:
        typer.echo("\nNo change to the spec fixes it.")
        return
    after = dump_yaml(example["fixed"])
    typer.echo("\nIts fix:\n")
    changes = list(unified_diff(before.splitlines(), after.splitlines(), n=99, lineterm=""))
    for line in changes[3:]:
        typer.echo(INDENT + line)
