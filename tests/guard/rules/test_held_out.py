"""The guard knows which held-out samples a run's first weights were trained on."""

from dataclasses import replace

import numpy as np
import pytest

from app.guard.facts import AncestorFacts, PartFacts, UnknownFact
from app.guard.held_out import samples_trained_on
from app.planning.arithmetic import PartSizes
from app.spec.data import Data
from tests.guard.world import FIELDS, REQUEST, parent_of, plan_of, weather, world
from tests.trainer_data.factories import make_spec
from worker.trainer.data.split import split_samples

CODE = "learning.weights_saw_held_out"
SAMPLES = 20_000
BUCKETS = np.random.default_rng(0).integers(100, size=SAMPLES)
NUMBERS = np.random.default_rng(1).choice(3, p=[0.7, 0.2, 0.1], size=SAMPLES).astype(np.int8)
PART = replace(
    FIELDS["targets"], shape=(), dtype="int8",
    parts=PartFacts(PartSizes(*np.bincount(NUMBERS).tolist())),
)  # fmt: skip
DATASET = weather(
    samples=SAMPLES,
    fields={**FIELDS, "part": PART},
    groups={"game": np.bincount(BUCKETS, minlength=100).tolist()},
)


def data_of(split) -> Data:
    return make_spec({"dataset": "weather", "split": split}).data


def rows_of(data):
    """Rows of training, validation and test, as the trainer splits them."""
    numbers = None
    if data.split.method == "field":
        numbers = NUMBERS
    elif data.split.method == "groups":
        validation = round(100 * data.split.validation_fraction)
        test = validation + round(100 * data.split.test_fraction)
        numbers = np.where(validation > BUCKETS, 1, np.where(test > BUCKETS, 2, 0)).astype(np.int8)
    parts = split_samples(data, {"weather": SAMPLES}, numbers)
    each = parts.train, parts.validation, parts.test
    return [set() if part is None else set(part.all_rows().tolist()) for part in each]


def random(seed=0, validation=0.2, test=0.0):
    return {
        "method": "random", "seed": seed, "validation_fraction": validation, "test_fraction": test
    }  # fmt: skip


def in_order(validation=0.2, test=0.0):
    return {
        "method": "chronological", "gap": 10,
        "validation_fraction": validation, "test_fraction": test,
    }  # fmt: skip


FIELD = {"method": "field", "field": "part"}
GROUPS = {"method": "groups", "field": "game", "validation_fraction": 0.1}


@pytest.mark.parametrize(
    ("trained", "child"),
    [
        (random(), random()),
        (random(), random(validation=0.3, test=0.1)),
        (random(test=0.2), random(validation=0.1)),
        (in_order(), in_order()),
        (in_order(), in_order(validation=0.4, test=0.1)),
        (in_order(test=0.3), in_order(validation=0.1)),
        (in_order(validation=0.0), in_order()),
        (random(validation=0.0), GROUPS),
        (GROUPS, GROUPS),
        (GROUPS, {**GROUPS, "validation_fraction": 0.2, "test_fraction": 0.1}),
        (FIELD, FIELD),
    ],
    ids=str,
)
def test_the_share_is_that_of_the_rows_themselves(trained, child):
    trained, child = data_of(trained), data_of(child)
    training, (_, *held_out) = rows_of(trained)[0], rows_of(child)
    held_out = set.union(*held_out)
    share = samples_trained_on(trained, child, DATASET) / len(held_out)
    assert share == pytest.approx(len(training & held_out) / len(held_out), abs=1e-12)


@pytest.mark.parametrize(
    ("trained", "child"),
    [
        (random(), random(seed=1)),
        (random(validation=0.5), random(seed=1, test=0.1)),
        (random(), in_order()),
        (in_order(), random()),
        (GROUPS, random()),
        (FIELD, random(seed=5)),
    ],
    ids=str,
)
def test_of_independent_draws_the_expected_share_is_given(trained, child):
    trained, child = data_of(trained), data_of(child)
    training, (_, *held_out) = rows_of(trained)[0], rows_of(child)
    held_out = set.union(*held_out)
    share = samples_trained_on(trained, child, DATASET) / len(held_out)
    assert share == pytest.approx(len(training & held_out) / len(held_out), abs=0.03)


@pytest.mark.parametrize(("trained", "child"), [(FIELD, in_order()), (in_order(), GROUPS)], ids=str)
def test_what_cannot_be_compared_is_not_known(trained, child):
    with pytest.raises(UnknownFact, match="which samples of weather both splits have"):
        samples_trained_on(data_of(trained), data_of(child), DATASET)


def test_a_dataset_of_its_own_may_be_what_the_ancestor_trained_on():
    validated = {"method": "datasets", "validation": "weather"}
    child = data_of(validated).model_copy(update={"dataset": "later"})
    assert samples_trained_on(data_of(random()), child, DATASET) == 0.8 * SAMPLES
    assert samples_trained_on(data_of(random(validation=0.0)), child, DATASET) == SAMPLES


def ancestor(change, run_id=7, **more):
    return AncestorFacts(run_id, parent_of(change, 100).spec, **more)


def split_of(method, **more):
    return {"data": {"split": {"method": method, **more}}}


def finding(change, *ancestors, **facts):
    plan = plan_of(change, world(ancestors=ancestors, **facts))
    return plan, next((issue for issue in plan.issues if issue.code == CODE), None)


def test_weights_that_were_trained_on_the_held_out_samples_are_refused_with_two_fixes():
    child = split_of("random", seed=1)
    parent = parent_of(split_of("random"), 100)
    plan, issue = finding(child, ancestor(split_of("random")), parent=parent)
    assert issue is not None
    assert (issue.severity, issue.overridable) == ("error", True)
    assert "80%" in issue.message
    assert [op.value for op in issue.fix] == [
        plan_of(split_of("random")).require_ok()["data"]["split"]
    ]
    assert [op.model_dump() for op in issue.other_fix] == [
        {"op": "add", "path": "/from", "value": "scratch"}
    ]
    accepted = finding({**child, "accept_risks": [CODE]}, ancestor(split_of("random")))[1]
    assert accepted is not None
    assert (accepted.severity, accepted.accepted) == ("warning", True)
    assert plan.errors


def test_first_weights_of_another_run_are_left_out_by_the_other_fix():
    child = {**split_of("random", seed=1), "init_from": {"run": 7}}
    _, issue = finding(child, ancestor(split_of("random")))
    assert issue is not None
    assert [(op.path, op.value) for op in issue.other_fix] == [("/init_from", None)]


def test_all_ancestors_count_and_the_one_that_saw_most_is_named():
    ancestors = ancestor({}), ancestor(split_of("random", seed=3), run_id=4)
    _, issue = finding({}, *ancestors)
    assert issue is not None
    assert "run 4 trained" in issue.message
    assert finding({}, ancestors[0])[1] is None


def test_an_ancestor_that_did_not_learn_the_targets_is_a_warning():
    """Masked pretraining is such a run: its targets are its inputs."""
    other = ancestor(split_of("random"))
    assert other.spec is not None
    data = other.spec.data.model_copy(update={"targets": other.spec.data.inputs})
    masked = replace(other, spec=other.spec.model_copy(update={"data": data}))
    _, issue = finding(split_of("random", seed=1), masked)
    assert issue is not None
    assert issue.severity == "warning"


@pytest.mark.parametrize(
    "known",
    [
        AncestorFacts(7, None),
        ancestor(split_of("random"), other_data=("weather",)),
        AncestorFacts(7, make_spec({"dataset": "other"})),
    ],
    ids=["imported", "another file", "another dataset"],
)
def test_where_rows_cannot_be_matched_the_plan_says_that_it_is_not_known(known):
    plan, issue = finding(split_of("random", seed=1), known)
    assert issue is None
    assert [one.code for one in plan.unchecked] == [CODE]
    assert "run 7" in plan.unchecked[0].missing


def test_a_run_that_holds_nothing_out_asks_nothing():
    split = split_of("chronological", validation_fraction=0.0)
    plan, issue = finding(split, AncestorFacts(7, None))
    assert issue is None
    assert not plan.unchecked
    assert plan.request != REQUEST
