"""Spec files and --set, as a user writes them."""

import json
import re
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from app.cli.failures import CommandFailed
from app.cli.specs.specfile import parse_assignment, patch_of, read_request, read_spec
from app.errors import StokerError
from tests.spec.documents import BAD_IN_SHORT, GOOD

# The database keeps neither NUL nor half of a surrogate pair.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("1e-3", 0.001),
        ("3.0e-4", 0.0003),
        ("true", True),
        ("off", "off"),
        ("no", "no"),
        ("null", None),
        ("", ""),
        ("'8'", "8"),
        ("[mae, rmse]", ["mae", "rmse"]),
        ('{"kind": "sgd"}', {"kind": "sgd"}),
        ("a=b", "a=b"),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_values_are_yaml_1_2(text: str, value: Any):
    assert parse_assignment(f"a.b={text}") == (["a", "b"], value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=8,
    )
)
def test_every_json_value_can_be_set(value: Any):
    assert parse_assignment("a=" + json.dumps(value))[1] == value


@pytest.mark.parametrize("text", ["epochs", "=3", "a..b=1", "a=[1", "a={b: 1, b: 2}", "a=.inf"])
def test_an_assignment_that_is_none_is_refused(text: str):
    with pytest.raises(typer.BadParameter):
        parse_assignment(text)


@pytest.mark.parametrize("value", [".nan", "-.inf", "1e400"])
def test_a_number_that_is_none_is_not_assigned(value: str):
    with pytest.raises(typer.BadParameter, match=r"'optimizer\.lr=.*a number is not finite"):
        parse_assignment(f"optimizer.lr={value}")


def test_assignments_make_a_merge_patch():
    assert patch_of(["training.epochs=8", "training.seed=1", "early_stopping=null"]) == {
        "training": {"epochs": 8, "seed": 1},
        "early_stopping": None,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec.yaml", "recipe: {kind: sequence}\noptimizer: {lr: 1e-3}\n"),
        ("spec.yml", '{"recipe": {"kind": "sequence"}, "optimizer": {"lr": 1e-3}}'),
        ("spec.json", '{"recipe": {"kind": "sequence"}, "optimizer": {"lr": 1e-3}}'),
        ("spec.toml", '[recipe]\nkind = "sequence"\n[optimizer]\nlr = 1e-3\n'),
    ],
)
def test_all_formats_say_the_same(tmp_path, name: str, text: str):
    path = tmp_path / name
    path.write_text(text)
    assert read_request(str(path), ["optimizer.kind=sgd", "notes=off"]) == {
        "recipe": {"kind": "sequence"},
        "optimizer": {"lr": 0.001, "kind": "sgd"},
        "notes": "off",
    }


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", b"- 1\n- 2\n", "is not a spec"),
        ("a.yaml", b"", "is not a spec"),
        ("a.toml", b"a = \n", "a.toml cannot be read as TOML: Invalid value (at line 1, column 5)"),
        ("a.toml", b"since = 2024-01-31", "a date at since has no counterpart in JSON"),
        ("a.txt", b"recipe: 1", ".yaml, .yml, .json or .toml"),
        ("a.yaml", b"a: [" + b"1," * 600_000, "larger than 128 KiB"),
        ("a.json", b'{"a": "' + b"1" * 1_100_000, "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_in_a_sentence(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((CommandFailed, StokerError), match=re.escape(said)) as refused:
        read_request(str(path), [])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("kind", "body", "value"), GOOD.values(), ids=GOOD.keys())
def test_a_file_says_what_the_same_body_says(tmp_path, kind: str, body: bytes, value: Any):
    path = tmp_path / f"spec.{kind}"
    path.write_bytes(body)
    assert json.dumps(read_spec(str(path)).document) == json.dumps(value)


@pytest.mark.parametrize(("kind", "body", "words"), BAD_IN_SHORT.values(), ids=BAD_IN_SHORT.keys())
def test_a_file_is_refused_where_the_same_body_is(tmp_path, kind: str, body: bytes, words: str):
    path = tmp_path / f"spec.{kind}"
    path.write_bytes(body)
    with pytest.raises(StokerError) as refused:
        read_spec(str(path))
    assert refused.value.detail.startswith(f"{path} cannot be read as {kind.upper()}: ")
    assert words in refused.value.detail


def test_what_is_set_in_one_place_is_not_set_where_an_alias_stands(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("a: &x {b: 1}\nc: *x\n")
    assert read_request(str(path), ["a.b=2"]) == {"a": {"b": 2}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.yaml", "nowhere.yaml cannot be read: No such file or directory."),
        ("exampels/weather.yaml", "Did you mean examples/weather.yaml?"),
        ("examples/wether.yml", "Did you mean examples/weather.yaml?"),
        ("examples/train.py", "`stoker run -- python examples/train.py`"),
        ("examples", "is a folder. Give a spec: a .yaml, .json or .toml file, such as examples/we"),
    ],
)
def test_what_is_no_spec_is_told_with_what_was_meant(tmp_path, monkeypatch, path, said):
    monkeypatch.chdir(tmp_path)
    for name in ("weather.yaml", "train.py"):
        (tmp_path / "examples" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "examples" / name).write_text("")
    with pytest.raises(CommandFailed) as refused:
        read_request(path, [])
    assert said in refused.value.detail
    assert ("Did you mean" in refused.value.detail) == ("Did you mean" in said)
