"""YAML 1.2 as JSON has it: `off` is a word, `1e-3` a number, and a date is text."""

from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from app.spec.bounds import MAX_NODES, TOO_MANY

TAG_PREFIX = "tag:yaml.org,2002:"
WIDEST_LINE = 4096  # a value is not broken over lines
PLAIN_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp"}


class _PlainConstructor(SafeConstructor):
    """No setting is a date, so what looks like one is left as it was written."""

    def construct_document(self, node: Node) -> Any:
        """The value; what its aliases would grow to is refused before it grows."""
        _check_nodes(node)
        return super().construct_document(node)


_PlainConstructor.add_constructor(
    TAG_PREFIX + "timestamp", lambda constructor, node: constructor.construct_scalar(node)
)


class _PlaceComposer(Composer):
    """An alias is a node of its own, for what it stands for is written elsewhere."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node, with the marks of where it stands."""
        if not self.parser.check_event(AliasEvent):
            return super().compose_node(parent, index)
        event = self.parser.get_event()
        return ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; ValueError says what is wrong, and where."""
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _PlainConstructor
    try:
        return reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise ValueError(f"{error.problem or error.context}{where}") from None
    except YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is no YAML of plain values: {error}") from None


def compose_yaml(text: str) -> Node:
    """Where each value of a YAML text stands; YAMLError where it is none."""
    reader = YAML(typ="safe", pure=True)
    reader.Composer = _PlaceComposer
    root: Node = reader.compose(text)
    return root


def dump_yaml(document: Any) -> str:
    """A document of plain values as YAML, a line a value; short lists stand in one line."""
    writer = YAML(pure=True)
    writer.default_flow_style = False
    writer.width = WIDEST_LINE
    text = StringIO()
    writer.dump(_short_lists(document), text)
    return text.getvalue()


def _short_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short_lists(inner) for key, inner in value.items()}
    if isinstance(value, list):
        in_line = CommentedSeq(_short_lists(inner) for inner in value)
        in_line.fa.set_flow_style()
        return in_line
    return value


def _check_nodes(root: Node) -> None:
    """Bound a document as the service does, every use of an alias counted, to what JSON can say."""
    budget, stack = MAX_NODES, [root]
    while stack:
        node = stack.pop()
        budget -= 1
        if budget < 0:
            raise ValueError(f"{TOO_MANY}, or an alias that refers to itself")
        if str(node.tag).removeprefix(TAG_PREFIX) not in PLAIN_TAGS:
            raise _problem(node, f"a value of the kind {node.tag} has no counterpart in JSON")
        if isinstance(node, ScalarNode):
            continue
        members = node.value
        if isinstance(node, MappingNode):
            for key, _ in node.value:
                _check_key(key)
            members = [value for _, value in node.value]
        stack.extend(members)


def _check_key(key: Node) -> None:
    kind = str(key.tag).removeprefix(TAG_PREFIX)
    if kind == "merge":
        raise _problem(
            key, "YAML 1.2 has no merge key `<<`; write out what it would bring, or use an alias"
        )
    if kind not in ("str", "timestamp") or not isinstance(key, ScalarNode):
        raise _problem(key, "a key must be text; quote it")


def _problem(node: Node, what: str) -> ConstructorError:
    return ConstructorError(None, None, what, node.start_mark)
