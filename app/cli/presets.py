"""Presets: the list of them, those that cannot be used, and one in full."""

import textwrap
from typing import Annotated, Any

import typer

from app.cli.connect import connect
from app.cli.failures import CommandFailed
from app.cli.output import JsonOption, print_facts, print_json, print_lines, print_table

Document = dict[str, Any]


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One in full.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List presets: layers of defaults for a class of hardware."""
    with connect() as client:
        page = client.presets()
    if name is not None:
        _show(page, name, as_json=as_json)
        return
    if as_json:
        print_json({"data": page["data"], "broken": page["broken"]})
        return
    print_table(
        ["preset", "from", "picked for", "what it is"],
        [
            (row["name"], row["source"], _match(row["match"]), row["description"])
            for row in page["data"]
        ],
        "No presets.",
    )
    if page["broken"]:
        typer.echo("\nThese cannot be used until their files are corrected:")
        print_lines(["  " + row["message"] for row in page["broken"]])
    typer.echo("\nOne in full: stoker presets NAME. Your own go into HOME/presets/*.toml.")


def _show(page: Document, name: str, *, as_json: bool) -> None:
    broken = {row["name"]: row["message"] for row in page["broken"]}
    found = {row["name"]: row for row in page["data"]}
    if name in broken:
        raise CommandFailed(broken[name])
    if name not in found:
        raise CommandFailed(f"There is no preset {name!r}; there are {', '.join(found)}.")
    row = found[name]
    if as_json:
        print_json(row)
        return
    from app.cli.specs.yamltext import dump_yaml  # imported late: start-up of every command

    typer.echo(row["name"])
    print_facts(
        [
            ("what it is", row["description"]),
            ("from", "HOME/presets" if row["source"] == "user" else "Stoker itself"),
            ("picked for", _match(row["match"]) or "no device by itself: name it in the spec"),
        ]
    )
    layers = (
        ("Its defaults, which a spec overrides", row["spec"]),
        ("More of them, for a spec that names it", row["named"]),
    )
    if not any(layer for _, layer in layers):
        typer.echo("\nIt sets nothing: the defaults are made for it.")
    for title, layer in layers:
        if layer:
            typer.echo(f"\n{title}:\n")
            typer.echo(textwrap.indent(dump_yaml(layer), "  "), nl=False)


def _match(match: Document | None) -> str | None:
    """The devices that `preset: auto` gives it to."""
    if match is None:
        return None
    least = f", {match['memory_gib']:g} GiB or more" if match["memory_gib"] else ""
    return ("GPU" if match["device"] == "cuda" else "CPU") + least
