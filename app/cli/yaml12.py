"""YAML 1.2 as JSON has it: `off` is a word, `1e-3` a number, and a date is text."""

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError


class _PlainConstructor(SafeConstructor):
    """No setting is a date, so what looks like one is left as it was written."""


_PlainConstructor.add_constructor(
    "tag:yaml.org,2002:timestamp", lambda constructor, node: constructor.construct_scalar(node)
)


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
