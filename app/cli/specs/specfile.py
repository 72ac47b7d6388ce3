"""Spec files (YAML 1.2, JSON, TOML) and `--set a.b=1`, as the dictionaries that are posted."""

import shlex
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from app.cli.failures import CommandFailed
from app.errors import InvalidRequest
from app.suggest import closest_file, did_you_mean

Document = dict[str, Any]

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
NameOption = Annotated[str | None, typer.Option("--name", help="Of the run, for people.")]


@dataclass(frozen=True)
class SpecFile:
    """A spec as it was written, and what it says. `path` is None for standard input."""

    name: str
    path: Path | None
    format: Format
    content: bytes
    document: Document

    @property
    def text(self) -> str:
        return self.content.decode("utf-8")


def read_spec(path: str) -> SpecFile:
    """A spec file (`-`: YAML from stdin); CommandFailed and InvalidRequest say what is wrong."""
    name = "standard input" if path == "-" else path
    kind = format_of("" if path == "-" else path)
    content = _content(path, name)
    document = parse(kind, content, name)
    if not isinstance(document, dict):
        raise CommandFailed(f"{name} is not a spec: a spec is a mapping with recipe and data.")
    return SpecFile(name, None if path == "-" else Path(path), kind, content, document)


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
    suffix = Path(name).suffix.lower()
    kind = FORMATS.get(suffix)
    if suffix == ".py":
        raise CommandFailed(
            f"{name} is a Python file, which is no spec. `stoker run -- python "
            f"{shlex.quote(name)}` runs it as a script of yours."
        )
    if kind is None:
        raise CommandFailed(f"{name}: the name of a spec ends in .yaml, .yml, .json or .toml.")
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
    if not value.strip():
        return names, ""
    content = value.encode("utf-8", "surrogateescape")
    try:
        # JSON where it is JSON, for YAML reads its escapes otherwise.
        return names, parse("json", content, repr(text))
    except InvalidRequest:
        pass
    try:
        return names, parse("yaml", content, repr(text))
    except InvalidRequest as error:
        raise typer.BadParameter(error.detail, param_hint="--set") from None


def parse(kind: Format, content: bytes, name: str) -> Any:
    """The value of a document, as the service reads it; InvalidRequest says what is wrong."""
    from app.spec import reading  # imported late: start-up of every command

    match kind:
        case "json":
            return reading.read_json(content, name)
        case "yaml":
            return reading.read_yaml(content, name)
        case "toml":
            return reading.read_toml(content, name)


def _content(path: str, name: str) -> bytes:
    from app.spec.reading import MAX_BYTES  # late, as above

    try:
        if path == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        specs = sorted(one for one in Path(path).iterdir() if one.suffix and one.suffix in FORMATS)
        given = f", such as {specs[0]}" if specs else ""
        raise CommandFailed(
            f"{name} is a folder. Give a spec: a .yaml, .json or .toml file{given}."
        ) from None
    except OSError as error:
        meant = closest_file(Path(path), FORMATS) if isinstance(error, FileNotFoundError) else None
        hint = did_you_mean(None if meant is None else str(meant))
        raise CommandFailed(f"{name} cannot be read: {error.strerror}.{hint}") from None
