"""What a restart carries over follows from what changed."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import InvalidRequest
from app.guard.facts import Facts, FieldFacts, ParentFacts
from app.guard.inheritance import inherited
from app.guard.patching import apply_json_patch, apply_merge_patch
from app.guard.plan import gap_was_settled, make_plan, settle
from app.guard.presets.catalog import load_catalog
from app.guard.resolve import resolve
from app.planning.carry import LONGEST_VALUE, carry_between, differences_between
from app.planning.shuffle import Shuffle, stored_shuffle
from app.recipes.sequence import Sequence
from app.spec.data import RandomSplit
from app.spec.layers import leaves
from app.spec.optimization import ExponentialAveraging
from app.spec.parse import parse_spec
from app.spec.recipe import Roles
from app.spec.stored import read_stored
from tests.guard.world import CPU, FIELDS, GIB, codes, parent_of, plan_of, weather, world

CATALOG = load_catalog(Path("/nonexistent"))
REQUEST = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}


def spec_of(request):
    return make_plan(request, Facts(), CATALOG).spec


def carry(patch):
    return carry_between(spec_of(REQUEST), spec_of(apply_merge_patch(REQUEST, patch)))


@pytest.mark.parametrize(
    ("patch", "kind"),
    [
        ({}, "full"),
        ({"name": "again", "training": {"epochs": 9}}, "full"),
        ({"policy": {"max_retries": 0}, "evaluation": {"every_steps": 5}}, "full"),
        ({"data": {"loader": {"residency": "stream"}}, "runtime": {"threads": 1}}, "full"),
        ({"early_stopping": {"patience": 2}}, "full"),
        ({"training": {"batch_size": 64}}, "weights"),
        ({"optimizer": {"lr": 0.1}}, "weights"),
        ({"schedule": {"kind": "constant"}}, "weights"),
        ({"data": {"loader": {"shuffle": "none"}}}, "weights"),
        ({"recipe": {"hidden_size": 32}}, "scratch"),
        ({"recipe": {"encoder": "gru"}, "training": {"batch_size": 1}}, "scratch"),
    ],
)
def test_what_is_carried(patch, kind):
    result = carry(patch)
    assert result.kind == kind
    assert bool(result.starts_anew) == (kind != "full")


def test_a_field_that_the_recipe_did_not_have_when_a_run_was_stored_has_not_changed():
    recipe = {**REQUEST["recipe"], **Sequence.earlier}
    stored = spec_of({**REQUEST, "recipe": recipe})
    older = {**stored, "recipe": {"kind": "sequence", "hidden_size": 64, "patch": 6}}
    assert carry_between(older, stored).kind == "full"


BY_TORCH = {"kind": "dataloader", "num_workers": 4, "prefetch_factor": 8, "pin_memory": True}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"shuffle": "full"}, BY_TORCH, ()),
        ({"shuffle": "none"}, {**BY_TORCH, "shuffle": "none"}, ()),
        ({"shuffle": "block"}, BY_TORCH, ("/data/loader/shuffle",)),
        ({"shuffle": "full"}, {**BY_TORCH, "shuffle": "none"}, ("/data/loader/shuffle",)),
        (
            {"shuffle": "block", "shuffle_group": 64},
            {"shuffle": "block", "shuffle_group": 128},
            ("/data/loader/shuffle_group",),
        ),
    ],
)
def test_another_loader_carries_the_whole_state_where_the_order_is_the_same(before, after, changed):
    """Both ways; otherwise the weights, and the answer says what decided."""
    specs = [
        spec_of({**REQUEST, "data": {"dataset": "weather", "loader": loader}})
        for loader in (before, after)
    ]
    for parent, child in (specs, reversed(specs)):
        found = carry_between(parent, child)
        assert found.kind == ("weights" if changed else "full")
        if changed:
            assert set(changed) <= set(found.changed)


def test_every_change_is_named_and_what_decided_among_them():
    plan = carry({"training": {"batch_size": 64, "epochs": 7}, "name": "again"})
    assert plan.changed == ("/name", "/training/batch_size", "/training/epochs")
    assert plan.decided == ("/training/batch_size",)
    assert plan.why == "The model has the same shape, but training.batch_size changed."
    assert [(one.before, one.after) for one in plan.differences[1:]] == [(128, 64), (5, 7)]
    shape = carry({"recipe": {"hidden_size": 32}, "optimizer": {"lr": 0.01}})
    assert shape.changed == ("/optimizer/lr", "/recipe/hidden_size")
    assert shape.decided == ("/recipe/hidden_size",)
    whole = carry({"training": {"epochs": 7}, "priority": 3})
    assert (whole.changed, whole.decided) == (("/priority", "/training/epochs"), ())


def test_the_differences_of_a_script_are_named_too():
    before = {"recipe": {"kind": "script", "params": {"lr": 0.1}}, "policy": {"max_retries": 3}}
    after = {"recipe": {"kind": "script", "params": {"lr": 0.2}}, "policy": {"max_retries": 3}}
    (one,) = differences_between(before, after)
    assert (one.pointer, one.before, one.after) == ("/recipe/params/lr", 0.1, 0.2)


def test_a_long_value_of_a_difference_is_cut():
    (one,) = carry({"notes": "x" * 5_000}).differences
    assert len(one.after) == LONGEST_VALUE + 1
    assert one.before == ""


def test_json_patch_operations_apply_to_the_request():
    patched = apply_json_patch(REQUEST, [{"op": "add", "path": "/notes", "value": "x"}])
    assert patched == {**REQUEST, "notes": "x"}
    assert "notes" not in REQUEST


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/nothing/here", "value": 1},
        {"op": "jump", "path": "/notes"},
        {"path": "/notes"},
        {"op": "add", "path": "notes", "value": 1},
        {"op": "replace", "path": "", "value": 3},
        7,
    ],
)
def test_an_operation_that_does_not_apply_is_refused_with_a_sentence(operation):
    with pytest.raises(InvalidRequest):
        apply_json_patch(REQUEST, [operation])


def test_operations_that_double_the_document_end_in_time():
    double = [{"op": "copy", "from": "/labels", "path": f"/labels/x{n}"} for n in range(40)]
    start = [{"op": "add", "path": "/labels", "value": {"a": "b"}}]
    with pytest.raises(InvalidRequest, match="over 10,000 values"):
        apply_json_patch(REQUEST, start + double)


def test_a_test_that_fails_is_told_without_names_of_pythons_types():
    operation = {"op": "test", "path": "/recipe/kind", "value": 7}
    with pytest.raises(InvalidRequest, match="sequence is not equal to tested value 7") as caught:
        apply_json_patch(REQUEST, [operation])
    assert "class" not in caught.value.detail


def test_a_finished_run_may_be_tested_by_other_metrics():
    tested = {"data": {"split": {"validation_fraction": 0.2, "test_fraction": 0.1}}}
    done = parent_of(tested, 130, succeeded=True)
    facts = world(parent=done)
    assert "correctness.nothing_left" in codes(plan_of(tested, facts))
    other = {**tested, "evaluation": {"metrics": ["mae", "rmse"]}}
    assert "correctness.nothing_left" not in codes(plan_of(other, facts))
    untested = {"evaluation": {"metrics": ["mae", "rmse"]}}
    assert "correctness.nothing_left" in codes(plan_of(untested, facts))


def test_a_restart_of_a_run_from_before_there_were_gaps_is_split_as_that_was():
    """Its spec is stored without; with other parts its state could not be carried."""
    facts = world(weather(window_steps={"features": 1}))
    parent = parent_of({}, 100)
    stored = parent.spec.model_dump(mode="json")
    del stored["data"]["split"]["gap"]
    spec, _ = parse_spec(stored)
    assert spec is not None
    child = plan_of(facts=replace(facts, parent=replace(parent, spec=spec))).require_ok()
    assert child["data"]["split"]["gap"] == 0
    assert carry_between(stored, child).kind == "full"
    anew = plan_of(facts=facts).require_ok()
    assert anew["data"]["split"]["gap"] == 395
    assert carry_between(stored, anew).changed == ("/data/split/gap",)


@pytest.mark.parametrize(("asked", "gap"), [(3, 395), ("auto", 0)])
def test_a_restart_can_leave_the_gap_that_its_parent_asked_for(asked, gap):
    """One that was settled for the parent is kept, for its state is of those parts."""
    chosen = plan_of({"data": {"split": {"gap": asked}}})
    spec, _ = parse_spec(chosen.require_ok())
    assert spec is not None
    parent = ParentFacts(spec, gap_was_settled=gap_was_settled(chosen.provenance))
    facts = world(weather(window_steps={"features": 1}), parent=parent)
    assert plan_of(facts=facts).require_ok()["data"]["split"]["gap"] == gap


def test_a_finished_run_goes_on_by_the_limit_that_ended_it():
    constant = {"schedule": {"kind": "constant"}}
    for training, field in (
        ({"max_steps": 1_000}, "epochs"),
        ({"max_steps": 100}, "max_steps"),
    ):
        request = {**constant, "training": {"epochs": 5, **training}}
        done = parent_of(request, min(130, training["max_steps"]), succeeded=True)
        plan = plan_of(request, world(parent=done))
        (issue,) = [one for one in plan.issues if one.code == "correctness.nothing_left"]
        assert issue.loc == ["training", field]
        assert ("/training/max_steps" in str(issue.fix)) == (field == "max_steps")


RANDOM = {"data": {"split": {"method": "random"}}, "training": {"seed": 3}}


def without(pointer, change):
    """The request, spec and provenance of a run that a version without this field stored."""
    plan = plan_of(change)
    spec = deepcopy(plan.require_ok())
    *blocks, name = pointer.strip("/").split("/")
    block = spec
    for part in blocks:
        block = block[part]
    del block[name]
    provenance = {at: one for at, one in plan.provenance.items() if at != pointer}
    return plan.request, spec, provenance


def without_split_seed(change):
    return without("/data/split/seed", change)


def planned_restart(parent, patch, facts=None):
    """The child's plan, as the service makes it."""
    request, spec, provenance = parent
    patched, named = apply_merge_patch(request, patch), [at for at, _ in leaves(patch)]
    taken = inherited(patched, spec, provenance, CATALOG, named if patch else ())
    facts = facts or world()
    resolved = settle(resolve(patched, CATALOG, facts, taken), facts)
    return make_plan(patched, facts, CATALOG, resolved=resolved)


def split_of(stored):
    return read_stored(stored).data.split


def test_a_random_split_from_before_it_had_a_seed_was_drawn_by_that_of_the_training():
    _, spec, _ = without_split_seed(RANDOM)
    assert split_of(spec) == RandomSplit(method="random", seed=3)
    assert "seed" not in spec["data"]["split"]
    assert split_of(plan_of(RANDOM).require_ok()) == RandomSplit(method="random", seed=0)


@pytest.mark.parametrize(
    ("patch", "seed", "source"),
    [
        ({}, 3, "parent"),
        ({"training": {"seed": 1}}, 3, "parent"),
        ({"data": {"split": {"validation_fraction": 0.1}}}, 3, "parent"),
        ({"data": {"split": {"seed": 4}}}, 4, "request"),
        ({"data": {"split": {"seed": None}}}, 0, "default"),
    ],
    ids=str,
)
def test_a_restart_keeps_what_its_parents_version_meant(patch, seed, source):
    """And so does the restart of that restart, whose parent has the value explicitly."""
    parent = without_split_seed(RANDOM)
    for _ in range(2):
        plan = planned_restart(parent, patch)
        child = plan.require_ok()
        assert child["data"]["split"]["seed"] == seed
        assert plan.provenance["/data/split/seed"] == {"value": seed, "source": source}
        parent, patch = (plan.request, child, plan.provenance), {}


@pytest.mark.parametrize(
    ("patch", "fusion", "carry"),
    [
        ({"training": {"epochs": 6}}, "attention", "full"),
        ({"recipe": {"fusion": "block"}}, "block", "scratch"),
    ],
    ids=str,
)
def test_a_restart_keeps_a_value_whose_default_was_another(patch, fusion, carry):
    """An earlier version stored attention, which was the only one and the default."""
    plan = plan_of()
    spec = deepcopy(plan.require_ok())
    spec["recipe"]["fusion"] = "attention"
    entry = {"value": "attention", "source": "default"}
    parent = plan.request, spec, {**plan.provenance, "/recipe/fusion": entry}
    child = planned_restart(parent, patch).require_ok()
    assert child["recipe"]["fusion"] == fusion
    assert carry_between(spec, child).kind == carry


def test_what_a_parent_had_is_not_kept_in_a_block_of_another_kind():
    parent = without_split_seed(RANDOM)
    for split in ({"method": "chronological"}, None):
        plan = planned_restart(parent, {"data": {"split": split}})
        assert plan.require_ok()["data"]["split"]["method"] == "chronological"
        assert "/data/split/seed" not in plan.provenance


def test_a_restart_that_changes_nothing_carries_all_from_before_there_were_split_seeds():
    parent = without_split_seed(RANDOM)
    child = planned_restart(parent, {}).require_ok()
    assert carry_between(parent[1], child).kind == "full"


LEGAL = {"recipe": {"kind": "board", "stage": "legal", "planes": 18}}
BITS = {
    "planes": FieldFacts((144,), "uint8"),
    "legal": FieldFacts((584,), "uint8"),
    "move": FieldFacts((), "int16"),
    "value": FieldFacts((), "int8"),
}
BOARD = world(weather(fields=BITS))


def watching_the_loss(change):
    """The request, spec and provenance of a run of the version whose monitors were all val_loss."""
    plan = plan_of(change, BOARD)
    spec = deepcopy(plan.require_ok())
    spec["checkpoint"] |= {"monitor": "val_loss", "mode": "min"}
    return plan.request, spec, plan.provenance


@pytest.mark.parametrize(
    ("patch", "monitor"),
    [
        ({"training": {"seed": 1}}, ("val_loss", "min")),
        ({"recipe": {"channels": 32}}, ("val_loss", "min")),
        ({"checkpoint": {"monitor": "val_f1"}}, ("val_f1", "max")),
        ({"checkpoint": {"monitor": None}}, ("val_f1", "max")),
        ({"recipe": {"stage": "play"}}, ("val_policy_loss", "min")),
    ],
    ids=str,
)
def test_a_restart_watches_what_its_parent_did_unless_the_recipe_scores_otherwise(patch, monitor):
    for parent_of_parent in ({}, {"name": "again"}):
        parent = watching_the_loss(LEGAL)
        if parent_of_parent:
            plan = planned_restart(parent, parent_of_parent, BOARD)
            parent = plan.request, plan.require_ok(), plan.provenance
        child = planned_restart(parent, patch, BOARD).require_ok()
        assert (child["checkpoint"]["monitor"], child["checkpoint"]["mode"]) == monitor


def test_other_metrics_of_a_restart_give_it_a_monitor_among_them():
    parent = plan_of(LEGAL, BOARD)
    documents = parent.request, parent.require_ok(), parent.provenance
    child = planned_restart(documents, {"evaluation": {"metrics": ["exact"]}}, BOARD).require_ok()
    assert child["checkpoint"]["monitor"] == "val_loss"


def test_a_restart_keeps_the_roles_of_its_parent_unless_the_recipe_wants_others():
    parent = plan_of(LEGAL, BOARD)
    documents = parent.request, parent.require_ok(), parent.provenance
    registered_anew = replace(weather(fields=BITS), roles=Roles(("legal",), ("planes",)))
    same = planned_restart(documents, {"name": "again"}, world(registered_anew)).require_ok()
    assert (same["data"]["inputs"], same["data"]["targets"]) == (["planes"], ["legal"])
    plays = planned_restart(documents, {"recipe": {"stage": "play"}}, BOARD).require_ok()
    assert plays["data"]["inputs"] == ["planes", "legal"]
    assert plays["data"]["targets"] == ["move", "value"]


ORDER = ("shuffle", "shuffle_group", "shuffle_block")
SMALL_HOST = replace(CPU, host=replace(CPU.host, available_bytes=2 * GIB))
LARGE_DATA = weather(samples=100_000)
ON_SMALL, ON_LARGE = world(LARGE_DATA, devices=(SMALL_HOST,)), world(LARGE_DATA)


def order_of(spec):
    return tuple(spec["data"]["loader"][name] for name in ORDER)


@pytest.mark.parametrize(
    "patch",
    [
        {},
        {"data": {"loader": {"chunk_size": "64MiB"}}},
        {"data": {"loader": {"residency": "resident"}}},
        {"training": {"epochs": 9}},
    ],
    ids=str,
)
def test_a_restart_keeps_the_order_wherever_it_trains(patch):
    """A place that keeps the data otherwise would settle another one. The restart of the restart
    keeps it as well.
    """
    for before, after in ((ON_SMALL, ON_LARGE), (ON_LARGE, ON_SMALL)):
        plan = plan_of({}, before)
        first = plan.require_ok()
        assert order_of(first) != order_of(plan_of({}, after).require_ok())
        for _ in range(2):
            parent = plan.request, plan.spec, plan.provenance
            plan = planned_restart(parent, patch, after)
            child = plan.spec
            assert order_of(child) == order_of(first)
            assert carry_between(first, child).kind == "full"


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"shuffle": "full"}, ("full", "auto", "auto")),
        ({"shuffle_group": 64}, ("block", 64, 3)),
        ({"shuffle": None}, ("full", "auto", "auto")),
        (None, ("full", "auto", "auto")),
    ],
    ids=str,
)
def test_a_restart_that_names_a_part_of_the_order_settles_all_of_it(patch, expected):
    """A group that is kept beside another shuffle would be refused."""
    plan = plan_of({}, ON_SMALL)
    parent = plan.request, plan.spec, plan.provenance
    child = planned_restart(parent, {"data": {"loader": patch}}, ON_LARGE).require_ok()
    assert order_of(child) == expected
    assert carry_between(plan.require_ok(), child).kind == "weights"


def test_a_restart_on_other_data_settles_its_order_anew():
    plan = plan_of({}, ON_SMALL)
    parent = plan.request, plan.spec, plan.provenance
    facts = world(LARGE_DATA, weather(name="other"), devices=(SMALL_HOST,))
    child = planned_restart(parent, {"data": {"dataset": "other"}}, facts).require_ok()
    assert order_of(child) == ("full", "auto", "auto")


def without_blocks(change, facts):
    """A run that a version without `shuffle_block` stored."""
    plan = plan_of(change, facts)
    spec, provenance = deepcopy(plan.require_ok()), dict(plan.provenance)
    del spec["data"]["loader"]["shuffle_block"]
    del provenance["/data/loader/shuffle_block"]
    return plan.request, spec, provenance


def test_the_blocks_of_a_run_from_before_they_were_stored_stay_as_they_were():
    """4 MiB at most, and 16 in a group at least."""
    _, spec, _ = parent = without_blocks({}, ON_SMALL)
    spec["data"]["loader"] |= {"shuffle": "block", "shuffle_group": 16_384}
    blocks = Shuffle("block", 16_384, 4 * 2**20 // 21_744)
    assert stored_shuffle(read_stored(spec).data.loader, 100_000, 21_744) == blocks
    for _ in range(2):
        plan = planned_restart(parent, {"data": {"loader": {"chunk_size": "32MiB"}}}, ON_LARGE)
        assert order_of(plan.spec) == ("block", 16_384, "auto")
        assert carry_between(spec, plan.spec).kind == "full"
        assert stored_shuffle(read_stored(plan.spec).data.loader, 100_000, 21_744) == blocks
        parent = plan.request, plan.spec, plan.provenance


@pytest.mark.parametrize("shuffle", ["full", "none", "lanes"])
def test_an_order_without_blocks_means_what_it_meant_before_there_were_any(shuffle):
    change = {"data": {"loader": {"shuffle": shuffle}}}
    _, spec, _ = parent = without_blocks(change, ON_LARGE)
    child = planned_restart(parent, {}, ON_LARGE).require_ok()
    assert order_of(child) == (shuffle, "auto", "auto")
    assert carry_between(spec, child).kind == "full"


EMA = {"averaging": {"kind": "ema"}}


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_all_weights_decayed_before_there_was_a_choice(kind):
    optimizer = {"kind": kind, "weight_decay": 0.1}
    parent = without("/optimizer/decay", {"optimizer": optimizer})
    assert read_stored(parent[1]).optimizer.decay == "all"
    child = planned_restart(parent, {"optimizer": {"weight_decay": 0.2}}).require_ok()
    assert child["optimizer"]["decay"] == "all"
    same = planned_restart(parent, {}).require_ok()
    assert carry_between(parent[1], same).kind == "full"
    changed = planned_restart(parent, {"optimizer": {"decay": "matrices"}}).require_ok()
    assert carry_between(parent[1], changed).changed == ("/optimizer/decay",)


def test_an_average_had_no_ramp_before_there_was_one():
    parent = without("/averaging/ramp", EMA)
    averaging = read_stored(parent[1]).averaging
    assert averaging == ExponentialAveraging(kind="ema", ramp=False)
    child = planned_restart(parent, {"averaging": {"decay": 0.9}}).require_ok()
    assert child["averaging"] == {"kind": "ema", "decay": 0.9, "ramp": False}
    same = planned_restart(parent, {}).require_ok()
    assert carry_between(parent[1], same).kind == "full"
    new = planned_restart(without("/optimizer/decay", {}), EMA).require_ok()
    assert new["averaging"]["ramp"]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_another_kind_of_optimizer_keeps_which_weights_decay(kind):
    parent = without("/optimizer/decay", {"optimizer": {"lr": 1e-3}})
    child = planned_restart(parent, {"optimizer": {"kind": kind}}).require_ok()
    assert (child["optimizer"]["kind"], child["optimizer"]["decay"]) == (kind, "all")


def test_a_restart_without_early_stopping_does_not_get_it_back_by_its_monitor():
    """The parent's came from a preset, which the patch exchanges."""
    parent = plan_of({"early_stopping": {"patience": 3}})
    request, spec = plan_of().request, parent.require_ok()
    provenance = parent.provenance | {
        "/early_stopping/patience": {"value": 3, "source": "preset:mine"}
    }
    child = planned_restart((request, spec, provenance), {"preset": "cpu"}).require_ok()
    assert child["early_stopping"] is None


def test_a_restart_keeps_what_the_recipe_settled_by_the_arrays():
    of_50 = weather(fields={**FIELDS, "features": replace(FIELDS["features"], shape=(50, 15))})
    of_60 = weather(fields={**FIELDS, "features": replace(FIELDS["features"], shape=(60, 15))})
    parent = plan_of({}, world(of_50))
    patch = parent.require_ok()["recipe"]["patch"]
    assert parent.provenance["/recipe/patch"]["source"] == "guard"
    documents = parent.request, parent.require_ok(), parent.provenance
    child = planned_restart(documents, {"training": {"epochs": 9}}, world(of_60)).require_ok()
    assert child["recipe"]["patch"] == patch
    assert carry_between(parent.require_ok(), child).kind == "full"
    of_47 = weather(fields={**FIELDS, "features": replace(FIELDS["features"], shape=(47, 15))})
    assert planned_restart(documents, {"name": "again"}, world(of_47)).require_ok()


@pytest.mark.parametrize("data", ["rows", 7, [1]], ids=str)
def test_a_restart_whose_data_is_no_object_is_told_so(data):
    parent = without_split_seed(RANDOM)
    plan = planned_restart(parent, {"data": data})
    assert plan.spec is None
    assert any(issue.loc[:1] == ["data"] for issue in plan.errors)
