"""Spec files (YAML 1.2, JSON, TOML) and `--set a.b=1`, as the dictionaries that are posted."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import typer

from app.cli.failures import CommandFailed

Document = dict[str, Any]


def read_request(path: str, assignments: list[str]) -> Document:
    """The request in a spec file (`-`: YAML from stdin), with `--set` values on top."""
    request = _parse(*_read(path))
    for assignment in assignments:
        names, value = parse_assignment(assignment)
        assign(request, names, value)
    return request


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
        return names, _value(value)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--set") from None


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
    if path == "-":
        return "standard input", sys.stdin.read()
    try:
        return path, Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandFailed(f"{path} is not a text file in UTF-8, so it is no spec.") from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from None


def _parse(name: str, text: str) -> Document:
    kind = Path(name).suffix.lower()
    try:
        if kind == ".json":
            document = parse_json(text)
        elif kind == ".toml":
            document = tomllib.loads(text)
        elif kind in (".yaml", ".yml", ""):
            document = parse_yaml(text)
        else:
            raise CommandFailed(f"{name}: a spec ends in .yaml, .yml, .json or .toml.")
    except ValueError as error:
        raise CommandFailed(f"{name} cannot be read: {error}.") from None
    if not isinstance(document, dict):
        raise CommandFailed(f"{name} holds no spec: a spec is a mapping with recipe and data.")
    return document
