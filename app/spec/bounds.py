"""What a document may be: values that JSON can say and the database can keep, not too many."""

import math
import re
from typing import Any, TypeVar

MAX_DEPTH = 32
MAX_NODES = 50_000  # counted with every use of a YAML alias
MAX_CHARACTERS = 1 << 20  # of all texts and numbers together, likewise

TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"
TOO_MANY = f"it has more than {MAX_NODES} values"
TOO_LONG = f"its texts come to more than {MAX_CHARACTERS} characters"

HALF_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


def checked(root: T) -> T:
    """The document itself; ValueError says what is wrong with it."""
    nodes, characters = MAX_NODES, MAX_CHARACTERS
    stack: list[tuple[Any, int]] = [(root, 0)]
    while stack:
        value, depth = stack.pop()
        nodes -= 1
        if nodes < 0:
            raise ValueError(TOO_MANY)
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        if isinstance(value, dict):
            characters -= sum(_key_length(key) for key in value)
            stack.extend((member, depth + 1) for member in value.values())
        elif isinstance(value, list):
            stack.extend((member, depth + 1) for member in value)
        else:
            characters -= _length(value)
        if characters < 0:
            raise ValueError(TOO_LONG)
    return root


def _key_length(key: Any) -> int:
    if not isinstance(key, str):
        raise ValueError(f"the key {str(key)[:40]} is not text; quote it")  # noqa: TRY004 - the text is wrong
    return _text_length(key)


def _length(value: Any) -> int:
    """About how many characters it takes to write."""
    if isinstance(value, str):
        return _text_length(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("NaN and infinity are not numbers that a setting can have")
    elif isinstance(value, int):
        return value.bit_length() // 3
    elif value is not None:
        raise ValueError(f"a {type(value).__name__} has no counterpart in JSON")
    return 0


def _text_length(text: str) -> int:
    if "\0" in text:
        raise ValueError("a text holds the character NUL, which cannot be stored")
    if HALF_SURROGATE.search(text):
        raise ValueError("a text holds half of a surrogate pair")
    return len(text)
