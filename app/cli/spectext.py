"""A changed spec in the words of its file: YAML as its author wrote it, else YAML or JSON anew."""

import json
from collections.abc import Iterator
from difflib import SequenceMatcher, unified_diff
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from app.cli.specfile import Document, Format, SpecFile, parse_yaml
from app.cli.yaml12 import WIDEST_LINE, dump_yaml

# How people indent: (of a mapping, of a list in it, of the list's dash).
INDENTS = ((2, 2, 0), (2, 4, 2), (4, 4, 0), (4, 6, 4), (4, 4, 2))


class _Representer(RoundTripRepresenter):
    """A null is said, not left empty."""


_Representer.add_representer(
    type(None), lambda writer, _: writer.represent_scalar("tag:yaml.org,2002:null", "null")
)


def before_and_after(spec: SpecFile, changed: Document) -> tuple[str, str]:
    """The text of a spec and of what became of it, to be compared line by line.

    TOML, which nothing here writes, is shown as JSON.
    """
    if spec.format == "toml":
        return _json(spec.document), _json(changed)
    return spec.text, written_as(spec.format, spec, changed)


def written_as(target: Format, spec: SpecFile, changed: Document) -> str:
    """The changed spec as YAML or JSON; a file of the same format keeps its look."""
    if target == "json":
        return _json(changed, _indent_of(spec) if spec.format == "json" else 2)
    kept = _kept_yaml(spec.text, changed) if spec.format == "yaml" else None
    return kept if kept is not None else dump_yaml(changed)


def diff_of(before: str, after: str, old: str, new: str) -> list[str]:
    """The lines of a unified diff; none when nothing has changed."""
    return list(unified_diff(before.splitlines(), after.splitlines(), old, new, n=3, lineterm=""))


def _json(document: Document, indent: int | str | None = 2) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def _indent_of(spec: SpecFile) -> int | str | None:
    """What a JSON file is indented with; 2 where it has a form of its own."""
    for indent in (2, 4, "\t", None):
        if _json(spec.document, indent).strip() == spec.text.strip():
            return indent
    return 2


def _kept_yaml(text: str, changed: Document) -> str | None:
    """The text with the change and all else as it was; None where that cannot be done.

    What comes out is read again: an alias, for one, may stand for a value that is to change in one
    place and to stay in another.
    """
    for writer in _writers():
        try:
            tree = writer.load(text)
            plain = _dump(writer, tree)
            _bring(tree, changed)
            kept = _with_changed_lines(text, plain, _dump(writer, tree))
            if kept is not None and parse_yaml(kept) == changed:
                return kept
        except (ValueError, TypeError, AttributeError, YAMLError):
            continue  # it says something that only plain YAML cannot keep
    return None


def _writers() -> Iterator[YAML]:
    for mapping, sequence, offset in INDENTS:
        writer = YAML()  # keeps comments, quotes and order
        writer.Representer = _Representer
        writer.preserve_quotes = True
        writer.width = WIDEST_LINE
        writer.indent(mapping=mapping, sequence=sequence, offset=offset)
        yield writer


def _dump(writer: YAML, tree: Any) -> str:
    text = StringIO()
    writer.dump(tree, text)
    return text.getvalue()


def _bring(node: Any, wanted: Document) -> None:
    """Change a tree in place until it says what is wanted."""
    for name in [name for name in node if name not in wanted]:
        del node[name]
    for name, value in wanted.items():
        if name in node and isinstance(node[name], dict) and isinstance(value, dict):
            _bring(node[name], value)
        elif name not in node or node[name] != value:
            node[name] = value


def _with_changed_lines(text: str, plain: str, changed: str) -> str | None:
    """The lines of `text`, with those that differ between `plain` and `changed`.

    `plain` is the text as the writer would put it, line for line; None where it has other lines.
    """
    lines, before, after = (part.splitlines(keepends=True) for part in (text, plain, changed))
    if len(lines) != len(before):
        return None
    kept: list[str] = []
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for what, start, end, new_start, new_end in matcher.get_opcodes():
        kept += lines[start:end] if what == "equal" else after[new_start:new_end]
    return "".join(kept)
