"""From a request to a plan: every bad spec has its issue, every fix mends what it names."""

from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from app.errors import SpecRejected
from app.guard.facts import DatasetFacts, DeviceFacts, Facts, FieldFacts
from app.guard.plan import make_plan
from app.presets.catalog import load_catalog
from app.spec.availability import UNAVAILABLE
from app.spec.layers import leaves

CATALOG = load_catalog(Path("/nonexistent"))
FIELDS = {"features": FieldFacts((360, 15), "float32"), "targets": FieldFacts((36,), "float32")}
WEATHER = DatasetFacts("weather", "ready", 4020, FIELDS, size_bytes=87_000_000)
CPU = DeviceFacts("cpu", "cpu")
GPU = DeviceFacts("cuda", "NVIDIA RTX 4090", total_memory_bytes=int(23.6 * 2**30))
REQUEST = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}


def facts(*datasets, devices=(CPU,)):
    return Facts({d.name: d for d in (WEATHER, *datasets)}, devices=devices)


def plan_of(change=None, *, data=None, known=None):
    request = {**REQUEST, **(change or {})}
    if data is not None:
        request["data"] = {**REQUEST["data"], **data}
    return make_plan(request, known or facts(), CATALOG)


def codes(plan):
    return [issue.code for issue in plan.issues]


def test_the_smallest_request_becomes_a_complete_spec():
    plan = plan_of()
    assert plan.issues == []
    assert plan.require_ok()["training"]["epochs"] == 5
    assert plan.estimate == {
        "training_samples": 3216,
        "validation_samples": 804,
        "test_samples": 0,
        "steps_per_epoch": 26,
        "steps": 130,
        "seconds": None,
    }


def test_what_is_shuffled_together_is_fixed_at_submission():
    loader = plan_of().require_ok()["data"]["loader"]
    assert (loader["shuffle"], loader["shuffle_group"]) == ("full", "auto")
    big = DatasetFacts("weather", "ready", 4020, FIELDS, size_bytes=2**31)
    plan = make_plan(REQUEST, Facts({"weather": big}, devices=(CPU,)), CATALOG)
    loader = plan.require_ok()["data"]["loader"]
    assert (loader["shuffle"], loader["shuffle_group"]) == ("block", 16_384)
    assert plan.provenance["/data/loader/shuffle"] == {"value": "block", "source": "guard"}


@pytest.mark.parametrize(
    ("change", "data", "code"),
    [
        ({}, {"dataset": "wether"}, "correctness.dataset_not_found"),
        ({}, {"inputs": ["feature"]}, "correctness.unknown_array"),
        ({}, {"targets": ["target"]}, "correctness.unknown_array"),
        ({}, {"split": {"test_fraction": 0.0001}}, "correctness.empty_part"),
        ({"recipe": {"kind": "sequence", "patch": 7}}, None, "correctness.patch_size"),
        ({"checkpoint": {"monitor": "val_rmse"}}, None, "correctness.unknown_monitor"),
        ({"early_stopping": {"monitor": "val_acc"}}, None, "correctness.unknown_monitor"),
        (
            {"early_stopping": {}},
            {"split": {"validation_fraction": 0.0}},
            "correctness.no_validation",
        ),
        (
            {"early_stopping": {}, "evaluation": {"every_epochs": None}},
            None,
            "correctness.never_evaluated",
        ),
        (
            {"training": {"batch_size": 5000, "drop_last": True}},
            None,
            "correctness.no_training_steps",
        ),
        (
            {"runtime": {"device": "cpu", "precision": "tf32"}},
            None,
            "correctness.precision_needs_gpu",
        ),
        ({"runtime": {"precision": "fp16-mixed"}}, None, "correctness.precision_needs_gpu"),
        ({"accept_risks": ["speed.no_such_rule"]}, None, "correctness.unknown_risk"),
        ({"preset": "rtx-9000"}, None, "correctness.unknown_preset"),
        ({"epochs": 3}, None, "unknown_field"),
    ],
)
def test_each_error_is_found_and_its_fix_removes_it(change, data, code):
    plan = plan_of(change, data=data)
    assert [issue.code for issue in plan.errors] == [code]
    with pytest.raises(SpecRejected) as caught:
        plan.require_ok()
    assert caught.value.extensions["issues"][0]["code"] == code
    operations = [op.model_dump(mode="json") for op in plan.errors[0].fix]
    assert operations, "an error that can be mended by a patch says how"
    fixed = make_plan(jsonpatch.apply_patch(plan.request, operations), facts(), CATALOG)
    assert fixed.errors == []


def test_shapes_that_the_recipe_cannot_read_are_refused():
    image = DatasetFacts(
        "images",
        "ready",
        10,
        {"features": FieldFacts((3, 8, 8), "uint8"), "targets": FieldFacts((), "int64")},
        size_bytes=1,
    )
    plan = plan_of(data={"dataset": "images"}, known=facts(image))
    assert codes(plan) == ["correctness.array_shape", "correctness.array_shape"]


def test_a_dataset_that_is_not_ready_or_not_good_is_refused():
    waiting = DatasetFacts("new", "inspecting")
    broken = DatasetFacts("bad", "invalid", problems=("The file is truncated.",))
    known = facts(waiting, broken)
    assert codes(plan_of(data={"dataset": "new"}, known=known)) == ["correctness.dataset_not_ready"]
    plan = plan_of(data={"dataset": "bad"}, known=known)
    assert codes(plan) == ["correctness.dataset_invalid"]
    assert "truncated" in plan.issues[0].message


def test_validation_from_another_dataset_must_have_the_same_arrays():
    fields = {**FIELDS, "targets": FieldFacts((24,), "float32")}
    other = DatasetFacts("winter", "ready", 100, fields, size_bytes=1)
    split = {"method": "datasets", "validation": "winter"}
    plan = plan_of(data={"split": split}, known=facts(other))
    assert codes(plan) == ["correctness.array_mismatch"]
    assert plan.issues[0].loc == ["data", "split", "validation"]


def test_a_shuffle_group_asks_for_blocks():
    plan = plan_of(data={"loader": {"shuffle_group": 64}})
    loader = plan.require_ok()["data"]["loader"]
    assert (loader["shuffle"], loader["shuffle_group"]) == ("block", 64)


def test_without_a_validation_part_nothing_is_best_which_is_said():
    plan = plan_of(data={"split": {"validation_fraction": 0.0}})
    assert codes(plan) == ["learning.nothing_is_best"]
    silent = plan_of({"checkpoint": {"keep_best": 0}}, data={"split": {"validation_fraction": 0.0}})
    assert silent.issues == []


def test_a_run_that_nobody_can_claim_is_said_but_not_refused():
    assert codes(plan_of(known=facts(devices=()))) == ["speed.no_worker"]
    plan = plan_of({"runtime": {"device": "cuda"}})
    assert codes(plan) == ["speed.no_worker"]
    assert plan.errors == []


def refused_value(entry):
    candidates = ("probe", "board", "field", "dataloader", "plateau", "ema", "ladder", "rollback")
    values = (*candidates, "always", "max-autotune", 2, True, 0.001, ["a", "b"], {"run": 1})
    return next(value for value in values if entry.refuses(value))


@pytest.mark.parametrize("entry", UNAVAILABLE, ids=lambda entry: entry.pointer)
def test_every_option_that_comes_later_is_refused_and_says_so(entry):
    request: dict[str, Any] = {**REQUEST}
    *parents, last = entry.pointer.strip("/").split("/")
    block = request
    for part in parents:
        block[part] = dict(block.get(part, {}))
        block = block[part]
    block[last] = refused_value(entry)
    plan = make_plan(request, facts(), CATALOG)
    places = [issue.loc for issue in plan.errors if issue.code == "not_available_yet"]
    assert [entry.pointer.strip("/").split("/")] == places


def test_auto_picks_the_preset_of_the_device_and_says_its_batch_size():
    plan = plan_of(known=facts(devices=(CPU, GPU)))
    assert plan.require_ok()["preset"] == "rtx-24g"
    assert plan.provenance["/preset"]["source"] == "guard"
    assert plan.provenance["/training/batch_size"] == {"value": 192, "source": "preset:rtx-24g"}
    assert codes(plan) == ["learning.preset_batch_size"]


def test_the_request_goes_before_the_preset():
    plan = plan_of({"training": {"batch_size": 32}}, known=facts(devices=(GPU,)))
    assert plan.require_ok()["training"]["batch_size"] == 32
    assert plan.provenance["/training/batch_size"]["source"] == "request"
    assert plan.issues == []


def test_provenance_has_every_value_exactly_once():
    plan = plan_of({"training": {"epochs": 2}})
    assert {k: v["value"] for k, v in plan.provenance.items()} == dict(leaves(plan.spec))
