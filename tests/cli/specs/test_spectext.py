"""A changed spec in the words of its file."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.failures import CommandFailed
from app.cli.specs.specfile import SpecFile, read_spec
from app.cli.specs.spectext import kept_text, write, written_as
from app.cli.specs.yamltext import same
from app.spec.reading import read_json, read_yaml

FLOW = "a: [ x,  y ]   # two\nb: {c: 1,   # one\n    d: 2}\n"
BLOCK = "a:\n   - x   # X\n   # about y\n   - y   # Y\n# about b\nb:\n     c: 1   # C\n\n# end\n"
SECTIONS = """\
# A spec
---
one:  # the first

    a:   1     # A
    # b was 3
    b: null    # B

# The second
two:
    c: "x"
    d: [ 1,2 ]
    e:   # E
      - True
      - 0o17

# The third
three: {f: 1e-3}
...
"""
LONG = "many " * 60 + "words"
SECOND = SECTIONS[SECTIONS.index("two:") : SECTIONS.index("\n# The third")]


def yaml_file(text: str) -> SpecFile:
    return SpecFile("spec.yaml", None, "yaml", text.encode(), read_yaml(text.encode()))


def json_file(text: str) -> SpecFile:
    return SpecFile("spec.json", None, "json", text.encode(), read_json(text.encode()))


def changed_by(text: str, change: dict[str, Any]) -> dict[str, Any]:
    """What a text says, with the values at dotted places set, or gone where there is `...`."""
    document: dict[str, Any] = read_yaml(text.encode())
    for dotted, value in change.items():
        *path, last = dotted.split(".")
        block = document
        for name in path:
            block = block[name]
        if value is ...:
            del block[last]
        else:
            block[last] = value
    return document


@pytest.mark.parametrize(
    ("text", "change", "lines"),
    [
        ("a: 1  # one\nb: [1, 2]\n", {"b": 7}, ("b: [1, 2]", "b: 7")),
        ("b: {x: 1}\n\n\na:   1\n", {"b": 7}, ("b: {x: 1}", "b: 7")),
        ("a:   1\nb:   no   # word\n", {"b": 7}, ("b:   no   # word", "b: 7   # word")),
        ("'a': 1\nb: |\n  text\n  more\n", {"b": 7}, ("b: |\n  text\n  more", "b: 7")),
        ("a: 1\nb: null", {"b": 7}, ("b: null", "b: 7")),
        ("a:   # none\nb: 1\n", {"a": 3}, ("a:   # none", "a: 3   # none")),
        ("a: 1\nb: 'x'\n", {"b": "it's"}, ("'x'", "'it''s'")),
        ("a: x\n  y\nb: 1\n...\n", {"b": 1.0}, ("b: 1", "b: 1.0")),
        ("a: {}\nb: 1", {"a": {"c": 1}, "d": 2}, ("a: {}\nb: 1", "a:\n  c: 1\nb: 1\nd: 2")),
        ("a: 1\nb: 2024-01-31\n2024-01-31: off\n", {"a": 2}, ("a: 1", "a: 2")),
        ("\ufeffa: 1\nb: 2\n", {"a": 3}, ("a: 1", "a: 3")),
        ("---\na: 1\nb: 2\n", {"a": 2}, ("a: 1", "a: 2")),
        ("a: 1\n\nb: 2\n\nc: 3\n", {"b": ...}, ("b: 2\n\n", "")),
        ("a:\n- x\n# about b\nb: 1\n", {"a": ["x", "y"]}, ("- x", "- x\n- y")),
        ("a: 1\nc: 2\n", {"b": LONG}, ("c: 2", f"c: 2\nb: {LONG}")),
        (FLOW, {"a": ["y"]}, ("[ x,  y ]", "[y]")),
        (FLOW, {"a": ["z"]}, ("[ x,  y ]", "[z]")),
        (FLOW, {"e": 1}, ("d: 2}", "d: 2}\ne: 1")),
        (BLOCK, {"a": ["y"]}, ("   - x   # X\n", "")),
        (BLOCK, {"a": ["x", "z"]}, ("- y ", "- z ")),
        (BLOCK, {"a": ["x", "y", 3]}, ("# Y\n", "# Y\n   - 3\n")),
        (BLOCK, {"b": {"d": 1}}, ("c: 1", "d: 1")),
        (BLOCK, {"b": {"d": 5}}, ("c: 1   # C", "d: 5")),
        (BLOCK, {"b": None}, ("b:\n     c: 1   # C", "b: null")),
        (BLOCK, {"b": ...}, ("b:\n     c: 1   # C\n", "")),
        (
            BLOCK,
            {"b.d": {"e": "two words"}, "f": {"g": True}},
            ("# C\n\n# end\n", "# C\n     d:\n          e: two words\n\n# end\nf:\n     g: true\n"),
        ),
        (SECTIONS, {"one.g": [1, "x"]}, ("# B\n", "# B\n    g: [1, x]\n")),
        (SECTIONS, {"one.b": 3}, ("b: null    # B", "b: 3    # B")),
        (SECTIONS, {"one.b": ...}, ("    b: null    # B\n", "")),
        (SECTIONS, {"one.a": ..., "one.x": 1}, ("a:   1 ", "x: 1 ")),
        (SECTIONS, {"two.c": "y: z"}, ('"x"', '"y: z"')),
        (SECTIONS, {"two.e": [True, 15, 16]}, ("0o17\n", "0o17\n      - 16\n")),
        (SECTIONS, {"two.e": ...}, ("    e:   # E\n      - True\n      - 0o17\n", "")),
        (SECTIONS, {"three.f": 1.0, "three.g": "off"}, ("1e-3", "1.0, g: off")),
        (SECTIONS, {"two": ...}, (SECOND, "")),
        ("a: &x {b: 1}\nc: *x\n", {"c": {"b": 2}}, ("*x", "{b: 2}")),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 2}}, ("&x {b: 1}\nc: *x", "{b: 2}\nc: &x {b: 1}")),
        ("a: &x 1\nb: &x 2\nc: *x\n", {"a": 3}, ("&x 1", "3")),
        ("a: &x 1\nc: *x\n", {"a": 2}, ("&x 1\nc: *x", "2\nc: &x 1")),
        ("a: &x 1\nc: *x\n", {"d": 2}, ("*x", "*x\nd: 2")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_nothing_but_what_has_changed_is_written_anew(text, change, lines, line_end, is_whole):
    new = changed_by(text, change)
    old_text, new_text = (
        (part if is_whole else part.rstrip("\n")).replace("\n", line_end)
        for part in (text, text.replace(*lines, 1))
    )
    if lines[0] not in text.rstrip("\n") and not is_whole:
        return  # it changes what comes behind the last line
    assert kept_text(yaml_file(old_text), new) == new_text
    assert same(read_yaml(new_text.encode()), new)


@pytest.mark.parametrize("change", [{"b.d": 3}, {"b.e": 3}, {"b.d": ...}])
def test_a_comment_that_a_round_trip_would_lose_is_not_lost(change):
    assert kept_text(yaml_file(FLOW), changed_by(FLOW, change)) is None


def test_a_comment_between_two_that_get_other_names_is_not_lost():
    text = "a: 1\n# about b\nb: 2\nc: 3\n"
    kept = kept_text(yaml_file(text), {"x": 1, "y": 2, "c": 3})
    assert kept == "x: 1\n# about b\ny: 2\nc: 3\n"


RENAMED = """\
# About training
training:  # t
  max_epochs: 4  # four

  # about batch
  batchsize: "64"  # b
  # no more
optimiser:  # o
  # about lr
  learning_rate: 1e-3  # lr
  kind: adam
  wd: 2  # w

# end
seed: 1
"""


@pytest.mark.parametrize("order", [("epochs", "batch_size"), ("batch_size", "epochs")])
def test_keys_that_get_other_names_keep_their_comments(order):
    training = {"epochs": 4, "batch_size": 64}
    new = {
        "seed": 1,
        "training": {name: training[name] for name in order},
        "optimizer": {"kind": "adam", "lr": 1e-3, "weight_decay": 2},
    }
    wanted = RENAMED
    for old, name in (
        ("max_epochs", "epochs"), ("batchsize", "batch_size"), ("optimiser", "optimizer"),
        ("learning_rate", "lr"), ("wd", "weight_decay"), ('"64"', "64"),
    ):  # fmt: skip
        wanted = wanted.replace(f"{old}:", f"{name}:").replace('"64"', "64")
    assert kept_text(yaml_file(RENAMED), new) == wanted


@pytest.mark.parametrize(
    ("text", "new", "lost"),
    [
        ("a: 1  # one\nb: 2\n", {"b": 2}, "line 1 (# one)"),
        ("\ufeffb: 2  # same\r\na: 1  # same\r\n", {"b": 2}, "line 2 (# same)"),
        ("b: '# x'\na: {c: 1,  # x\n  d: 2}\n", {"b": "# x", "a": {"c": 1}}, "line 2 (# x)"),
        ("a: |  # head\n  # text\nb: 2\n", {"b": 2}, "line 1 (# head)"),
        ("b: 2\na: |  # the end", {"b": 2}, "line 2 (# the end)"),
        (FLOW, {"a": ["x", "y"], "b": {"c": 1, "d": 3}}, "line 2 (# one)"),
    ],
)
def test_what_would_lose_a_comment_is_not_written_over(tmp_path, text, new, lost):
    path = tmp_path / "spec.yaml"
    path.write_text(text, newline="")
    with pytest.raises(CommandFailed, match=re.escape(lost)):
        write_over(path, new)
    assert path.read_bytes() == text.encode()


def test_a_comment_of_its_own_line_outlives_what_is_below_it(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("# about a\na: 1\nb: 'x # y'\n# end\n")
    write_over(path, {"b": "x # y"})
    assert path.read_text() == "# about a\nb: 'x # y'\n# end\n"


def test_blocks_of_uneven_depth_are_written_with_one():
    text = "a:\n  b: 1   # B\nc:\n      d: 1\n      e: {f:   1}   # E\n"
    changed = changed_by(text, {"c.g": {"h": 1}})
    kept = kept_text(yaml_file(text), changed)
    assert kept is not None
    assert read_yaml(kept.encode()) == changed
    assert [kept.count(comment) for comment in ("# B", "# E")] == [1, 1]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.sampled_from(["x", "off", "a: b", "#", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdefg"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["one", "two", "three", "four"]), VALUES), st.booleans())
def test_what_is_kept_says_what_it_should(new, is_merged):
    if is_merged:
        old = read_yaml(SECTIONS.encode())
        new = {**old, **{k: {**old.get(k, {}), **v} for k, v in new.items() if isinstance(v, dict)}}
    kept = kept_text(yaml_file(SECTIONS), new)
    if kept is not None:
        assert same(read_yaml(kept.encode()), new)
    else:
        assert not new


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{\n  "a": {\n    "b": 1\n  }\n}\n', ('"b": 1', '"b": 2')),
        ('{\n\t"x": 1,\n\t"a": {"b": 1}\n}', ('{"b": 1}', '{\n\t\t"b": 2\n\t}')),
        ('{"a": {"b": 1}}', ("1", "2")),
        ('{\n    "x": "\\u00e9", "y": {},\n    "a": {\n    "b": 1}}\n', None),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_json_keeps_its_indent_and_its_line_ends(text, lines, line_end):
    file = json_file(text.replace("\n", line_end))
    changed = {**file.document, "a": {"b": 2}}
    kept = kept_text(file, changed)
    assert kept is not None
    assert read_json(kept.encode()) == changed
    if lines is not None:
        assert kept == text.replace(*lines).replace("\n", line_end)


def test_json_in_a_yaml_file_is_kept_as_json():
    text = '{\n   "a": 1,\n   "b": {}\n}\n'
    assert kept_text(yaml_file(text), {"a": 2, "b": {}}) == text.replace("1", "2")


def test_another_format_is_written_anew():
    file = yaml_file("a: 1  # one\nb: [1, 2]\n")
    assert json.loads(written_as("json", file, file.document)) == file.document
    assert written_as("yaml", json_file('{"a": {"b": [1, 2]}}'), {"a": {"b": [1, 2]}}) == (
        "a:\n  b: [1, 2]\n"
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text("a: 1  # one\n")
    return path


def write_over(path: Path, changed: dict[str, Any]) -> None:
    write(path.resolve(), "yaml", read_spec(str(path)), changed, over=True)


def test_a_file_keeps_its_rights_and_its_owner(path: Path):
    path.chmod(0o2751)
    if os.geteuid() == 0:
        os.chown(path, 1234, 5678)
        path.chmod(0o2751)
    before = path.stat()
    write_over(path, {"a": 2})
    after = path.stat()
    assert path.read_text() == "a: 2  # one\n"
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip
    assert after.st_ino != before.st_ino
    assert [one.name for one in path.parent.iterdir()] == ["spec.yaml"]


def test_the_file_behind_a_link_is_written_and_the_link_stays(path: Path):
    link = path.parent / "other" / "link.yaml"
    link.parent.mkdir()
    link.symlink_to(path)
    write_over(link, {"a": 2})
    assert link.is_symlink()
    assert path.read_text() == "a: 2  # one\n"
    assert [one.name for one in link.parent.iterdir()] == ["link.yaml"]


def test_a_file_that_changed_meanwhile_is_left_as_it_is(path: Path):
    spec = read_spec(str(path))
    path.write_text("a: 1  # two\n")
    with pytest.raises(CommandFailed, match="was changed while its plan was made"):
        write(path, "yaml", spec, {"a": 2}, over=True)
    assert path.read_text() == "a: 1  # two\n"
    assert [one.name for one in path.parent.iterdir()] == ["spec.yaml"]


def test_a_new_file_takes_no_other_ones_place(path: Path):
    with pytest.raises(FileExistsError):
        write(path, "yaml", read_spec(str(path)), {"a": 2}, over=False)
    assert path.read_text() == "a: 1  # one\n"
