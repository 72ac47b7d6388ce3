"""Bodies: what is read, and what is refused with which sentence."""

import json
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.api import bodies
from app.api.bodies import MAX_YAML_BYTES, parse_json, parse_yaml
from app.api.problems import PayloadTooLarge
from app.errors import InvalidRequest
from app.spec.bounds import MAX_DEPTH, MAX_NODES, checked

BAD_JSON = {
    "empty": b"",
    "cut off": b'{"name": "a',
    "NaN": b'{"lr": NaN}',
    "infinity": b'{"lr": -Infinity}',
    "beyond a double": b'{"lr": 1e999}',
    "too many digits": b"[" + b"9" * 5000 + b"]",
    "half a surrogate pair": b'{"name": "\\ud800"}',
    "half a surrogate pair as key": b'{"\\udfff": 1}',
    "NUL": b'{"name": "a\\u0000b"}',
    "a key twice": b'{"lr": 1, "lr": 2}',
    "too deep": b"[" * 40 + b"]" * 40,
    "far too deep": b"[" * 100_000,
    "not UTF-8": b'{"name": "\xff"}',
    "too many values": b"[" + b"0," * MAX_NODES + b"0]",
    "trailing words": b"{} {}",
}

BAD_YAML = {
    "not closed": b"name: [a",
    "a key twice": b"lr: 1\nlr: 2\n",
    "NaN": b"lr: .nan\n",
    "infinity": b"lr: -.inf\n",
    "a number as key": b"1: a\n",
    "binary": b"name: !!binary aGVsbG8=\n",
    "a set": b"name: !!set {a, b}\n",
    "an object of Python": b"name: !!python/object/apply:os.system [ls]\n",
    "an alias of itself": b"a: &a [*a]\n",
    "a bomb of aliases": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n".encode()
        for i in range(8)
    ),
    "a merge key": b"base: &b {x: 1}\nuse: {<<: *b}\n",
    "a bomb of merge keys": b"x0: &x0 {a: 1}\n"
    + b"".join(
        f"x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 9)}]}}\n".encode() for i in range(1, 9)
    ),
    "a bomb of keys": b"a: &a [x, x]\n? [*a, *a]\n: 1\n",
    "a long text again and again": b"a: &a " + b"x" * 20_000 + b"\nb: [" + b"*a, " * 100 + b"]\n",
    "too deep": b"[" * 40 + b"]" * 40,
    "not UTF-8": b"name: \xff\n",
    "two documents": b"a: 1\n---\nb: 2\n",
    "a tab as indentation": b"data:\n\tdataset: x\n",
    "an unknown anchor": b"a: *b\n",
    "a control character": b"a: \x01\n",
}


# Bytes of which JSON is made, and of what is refused in it.
PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"a"', '"b"', ":", ",", "1", "-2.5", "9" * 400, "null", "\x00", '"'
     "\\u0000", '"\\ud800"', "NaN", "1e999", "é", "[" * 31 + "]" * 31]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
@example("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)
@example("[" * MAX_DEPTH + "[1]" + "]" * MAX_DEPTH)
def test_a_body_without_escapes_needs_no_second_look(text: str) -> None:
    body = text.encode()
    if not bodies._is_plain(body):
        return
    try:
        value = json.loads(body, parse_constant=bodies._no_constant, parse_float=bodies._finite)
    except ValueError:
        return
    checked(value)


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_unsound_json_is_refused_with_a_sentence(body):
    with pytest.raises(InvalidRequest) as refusal:
        parse_json(body)
    assert refusal.value.problem_code == "invalid_json"
    assert refusal.value.detail.startswith("The body cannot be read as JSON: ")
    json.dumps(refusal.value.detail).encode()
    assert len(refusal.value.detail) < 300


def test_the_deepest_json_is_taken_and_brackets_in_texts_do_not_count():
    deepest = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    assert parse_json(deepest) is not None
    with pytest.raises(InvalidRequest, match=f"deeper than {MAX_DEPTH} levels"):
        parse_json(b"[" + deepest + b"]")
    many = {"text": '\\"[{' * 100, "flat": [[], {}] * 100}
    assert parse_json(json.dumps(many).encode()) == many


@pytest.mark.timeout(60)  # quadratic, a MiB of it would take hours
@pytest.mark.parametrize("text", [b'\\"', b'"\\', b"\\\\", b"x"])
def test_a_text_that_never_ends_is_read_once(text):
    with pytest.raises(InvalidRequest, match="cannot be read as JSON"):
        parse_json(b"[" + b"[]," * MAX_DEPTH + b'"' + text * (2**20 // len(text)))


@pytest.mark.parametrize("body", BAD_YAML.values(), ids=BAD_YAML.keys())
def test_unsound_yaml_is_refused_with_a_sentence(body):
    with pytest.raises(InvalidRequest) as refusal:
        parse_yaml(body)
    assert refusal.value.problem_code == "invalid_yaml"
    assert refusal.value.detail.startswith("The body cannot be read as YAML: ")
    assert len(refusal.value.detail) < 300


@pytest.mark.parametrize("name", ["a merge key", "a bomb of merge keys"])
def test_merge_keys_are_refused_with_what_to_do(name):
    with pytest.raises(InvalidRequest, match=r"no merge key .* at line \d"):
        parse_yaml(BAD_YAML[name])


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/runs", "application/json"),
        ("/runs", "application/yaml"),
        ("/datasets", "application/json"),
    ],
)
def test_large_bodies_are_read_beside_the_event_loop(api, monkeypatch, path, kind):
    readers = []

    def read(body):
        readers.append(threading.current_thread())
        raise InvalidRequest("seen")

    monkeypatch.setattr(bodies, "parse_json", read)
    monkeypatch.setattr(bodies, "parse_yaml", read)
    body = b"{}" + b" " * bodies.SMALL_JSON_BYTES
    assert api.post(path, content=body, headers={"Content-Type": kind}).status_code == 422
    assert readers
    assert api.loop_thread not in readers


def test_json_is_read_as_it_is():
    document = {"a": [1, 2.5, True, None, "ä😀"], "b": {"c": {}}}
    assert parse_json(json.dumps(document).encode()) == document


def test_yaml_is_version_1_2():
    body = b"lr: 1e-3\nflag: off\nmode: no\nday: 2024-01-31\nsteps: 010\nbase: &b {x: 1}\nuse: *b\n"
    assert parse_yaml(body) == {
        "lr": 0.001,
        "flag": "off",
        "mode": "no",
        "day": "2024-01-31",
        "steps": 10,
        "base": {"x": 1},
        "use": {"x": 1},
    }


def test_a_long_yaml_is_refused_before_it_is_read():
    with pytest.raises(PayloadTooLarge, match="128 KiB"):
        parse_yaml(b"a: b\n" + b"# long\n" * MAX_YAML_BYTES)
