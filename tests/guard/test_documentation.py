"""What is said of the rules is so: examples, constructions, options to come, and their page."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

from app.cli.main import GROUPS
from app.guard.documentation import EARLY, IMPOSSIBLE, TO_COME
from app.guard.registry import RULES
from app.recipes.sequence import Sequence
from app.spec.availability import UNAVAILABLE
from benchmarks.service.claims_figures import CLAIMS
from docs.asked import ASKED
from docs.rules import DOCUMENT, EXAMPLES, write_document, write_examples
from worker.trainer.recipes.sequence_model import SequenceModel

ROOT = Path(__file__).parents[2]
SHOWN_BY = {entry.shown_by.split("::")[1] for entry in IMPOSSIBLE}
CODES = {rule.code for rule in RULES} | {early.code for early in EARLY}
# Of no worker, a false alarm, and training lost to a kill: no step takes longer.
NO_SLOWDOWN = {"speed.no_worker"}
OPTIONS = {entry.option.split(":")[0] for entry in TO_COME}


def test_the_document_and_the_examples_are_up_to_date():
    assert DOCUMENT.read_text("utf-8") == write_document(), "run: python -m docs.rules"
    assert EXAMPLES.read_text("utf-8") == write_examples(), "run: python -m docs.rules"


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {f"{path}::{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_cannot_be_is_shown_by_a_test_that_is_there():
    shown_by = {entry.shown_by for entry in IMPOSSIBLE}
    there = set().union(*(names_in(path) for path in {name.split("::")[0] for name in shown_by}))
    assert shown_by - there == set()


def test_a_slowdown_that_is_claimed_is_timed_or_says_why_not():
    """The benchmark has an arm for each rule that names one, and no other."""
    speed = [rule for rule in RULES if rule.topic == "speed"]
    assert sorted(rule.measured_by for rule in speed if rule.measured_by) == sorted(
        claim.name for claim in CLAIMS
    )
    untold = {r.code for r in speed if not r.measured_by and "not timed here." not in r.stands_on}
    assert untold == NO_SLOWDOWN


def test_the_codes_before_the_rules_are_none_of_the_rules():
    assert not {early.code for early in EARLY} & {rule.code for rule in RULES}


@pytest.mark.parametrize("entry", TO_COME, ids=lambda entry: entry.option)
def test_an_option_that_rules_wait_for_is_refused_until_it_comes(entry):
    """When the option comes, this fails: its rules are due."""
    if entry.option.startswith("stoker "):
        *words, name = entry.option.split()[1:]
        (group,) = words
        assert name not in [command.name for command in GROUPS[group].registered_commands]
        return
    waiting = [option for option in UNAVAILABLE if option.pointer == entry.pointer]
    assert waiting
    values = entry.option.split(": ")[1]
    given: dict[str, list[object]] = {
        "true": [True],
        "any": [0.1, {}],
        "2 or more for a recipe": [2],
    }
    for value in given.get(values, values.split(", ")):
        assert any(option.refuses(value) for option in waiting), value


def test_every_trouble_is_kept_away_by_something_that_is_there():
    assert [asked.trouble for asked in ASKED if not asked.kept_by] == []
    assert {keeper for asked in ASKED for keeper in asked.kept_by} <= CODES | OPTIONS | SHOWN_BY


def test_what_is_kept_away_is_said_of_all_rules_that_wait():
    waiting = {keeper for asked in ASKED for keeper in asked.kept_by} & OPTIONS
    assert waiting == OPTIONS


def test_dropout_of_one_layer_is_before_the_head():
    def model_of(layers: int) -> SequenceModel:
        recipe = Sequence(kind="sequence", num_layers=layers, dropout=0.5)
        plain = (torch.zeros(()), torch.ones(()))
        return SequenceModel(recipe, (12, 3), (4,), plain, plain)

    single, stacked = model_of(1).encoder, model_of(2).encoder
    assert single.dropout == 0.0
    assert isinstance(stacked.dropout, nn.Dropout)
    assert stacked.dropout.p == 0.5
    assert [model_of(layers).dropout.p for layers in (1, 2)] == [0.5, 0.5]
