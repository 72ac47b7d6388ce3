"""Layers: a value has one place and one source, and a changed kind replaces its block."""

from hypothesis import given
from hypothesis import strategies as st

from app.spec.layers import leaves, merge_patch, overlay, provenance, with_default_kinds

names = st.sampled_from("abc")
documents = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


@given(documents, documents)
def test_the_upper_layer_wins_everywhere(base, over):
    joined = dict(leaves(overlay(base, over)))
    for pointer, value in leaves(over):
        if value != {}:
            assert joined[pointer] == value


@given(documents)
def test_an_empty_layer_changes_nothing(document):
    assert overlay(document, {}) == document
    assert merge_patch(document, {}) == document


def test_a_changed_kind_replaces_the_whole_block():
    base = {"schedule": {"kind": "onecycle", "div_factor": 3}}
    assert overlay(base, {"schedule": {"kind": "constant"}}) == {"schedule": {"kind": "constant"}}
    assert merge_patch(base, {"schedule": {"kind": "constant"}}) == {
        "schedule": {"kind": "constant"}
    }


def test_the_same_kind_keeps_its_block():
    base = {"schedule": {"kind": "onecycle", "div_factor": 3}}
    joined = overlay(base, {"schedule": {"kind": "onecycle", "warmup_fraction": 0.1}})
    assert joined == {"schedule": {"kind": "onecycle", "div_factor": 3, "warmup_fraction": 0.1}}


def test_a_block_without_its_kind_has_the_default_one():
    base = {"optimizer": {"lr": 0.1}}
    assert overlay(base, {"optimizer": {"kind": "adamw", "weight_decay": 0.0}}) == {
        "optimizer": {"lr": 0.1, "kind": "adamw", "weight_decay": 0.0}
    }
    assert overlay(base, {"optimizer": {"kind": "sgd"}}) == {"optimizer": {"kind": "sgd"}}


def test_null_in_a_patch_takes_a_value_back_to_its_default():
    assert merge_patch({"training": {"epochs": 9, "seed": 1}}, {"training": {"epochs": None}}) == {
        "training": {"seed": 1}
    }


def test_missing_kinds_are_filled_in_only_where_a_block_is_given():
    filled = with_default_kinds({"optimizer": {"lr": 0.1}, "data": {"split": {}, "x": 1}})
    assert filled == {
        "optimizer": {"kind": "adamw", "lr": 0.1},
        "data": {"split": {"method": "chronological"}, "x": 1},
    }


def test_every_value_has_the_source_that_said_it_last():
    resolved = {"a": 1, "b": {"c": 2, "d": 3}}
    origin = provenance(resolved, [("preset:x", {"a": 5, "b": {"c": 2}}), ("request", {"a": 1})])
    assert origin == {
        "/a": {"value": 1, "source": "request"},
        "/b/c": {"value": 2, "source": "preset:x"},
        "/b/d": {"value": 3, "source": "default"},
    }
