"""From a request to a plan: every bad spec has its issue, every fix mends what it names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest
from jsonpointer import JsonPointer

from app.cli.specs.fixing import mend
from app.errors import SpecRejected
from app.guard.case import Case
from app.guard.facts import DatasetFacts, Facts, FieldFacts
from app.guard.plan import RunPlan, make_plan, settle
from app.guard.resolve import resolve
from app.recipes.panel_graph import PanelGraph
from app.spec.availability import UNAVAILABLE
from app.spec.layers import leaves, overlay
from app.spec.recipe import Problem, Roles
from app.spec.stored import read_stored
from tests.guard.changes import CHUNKED, PANEL, PRETRAINED, PRICES, SORTED
from tests.guard.world import (
    CATALOG,
    CPU,
    FIELDS,
    GIB,
    HISTORY,
    HOST,
    REQUEST,
    RTX,
    as_measured,
    codes,
    parent_of,
    plan_of,
    point,
    weather,
    with_field,
    world,
)


def test_the_smallest_request_becomes_a_complete_spec():
    plan = plan_of(facts=world(history=None))
    assert plan.issues == []
    assert plan.require_ok()["training"]["epochs"] == 5
    assert plan.estimate == {
        "training_samples": 3216,
        "validation_samples": 804,
        "test_samples": 0,
        "steps_per_epoch": 26,
        "steps": 130,
        "seconds": None,
        "from_runs": [],
        "batch_worth": None,
    }


@pytest.mark.parametrize(
    ("precision", "device", "computes_in"),
    [
        ("auto", CPU, {"lstm": "fp32", "highway": "fp32", "head": "fp32", "weights": "fp32"}),
        ("bf16-mixed", CPU, {"lstm": "fp32", "highway": "fp32", "head": "bf16", "weights": "fp32"}),
        ("auto", RTX, {"lstm": "tf32", "highway": "tf32", "head": "bf16", "weights": "fp32"}),
        ("fp16-mixed", RTX, {"lstm": "fp16", "highway": "tf32", "head": "fp16", "weights": "fp32"}),
        ("tf32", RTX, {"lstm": "tf32", "highway": "tf32", "head": "tf32", "weights": "fp32"}),
        ("fp32", RTX, {"lstm": "fp32", "highway": "fp32", "head": "fp32", "weights": "fp32"}),
    ],
)
def test_a_plan_says_which_part_computes_in_what(precision, device, computes_in):
    plan = plan_of({"runtime": {"precision": precision}}, world(devices=(device,)))
    assert plan.computes_in == computes_in


def test_what_a_device_that_nobody_knows_computes_in_is_not_said():
    assert plan_of(facts=world(devices=())).computes_in is None


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        # 130 steps at 20 a second, 5 evaluations of 804 samples, as many new bests, the rest.
        ({}, 6.5 + 5 * 804 * 0.001 + 5 * 0.05 + 3),
        ({"checkpoint": {"keep_best": 0, "every_steps": 10}}, 6.5 + 4.02 + 13 * 0.05 + 3),
        ({"evaluation": {"max_batches": 2}}, 6.5 + 5 * 256 * 0.001 + 5 * 0.05 + 3),
    ],
)
def test_the_time_is_reckoned_with_the_figures_of_like_runs(change, seconds):
    history = replace(HISTORY, runs=(7, 4), evaluation_seconds=0.001, other_seconds=3.0)
    estimate = plan_of(change, world(history=history)).estimate
    assert estimate is not None
    assert (estimate["seconds"], estimate["from_runs"]) == (
        pytest.approx(seconds, abs=0.05),
        [7, 4],
    )


def order_of(plan: RunPlan) -> tuple[Any, ...]:
    """The order of samples that a plan's spec has."""
    loader = plan.require_ok()["data"]["loader"]
    return loader["shuffle"], loader["shuffle_group"], loader["shuffle_block"]


SMALL_HOST = replace(CPU, host=replace(HOST, available_bytes=2 * GIB))
"""A host that streams what takes more than about half a gigabyte."""


def test_what_is_shuffled_together_is_fixed_at_submission():
    """As a whole where the memory plan keeps it on the device, otherwise what a chunk holds."""
    assert order_of(plan_of()) == ("full", "auto", "auto")
    large = weather(samples=100_000)
    assert order_of(plan_of(facts=world(large))) == ("full", "auto", "auto")
    plan = plan_of(facts=world(large, devices=(SMALL_HOST,)))
    assert plan.memory is not None
    assert plan.memory["residency"] == "stream"
    kind, group, block = order_of(plan)
    assert (kind, block) == ("block", 2**16 // 21_744)
    assert group == plan.memory["chunk_samples"]
    assert group % block == 0
    assert plan.provenance["/data/loader/shuffle"] == {"value": "block", "source": "guard"}
    assert plan.provenance["/data/loader/shuffle_block"]["source"] == "guard"


@pytest.mark.parametrize(
    ("change", "facts", "expected"),
    [
        ({"chunk_size": "512MiB"}, {"samples": 60_000}, ("block", 24_576, 3)),
        # A chunk that holds all of it needs no blocks.
        ({"chunk_size": "100MiB"}, {}, ("full", "auto", "auto")),
        ({"chunk_size": "4MiB"}, {}, ("block", 192, 3)),
        # Each read waits for a server.
        ({"chunk_size": "512MiB"}, {"samples": 60_000, "network": True}, ("block", 24_576, 192)),
        # A part of the request stays as it is; a group has 16 blocks at least.
        ({"shuffle_group": 64}, {}, ("block", 64, 3)),
        ({"shuffle_group": 16}, {}, ("block", 16, 1)),
        ({"shuffle_block": 10, "chunk_size": "4MiB"}, {}, ("block", 190, 10)),
        ({"shuffle": "none", "chunk_size": "4MiB"}, {}, ("none", "auto", "auto")),
    ],
    ids=str,
)
def test_an_order_is_settled_by_the_chunk_that_is_planned(change, facts, expected):
    loader = {"residency": "stream", **change}
    plan = plan_of({"data": {"loader": loader}}, world(weather(**facts)))
    assert order_of(plan) == expected


@pytest.mark.parametrize(("rows", "block"), [(1, 3), (64, 64), (2, 4), (500, 500), (5_000, 1_542)])
def test_a_block_has_whole_storage_chunks(rows, block):
    """Or the file would be read once for each block that has a part of a chunk."""
    squeezed = with_field("features", storage="chunked", chunk_rows=rows, compression="gzip")
    data = replace(squeezed, samples=60_000)
    loader = {"residency": "stream", "chunk_size": "512MiB", "shuffle": "block"}
    case = settled_case({"data": {"loader": loader}}, world(data))
    assert case.shuffle.block == block


def settled_case(change: Mapping[str, Any], facts: Facts) -> Case:
    resolved = settle(resolve(overlay(REQUEST, change), CATALOG, facts), facts)
    assert resolved.spec is not None
    return Case(resolved.spec, facts)


@pytest.mark.parametrize(
    ("samples", "expected"), [(4_020, "full"), (190_000, "full"), (300_000, "block")]
)
def test_without_a_device_four_gigabytes_are_assumed(samples, expected):
    """The order is settled all the same, since the dataset is known."""
    plan = plan_of(facts=world(weather(samples=samples), devices=()))
    kind, group, _ = order_of(plan)
    assert kind == expected
    if kind == "block":
        assert GIB * 0.99 < group * 21_744 <= GIB


def test_the_order_follows_from_the_samples_and_not_from_the_file():
    """A file is smaller than its samples where it is compressed, larger with arrays beside."""
    for size_bytes in (GIB // 10, 20 * GIB):
        facts = world(weather(samples=60_000, size_bytes=size_bytes), devices=(SMALL_HOST,))
        assert order_of(plan_of(facts=facts))[0] == "block"


def test_the_order_is_settled_by_the_memory_that_like_runs_took():
    """A run on a GPU gets what they have left, which is more than where nothing was measured."""
    large = weather(samples=600_000)
    unmeasured = world(large, devices=(RTX,))
    assert order_of(plan_of(facts=unmeasured))[0] == "block"
    measured = as_measured({}, unmeasured, point(128, 900))
    assert order_of(plan_of(facts=measured)) == ("full", "auto", "auto")


def test_the_order_is_judged_as_it_is_stored():
    """`auto` is blocks here, though the file is small: the rule must not think otherwise."""
    squeezed = replace(SORTED, samples=60_000, size_bytes=GIB // 2)
    facts = world(squeezed, devices=(SMALL_HOST,))
    plan = plan_of({"data": {"split": {"method": "random"}}}, facts)
    assert codes(plan) == ["learning.sorted_blocks"]


def test_auto_is_let_through_on_a_compressed_file_that_is_streamed():
    squeezed = replace(CHUNKED, samples=60_000, size_bytes=int(0.9 * GIB))
    plan = plan_of(facts=world(squeezed, devices=(SMALL_HOST,)))
    assert plan.memory is not None
    assert (plan.memory["residency"], codes(plan)) == ("stream", [])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"accept_risks": ["speed.no_such_rule"]}, "correctness.unknown_risk"),
        ({"accept_risks": ["correctness.recipe_does_not_fit"]}, "correctness.risk_not_overridable"),
        ({"preset": "rtx24g"}, "correctness.unknown_preset"),
        ({"epochs": 3}, "unknown_field"),
        ({"recipe": {"patch": 7}}, "correctness.recipe_does_not_fit"),
    ],
)
def test_what_is_refused_has_issues_and_a_fix_that_passes(change, code):
    plan = plan_of(change)
    assert [issue.code for issue in plan.errors] == [code]
    with pytest.raises(SpecRejected) as caught:
        plan.require_ok()
    assert caught.value.extensions["issues"][0]["code"] == code
    operations = [op.model_dump(mode="json") for op in plan.errors[0].fix]
    fixed = make_plan(jsonpatch.apply_patch(plan.request, operations), world(), CATALOG)
    assert fixed.errors == []


def test_a_preset_that_nobody_can_guess_has_no_fix():
    (issue,) = plan_of({"preset": "mine"}).errors
    assert (issue.code, issue.fix) == ("correctness.unknown_preset", [])
    assert "there are a100-80g, cpu," in issue.message


@pytest.mark.parametrize("code", ["xyzzy", "sped.*", "learning.random_reads_of_chunks"])
def test_a_risk_that_nobody_knows_is_asked_back(code):
    (issue,) = plan_of({"accept_risks": [code]}).errors
    assert issue.code == "correctness.unknown_risk"
    meant = {"sped.*": "speed.*", "learning.random_reads_of_chunks": "speed.random_reads_of_chunks"}
    assert ("Did you mean" in issue.message) == (code in meant)
    assert meant.get(code, "no rule") in issue.message


@pytest.mark.parametrize(
    ("asked", "mended"),
    [
        (["learning.never_anneal"], ["learning.never_anneals"]),
        (["speed.*", "sped.*"], ["speed.*"]),
        (["speed.everything", "learning.never_anneals"], ["learning.never_anneals"]),
        (["correctness.recipe_does_not_fit"], []),
        (["corectness.recipe_does_not_fit"], []),
        (["correctness.*", "nonsense.*", "*"], []),
    ],
)
def test_a_misspelt_risk_becomes_what_was_meant_and_never_one_that_cannot_be_accepted(
    asked, mended
):
    issue = plan_of({"accept_risks": asked}).errors[0]
    (operation,) = issue.fix
    assert operation.value == mended


def test_the_array_that_is_the_target_is_not_offered_as_an_input():
    plan = plan_of({"data": {"inputs": ["target"]}})
    (issue,) = plan.errors
    assert issue.code == "correctness.unknown_array"
    assert "Did you mean features?" in issue.message  # which alone is left
    assert "data.inputs and data.targets name arrays" in issue.why


def test_the_sentence_of_an_invalid_dataset_is_that_of_its_inspection():
    torn = DatasetFacts("bad", "invalid", problems=("The file is truncated.",))
    plan = plan_of({"data": {"dataset": "bad"}}, world(torn))
    assert codes(plan) == ["correctness.dataset_invalid"]
    assert "truncated" in plan.issues[0].message


def test_both_shapes_that_a_recipe_cannot_read_are_named():
    fields = {"features": FieldFacts((3, 8, 8), "uint8"), "targets": FieldFacts((2, 2, 2), "int8")}
    plan = plan_of(facts=world(weather(fields=fields)))
    assert codes(plan) == ["correctness.array_shape", "correctness.array_shape"]


def test_a_run_that_nobody_can_claim_is_said_but_not_refused():
    assert codes(plan_of(facts=world(devices=()))) == ["speed.no_worker"]
    plan = plan_of({"runtime": {"device": "cuda"}})
    assert codes(plan) == ["speed.no_worker"]
    assert plan.errors == []


def with_refused_value(entry):
    """A request that is whole but for this option, so that every rule judges it."""
    words = ("probe", "field")
    values = (2, 0.001, True, {"run": 1}, ["a", "b"], *words, "always", "max-autotune")
    *parents, last = entry.pointer.strip("/").split("/")
    for value in filter(entry.refuses, values):
        change: dict[str, Any] = {last: value, **({"field": "part"} if value == "field" else {})}
        for part in reversed(parents):
            change = {part: change}
        request = overlay(REQUEST, change)
        if resolve(request, CATALOG, world()).spec is not None:
            return request
    raise AssertionError(entry.pointer)


@pytest.mark.parametrize("entry", UNAVAILABLE, ids=lambda entry: entry.pointer)
def test_every_option_that_comes_later_is_refused_and_says_so(entry):
    plan = make_plan(with_refused_value(entry), world(), CATALOG)
    places = [issue.loc for issue in plan.errors if issue.code == "not_available_yet"]
    assert [entry.pointer.strip("/").split("/")] == places


def test_an_option_that_comes_later_hides_no_other_error_of_its_block():
    def found(change: dict[str, Any]) -> set[tuple[str, str]]:
        return {(i.code, ".".join(map(str, i.loc))) for i in plan_of(change).errors}

    assert found({"runtime": {"gpus": 2, "precision": "fp12", "treads": 3}}) == {
        ("not_available_yet", "runtime.gpus"),
        ("wrong_value", "runtime.precision"),
        ("unknown_field", "runtime.treads"),
    }


def test_auto_picks_the_preset_of_the_device_and_a_named_one_says_its_batch_size():
    facts = world(devices=(CPU, RTX))
    plan = plan_of(facts=facts)
    assert plan.require_ok()["preset"] == "rtx-24g"
    assert plan.provenance["/preset"]["source"] == "guard"
    assert plan.provenance["/training/batch_size"] == {"value": 128, "source": "default"}
    assert codes(plan) == []
    plan = plan_of({"preset": "rtx-24g"}, facts)
    assert plan.provenance["/training/batch_size"] == {"value": 192, "source": "preset:rtx-24g"}
    assert codes(plan) == ["learning.preset_batch_size"]


def test_the_request_goes_before_the_preset():
    plan = plan_of({"training": {"batch_size": 32}}, facts=world(devices=(RTX,)))
    assert plan.require_ok()["training"]["batch_size"] == 32
    assert plan.provenance["/training/batch_size"]["source"] == "request"
    assert plan.issues == []


def test_provenance_has_every_value_exactly_once():
    plan = plan_of({"training": {"epochs": 2}})
    assert {k: v["value"] for k, v in plan.provenance.items()} == dict(leaves(plan.spec))


def test_an_accepted_risk_is_a_warning_that_says_so():
    refused = {"training": {"batch_size": 128, "gradient_accumulation_steps": 27}}
    code = "learning.accumulation_beyond_epoch"
    assert [issue.code for issue in plan_of(refused).errors] == [code]
    for accepted in (code, "learning.*"):
        plan = plan_of({**refused, "accept_risks": [accepted]})
        assert plan.errors == []
        issue = next(i for i in plan.issues if i.code == code)
        assert (issue.severity, issue.accepted) == ("warning", True)


def test_with_strictness_warn_only_speed_is_let_through():
    slow = {
        "checkpoint": {"keep_best": 0},
        "training": {"epochs": 300, "batch_size": 128, "gradient_accumulation_steps": 27},
        "evaluation": {"every_steps": 1},
    }
    facts = world(history=replace(HISTORY, evaluation_seconds=0.01))
    plan = make_plan({**REQUEST, **slow}, facts, CATALOG, "warn")
    severities = {issue.code: issue.severity for issue in plan.issues}
    assert severities == {
        "speed.evaluation_share": "warning",
        "learning.accumulation_beyond_epoch": "error",  # it does not do what it says
    }
    waived = {issue.code for issue in plan.issues if issue.waived_by == "site"}
    assert waived == {"speed.evaluation_share"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"presets": ["cpu"]}, "/preset"),
        ({"training": {"batch_sizes": "big"}}, "/training/batch_size"),
        ({"evaluation": {"metric": "rmse"}}, "/evaluation/metrics"),
    ],
)
def test_a_misspelt_field_is_not_mended_to_a_value_that_cannot_be_there(change, place):
    (issue,) = plan_of(change).issues
    assert (issue.code, issue.fix) == ("unknown_field", [])
    assert f"Did you mean {place.strip('/').replace('/', '.')}?" in issue.message


def test_a_misspelt_field_of_a_misspelt_value_is_mended_in_two_rounds():
    request = overlay(REQUEST, {"recipe": {"losss": "MAE"}, "runtime": {"devices": "CUDA"}})

    def planned(changed: dict[str, Any]) -> dict[str, Any]:
        plan = make_plan(changed, world(), CATALOG)
        return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}

    mended = mend(request, planned)
    assert mended.is_accepted
    assert (mended.request["recipe"]["loss"], mended.request["runtime"]["device"]) == (
        "mae",
        "cuda",
    )


def test_a_restart_is_not_refused_for_a_slowness_that_its_parent_was_accepted_with():
    """What checkpoints cost may be known only since the parent ran."""
    saving = {"every_seconds": None, "keep_best": 0, "every_steps": 2}
    often = {"checkpoint": saving, "training": {"epochs": 300}}
    rare = {**often, "checkpoint": {**saving, "every_steps": 2000}}
    parents = {"often": parent_of(often, 100), "rare": parent_of(rare, 100)}
    parents["unsaved"] = replace(parents["often"], carried=None)
    told = replace(world(), history=replace(HISTORY, checkpoint_seconds=2.0))
    for name, parent in parents.items():
        severity, waiver = ("error", None) if name == "rare" else ("warning", "parent")
        plan = plan_of(often, replace(told, parent=parent))
        (issue,) = [i for i in plan.issues if i.code == "speed.frequent_checkpoints"]
        assert (issue.severity, issue.waived_by) == (severity, waiver), name
    oftener = {**often, "checkpoint": {**saving, "every_steps": 1}}
    plan = plan_of(oftener, replace(told, parent=parents["often"]))
    assert [i.code for i in plan.errors] == ["speed.frequent_checkpoints"], "worse than its parent"
    took_the_risk = replace(told, parent=parent_of({**often, "accept_risks": ["speed.*"]}, 100))
    assert plan_of(often, took_the_risk).errors, "what was accepted can be taken back"
    accepted = {**often, "accept_risks": ["speed.*"]}
    plan = plan_of(accepted, replace(told, parent=parents["often"]))
    (issue,) = [i for i in plan.issues if i.code == "speed.frequent_checkpoints"]
    assert (issue.accepted, issue.waived_by) == (True, None)


def test_a_rule_that_lacks_a_fact_is_named_with_it():
    plan = plan_of({"policy": {"max_duration_seconds": 9}}, replace(world(), history=None))
    lacking = {entry.code: entry.missing for entry in plan.unchecked}
    assert lacking["learning.ends_before_its_epochs"] == "how fast runs like it are"
    assert plan.errors == []


def test_the_fix_of_an_error_leaves_what_was_chosen_though_it_is_warned_of():
    """With evaluations a patience of 5 may act before the rate has annealed: that may be meant."""
    change = {
        "training": {"epochs": 20, "batch_size": 128},
        "evaluation": {"every_epochs": None},
        "early_stopping": {"patience": 5},
    }
    plan = plan_of(change)
    (error,) = plan.errors
    assert error.code == "correctness.never_evaluated"
    assert [(op.path, op.value) for op in error.fix] == [("/evaluation/every_epochs", 1)]
    fixed = jsonpatch.apply_patch(plan.request, [op.model_dump(mode="json") for op in error.fix])
    after = make_plan(fixed, world(), CATALOG)
    assert after.errors == []
    (warning,) = after.issues
    assert warning.code not in codes(plan)
    assert [op.path for op in warning.fix] == ["/early_stopping/patience"]


def spec_fields(plan, *pointers):
    spec = plan.require_ok()
    return [JsonPointer(pointer).resolve(spec) for pointer in pointers]


ROLES = ("/data/inputs", "/data/targets")
TIMEFRAMES = {
    **{name: replace(FIELDS["features"], shape=(48, 15)) for name in ("d1", "h1")},
    "targets": FIELDS["targets"],
}


def test_the_file_says_which_arrays_are_inputs_and_in_which_order():
    of_file = weather(fields=TIMEFRAMES, roles=Roles(("h1", "d1"), ("targets",)))
    plan = plan_of(facts=world(of_file))
    assert spec_fields(plan, *ROLES) == [["h1", "d1"], ["targets"]]
    assert plan.provenance["/data/inputs"] == {"value": ["h1", "d1"], "source": "guard"}
    assert plan.provenance["/data/targets"]["source"] == "default"
    named = plan_of({"data": {"inputs": ["d1"]}}, world(of_file))
    assert spec_fields(named, *ROLES) == [["d1"], ["targets"]]
    assert named.provenance["/data/inputs"]["source"] == "request"


def test_without_the_files_word_arrays_of_the_usual_names_are_taken():
    beside = replace(FIELDS["features"], shape=(360, 2))
    plan = plan_of(facts=world(weather(fields={"aside": beside, **FIELDS})))
    assert spec_fields(plan, *ROLES) == [["features"], ["targets"]]


def test_of_other_names_the_recipe_takes_what_its_shapes_tell():
    whole = replace(FIELDS["targets"], shape=(), dtype="int64")
    fields = {"x": FIELDS["features"], "y": FIELDS["targets"], "ends": whole}
    plan = plan_of(facts=world(weather(fields=fields)))
    assert spec_fields(plan, *ROLES) == [["x"], ["y"]]


def test_roles_that_the_recipe_cannot_train_on_are_not_taken():
    """They are for another recipe."""
    cubes = replace(FIELDS["features"], shape=(2, 2, 2))
    of_file = weather(fields={"cubes": cubes, **FIELDS}, roles=Roles(("cubes",), ("targets",)))
    assert spec_fields(plan_of(facts=world(of_file)), *ROLES) == [["features"], ["targets"]]


def test_arrays_that_do_not_tell_are_named_in_the_error():
    fields = dict.fromkeys(("left", "right"), FIELDS["features"])
    (error,) = (
        one
        for one in plan_of(facts=world(weather(fields=fields))).errors
        if one.loc[1:2] == ["inputs"]
    )
    assert (error.code, error.loc) == ("correctness.unknown_array", ["data", "inputs", 0])
    assert "it has left, right" in error.message


def test_a_default_of_the_recipe_that_does_not_fit_the_arrays_gives_way():
    """But not one that the request has."""
    facts = world(
        weather(fields={**FIELDS, "features": replace(FIELDS["features"], shape=(50, 15))})
    )
    plan = plan_of(facts=facts)
    assert spec_fields(plan, "/recipe/patch") == [5]
    assert plan.provenance["/recipe/patch"] == {"value": 5, "source": "guard"}
    (error,) = plan_of({"recipe": {"patch": 6}}, facts).errors
    assert error.loc == ["recipe", "patch"]


@pytest.mark.parametrize(
    ("fix", "settled"),
    [
        ({"/recipe/graph": {"layers": 3}}, True),
        ({"/recipe/graph/layers": 3}, True),
        ({"/recipe/graph": {"layers": "three"}}, False),
    ],
    ids=["block", "field", "mistaken"],
)
def test_a_fix_of_a_recipe_may_be_a_block(monkeypatch, fix, settled):
    """A plugin may offer one. What its own schema refuses is told and not done."""

    def problems(recipe, data, arrays):
        if recipe.graph is None or recipe.graph.layers != 3:
            yield Problem(("recipe", "graph"), "There are 3 kinds.", "Each takes a layer.", fix)

    monkeypatch.setattr(PanelGraph, "problems", problems)
    plan = plan_of(PANEL, world(PRICES))
    assert (plan.errors == []) is settled
    if settled:
        recipe = read_stored(plan.require_ok()).recipe
        assert isinstance(recipe, PanelGraph)
        assert recipe.graph is not None
        usual = PanelGraph(kind="panel-graph").graph
        assert usual is not None
        assert recipe.graph == usual.model_copy(update={"layers": 3})
        assert plan.require_ok()["recipe"]["graph"] == recipe.graph.model_dump(mode="json")
        sources = {
            place: entry["source"]
            for place, entry in plan.provenance.items()
            if place.startswith("/recipe/graph")
        }
        assert sources.pop("/recipe/graph/layers") == "guard"
        assert set(sources.values()) == {"default"}
    else:
        (error,) = plan.errors
        assert (error.message, error.fix) == ("There are 3 kinds.", [])


@pytest.mark.parametrize(
    ("shape", "change", "fusion", "source"),
    [
        ({}, {}, "attention", "guard"),
        ({"fusion": "block"}, {}, "block", "default"),
        ({"fusion": "attention"}, {}, "attention", "guard"),
        ({}, {"recipe": {"fusion": "block"}}, "block", "request"),
        ({}, {"init_from": {"run": 7, "prefix": "encoder."}}, "block", "default"),
    ],
    ids=["an earlier version", "block", "attention", "named", "a part"],
)
def test_a_run_has_the_shape_of_the_weights_that_it_begins_with(shape, change, fusion, source):
    """Of what an earlier version did otherwise."""
    facts = replace(PRETRAINED, shape={"recipe": {"hidden_size": 64, **shape}})
    plan = plan_of(overlay({"init_from": {"run": 7}}, change), world(source=facts))
    assert plan.spec is not None
    assert plan.spec["recipe"]["fusion"] == fusion
    assert plan.provenance["/recipe/fusion"] == {"value": fusion, "source": source}


BOARD = {"recipe": {"kind": "board", "stage": "legal", "planes": 18}}
MOLECULE = {"recipe": {"kind": "molecule", "task": "regression"}}
BITS = {"planes": FieldFacts((144,), "uint8"), "legal": FieldFacts((584,), "uint8")}
MONITORS = ("/checkpoint/monitor", "/checkpoint/mode", "/evaluation/metrics")


@pytest.mark.parametrize(
    ("recipe", "change", "monitors"),
    [
        (BOARD, {}, ["val_f1", "max", ["f1"]]),
        ({"recipe": {**BOARD["recipe"], "stage": "play"}}, {},
         ["val_policy_loss", "min", ["policy_accuracy", "policy_loss"]]),
        (BOARD, {"evaluation": {"metrics": ["exact"]}}, ["val_loss", "min", ["exact"]]),
        (BOARD, {"checkpoint": {"monitor": "val_loss"}}, ["val_loss", "min", ["f1"]]),
        ({}, {}, ["val_loss", "min", ["mae"]]),
        ({"recipe": {"kind": "molecule", "task": "classification"}}, {},
         ["val_balanced_accuracy", "max", ["accuracy", "balanced_accuracy"]]),
    ],
)  # fmt: skip
def test_a_monitor_that_is_not_named_is_the_recipes_own(recipe, change, monitors):
    change = overlay(recipe, {"early_stopping": {}, "schedule": {"kind": "plateau"}, **change})
    spec = resolve(overlay(REQUEST, change), CATALOG, world()).document or {}
    assert [JsonPointer(one).resolve(spec) for one in MONITORS] == monitors
    if "checkpoint" not in change:
        for block in ("early_stopping", "schedule"):
            assert [spec[block]["monitor"], spec[block]["mode"]] == monitors[:2]


@pytest.mark.parametrize(
    ("recipe", "scaled"),
    [
        ({}, {"inputs": True, "targets": True}),
        (BOARD, {"inputs": False, "targets": False}),
        (MOLECULE, {"inputs": False, "targets": True}),
        (overlay(MOLECULE, {"recipe": {"task": "masked"}}), {"inputs": False, "targets": False}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [{}, {"inputs": "auto", "targets": "auto"}], ids=["", "auto"])
def test_what_is_no_quantity_is_not_standardized_unless_the_request_says_so(recipe, scaled, given):
    change = {**recipe, "data": {"standardize": given}}
    spec = resolve(overlay(REQUEST, change), CATALOG, world()).document or {}
    assert spec["data"]["standardize"] == scaled


def test_standardized_bits_are_refused_where_the_request_asks_for_them():
    facts = world(weather(fields=BITS))
    assert plan_of(BOARD, facts).errors == []
    asked = plan_of({**BOARD, "data": {"standardize": {"inputs": True}}}, facts)
    (error,) = asked.errors
    assert (error.code, error.loc) == ("correctness.array_shape", ["data", "standardize"])


@pytest.mark.parametrize("names", [("my window",), tuple(f"a{n}" for n in range(18))], ids=len)
def test_roles_of_a_file_that_no_spec_may_have_are_not_taken(names):
    """What is accepted can be read back by the worker."""
    fields = {**FIELDS, **dict.fromkeys(names, FIELDS["features"])}
    facts = world(weather(fields=fields, roles=Roles(names, ("targets",))))
    plan = plan_of(facts=facts)
    assert read_stored(plan.require_ok()).data.inputs == ("features",)


def test_only_the_batches_that_are_evaluated_take_memory():
    """As the trainer keeps them."""
    change = {"data": {"split": {"validation_fraction": 0.5}}}
    for more, held_out in (({}, 2010), ({"evaluation": {"max_batches": 1}}, 128)):
        spec = read_stored(plan_of({**change, **more}).require_ok())
        assert Case(spec, world()).workload.need.held_out == (held_out,)
