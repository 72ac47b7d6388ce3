"""YAML as it is written: a document of plain values, and a change of one that its author wrote."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.tokens import ScalarToken

Document = dict[str, Any]
WIDEST_LINE = 4096  # a value is not broken over lines


class _YamlConstructor(RoundTripConstructor):
    """A date is text, as where specs are read."""


class _PlainRepresenter(RoundTripRepresenter):
    """Nothing is written as null: behind a key that became empty a value seems to be missing."""


_YamlConstructor.add_constructor(
    "tag:yaml.org,2002:timestamp", lambda constructor, node: constructor.construct_scalar(node)
)
_PlainRepresenter.add_representer(
    type(None), lambda writer, _: writer.represent_scalar("tag:yaml.org,2002:null", "null")
)


def dump_yaml(document: Any) -> str:
    """A document of plain values as YAML, a line a value; short lists stand in one line."""
    return _dumped(_writer(), _short_lists(document))


def rewritten(text: str, old: Document, new: Document) -> tuple[str, str]:
    """What a round trip makes of a YAML text, and of the text with a change in it.

    `old` is what the text says. Comments, order, quotes, anchors and blank lines are kept, spaces
    and where lines are broken are not.
    """
    texts, lines = [], text.splitlines()
    for changed in (old, new):
        writer = _writer()
        _indent_as(text, writer)
        writer.explicit_start = any(line.startswith("---") for line in lines)
        writer.explicit_end = any(line.startswith("...") for line in lines)
        document = writer.load(text)
        uses = Counter(id(node) for node in _containers(document))
        for node in _containers(document):
            node.yaml_set_anchor(node.anchor.value, always_dump=True)
        _change(document, old, changed, {one for one, count in uses.items() if count > 1})
        texts.append(_dumped(writer, document))
    return texts[0], texts[1]


def _writer() -> YAML:
    writer = YAML(pure=True)
    writer.Constructor = _YamlConstructor
    writer.Representer = _PlainRepresenter
    writer.default_flow_style = False
    writer.preserve_quotes = True
    writer.width = WIDEST_LINE
    writer.composer.warn_double_anchors = False  # as the reader has it
    return writer


def _dumped(writer: YAML, document: Any) -> str:
    text = StringIO()
    writer.dump(document, text)
    return text.getvalue()


def _indent_as(text: str, writer: YAML) -> None:
    """Have blocks indented as the first of their kind is."""
    found = {"mapping": 2, "sequence": 2, "offset": 0}
    stack: list[Node] = [_writer().compose(text)]
    is_seen = set()
    while stack:
        node = stack.pop()
        for key, value in node.value if isinstance(node, MappingNode) else ():
            is_block = value.start_mark.line > key.start_mark.line
            step = value.start_mark.column - node.start_mark.column
            if isinstance(value, MappingNode) and is_block and "mapping" not in is_seen:
                found["mapping"] = step
                is_seen.add("mapping")
            elif isinstance(value, SequenceNode) and is_block and "sequence" not in is_seen:
                item = value.value[0].start_mark.column
                found |= {"offset": step, "sequence": item - node.start_mark.column}
                is_seen.add("sequence")
            stack.append(value)
    writer.indent(**found)


def _containers(node: Any) -> Iterator[Any]:
    """Each mapping and list of a document, as often as it is used."""
    if isinstance(node, CommentedMap | CommentedSeq):
        yield node
        for member in node.values() if isinstance(node, CommentedMap) else node:
            yield from _containers(member)


def _change(node: CommentedMap, old: Document, new: Document, shared: set[int]) -> None:
    """Make of a mapping another one; a key with a new name keeps its place."""
    added = {name: value for name, value in new.items() if name not in old}
    for name in old:
        if name in new:
            _change_value(node, name, old[name], new[name], shared)
            continue
        renamed = next((one for one in added if same(added[one], old[name])), None)
        if renamed is None:
            renamed = next((one for one in added if _is_alike(old[name], added[one])), None)
        if renamed is None:
            del node[name]
            continue
        _rename(node, name, renamed)
        _change_value(node, renamed, old[name], added.pop(renamed), shared)
    for name, value in added.items():
        node[name] = _short_lists(value)


def _rename(node: CommentedMap, name: str, renamed: str) -> None:
    """Give a key another name; its place and the comments behind it stay."""
    position, value, comments = [*node].index(name), node[name], node.ca.items.pop(name, None)
    del node[name]
    node.insert(position, renamed, value)
    if comments is not None:
        node.ca.items[renamed] = comments


def _is_alike(old: Any, new: Any) -> bool:
    """Whether it may be the same value, mended: a block whose keys got other names, or a number
    that was text.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return all(any(_is_alike(one, other) for other in new.values()) for one in old.values())
    return _text(old).strip('"') == _text(new).strip('"')


def _change_value(
    node: CommentedMap | CommentedSeq, place: Any, old: Any, new: Any, shared: set[int]
) -> None:
    value = node[place]
    if same(old, new):
        return
    if id(value) in shared:  # where else it stands it is to stay
        node[place] = _as_written(value, new)
    elif isinstance(value, CommentedMap) and isinstance(new, dict) and new:
        _change(value, old, new, shared)
    elif isinstance(value, CommentedSeq) and isinstance(new, list) and new:
        _change_list(value, old, new)
    else:
        node[place] = _as_written(value, new)


def _change_list(node: CommentedSeq, old: list[Any], new: list[Any]) -> None:
    """Make of a list another one, from its end on, so that positions hold."""
    matched = SequenceMatcher(None, [*map(_text, old)], [*map(_text, new)], autojunk=False)
    for tag, start, end, first, last in reversed(matched.get_opcodes()):
        if tag == "equal":
            continue
        common = min(end - start, last - first)
        for position in reversed(range(start + common, end)):
            del node[position]
        for offset, item in enumerate(new[first:last]):
            if offset < common:
                node[start + offset] = _as_written(node[start + offset], item)
            else:
                node.insert(start + offset, _short_lists(item))


def _as_written(old: Any, new: Any) -> Any:
    """A value in the style of the one that it takes the place of; the library keeps its quotes."""
    value = _short_lists(new)
    if isinstance(old, CommentedMap) and old.fa.flow_style() and isinstance(value, dict):
        in_line = CommentedMap(value)
        in_line.fa.set_flow_style()
        return in_line
    return value


def _short_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short_lists(inner) for key, inner in value.items()}
    if isinstance(value, list):
        in_line = CommentedSeq(_short_lists(inner) for inner in value)
        in_line.fa.set_flow_style()
        return in_line
    return value


def comments_of(text: str) -> Iterator[tuple[int, str]]:
    """The comments of a YAML text, each with the number of its line, from 1."""
    bare = list(text)
    for token in YAML(typ="safe", pure=True).scan(text):
        if isinstance(token, ScalarToken):
            start, end = token.start_mark.index, token.end_mark.index
            if token.style in ("|", ">"):  # whose first line may have a comment
                start += len(text[start:end].partition("\n")[0])
            bare[start:end] = ["\n" if sign == "\n" else "x" for sign in text[start:end]]
    for number, line in enumerate("".join(bare).split("\n"), start=1):
        found = re.search(r"(?:^|\s)(#.*)", line)
        if found is not None:
            yield number, found[1].rstrip()


def same(one: Any, other: Any) -> bool:
    """Whether two values read the same; to Python 1, 1.0 and true are equal."""
    return _text(one) == _text(other)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
