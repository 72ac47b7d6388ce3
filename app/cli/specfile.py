"""Spec files (YAML 1.2, JSON, TOML) and `--set a.b=1`, as the dictionaries that are posted."""

import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from app.cli.failures import CommandFailed

Document = dict[str, Any]

# What the service takes; a larger file is not worth the time that it takes to parse.
MOST_BYTES = 1 << 20


Format = Literal["yaml", "json", "toml"]
FORMATS: dict[str, Format] = {
    ".yaml": "yaml", ".yml": "yaml", "": "yaml", ".json": "json", ".toml": "toml",
}  # fmt: skip

SpecPath = Annotated[
    str, typer.Argument(metavar="SPEC", help="A .yaml, .json or .toml file; - for YAML on stdin.")
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="A.B=VALUE", help="Change a value; VALUE is YAML 1.2 or JSON."),
]
NO_CHANGES: list[str] = []


@dataclass(frozen=True)
class SpecFile:
    """A spec as it was written, and what it says. `path` is None for standard input."""

    name: str
    path: Path | None
    format: Format
    text: str
    document: Document


def read_spec(path: str) -> SpecFile:
    """A spec file (`-`: YAML from stdin); CommandFailed says what is wrong with it."""
    name, text = _read(path)
    kind = format_of("" if path == "-" else name)
    document = _parse(name, kind, text)
    _require_finite(document, name)
    return SpecFile(name, None if path == "-" else Path(path), kind, text, document)


def read_request(path: str, assignments: list[str]) -> Document:
    """The request in a spec file, with `--set` values on top."""
    return with_assignments(read_spec(path).document, assignments)


def with_assignments(document: Document, assignments: list[str]) -> Document:
    """A copy of the document with the assigned values in it."""
    changed = deepcopy(document)
    for assignment in assignments:
        names, value = parse_assignment(assignment)
        assign(changed, names, value)
    return changed


def format_of(name: str) -> Format:
    """The format that a file's name says; CommandFailed for a name of another kind."""
    kind = FORMATS.get(Path(name).suffix.lower())
    if kind is None:
        raise CommandFailed(f"{name}: a spec ends in .yaml, .yml, .json or .toml.")
    return kind


def patch_of(assignments: list[str]) -> Document:
    """A merge patch (RFC 7396) that says what the assignments say."""
    patch: Document = {}
    for assignment in assignments:
        names, value = parse_assignment(assignment)
        assign(patch, names, value)
    return patch


def assign(document: Document, names: list[str], value: Any) -> None:
    """Put a value at a dotted place; blocks on the way that are missing are created."""
    node = document
    for name in names[:-1]:
        child = node.setdefault(name, {})
        if not isinstance(child, dict):
            node[name] = child = {}
        node = child
    node[names[-1]] = value


def parse_assignment(text: str) -> tuple[list[str], Any]:
    """`training.epochs=8` as (["training", "epochs"], 8); the value is YAML 1.2, so JSON too."""
    name, equals, value = text.partition("=")
    names = [part.strip() for part in name.split(".")]
    if not equals or not all(names):
        raise typer.BadParameter(
            f"{text!r} is not NAME=VALUE; for example --set training.epochs=8", param_hint="--set"
        )
    try:
        parsed = _value(value)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--set") from None
    _require_finite({".".join(names): parsed}, "--set")
    return names, parsed


def _require_finite(document: Document, source: str) -> None:
    """Refuse NaN and infinity, naming the field: JSON cannot say them, and no setting wants them.

    A document that refers to itself, as YAML can, is refused too.
    """
    try:
        bad = next(_not_finite(document), None)
    except RecursionError:
        raise CommandFailed(f"{source} refers to itself or is nested too deeply.") from None
    if bad is not None:
        raise CommandFailed(f"{source}: {bad} is not a finite number, and no setting can be that.")


def _not_finite(value: Any, place: str = "") -> Iterator[str]:
    """Where in a document, as `optimizer.lr`, there is a number that is none."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place
    if isinstance(value, list):
        value = dict(enumerate(value))
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from _not_finite(inner, f"{place}.{name}" if place else str(name))


def _value(text: str) -> Any:
    """JSON where it is JSON, for YAML reads its escapes otherwise; else YAML."""
    if not text.strip():
        return ""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """YAML 1.2, where `off` is a word and `1e-3` a number; ValueError says where it is wrong."""
    from app.cli import yaml12  # imported late: start-up of every command

    return yaml12.parse_yaml(text)


def parse_json(text: str) -> Any:
    """JSON; ValueError says where it is wrong, also for a key that is given twice."""
    return json.loads(text, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> Document:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in members if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return members


def _read(path: str) -> tuple[str, str]:
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise CommandFailed(f"{name} is larger than 1 MiB, which no spec needs to be.")
        return name, raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CommandFailed(f"{name} is not a text file in UTF-8, so it is no spec.") from None
    except OSError as error:
        raise CommandFailed(f"{name} cannot be read: {error.strerror}.") from None


def _parse(name: str, kind: Format, text: str) -> Document:
    readers: dict[Format, Callable[[str], Any]] = {
        "json": parse_json,
        "toml": tomllib.loads,
        "yaml": parse_yaml,
    }
    try:
        document = readers[kind](text)
    except RecursionError:
        raise CommandFailed(f"{name} is nested too deeply for a spec.") from None
    except ValueError as error:
        raise CommandFailed(f"{name} cannot be read: {error}.") from None
    if not isinstance(document, dict):
        raise CommandFailed(f"{name} holds no spec: a spec is a mapping with recipe and data.")
    return document
