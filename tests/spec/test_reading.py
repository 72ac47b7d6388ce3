"""The one reader of documents: what is taken as which value, and what is refused in which words."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import InvalidRequest, PayloadTooLarge
from app.spec import reading
from app.spec.reading import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_YAML_BYTES,
    checked,
    read_json,
    read_toml,
    read_yaml,
)
from tests.spec.documents import BAD, BAD_YAML, GOOD

READERS = {"json": read_json, "yaml": read_yaml}

# Bytes of which JSON is made, and of what is refused in it.
PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"a"', '"b"', ":", ",", "1", "-2.5", "9" * 400, "null", "\x00", '"'
     "\\u0000", '"\\ud800"', "NaN", "1e999", "é", "[" * 31 + "]" * 31]
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether they read the same; to Python 1, 1.0 and true are equal."""
    return json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize(("kind", "body", "value"), GOOD.values(), ids=GOOD.keys())
def test_a_sound_document_is_read_as_it_is(kind: str, body: bytes, value: Any):
    assert same(READERS[kind](body), value)


@pytest.mark.parametrize(("kind", "body", "words"), BAD.values(), ids=BAD.keys())
def test_an_unsound_document_is_refused_with_a_sentence(kind: str, body: bytes, words: str):
    with pytest.raises(InvalidRequest) as refusal:
        READERS[kind](body)
    detail = refusal.value.detail
    assert refusal.value.problem_code == f"invalid_{kind}"
    assert detail.startswith(f"The body cannot be read as {kind.upper()}: ")
    assert words in detail
    detail.encode()
    assert len(detail) < 300
    assert "\n" not in detail


def test_a_refusal_calls_the_document_by_its_name():
    with pytest.raises(InvalidRequest, match=r"^a\.json cannot be read as JSON: "):
        read_json(b"{", "a.json")
    with pytest.raises(InvalidRequest, match=r"^a\.yaml cannot be read as YAML: "):
        read_yaml(b"{", "a.yaml")
    with pytest.raises(PayloadTooLarge, match=r"^a\.yaml is larger than 128 KiB"):
        read_yaml(b" " * (MAX_YAML_BYTES + 1), "a.yaml")


@given(st.lists(PIECES, max_size=12).map("".join))
@example("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
@example("[" * MAX_DEPTH + "[1]" + "]" * MAX_DEPTH)
def test_a_body_without_escapes_needs_no_second_look(text: str):
    body = text.encode()
    if not reading._is_plain(body):
        return
    try:
        value = json.loads(body, parse_constant=reading._no_constant, parse_float=reading._finite)
    except ValueError:
        return
    checked(value)


def test_the_deepest_json_is_taken_and_brackets_in_texts_do_not_count():
    deepest = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    assert read_json(deepest) is not None
    with pytest.raises(InvalidRequest, match=f"deeper than {MAX_DEPTH} levels"):
        read_json(b"[" + deepest + b"]")
    many = {"text": '\\"[{' * 100, "flat": [[], {}] * 100}
    assert read_json(json.dumps(many).encode()) == many


@pytest.mark.timeout(60)  # quadratic, a MiB of it would take hours
@pytest.mark.parametrize("text", [b'\\"', b'"\\', b"\\\\", b"x"])
def test_a_text_that_never_ends_is_read_once(text: bytes):
    start = b"[" + b"[]," * MAX_DEPTH + b'"'
    with pytest.raises(InvalidRequest, match="cannot be read as JSON"):
        read_json(start + text * ((MAX_BYTES - len(start)) // len(text)))


@pytest.mark.parametrize("name", ["a merge key", "a bomb of merge keys"])
def test_merge_keys_are_refused_with_what_to_do(name: str):
    with pytest.raises(InvalidRequest, match=r"no merge key .* at line \d"):
        read_yaml(BAD_YAML[name][0])


def test_each_use_of_an_alias_is_a_value_of_its_own():
    document = read_yaml(b"a: &x {b: [1]}\nc: *x\n")
    document["a"]["b"].append(2)
    assert document["c"] == {"b": [1]}


@pytest.mark.parametrize(
    ("read", "body", "said"),
    [
        (read_json, b'"' + b"x" * MAX_BYTES + b'"', "1 MiB"),
        (read_toml, b"# " + b"x" * MAX_BYTES, "1 MiB"),
        (read_yaml, b"a: b\n" + b"# long\n" * MAX_YAML_BYTES, "128 KiB"),
    ],
)
def test_a_long_document_is_refused_before_it_is_read(read, body: bytes, said: str):
    with pytest.raises(PayloadTooLarge, match=said) as refusal:
        read(body)
    assert refusal.value.problem_code == "payload_too_large"


def test_toml_is_held_to_the_same_bounds():
    assert read_toml(b"[a]\nb = 1e-3\n") == {"a": {"b": 0.001}}
    for body, words in (
        (b"a = \n", "Invalid value (at line 1, column 5)"),
        (b"a = 1\na = 2\n", "Cannot overwrite a value"),
        (b"a.lr = inf", "a number at a.lr is not finite"),
        (b"a = 2024-01-31", "a date at a has no counterpart in JSON"),
        (b"a = " + b"9" * 5000, "more than 4300 digits"),
        (b"a = 0x" + b"f" * 5000, "more than 4300 digits"),
        (b"a = " + b"[" * 40 + b"]" * 40, f"deeper than {MAX_DEPTH} levels"),
        (b"a = " + b"[" * 5000, f"deeper than {MAX_DEPTH} levels"),
        (b'a = "\\u0000"', "a text at a holds the character NUL"),
        (b"a = '\xff'", "it is not UTF-8"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            read_toml(body)
        assert refusal.value.problem_code == "invalid_toml"
        assert words in refusal.value.detail
