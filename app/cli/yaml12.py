"""YAML as it is written, and where in a text each value stands."""

from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.composer import Composer
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import Node, ScalarNode

WIDEST_LINE = 4096  # a value is not broken over lines


class _PlaceComposer(Composer):
    """An alias is a node of its own, for what it stands for is written elsewhere."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node, with the marks of where it stands."""
        if not self.parser.check_event(AliasEvent):
            return super().compose_node(parent, index)
        event = self.parser.get_event()
        return ScalarNode("alias", event.anchor, event.start_mark, event.end_mark)


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
