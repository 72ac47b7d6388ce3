"""What `--fix` does where two fixes have to do with each other, and to the text of a spec."""

import json
from typing import Any

import pytest

from app.cli.fixing import mend
from app.cli.specfile import read_spec
from app.cli.spectext import written_as
from app.guard.plan import make_plan
from app.spec.reading import read_yaml
from tests.guard.world import CATALOG, REQUEST, world


def test_what_a_preset_brings_is_not_written_down_where_the_preset_is_changed():
    def planned(request: dict[str, Any]) -> dict[str, Any]:
        plan = make_plan(request, world(), CATALOG)
        return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}

    asked = {**REQUEST, "preset": "h200", "runtime": {"device": "cpu", "precision": "fp32"}}
    asked["training"] = {"epochs": 50}
    found = {issue["code"] for issue in planned(asked)["issues"]}
    assert {"memory.preset_too_large", "learning.preset_batch_size"} <= found
    mended = mend(asked, planned, warnings=True)
    assert mended.request.get("preset", "auto") != "h200"
    assert "batch_size" not in mended.request.get("training", {})


def test_warnings_are_mended_by_what_the_errors_left():
    """A rate for an effective batch that is refused is no rate for the one that takes its place."""

    def planned(request: dict[str, Any]) -> dict[str, Any]:
        plan = make_plan(request, world(), CATALOG)
        return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}

    training = {"batch_size": 512, "gradient_accumulation_steps": 64, "drop_last": True}
    asked = {**REQUEST, "training": training, "optimizer": {"lr": 0.5}}
    usual = mend(mend(asked, planned).request, planned, warnings=True)
    at_once = mend(asked, planned, warnings=True)
    assert at_once.request == usual.request


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a: 1  # one\nb: [1, 2]\n", "a: 1  # one\nb: 7\n"),
        ("b: {x: 1}\n\n\na: 1\n", "b: 7\n\n\na: 1\n"),
        ("a:   1\nb:   no   # word\n", "a:   1\nb:   7   # word\n"),
        ("'a': 1\nb: |\n  text\n  more\n", "'a': 1\nb: 7\n"),
        ("a: 1\nb: &x 2\n", "a: 1\nb: 7\n"),
        ("a: 1\nb: null", "a: 1\nb: 7"),
    ],
)
def test_yaml_is_kept_where_it_can_be_and_always_right(tmp_path, text, kept):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    changed = {**read_spec(str(path)).document, "b": 7}
    now = written_as("yaml", read_spec(str(path)), changed)
    path.write_text(now)
    assert read_spec(str(path)).document == changed
    assert now == kept


FLOW = "a: [ x,  y ]   # two\nb: {c: 1,   # one\n    d: 2}\n"
BLOCK = "a:\n   - x   # X\n   # about y\n   - y   # Y\n# about b\nb:\n     c: 1   # C\n\n# end\n"


@pytest.mark.parametrize(
    ("text", "changed", "kept"),
    [
        (FLOW, {"a": ["x", "y"], "b": {"c": 1, "d": 3}}, FLOW.replace("2}", "3}")),
        (FLOW, {"a": ["y"], "b": {"c": 1, "d": 2}}, FLOW.replace("x,  ", "")),
        (FLOW, {"a": ["x", "y"], "b": {"c": 1, "d": 2, "e": "f"}}, FLOW.replace("2}", "2, e: f}")),
        (FLOW, {"a": ["z"], "b": {"c": 1, "d": 2}}, FLOW.replace("x,  y", "z")),
        (FLOW, {"a": ["x", "y"], "b": {"c": 1}}, FLOW.replace(",   # one\n    d: 2", "")),
        (BLOCK, {"a": ["y"], "b": {"c": 1}}, BLOCK.replace("   - x   # X\n", "")),
        (BLOCK, {"a": ["x", "y", 3], "b": {"c": 1}}, BLOCK.replace("# Y\n", "# Y\n   - 3\n")),
        (BLOCK, {"a": ["x", "y"], "b": {"d": 1}}, BLOCK.replace("c: 1", "d: 1")),
        (BLOCK, {"a": ["x", "y"], "b": {"d": 5}}, BLOCK.replace("c: 1   # C", "d: 5")),
        (BLOCK, {"a": ["x", "y"], "b": None}, BLOCK.replace("b:\n     c: 1   # C", "b: null")),
        (BLOCK, {"a": ["x", "y"]}, BLOCK.replace("b:\n     c: 1   # C\n", "")),
        (
            BLOCK,
            {"a": ["x", "y"], "b": {"c": 1, "d": {"e": "two words"}}, "f": {"g": True}},
            BLOCK.replace("# C\n", '# C\n     d:\n       e: "two words"\nf:\n     g: true\n'),
        ),
        ("a:   # none\nb: 'x'\n", {"a": 3, "b": "y"}, "a: 3   # none\nb: 'y'\n"),
        ("a: x\n  y\nb: 1\n...\n", {"a": "x y", "b": 1.0}, "a: x\n  y\nb: 1.0\n...\n"),
        ("a: {}\nb: 1", {"a": {"c": 1}, "b": 1, "d": 2}, "a: {c: 1}\nb: 1\nd: 2"),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_nothing_but_what_has_changed_is_written_anew(tmp_path, text, changed, kept, line_end):
    path = tmp_path / "spec.yaml"
    path.write_text(text, newline=line_end)
    now = written_as("yaml", read_spec(str(path)), changed)
    assert now == kept.replace("\n", line_end)
    assert json.dumps(read_yaml(now.encode())) == json.dumps(changed)


@pytest.mark.parametrize("indent", [2, None])
def test_json_keeps_its_line_ends_too(tmp_path, indent):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"a": {"b": 1}}, indent=indent), newline="\r\n")
    now = written_as("json", read_spec(str(path)), {"a": {"b": 2}})
    assert now == json.dumps({"a": {"b": 2}}, indent=indent).replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"a": {"x": 1}, "b": {"x": 2}}, "a: &block {x: 1}\r\nb: {x: 2}\r\n"),
        ({"a": {"x": 2}, "b": {"x": 1}}, "a:\r\n  x: 2\r\nb:\r\n  x: 1\r\n"),
    ],
)
def test_an_alias_that_would_change_with_its_anchor_is_written_out(tmp_path, changed, kept):
    path = tmp_path / "spec.yaml"
    path.write_text("a: &block {x: 1}\r\nb: *block\r\n", newline="")
    assert written_as("yaml", read_spec(str(path)), changed) == kept
    assert read_yaml(kept.encode()) == changed
