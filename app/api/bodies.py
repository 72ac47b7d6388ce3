"""Bodies as documents: strict JSON and bounded YAML 1.2, refused with a sentence when unsound.

Python's reader lets pass what other programs stumble over: NaN, numbers beyond a double, keys given
twice, halves of surrogate pairs. Here they end at the door.
"""

import json
import math
import re
from collections import Counter
from io import StringIO
from typing import Any, NoReturn

from fastapi import Request
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from starlette.concurrency import run_in_threadpool

from app.api.problems import PayloadTooLarge
from app.errors import InvalidRequest
from app.spec.bounds import MAX_DEPTH, MAX_NODES, TOO_DEEP, TOO_MANY, checked

MAX_YAML_BYTES = 128 << 10  # the pure Python reader takes about 5 s/MiB
SMALL_JSON_BYTES = 8 << 10  # read in less time than it takes to hand it to a thread and back
MERGE_TAG = "tag:yaml.org,2002:merge"

# Possessive, and a text without an end goes on to that of the body: no byte is looked at twice.
TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
BRACKETS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
YAML_TYPE = "application/yaml"
YAML_TYPES = (YAML_TYPE, "application/x-yaml", "text/yaml")


def parse_json(body: bytes) -> Any:
    """The JSON value of a body; raises InvalidRequest (code `invalid_json`)."""
    try:
        _require_shallow(body)
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_unique_keys,
        )
        return value if _is_plain(body) else checked(value)
    except UnicodeDecodeError:
        raise _unreadable("JSON", "it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _unreadable(
            "JSON", f"{error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError as error:
        raise _unreadable("JSON", str(error)) from None


def _is_plain(body: bytes) -> bool:
    """Whether `checked` could find nothing: that takes an escape, more bytes, or more brackets.

    What else it looks for is not JSON, and is refused by the reader.
    """
    return len(body) <= MAX_NODES and b"\\u" not in body and _brackets(body) <= MAX_DEPTH


def _brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _require_shallow(body: bytes) -> None:
    """ValueError for JSON that is nested too deeply, before it is read by recursion.

    At the end of the stack finalizers of whatever is collected there would fail with it.
    """
    if _brackets(body) <= MAX_DEPTH:
        return
    depth = 0
    for found in TEXT_OR_BRACKET.finditer(body):
        depth += BRACKETS.get(found[0], 0)
        if depth > MAX_DEPTH + 1:
            raise ValueError(TOO_DEEP)


def parse_yaml(body: bytes) -> Any:
    """The value of a YAML 1.2 body; raises InvalidRequest (code `invalid_yaml`)."""
    if len(body) > MAX_YAML_BYTES:
        raise PayloadTooLarge(f"YAML is read up to {MAX_YAML_BYTES >> 10} KiB; send JSON instead.")
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _PlainConstructor
    try:
        return checked(reader.load(StringIO(body.decode("utf-8"))))
    except UnicodeDecodeError:
        raise _unreadable("YAML", "it is not UTF-8") from None
    except RecursionError:
        raise _unreadable("YAML", TOO_DEEP) from None
    except YAMLError as error:
        raise _unreadable("YAML", _first_words(error)) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable("YAML", str(error)) from None


class _PlainConstructor(SafeConstructor):
    """YAML as JSON has it: a date is text, for no setting is one."""

    def construct_document(self, node: Node) -> Any:
        """The value; what its aliases and merge keys would grow to is refused before it grows."""
        _check_nodes(node)
        return super().construct_document(node)


_PlainConstructor.add_constructor(
    "tag:yaml.org,2002:timestamp", lambda constructor, node: constructor.construct_scalar(node)
)


def _check_nodes(root: Node) -> None:
    """Bound the graph of a YAML document as `checked` bounds its value. Keys must be scalars."""
    budget, stack = MAX_NODES, [(root, 0)]
    while stack:
        node, depth = stack.pop()
        budget -= 1
        if budget < 0:
            raise ValueError(TOO_MANY)
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        if isinstance(node, ScalarNode):
            continue
        members = node.value
        if isinstance(node, MappingNode):
            for key, _ in node.value:
                _check_key(key)
            members = [value for _, value in node.value]
        stack.extend((member, depth + 1) for member in members)


def _check_key(key: Node) -> None:
    problem = None
    if key.tag == MERGE_TAG:
        problem = "YAML 1.2 has no merge key `<<`; write out what it would bring, or use an alias"
    elif not isinstance(key, ScalarNode):
        problem = "a key is a list or a mapping, and must be text"
    if problem is not None:
        raise ConstructorError(None, None, problem, key.start_mark)


async def read_document(request: Request) -> Any:
    """The body as a JSON value, by its media type: JSON, which is read already, or YAML."""
    if is_yaml(media_type(request)):
        return await run_in_threadpool(parse_yaml, await request.body())
    if not await request.body():
        raise InvalidRequest("The body is missing: send a run spec as JSON or YAML.")
    return await request.json()


async def read_json(body: bytes) -> Any:
    """The JSON value of a body; a large one in a thread, so that it holds up nobody else."""
    if len(body) <= SMALL_JSON_BYTES:
        return parse_json(body)
    return await run_in_threadpool(parse_json, body)


def media_type(request: Request) -> str:
    """The body's media type, lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def is_yaml(kind: str) -> bool:
    return kind in YAML_TYPES


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {ascii(twice)[:80]} is given twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond the range of a double")
    return number


def _unreadable(language: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The body cannot be read as {language}: {why}. Correct it there, and send it again.",
        code=f"invalid_{language.lower()}",
    )


def _first_words(error: YAMLError) -> str:
    problem = getattr(error, "problem", None) or type(error).__name__
    mark = getattr(error, "problem_mark", None)
    return f"{problem} at line {mark.line + 1}" if mark is not None else str(problem)
