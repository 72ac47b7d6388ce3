"""Documents as they are kept: what comes back is what went in, but for what JSON cannot say."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.plainjson import dump_json, load_json

LONE = "\ud800"
# Any text, also NUL, line separators and halves of surrogate pairs.
TEXTS = st.text(st.characters(exclude_categories=()))
DEEP: Any = "end"
for _ in range(500):  # deeper than pydantic reads
    DEEP = [DEEP]


def documents(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | TEXTS | st.integers() | numbers
    return st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


@given(documents(st.floats(allow_nan=False, allow_infinity=False)))
@example({LONE: 1, "b": [f"{LONE} end", "\u2028\x00"], "a": -0.0})
@example([2**200, -(2**63), 5e-324, 1.7976931348623157e308, 1e16, 0.1])
@example(DEEP)
def test_a_document_comes_back_as_it_was(document: Any) -> None:
    """Equal to the last bit, of the same types, keys in their order."""
    text = dump_json(document)
    assert repr(load_json(text)) == repr(document)
    assert repr(json.loads(text)) == repr(document)  # whoever reads it
    assert len(text.encode().splitlines()) == 1


@pytest.mark.parametrize("beside", ["plain", LONE])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_becomes_null(number: float, beside: str) -> None:
    text = dump_json({"loss": [number, (number, 1.5)], "note": beside})
    assert load_json(text) == {"loss": [None, [None, 1.5]], "note": beside}
