"""Documents as the API and the command line read them: strict JSON, YAML 1.2 and TOML.

A document holds what JSON can say and the database can keep, and not too much of it. Python's own
readers let pass what other programs stumble over: NaN, numbers beyond a double, keys given twice,
halves of surrogate pairs. Here they end at the door.
"""

import json
import math
import re
import tomllib
from collections import Counter
from io import StringIO
from typing import Any, NoReturn, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.errors import InvalidRequest, PayloadTooLarge

MAX_BYTES = 1 << 20
MAX_YAML_BYTES = 128 << 10  # the pure Python reader takes about 5 s/MiB
MAX_DEPTH = 32
MAX_NODES = 50_000  # counted with every use of a YAML alias
MAX_CHARACTERS = 1 << 20  # of all texts and numbers together, likewise
MAX_DIGITS = 4300  # Python writes no more of a whole number
MAX_SAID = 200  # characters of a complaint, which may quote the document

TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
TOO_MANY = f"it has more than {MAX_NODES} values"
TOO_LONG = f"its texts come to more than {MAX_CHARACTERS} characters"
TOO_LARGE = f"a whole number has more than {MAX_DIGITS} digits"
NO_MERGE = "YAML 1.2 has no merge key `<<`; write out what it would bring, or use an alias"

HALF_SURROGATE = re.compile("[\ud800-\udfff]")
LEAST_TOO_LARGE = 10**MAX_DIGITS
# Possessive, and a text without an end goes on to that of the body: no byte is looked at twice.
TEXT_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
BRACKETS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}

YAML_TAG = "tag:yaml.org,2002:"
SCALARS = {"str", "int", "float", "bool", "null", "timestamp"}
# The versions of YAML differ in what `off` and 010 are.
OTHER_VERSION = re.compile(r"\ufeff?(?:[ \t]*+(?:#.*+)?+\r?\n)*+%YAML[ \t]++(?!1\.2\s)(\S++)")
WORDS = {"bool": {"true", "false"}, "null": {"", "~", "null"}}

T = TypeVar("T")
Place = tuple[str | int, ...]


class Unsound(ValueError):
    """Something in a document that is not taken, as the end of a sentence."""


def read_json(body: bytes, name: str = "The body") -> Any:
    """The JSON value of some bytes; `name` is what a refusal calls them.

    Raises InvalidRequest (code `invalid_json`) and PayloadTooLarge.
    """
    if len(body) > MAX_BYTES:
        raise PayloadTooLarge(f"{name} is larger than {MAX_BYTES >> 20} MiB; no more is read.")
    try:
        _require_shallow(body)
        text = body.decode("utf-8")
        if text.startswith("\ufeff"):
            raise Unsound("it begins with a byte order mark, which JSON does not have")  # noqa: TRY301 - named below, as all that is wrong
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_unique_keys,
        )
        return value if _is_plain(body) else checked(value)
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except json.JSONDecodeError as error:
        why = f"{error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
    except Unsound as error:
        why = str(error)
    except ValueError:
        why = TOO_LARGE
    raise _unreadable(name, "JSON", why)


def read_yaml(body: bytes, name: str = "The body") -> Any:
    """The value of bytes in YAML 1.2; `name` is what a refusal calls them.

    A date is text, for no setting is one. Raises InvalidRequest (code `invalid_yaml`) and
    PayloadTooLarge.
    """
    if len(body) > MAX_YAML_BYTES:
        raise PayloadTooLarge(
            f"{name} is larger than {MAX_YAML_BYTES >> 10} KiB, and no more is read as YAML; "
            "use JSON instead."
        )
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _PlainConstructor
    reader.composer.warn_double_anchors = False  # YAML lets a name stand for something else later
    try:
        text = body.decode("utf-8")
        if other := OTHER_VERSION.match(text):
            raise Unsound(f"it says that it is YAML {other[1]}, and YAML 1.2 is read")  # noqa: TRY301 - as above
        return _unshared(checked(reader.load(StringIO(text))))
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except RecursionError:
        why = TOO_DEEP
    except MarkedYAMLError as error:
        why = error.problem or error.context or "it is not YAML"
        if error.problem_mark is not None:
            mark = error.problem_mark
            why = f"{why[:MAX_SAID]} at line {mark.line + 1}, column {mark.column + 1}"
    except YAMLError as error:
        why = str(error).partition("\n")[0]
    except Unsound as error:
        why = str(error)
    raise _unreadable(name, "YAML", why)


def read_toml(body: bytes, name: str = "The body") -> dict[str, Any]:
    """The table of bytes in TOML; `name` is what a refusal calls them.

    Raises InvalidRequest (code `invalid_toml`) and PayloadTooLarge.
    """
    if len(body) > MAX_BYTES:
        raise PayloadTooLarge(f"{name} is larger than {MAX_BYTES >> 20} MiB; no more is read.")
    try:
        return checked(tomllib.loads(body.decode("utf-8")))
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except RecursionError:
        why = TOO_DEEP
    except (tomllib.TOMLDecodeError, Unsound) as error:
        why = str(error)
    except ValueError:
        why = TOO_LARGE
    raise _unreadable(name, "TOML", why)


def checked(root: T) -> T:
    """The document itself; Unsound, a ValueError, says what in it is not taken, and where."""
    nodes, characters = MAX_NODES, MAX_CHARACTERS
    stack: list[tuple[Any, Place]] = [(root, ())]
    while stack:
        value, place = stack.pop()
        nodes -= 1
        if nodes < 0:
            raise Unsound(TOO_MANY)
        if len(place) > MAX_DEPTH:
            raise Unsound(TOO_DEEP)
        if isinstance(value, dict):
            characters -= sum(_key_length(key, place) for key in value)
            stack.extend((member, (*place, key)) for key, member in value.items())
        elif isinstance(value, list):
            stack.extend((member, (*place, position)) for position, member in enumerate(value))
        else:
            characters -= _length(value, place)
        if characters < 0:
            raise Unsound(TOO_LONG)
    return root


def _key_length(key: Any, place: Place) -> int:
    if not isinstance(key, str):
        raise Unsound(f"the key {str(key)[:40]}{_at(place)} is not text; quote it")
    return _text_length(key, place)


def _length(value: Any, place: Place) -> int:
    """About how many characters it takes to write."""
    if isinstance(value, str):
        return _text_length(value, place)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unsound(f"a number{_at(place)} is not finite, and no setting can be that")
    elif isinstance(value, int):
        if abs(value) >= LEAST_TOO_LARGE:
            raise Unsound(TOO_LARGE)
        return value.bit_length() // 3
    elif value is not None:
        raise Unsound(f"a {type(value).__name__}{_at(place)} has no counterpart in JSON")
    return 0


def _text_length(text: str, place: Place) -> int:
    if "\0" in text:
        raise Unsound(f"a text{_at(place)} holds the character NUL, which cannot be stored")
    if HALF_SURROGATE.search(text):
        raise Unsound(f"a text{_at(place)} holds half of a surrogate pair")
    return len(text)


def _at(place: Place) -> str:
    dotted = ".".join(str(part) for part in place)
    return f" at {dotted[:MAX_SAID]}" if dotted else ""


def _is_plain(body: bytes) -> bool:
    """Whether `checked` could find nothing: that takes an escape, more bytes, or more brackets.

    What else it looks for is not JSON, and is refused by the reader.
    """
    return len(body) <= MAX_NODES and b"\\u" not in body and _brackets(body) <= MAX_DEPTH


def _brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _require_shallow(body: bytes) -> None:
    """Unsound for JSON that is nested too deeply, before it is read by recursion.

    At the end of the stack finalizers of whatever is collected there would fail with it.
    """
    if _brackets(body) <= MAX_DEPTH:
        return
    depth = 0
    for found in TEXT_OR_BRACKET.finditer(body):
        depth += BRACKETS.get(found[0], 0)
        if depth > MAX_DEPTH + 1:
            raise Unsound(TOO_DEEP)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise Unsound(f"the key {ascii(twice)[:80]} is given twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise Unsound(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Unsound(f"{text[:40]} is beyond the range of a double")
    return number


class _PlainConstructor(SafeConstructor):
    """YAML as JSON has it."""

    def construct_document(self, node: Node) -> Any:
        """The value; what its aliases and merge keys would grow to is refused before it grows."""
        _require_plain(node)
        return super().construct_document(node)

    def construct_yaml_int(self, node: Node) -> int:
        """A whole number; its tag may have been put before something else."""
        try:
            return int(super().construct_yaml_int(node))
        except (ValueError, IndexError):
            raise _problem(node, f"{node.value[:40]!r} is not a whole number") from None

    def construct_yaml_float(self, node: Node) -> float:
        """A number, likewise."""
        try:
            return float(super().construct_yaml_float(node))
        except (ValueError, IndexError):
            raise _problem(node, f"{node.value[:40]!r} is not a number") from None


for _kind, _construct in (
    ("int", _PlainConstructor.construct_yaml_int),
    ("float", _PlainConstructor.construct_yaml_float),
    ("timestamp", _PlainConstructor.construct_scalar),
):
    _PlainConstructor.add_constructor(YAML_TAG + _kind, _construct)


def _require_plain(root: Node) -> None:
    """Bound the graph of a YAML document as `checked` bounds its value, to what JSON can say."""
    budget, stack = MAX_NODES, [(root, 0)]
    while stack:
        node, depth = stack.pop()
        budget -= 1
        if budget < 0:
            raise Unsound(TOO_MANY)
        if depth > MAX_DEPTH:
            raise Unsound(f"{TOO_DEEP}, or an alias refers to itself")
        _require_plain_kind(node)
        members = node.value if isinstance(node, SequenceNode) else []
        if isinstance(node, MappingNode):
            for key, _ in node.value:
                _require_text(key)
            members = [value for _, value in node.value]
        stack.extend((member, depth + 1) for member in members)


def _require_plain_kind(node: Node) -> None:
    kind = str(node.tag).removeprefix(YAML_TAG)
    if isinstance(node, ScalarNode):
        is_plain = kind in SCALARS
        if kind in WORDS and node.value.lower() not in WORDS[kind]:
            raise _problem(node, f"{node.value[:40]!r} is not a {kind} of YAML 1.2")
    else:
        is_plain = kind == ("map" if isinstance(node, MappingNode) else "seq")
    if not is_plain:
        raise _problem(node, f"a value of the kind {kind[:80]} has no counterpart in JSON")


def _require_text(key: Node) -> None:
    kind = str(key.tag).removeprefix(YAML_TAG)
    if kind == "merge":
        raise _problem(key, NO_MERGE)
    if kind not in ("str", "timestamp") or not isinstance(key, ScalarNode):
        raise _problem(key, "a key is not text; quote it")


def _unshared(value: Any) -> Any:
    """A copy in which each use of an alias is a value of its own, as a change of one has to be."""
    if isinstance(value, dict):
        return {key: _unshared(member) for key, member in value.items()}
    return [_unshared(member) for member in value] if isinstance(value, list) else value


def _problem(node: Node, what: str) -> ConstructorError:
    return ConstructorError(None, None, what, node.start_mark)


def _unreadable(name: str, language: str, why: str) -> InvalidRequest:
    """The refusal, whose words UTF-8 can say whatever of the document they quote."""
    said = why.encode("utf-8", "backslashreplace").decode()
    return InvalidRequest(
        f"{name} cannot be read as {language}: {said}. Correct it there, and try again.",
        code=f"invalid_{language.lower()}",
    )
