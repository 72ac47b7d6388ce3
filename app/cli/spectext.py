"""A changed spec in the words of its file: YAML as its author wrote it, else YAML or JSON anew."""

import json
import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from app.cli.specfile import Document, Format, SpecFile
from app.cli.yaml12 import compose_yaml, dump_yaml
from app.errors import InvalidRequest
from app.spec.reading import read_yaml

Place = tuple[int, int]
Edit = tuple[int, int, str]
"""The characters from the first place to the second become these."""
PLAIN_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)


def before_and_after(spec: SpecFile, changed: Document) -> tuple[str, str]:
    """The text of a spec and of what became of it, to be compared line by line.

    TOML, which nothing here writes, is shown as JSON.
    """
    if spec.format == "toml":
        return _json(spec.document), _json(changed)
    return spec.text, written_as(spec.format, spec, changed)


def written_as(target: Format, spec: SpecFile, changed: Document) -> str:
    """The changed spec as YAML or JSON; a file of the same format keeps its look."""
    if target != spec.format:
        return _json(changed) if target == "json" else dump_yaml(changed)
    if target == "json":
        return _ended_as(spec.text, _json(changed, _indent_of(spec)))
    kept = _kept_yaml(spec.text, spec.document, changed)
    return kept if kept is not None else _ended_as(spec.text, dump_yaml(changed))


def keeps_look(spec: SpecFile, changed: Document) -> bool:
    """Whether the changed spec can be written over its file; JSON has no comments to lose."""
    return spec.format == "json" or _kept_yaml(spec.text, spec.document, changed) is not None


def diff_of(before: str, after: str, old: str, new: str) -> list[str]:
    """The lines of a unified diff; none when nothing has changed."""
    return list(unified_diff(before.splitlines(), after.splitlines(), old, new, n=3, lineterm=""))


def _json(document: Document, indent: int | str | None = 2) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def _indent_of(spec: SpecFile) -> int | str | None:
    """What a JSON file is indented with; 2 where it has a form of its own."""
    written = spec.text.replace("\r\n", "\n").strip()
    for indent in (2, 4, "\t", None):
        if _json(spec.document, indent).strip() == written:
            return indent
    return 2


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _ended_as(text: str, new: str) -> str:
    """New text with the line ends of the old one, the last included."""
    whole = new if text.endswith("\n") else new.rstrip("\n")
    return whole.replace("\n", _line_end(text))


def _kept_yaml(text: str, old: Document, changed: Document) -> str | None:
    """The text with the change and every other byte as it was; None where that cannot be done.

    What comes out is read again: an alias, for one, may stand for a value that is to change in one
    place and to stay in another.
    """
    try:
        root = compose_yaml(text)
        if not isinstance(root, MappingNode) or not old or not changed:
            return None
        kept, done = "", 0
        # Of two at one place the inner one was found first, and stays first.
        edits = _mapping_edits(text, root, old, changed)
        for start, end, words in sorted(edits, key=lambda edit: edit[:2]):
            kept += text[done:start] + words
            done = end
        kept += text[done:]
        return kept if _is_same(read_yaml(kept.encode()), changed) else None
    except (ValueError, YAMLError, InvalidRequest):
        return None


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values read the same; to Python 1, 1.0 and true are equal."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _mapping_edits(text: str, node: MappingNode, old: Document, new: Document) -> Iterator[Edit]:
    """What makes of a mapping, neither empty before nor then, another one."""
    added = {name: value for name, value in new.items() if name not in old}
    places, is_kept = [], []
    for key, value in node.value:
        name, start = key.value, key.start_mark.index
        alike = [] if name in new else [x for x in added if _is_same(added[x], old[name])]
        if name in new:
            yield from _edits_of_value(text, key, value, old[name], new[name])
        elif alike:  # another name for it: its place and its comment stay
            yield start, key.end_mark.index, _in_quotes_of(key, alike[0])
            del added[alike[0]]
        places.append((start, _place(text, key, value)[1]))
        is_kept.append(bool(name in new or alike))
    if node.flow_style:
        words = [f"{_in_line(name)}: {_in_line(value)}" for name, value in added.items()]
        yield from _flow_edits(places, is_kept, words)
    else:
        lines = _block_lines(added, node.start_mark.column, _step(node))
        yield from _block_edits(text, places, is_kept, lines)


def _list_edits(text: str, node: SequenceNode, old: list[Any], new: list[Any]) -> Iterator[Edit]:
    """What makes of a list, neither empty before nor then, another one; the items in turn."""
    added, is_kept = list(new), []
    for item in old:
        is_kept.append(bool(added) and _is_same(item, added[0]))
        if is_kept[-1]:
            del added[0]
    places = [(item.start_mark.index, _end(text, item)) for item in node.value]
    words = [_in_line(item) for item in added]
    if node.flow_style:
        yield from _flow_edits(places, is_kept, words)
    else:
        places = [(text.rindex("-", 0, start), end) for start, end in places]
        lines = [f"{' ' * node.start_mark.column}- {item}" for item in words]
        yield from _block_edits(text, places, is_kept, lines)


def _edits_of_value(text: str, key: Node, value: Node, old: Any, new: Any) -> Iterator[Edit]:
    if _is_same(old, new):
        return
    start, end = _place(text, key, value)
    if isinstance(value, MappingNode) and isinstance(new, dict) and old and new:
        yield from _mapping_edits(text, value, old, new)
    elif isinstance(value, SequenceNode) and isinstance(new, list) and old and new:
        yield from _list_edits(text, value, old, new)
    elif isinstance(value, CollectionNode) and not value.flow_style:
        # A block gives its lines up, and what is new goes beside the key, before a comment there.
        colon = text.index(":", key.end_mark.index) + 1
        yield colon, colon, f" {_in_line(new)}"
        yield _end_of_line(text, colon), _end_of_line(text, end), ""
    else:
        space = " " if text[start - 1] == ":" else ""  # there was nothing, which is null
        yield start, end, space + _in_quotes_of(value, new)


def _block_edits(
    text: str, places: list[Place], is_kept: list[bool], lines: list[str]
) -> Iterator[Edit]:
    """Whole lines: comments above what goes stay, and what comes follows the last that stays."""
    new_place = _line_start(text, places[0][0])
    for place, stays in zip(places, is_kept, strict=True):
        start, end = _line_start(text, place[0]), _next_line(text, place[1])
        if stays:
            new_place = end
        elif text[start : place[0]].strip():
            raise ValueError("what is to go shares its line")
        else:
            yield start, end, ""
    if lines:
        is_cut = new_place == len(text) and not text.endswith("\n")
        words = ["", *lines] if is_cut else [*lines, ""]
        yield new_place, new_place, _line_end(text).join(words)


def _flow_edits(places: list[Place], is_kept: list[bool], words: list[str]) -> Iterator[Edit]:
    """Entries with their commas."""
    if not any(is_kept):
        yield places[0][0], places[-1][1], ", ".join(words)
        return
    last = max(position for position, stays in enumerate(is_kept) if stays)
    for position, stays in enumerate(is_kept):
        if not stays and position < last:
            yield places[position][0], places[position + 1][0], ""
        elif not stays:
            yield places[position - 1][1], places[position][1], ""
    yield places[last][1], places[last][1], "".join(f", {word}" for word in words)


def _place(text: str, key: Node, value: Node) -> Place:
    """Where a key's value stands; the parser's mark of one that is not there lies behind it."""
    start, end = value.start_mark.index, _end(text, value)
    if start < end:
        return start, end
    here = text.find(":", key.end_mark.index, start) + 1 or key.end_mark.index
    return here, here


def _end(text: str, node: Node) -> int:
    """Where the last word of a value ends; the parser's mark of a block lies behind it."""
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, CollectionNode) and not node.flow_style:
        last = node.value[-1]
        return _place(text, *last)[1] if isinstance(node, MappingNode) else _end(text, last)
    return int(start + len(text[start:end].rstrip()))


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _next_line(text: str, place: int) -> int:
    return text.find("\n", place) + 1 or len(text)


def _end_of_line(text: str, place: int) -> int:
    return place + len(text[place : _next_line(text, place)].rstrip("\r\n"))


def _step(node: MappingNode) -> int:
    """How deep the blocks in a block are indented."""
    for _, value in node.value:
        if isinstance(value, MappingNode) and not value.flow_style:
            return int(value.start_mark.column - node.start_mark.column)
    return 2


def _block_lines(document: Document, indent: int, step: int) -> list[str]:
    lines = []
    for name, value in document.items():
        head = f"{' ' * indent}{_in_line(name)}:"
        if isinstance(value, dict) and value:
            lines += [head, *_block_lines(value, indent + step, step)]
        else:
            lines.append(f"{head} {_in_line(value)}")
    return lines


def _in_line(value: Any) -> str:
    """A value as YAML in one line: JSON, but for words that need no quotes."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_in_line(name)}: {_in_line(value[name])}' for name in value)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_in_line(item) for item in value)}]"
    if (
        isinstance(value, str)
        and PLAIN_WORD.fullmatch(value)
        and read_yaml(value.encode()) == value
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


def _in_quotes_of(node: Node, value: Any) -> str:
    """A value in the place of another one, in its quotes where both are text."""
    if not isinstance(value, str) or not isinstance(node, ScalarNode) or not value.isprintable():
        return _in_line(value)
    if node.style == "'":
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=False) if node.style == '"' else _in_line(value)
