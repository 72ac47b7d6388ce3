"""Whatever route a value takes, a setting ends with one value and one source: the last word's."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.specs.specfile import assign, parse_assignment
from app.errors import StokerError
from app.guard.patching import apply_json_patch, apply_merge_patch
from app.guard.plan import make_plan
from app.guard.presets.catalog import Catalog, PresetLayer
from app.settings import load_settings
from app.spec.layers import DEFAULT_KINDS, leaves
from app.spec.names import ALIASES
from app.spec.parse import parse_spec
from app.spec.run import RunSpec
from tests.guard.world import REQUEST, plan_of, world

Said = dict[str, Any]

# Fields with values that are all valid, alone and beside each other.
PLAIN: dict[str, tuple[Any, ...]] = {
    "/training/epochs": (1, 7, 12),
    "/training/batch_size": (16, 64),
    "/training/max_steps": (None, 9),
    "/training/clip_grad_norm": (None, 0.5),
    "/recipe/hidden_size": (8, 32),
    "/recipe/loss": ("mae", "huber"),
    "/evaluation/every_steps": (None, 40),
    "/evaluation/metrics": (["mae"], ["mae", "rmse"], []),
    "/checkpoint/keep_last": (1, 5),
    "/data/standardize/inputs": (True, False),
    "/labels/team": ("a", "b"),
    "/labels/stage": ("c",),
    "/runtime/precision": ("auto", "fp32"),
    "/early_stopping/patience": (2, 4),
}
KINDS: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    "/optimizer": {
        "adamw": {"lr": (0.001, 0.002), "betas": ([0.9, 0.99],), "weight_decay": (0.0, 0.1)},
        "adam": {"lr": (0.003,), "betas": ([0.8, 0.99],), "weight_decay": (0.0,)},
        "sgd": {"lr": (0.05, 0.1), "weight_decay": (0.1,), "nesterov": (True, False)},
    },
    "/schedule": {
        "onecycle": {"div_factor": (10.0,), "warmup_fraction": (0.1, 0.2), "warmup_steps": (5,)},
        "cosine_warmup": {"warmup_fraction": (0.05,), "warmup_steps": (3, None)},
        "constant": {},
        "plateau": {"patience": (1, 5), "factor": (0.1,), "mode": ("max",)},
    },
    "/averaging": {
        "none": {},
        "ema": {"decay": (0.99,), "ramp": (False,)},
    },
    "/data/split": {
        "chronological": {"validation_fraction": (0.1, 0.3), "test_fraction": (0.0, 0.1)},
        "random": {"validation_fraction": (0.2,), "test_fraction": (0.1,)},
    },
    "/data/loader": {
        "chunked": {"residency": ("auto", "stream"), "chunk_size": ("1GiB", "50%")},
        "dataloader": {"num_workers": (1, 2), "multiprocessing_context": ("forkserver",)},
    },
}
WARMUP = ("/schedule/warmup_fraction", "/schedule/warmup_steps")


def put(document: dict[str, Any], pointer: str, value: Any) -> None:
    assign(document, pointer.strip("/").split("/"), value)


@st.composite
def layers(draw: st.DrawFn, may_be_silent: bool = True) -> dict[str, Any]:
    """A partial spec: some plain fields, and some fields of one kind of some blocks."""
    document: dict[str, Any] = {}
    for pointer in draw(st.lists(st.sampled_from(sorted(PLAIN)), max_size=5, unique=True)):
        put(document, pointer, draw(st.sampled_from(PLAIN[pointer])))
    for block in draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=3, unique=True)):
        key, default = DEFAULT_KINDS[block]
        kind = draw(st.sampled_from(sorted(KINDS[block])))
        if kind != default or not may_be_silent or draw(st.booleans()):
            put(document, f"{block}/{key}", kind)
        for name, values in KINDS[block][kind].items():
            if draw(st.booleans()):
                put(document, f"{block}/{name}", draw(st.sampled_from(values)))
    return document


@st.composite
def patches(draw: st.DrawFn) -> dict[str, Any]:
    """A merge patch: a layer in which some words are taken back."""
    patch = draw(layers())
    for pointer in draw(st.lists(st.sampled_from(sorted(PLAIN)), max_size=2, unique=True)):
        put(patch, pointer, None)
    return patch


@dataclass
class Speech:
    """Who said what last, by pointer: what a request comes to, told without joining documents."""

    said: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def layer(self, speaker: str, document: dict[str, Any], *, null_takes_back: bool) -> None:
        spoken = dict(leaves(document))
        for block, (key, default) in DEFAULT_KINDS.items():
            mine = [pointer for pointer in spoken if pointer.startswith(f"{block}/")]
            now = self.said.get(f"{block}/{key}", (default, ""))[0]
            if mine and (not null_takes_back or f"{block}/{key}" in spoken):
                kind = spoken.get(f"{block}/{key}", default)
                if kind != now:
                    self.forget(f"{block}/")
        given = [pointer for pointer in WARMUP if spoken.get(pointer) is not None]
        for rival in WARMUP if given else ():
            if rival not in given:
                self.said.pop(rival, None)
        for pointer, value in spoken.items():
            if value is None and null_takes_back:
                self.said.pop(pointer, None)
            elif value != {}:
                self.said[pointer] = (value, speaker)

    def is_stray(self, pointer: str) -> bool:
        """Whether a patch named a field that the kind of its block, said before, does not have."""
        block, _, name = pointer.rpartition("/")
        if block not in KINDS:
            return False
        key, default = DEFAULT_KINDS[block]
        kind = self.said.get(f"{block}/{key}", (default, ""))[0]
        return name != key and name not in KINDS[block][kind]

    def forget(self, start: str) -> None:
        self.said = {p: word for p, word in self.said.items() if not p.startswith(start)}


def catalog_of(layer: dict[str, Any]) -> Catalog:
    preset = PresetLayer(name="mine", description="Mine.", spec=layer, source="user")
    return Catalog({"mine": preset}, {})


def defaults_beside(spec: dict[str, Any]) -> Said:
    """What each leaf would be if nobody had said more than the kinds of the blocks."""
    bare: dict[str, Any] = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}
    for block, (key, _) in DEFAULT_KINDS.items():
        pointer = f"{block}/{key}"
        put(bare, pointer, dict(leaves(spec))[pointer])
    if spec["early_stopping"] is not None:
        bare["early_stopping"] = {}
    parsed, _ = parse_spec(bare)
    assert parsed is not None
    return dict(leaves(parsed.model_dump(mode="json")))


def check(plan: Any, speech: Speech) -> None:
    """One value and one source for each setting; of contradictions only the refusal."""
    if plan.spec is None:
        assert plan.errors
        both = all(speech.said.get(pointer, (None,))[0] is not None for pointer in WARMUP)
        assert both or any(speech.is_stray(pointer) for pointer in speech.said)
        return
    resolved = list(leaves(plan.spec))
    assert len(resolved) == len(dict(resolved))
    assert list(plan.provenance) == [pointer for pointer, _ in resolved]
    default = defaults_beside(plan.spec)
    has_steps = plan.spec["schedule"].get("warmup_steps") is not None
    for pointer, value in resolved:
        entry = plan.provenance[pointer]
        assert entry["value"] == value
        if entry["source"] == "guard":
            assert pointer in (
                "/preset",
                "/data/split/gap",
                "/data/loader/shuffle",
                "/data/loader/shuffle_group",
            )
        elif pointer in speech.said:
            assert (value, entry["source"]) == speech.said[pointer], pointer
        else:
            assert entry["source"] == "default", pointer
            expected = None if pointer == WARMUP[0] and has_steps else default[pointer]
            assert value == expected, pointer
    assert speech.said.keys() <= dict(resolved).keys()


@settings(max_examples=150, deadline=None)
@given(layers(), layers(), st.none() | patches(), st.data())
def test_every_setting_has_one_value_and_one_source(preset, file, patch, data):
    """Preset, file, --set, then a restart's patch or operations: the last that spoke counts."""
    request = {**file, "preset": "mine"}
    for pointer, value in leaves(REQUEST):
        put(request, pointer, value)
    mine = Speech()
    mine.layer("request", request, null_takes_back=False)
    for pointer in data.draw(st.lists(st.sampled_from(sorted(PLAIN)), max_size=3), "--set"):
        value = data.draw(st.sampled_from(PLAIN[pointer]))
        name = pointer.strip("/").replace("/", ".")
        assign(request, *parse_assignment(f"{name}={json.dumps(value)}"))
        mine.said[pointer] = (value, "request")
    if patch is not None:
        request = apply_merge_patch(request, patch)
        mine.layer("request", patch, null_takes_back=True)
    else:
        pointer = data.draw(st.sampled_from(["/training", "/checkpoint", "/runtime"]), "operation")
        fields = [name for name in PLAIN if name.startswith(f"{pointer}/")]
        block = {name.rsplit("/", 1)[1]: PLAIN[name][0] for name in fields}
        request = apply_json_patch(request, [{"op": "add", "path": pointer, "value": block}])
        mine.forget(f"{pointer}/")
        mine.said |= {f"{pointer}/{name}": (value, "request") for name, value in block.items()}
    speech = Speech()
    speech.layer("preset:mine", preset, null_takes_back=False)
    whole: dict[str, Any] = {}
    for pointer, (value, _) in mine.said.items():
        put(whole, pointer, value)
    speech.layer("request", whole, null_takes_back=False)
    check(make_plan(request, world(), catalog_of(preset)), speech)


def speech_of(*spoken: tuple[str, dict[str, Any]]) -> dict[str, str]:
    """Sources by pointer of the schedule and optimizer, of a preset and a request."""
    (_, preset), (_, request) = spoken
    plan = make_plan({**REQUEST, "preset": "mine", **request}, world(), catalog_of(preset))
    return {pointer: entry["source"] for pointer, entry in plan.provenance.items()}


def test_a_block_that_was_replaced_has_no_word_in_the_next():
    """Its fields are the new kind's defaults, though the old one had fields of the same names."""
    sources = speech_of(
        ("preset", {"optimizer": {"kind": "sgd", "lr": 0.1, "weight_decay": 0.2}}),
        ("request", {"optimizer": {"kind": "adam", "lr": 0.003}}),
    )
    assert sources["/optimizer/lr"] == "request"
    assert sources["/optimizer/weight_decay"] == "default"


def test_a_kind_that_nobody_says_is_the_default_also_over_another_of_the_preset():
    sources = speech_of(
        ("preset", {"optimizer": {"kind": "sgd"}}), ("request", {"optimizer": {"lr": 0.003}})
    )
    assert sources["/optimizer/kind"] == "default"


def test_a_preset_may_leave_the_kind_of_recipe_to_the_request():
    catalog = catalog_of({"recipe": {"hidden_size": 8}})
    plan = make_plan({**REQUEST, "preset": "mine"}, world(), catalog)
    assert plan.require_ok()["recipe"]["hidden_size"] == 8
    assert plan.provenance["/recipe/hidden_size"]["source"] == "preset:mine"


def test_a_label_called_kind_is_a_label_like_any():
    catalog = catalog_of({"labels": {"kind": "a", "team": "b"}})
    plan = make_plan({**REQUEST, "preset": "mine", "labels": {"kind": "c"}}, world(), catalog)
    assert plan.require_ok()["labels"] == {"kind": "c", "team": "b"}


@pytest.mark.parametrize(("name", "rival"), [WARMUP, WARMUP[::-1]])
def test_fields_for_one_thing_never_both_hold(name, rival):
    """Of two layers the upper one counts; both in one request are refused."""
    values = {WARMUP[0]: 0.2, WARMUP[1]: 7}
    lower = {"schedule": {"kind": "onecycle", rival.rsplit("/", 1)[1]: values[rival]}}
    upper = {"schedule": {name.rsplit("/", 1)[1]: values[name]}}
    for plan in (
        make_plan({**REQUEST, "preset": "mine", **upper}, world(), catalog_of(lower)),
        plan_of(apply_merge_patch({**REQUEST, **lower}, upper)),
    ):
        resolved = dict(leaves(plan.require_ok()))
        assert (resolved[name], resolved[rival]) == (values[name], None)
    both = {"schedule": {**lower["schedule"], **upper["schedule"]}}
    (issue,) = plan_of(both).errors
    assert "either warmup_fraction or warmup_steps" in issue.message


@pytest.mark.parametrize("block", sorted(KINDS))
def test_a_block_has_the_fields_of_its_kind_and_no_other(block):
    """A field of another kind is refused in the same request, and gone with a changed kind."""
    key, _ = DEFAULT_KINDS[block]
    for kind, fields in KINDS[block].items():
        for other in KINDS[block].keys() - {kind}:
            strange = KINDS[block][other].keys() - fields.keys()
            for name in strange:
                mixed: dict[str, Any] = {}
                put(mixed, f"{block}/{key}", kind)
                put(mixed, f"{block}/{name}", KINDS[block][other][name][0])
                assert [issue.code for issue in plan_of(mixed).errors] == ["unknown_field"]


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_never_becomes_a_second_value(alias):
    """The name of another trainer is refused, alone and beside the field that it means."""
    target = ALIASES[alias]
    (issue,) = plan_of({alias: 7}).errors
    assert issue.code == "unknown_field"
    beside: dict[str, Any] = {alias: 7}
    given = dict(leaves(RunSpec.model_validate(REQUEST).model_dump(mode="json"))).get(target)
    if given is not None:
        put(beside, target, given)
    assert "unknown_field" in [issue.code for issue in plan_of(beside).errors]


def mended_by(plan: Any) -> dict[str, Any]:
    """The request after the fix of the only issue."""
    (issue,) = plan.errors
    return apply_json_patch(plan.request, [op.model_dump(mode="json") for op in issue.fix])


def test_an_alias_is_moved_also_where_the_preset_has_its_block():
    request = {**REQUEST, "preset": "mine", "batch_size": 32}
    plan = make_plan(request, world(), catalog_of({"training": {"batch_size": 4}}))
    assert mended_by(plan)["training"] == {"batch_size": 32}


def test_an_alias_beside_its_setting_goes_where_both_say_the_same():
    mended = mended_by(plan_of({"lr": 0.1, "optimizer": {"lr": 0.1}}))
    assert mended["optimizer"] == {"lr": 0.1}
    assert "lr" not in mended


def test_of_an_alias_and_its_setting_that_differ_nobody_chooses_for_the_author():
    (issue,) = plan_of({"lr": 0.5, "optimizer": {"lr": 0.1}}).errors
    assert "optimizer.lr, which is given too" in issue.message
    assert issue.fix == []


def test_a_fix_of_what_the_preset_says_is_not_offered():
    catalog = catalog_of({"runtime": {"gpus": 2}})
    (issue,) = make_plan({**REQUEST, "preset": "mine"}, world(), catalog).errors
    assert (issue.code, issue.fix) == ("not_available_yet", [])


@pytest.mark.parametrize(
    "name", ["STOKER_TRAINING_EPOCHS", "STOKER_BATCH_SIZE", "STOKER_OPTIMIZER__LR", "STOKER_PRESET"]
)
def test_the_environment_cannot_set_a_value_of_a_spec(name, monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    monkeypatch.setenv(name, "7")
    with pytest.raises(StokerError, match=name):
        load_settings()
