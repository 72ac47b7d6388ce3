"""Spec files and --set, as a user writes them."""

import json
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from app.cli.failures import CommandFailed
from app.cli.specfile import parse_assignment, patch_of, read_request

# Each line holds ten of the line before: 10^30 values in a kilobyte.
BOMB = "a0: &a0 [1]\n" + "".join(
    f"a{line}: &a{line} [{', '.join([f'*a{line - 1}'] * 10)}]\n" for line in range(1, 31)
)


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
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_every_json_value_can_be_set(value: Any):
    assert parse_assignment("a=" + json.dumps(value))[1] == value


@pytest.mark.parametrize("text", ["training.epochs", "=3", "a..b=1", "a=[1", "a={b: 1, b: 2}"])
def test_an_assignment_that_is_none_is_refused(text: str):
    with pytest.raises(typer.BadParameter):
        parse_assignment(text)


@pytest.mark.parametrize("value", [".nan", "-.inf", "1e400"])
def test_a_number_that_is_none_is_not_assigned(value: str):
    with pytest.raises(CommandFailed, match=r"--set: optimizer\.lr is not a finite number"):
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
        ("a.yaml", b"recipe: {kind: sequence\n", "line"),
        ("a.yaml", b"a: 1\na: 2\n", "duplicate"),
        ("a.yaml", b"- 1\n- 2\n", "holds no spec"),
        ("a.yaml", b"", "holds no spec"),
        ("a.json", b"{", "cannot be read"),
        ("a.toml", b"a = \n", "cannot be read"),
        ("a.json", b"\xff\xfe\x00", "not a text file"),
        ("a.txt", b"recipe: 1", ".yaml, .yml, .json or .toml"),
        ("a.yaml", b"a: [" + b"1," * 600_000, "larger than 1 MiB"),
        ("a.yaml", b"optimizer: {lr: .nan}", "a.yaml: optimizer.lr is not a finite number"),
        ("a.json", b'{"optimizer": {"betas": [0.9, Infinity]}}', "optimizer.betas.1 is not"),
        ("a.toml", b"optimizer.lr = inf", "optimizer.lr is not a finite number"),
        ("a.yaml", b"a: &a [*a]", "refers to itself"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.yaml", b"a: &a {x: 1}\nb:\n  <<: *a\n", "no merge key `<<`; write out"),
        ("a.yaml", b"{[1]: 2}", "a key must be text; quote it (line 1, column 2)"),
        ("a.yaml", b"notes: !!binary aGk=", "no counterpart in JSON (line 1, column 8)"),
        ("a.yaml", b"notes: !!set {a}", "no counterpart in JSON"),
        ("a.yaml", BOMB.encode(), "more than 50000 values"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_in_a_sentence(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CommandFailed) as refused:
        read_request(str(path), [])
    assert said in refused.value.detail
    assert "\n" not in refused.value.detail


def test_a_missing_file_is_named():
    with pytest.raises(CommandFailed, match=r"nowhere\.yaml cannot be read: No such file"):
        read_request("nowhere.yaml", [])
