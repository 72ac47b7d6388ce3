"""Presets: the packaged ones are valid, the user's go first, broken ones are named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts
from app.guard.plan import make_plan
from app.guard.presets.catalog import GIB, PresetLayer, load_catalog
from app.spec.parse import parse_spec
from tests.guard.world import CPU, HOST, REQUEST, RTX, WEATHER, plan_of, world

PACKAGED = load_catalog(Path("/nonexistent"))


@pytest.mark.parametrize("name", PACKAGED.names)
def test_each_packaged_preset_gives_a_valid_spec(name):
    request = {"recipe": {"kind": "sequence"}, "data": {"dataset": "d"}, "preset": name}
    plan = make_plan(request, Facts(), PACKAGED)
    assert {issue.code for issue in plan.errors} == {"correctness.dataset_not_found"}
    assert plan.spec is not None
    assert plan.spec["preset"] == name


def test_the_names_are_those_of_the_contract():
    contract = {"cpu", "rtx-8g", "rtx-12g", "rtx-16g", "rtx-24g", "a100-80g", "h200"}
    assert set(PACKAGED.names) == contract


@pytest.mark.parametrize(
    ("memory_gib", "name"),
    [(7.8, "rtx-8g"), (11.9, "rtx-12g"), (15.7, "rtx-16g"), (23.6, "rtx-24g"), (47, "rtx-24g"),
     (79.2, "a100-80g"), (139.8, "h200")],
)  # fmt: skip
def test_a_gpu_gets_the_preset_that_its_memory_holds(memory_gib, name):
    preset = PACKAGED.pick("cuda", int(memory_gib * GIB))
    assert preset is not None
    assert preset.name == name


def test_a_gpu_smaller_than_every_preset_gets_none():
    assert PACKAGED.pick("cuda", 4 * GIB) is None


def test_a_users_preset_is_found_and_hides_a_packaged_one(tmp_path):
    text = 'description = "mine"\n[spec.training]\nbatch_size = 7\n'
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "cpu.toml").write_text(text)
    catalog = load_catalog(tmp_path)
    mine, cpu = catalog.get("mine"), catalog.get("cpu")
    assert mine is not None
    assert mine.spec == {"training": {"batch_size": 7}}
    assert cpu is not None
    assert cpu.source == "user"


def test_of_two_presets_for_one_class_the_users_goes_first_then_the_name(tmp_path):
    text = 'description = "mine"\n[match]\ndevice = "cuda"\nmemory_gib = 24\n[spec]\n'
    for name in ("zebra", "yak"):
        (tmp_path / f"{name}.toml").write_text(text)
    preset = load_catalog(tmp_path).pick("cuda", 24 * GIB)
    assert preset is not None
    assert preset.name == "yak"


def test_a_field_that_a_preset_lacks_is_named(tmp_path):
    (tmp_path / "mine.toml").write_text("[spec]\n")
    assert "description: Field required" in load_catalog(tmp_path).broken["mine"]


@pytest.mark.parametrize(
    "content",
    [b"[spec", b"spec = 3\n", b'description = "x"\n', b'description = "x"\nfoo = 1\n[spec]\n',
     b"\xff\xfe", b'description = "x"\n[spec.training]\nepochs = "many"\n',
     b'description = "x"\n[spec.optimizer]\nlr = nan\n'],
)  # fmt: skip
def test_a_broken_preset_is_refused_by_name_and_leaves_the_others(tmp_path, content):
    (tmp_path / "mine.toml").write_bytes(content)
    (tmp_path / "cpu.toml").mkdir()
    catalog = load_catalog(tmp_path)
    assert set(catalog.broken) == {"mine", "cpu"}
    assert "mine.toml cannot be used" in catalog.broken["mine"]
    request = {"recipe": {"kind": "sequence"}, "data": {"dataset": "d"}, "preset": "mine"}
    codes = [issue.code for issue in make_plan(request, Facts(), catalog).errors]
    assert codes == ["correctness.broken_preset", "correctness.dataset_not_found"]
    assert catalog.get("rtx-8g") is not None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ('accept_risks = ["speed.*"]', "accept_risks"), ('preset = "cpu"', "preset"),
        ('name = "x"', "name"), ('notes = "x"', "notes"), ('labels = {team = "x"}', "labels.team"),
        ("priority = 9", "priority"), ('data = {dataset = "other"}', "data.dataset"),
        ('data = {split = {method = "datasets", validation = "v"}}', "data.split.validation"),
    ],
    ids=lambda value: value.split(" ")[0],
)  # fmt: skip
def test_what_is_a_runs_own_is_no_presets(tmp_path, spec, field):
    (tmp_path / "mine.toml").write_text(f'description = "x"\n[spec]\n{spec}\n')
    catalog = load_catalog(tmp_path)
    assert catalog.get("mine") is None
    assert f"{field} is the run's own" in catalog.broken["mine"]


@pytest.mark.parametrize("name", ["auto", "Bad Name", "-x", "a" * 65])
def test_a_preset_that_no_spec_could_name_is_broken(tmp_path, name):
    (tmp_path / f"{name}.toml").write_text('description = "x"\n[spec]\n')
    catalog = load_catalog(tmp_path)
    assert name not in catalog.names
    assert "give the file another name" in catalog.broken[name]
    request = {"recipe": {"kind": "sequence"}, "data": {"dataset": "d"}}
    codes = [issue.code for issue in make_plan(request, Facts(), catalog).errors]
    assert codes == ["correctness.dataset_not_found"]


def test_the_documents_example_is_a_preset_that_auto_takes(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "guide" / "presets.md").read_text()
    [name] = re.findall(r"`HOME/presets/([a-z0-9-]+)\.toml`", text)
    [example] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / f"{name}.toml").write_text(example)
    catalog = load_catalog(tmp_path)
    assert catalog.broken == {}
    assert catalog.pick("cuda", 24 * GIB) == catalog.get(name)
    request = {"recipe": {"kind": "sequence"}, "data": {"dataset": "d"}, "preset": name}
    plan = make_plan(request, Facts(), catalog)
    assert plan.spec is not None
    assert plan.spec["data"]["loader"]["chunk_size"] == "60%"
    assert not {issue.code for issue in plan.issues if issue.code.startswith("learning.")}


# The reference report's table, and what larger devices have beside it.
BATCHES = {"rtx-8g": 64, "rtx-12g": 96, "rtx-16g": 128, "rtx-24g": 192, "a100-80g": 512,
           "h200": 1024}  # fmt: skip
MOST_IN_CHUNKS_GB = {"rtx-8g": 6, "rtx-12g": 9, "rtx-16g": 12, "rtx-24g": 18, "a100-80g": 60,
                     "h200": 105}  # fmt: skip
LEARNED = ("training", "optimizer", "schedule", "averaging", "early_stopping", "loss_weights")


def device_of(preset: PresetLayer) -> DeviceFacts:
    """A device of the class that a preset is for, that computes in what auto would like best."""
    match = preset.match
    assert match is not None
    if match.device == "cpu":
        return CPU
    memory = int(match.memory_gib * GIB)
    return DeviceFacts("cuda", preset.name, memory, memory, (9, 0), HOST)


@pytest.mark.parametrize("name", sorted(BATCHES))
def test_a_preset_that_is_named_has_the_batch_and_the_chunks_of_the_reports_table(name):
    device = device_of(PACKAGED.presets[name])
    huge = replace(WEATHER, samples=20_000_000, size_bytes=500 * GIB)
    plan = plan_of({"preset": name}, world(huge, devices=(device,)))
    assert plan.spec is not None
    assert plan.spec["training"]["batch_size"] == BATCHES[name]
    assert plan.provenance["/training/batch_size"]["source"] == f"preset:{name}"
    spec, _ = parse_spec(plan.spec)
    assert spec is not None
    data = Case(spec, world(huge, devices=(device,))).memory.data
    assert data.kind == "stream"
    assert data.needed_bytes <= MOST_IN_CHUNKS_GB[name] * GIB


ONE_REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "training": st.fixed_dictionaries(
            {}, optional={"batch_size": st.sampled_from([8, 100]), "epochs": st.integers(1, 9)}
        ),
        "optimizer": st.fixed_dictionaries({"kind": st.sampled_from(["adamw", "sgd"])}),
        "schedule": st.fixed_dictionaries({"kind": st.sampled_from(["constant", "onecycle"])}),
        "early_stopping": st.just({"patience": 3}),
        "runtime": st.fixed_dictionaries({"precision": st.sampled_from(["auto", "fp32"])}),
        "preset": st.just("auto"),
    },
)


@given(change=ONE_REQUEST)
@settings(max_examples=25, deadline=None)
def test_auto_resolves_to_the_same_learning_on_every_worker(change):
    found = []
    for preset in [None, *PACKAGED.presets.values()]:
        devices = () if preset is None else (device_of(preset),)
        plan = plan_of(change, world(devices=devices))
        assert plan.spec is not None
        assert preset is None or plan.spec["preset"] == preset.name
        assert plan.spec["data"]["loader"]["chunk_size"] == "auto"
        assert not [i for i in plan.issues if i.code.startswith("learning.preset")]
        found.append({name: plan.spec.get(name) for name in LEARNED} | {"data": plan.spec["data"]})
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    ("layer", "field"),
    [("training = {batch_size = 7}", "training.batch_size"),
     ('optimizer = {kind = "sgd"}', "optimizer.kind"),
     ('data = {loader = {shuffle = "block"}}', "data.loader.shuffle"),
     ("data = {loader = {shuffle_group = 64}}", "data.loader.shuffle_group"),
     ('data = {loader = {kind = "dataloader", num_workers = 4}}', "data.loader.kind"),
     ('checkpoint = {monitor = "val_mae"}', "checkpoint.monitor"),
     ('checkpoint = {mode = "min"}', "checkpoint.mode"),
     ("evaluation = {every_epochs = 2}", "evaluation.every_epochs")],
)  # fmt: skip
def test_what_a_device_picks_says_nothing_of_what_is_learned(tmp_path, layer, field):
    match = '[match]\ndevice = "cuda"\n'
    (tmp_path / "mine.toml").write_text(f'description = "x"\n{match}[spec]\n{layer}\n')
    (tmp_path / "yours.toml").write_text(f'description = "x"\n{match}[spec]\n[named]\n{layer}\n')
    (tmp_path / "ours.toml").write_text(f'description = "x"\n[spec]\n{layer}\n')
    catalog = load_catalog(tmp_path)
    assert f"{field} is not how a run computes" in catalog.broken["mine"]
    assert {"yours", "ours"} <= set(catalog.names)


@pytest.mark.parametrize(
    ("layer", "place", "value"),
    [('runtime = {precision = "fp32"}', "/runtime/precision", "fp32"),
     ("evaluation = {batch_size = 512}", "/evaluation/batch_size", 512),
     ('data = {loader = {chunk_size = "60%"}}', "/data/loader/chunk_size", "60%"),
     ('data = {loader = {kind = "chunked"}}', "/data/loader/kind", "chunked"),
     ('data = {loader = {residency = "stream"}}', "/data/loader/residency", "stream"),
     ("training = {log_every_steps = 7}", "/training/log_every_steps", 7),
     ("checkpoint = {every_seconds = 900.0, keep_last = 3}", "/checkpoint/keep_last", 3)],
)  # fmt: skip
def test_how_it_computes_may_be_picked_by_the_device(tmp_path, layer, place, value):
    (tmp_path / "mine.toml").write_text(
        f'description = "x"\n[match]\ndevice = "cuda"\nmemory_gib = 24\n[spec]\n{layer}\n'
    )
    catalog = load_catalog(tmp_path)
    assert "mine" not in catalog.broken
    plan = make_plan(REQUEST, world(devices=(RTX,)), catalog)
    assert plan.provenance[place] == {"value": value, "source": "preset:mine"}
    assert not [i for i in plan.issues if i.code.startswith("learning.preset")]
