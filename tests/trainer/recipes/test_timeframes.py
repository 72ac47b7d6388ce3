"""Several inputs and the transformer: what is refused, what is computed, and exact resume."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from app.lifecycle import Reason
from app.recipes.sequence import Sequence
from app.spec.recipe import Array
from app.spec.run import RunSpec
from app.spec.stored import read_stored
from tests.trainer.lab import BASE_SPEC, Killed, Lab, StopAtPoll, merged
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field
from worker.trainer.errors import SpecMismatch, TrainerError
from worker.trainer.recipes.base import grouped_parameters
from worker.trainer.recipes.encoders import Moments
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.recipes.sequence_model import AttentionFusion, BlockFusion

SHAPES = {"features": (12, 3), "slow": (6, 2), "targets": (4,)}
# The lab reads specs as stored ones, which mean what they meant before a field was there.
SEVERAL: dict[str, Any] = {
    "recipe": {"fusion": "block"},
    "data": {"inputs": ["features", "slow"]},
}
STATES = ("hidden", "cell")
ENCODERS = ("lstm", "gru", "transformer")


def with_encoder(encoder: str, patch: dict[str, Any] | None = None) -> dict[str, Any]:
    return merged(merged(SEVERAL, {"recipe": {"encoder": encoder}}), patch or {})


def task_for(patch: dict[str, Any], **shapes: tuple[int, ...]) -> SequenceTask:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    fields = {name: Field(shape, np.dtype("float32")) for name, shape in (SHAPES | shapes).items()}
    return SequenceTask.for_run(spec, fields)


def moments(features: int) -> Moments:
    return torch.arange(features) + 0.5, torch.full((features,), 2.0)


@pytest.fixture
def frames(lab: Lab) -> Lab:
    """Beside the features, each second of their steps in another unit."""
    with h5py.File(lab.data, "r+") as file:
        file["slow"] = (1000 * file["features"][:, 1::2, :2]).astype(np.float32)
    return lab


@pytest.mark.parametrize(
    ("patch", "shapes", "told"),
    [
        (SEVERAL | {"recipe": {"patch": 4}}, {}, "window 'slow' of 6 time steps.* 1, 2, 3, 6"),
        (SEVERAL, {"slow": (6, 2, 2)}, r"'slow' has samples of float32 \(6, 2, 2\)"),
        (SEVERAL | {"recipe": {"num_heads": 3}}, {}, "3 heads do not divide a hidden size of 8"),
        ({"recipe": {"num_heads": 2}}, {}, "encoder lstm have no attention, so 2 heads"),
        ({"data": {"targets": ["targets", "slow"]}}, {}, "one array in data.targets, not 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_change(
    patch: dict[str, Any], shapes: dict[str, tuple[int, ...]], told: str
) -> None:
    with pytest.raises(SpecMismatch, match=told) as caught:
        task_for(patch, **shapes)
    assert caught.value.reason is Reason.spec_error


def test_a_patch_that_would_fit_all_windows_is_offered() -> None:
    spec = task_for(SEVERAL).spec
    arrays = {"features": Array((480, 6), "float32"), "slow": Array((48, 6), "float32")}
    recipe = spec.recipe.model_copy(update={"patch": 10})
    [problem] = recipe.problems(spec.data, arrays)
    assert problem.fix == {"/recipe/patch": 8}


@pytest.mark.parametrize("patch", [SEVERAL, {"recipe": {"encoder": "transformer"}}])
def test_ragged_samples_have_no_attention(patch: dict[str, Any]) -> None:
    spec = task_for(patch).spec
    arrays = {name: Array(shape, "float32", name == "features") for name, shape in SHAPES.items()}
    [problem] = spec.recipe.problems(spec.data, arrays)
    assert "'features' is ragged" in problem.message


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("inputs", [["features"], ["features", "slow"], ["slow", "features"]])
@pytest.mark.parametrize(
    ("hidden", "layers", "patch", "fusion"), [(8, 1, 3, "block"), (12, 3, 1, "attention")]
)
def test_the_recipe_knows_the_parameters_of_the_model(
    encoder: str, inputs: list[str], hidden: int, layers: int, patch: int, fusion: str
) -> None:
    recipe = {
        "encoder": encoder, "hidden_size": hidden, "num_layers": layers, "patch": patch,
        "fusion": fusion,
    }  # fmt: skip
    task = task_for({"recipe": recipe, "data": {"inputs": inputs}}, targets=(4, 2))
    arrays = {name: Array(field.shape, "float32") for name, field in task.fields.items()}
    counted = task.recipe.num_parameters(task.spec.data, arrays)
    assert counted == sum(p.numel() for p in task.build_model({}, {}).parameters())


def test_a_transformer_is_that_of_pytorch() -> None:
    recipe = {"encoder": "transformer", "num_layers": 2, "num_heads": 2, "patch": 3}
    model = task_for({"recipe": recipe}).build_model({"features": moments(3)}, {}).eval()
    weights = model.state_dict()
    layer = nn.TransformerEncoderLayer(
        8, 2, 32, activation="gelu", batch_first=True, norm_first=True
    )
    plain = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False).eval()
    mine = {k.removeprefix("encoder."): v for k, v in weights.items() if k.startswith("encoder.")}
    plain.load_state_dict({k: v for k, v in mine.items() if k.startswith(("layers.", "norm."))})

    inputs = torch.randn(5, 12, 3)
    mean, std = moments(3)
    patches = ((inputs - mean) / std).reshape(5, 4, 9)
    embedded = patches @ mine["embedding.weight"].T + mine["embedding.bias"] + mine["positions"]
    last = plain(embedded)[:, -1]
    forecast = last @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(model(inputs), forecast)


@pytest.mark.parametrize("fusion", ["attention", "block"])
@pytest.mark.parametrize("encoder", ["lstm", "gru"])
def test_fused_inputs_are_what_pytorchs_own_modules_make_of_them(encoder: str, fusion: str) -> None:
    task = task_for(with_encoder(encoder, {"recipe": {"num_layers": 1, "fusion": fusion}}))
    model = task.build_model({"features": moments(3), "slow": moments(2)}, {}).eval()
    weights, inputs = model.state_dict(), (torch.randn(5, 12, 3), torch.randn(5, 6, 2))
    kind, states = nn.LSTM if encoder == "lstm" else nn.GRU, []
    for number, (values, features) in enumerate(zip(inputs, (3, 2), strict=True)):
        rnn, prefix = kind(3 * features, 8, batch_first=True), f"timeframes.{number}.encoder."
        rnn.load_state_dict(
            {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        )
        mean, std = moments(features)
        states.append(rnn(((values - mean) / std).reshape(5, -1, 3 * features))[0])
    q, k, v = weights["fusion.attention.in_proj_weight"].chunk(3)
    bias = weights["fusion.attention.in_proj_bias"].chunk(3)
    keys = torch.cat([s + weights["fusion.timeframe"][i] for i, s in enumerate(states)], 1)
    keys = nn.functional.layer_norm(keys, (8,)).view(5, 6, 8)
    query = nn.functional.layer_norm(states[0][:, -1:], (8,))
    heads = [
        (one @ w.T + b).view(5, -1, 4, 2).transpose(1, 2)
        for one, w, b in zip((query, keys, keys), (q, k, v), bias, strict=True)
    ]
    shares = (heads[0] @ heads[1].transpose(2, 3) / 2**0.5).softmax(-1)
    found = (shares @ heads[2]).transpose(1, 2).reshape(5, 8)
    out = model.get_submodule("fusion.attention.out_proj")
    fused = states[0][:, -1] + out(found)
    if fusion == "block":
        first, last = (
            (weights[f"fusion.feed_forward.{i}.weight"], weights[f"fusion.feed_forward.{i}.bias"])
            for i in (0, 3)
        )
        wide = nn.functional.gelu(nn.functional.layer_norm(fused, (8,)) @ first[0].T + first[1])
        fused = fused + wide @ last[0].T + last[1]
    forecast = fused @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(model(*inputs), forecast)


def test_a_block_drops_shares_of_its_attention_and_of_what_it_adds() -> None:
    """Of each by itself, since the other part is nothing here."""
    fusion = BlockFusion(Sequence(kind="sequence", hidden_size=8, dropout=0.5), 2)
    states = [torch.randn(5, 4, 8), torch.randn(5, 2, 8)]
    for zeroed in (fusion.feed_forward[3], fusion.attention.out_proj):
        kept = {name: one.clone() for name, one in zeroed.named_parameters()}
        for parameter in zeroed.parameters():
            nn.init.zeros_(parameter)
        assert not torch.equal(fusion.train()(states), fusion(states))
        torch.testing.assert_close(fusion.eval()(states), fusion(states), rtol=0, atol=0)
        zeroed.load_state_dict(kept)
    plain = AttentionFusion(Sequence(kind="sequence", hidden_size=8, dropout=0.5), 2).train()
    assert torch.equal(plain(states), plain(states))


def test_a_spec_of_an_earlier_version_is_fused_by_attention_alone() -> None:
    old = task_for(SEVERAL).spec.model_dump(mode="json")
    del old["recipe"]["fusion"]
    assert read_stored(old).recipe.model_dump()["fusion"] == "attention"


@pytest.mark.parametrize("encoder", ENCODERS)
def test_each_input_matters(encoder: str) -> None:
    model = task_for(with_encoder(encoder)).build_model({}, {}).eval()
    inputs = torch.randn(5, 12, 3), torch.randn(5, 6, 2)
    before = model(*inputs)
    for changed in range(2):
        other = [one.clone() for one in inputs]
        other[changed][0] += 1.0
        after = model(*other)
        assert not torch.allclose(after[0], before[0])
        torch.testing.assert_close(after[1:], before[1:])


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("loader", ["resident", "stream", "dataloader"])
def test_a_run_interrupted_anywhere_ends_as_one_that_was_not(
    frames: Lab, encoder: str, loader: str
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "resident": {"kind": "chunked", "residency": "resident", "shuffle": "full"},
        "stream": {
            "kind": "chunked", "residency": "stream", "chunk_size": "1KiB", "shuffle": "full",
        },
        "dataloader": {"kind": "dataloader", "shuffle": "full"},
    }  # fmt: skip
    patch = with_encoder(encoder, {"data": {"loader": kinds[loader]}})
    counting = StopAtPoll()
    whole = frames.run(patch=patch, stop=counting)
    assert whole.result["best"]["val_loss"] < 1.2
    stopped, steps = frames.in_stages(patch, counting.polls // 2, counting.polls // 4, None)
    assert 0 < steps[0] < steps[1] < steps[2] == 9
    assert (stopped.losses, stopped.weights) == (whole.losses, whole.weights)
    assert stopped.result == whole.result


LANES: dict[str, Any] = {
    "recipe": {"carry_hidden": True},
    "data": {"loader": {"kind": "chunked", "shuffle": "lanes"}},
    "training": {"drop_last": True},
}


@pytest.mark.parametrize("encoder", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_carried_state_is_that_of_one_long_window_without_its_gradients(
    encoder: str, layers: int
) -> None:
    recipe = {"encoder": encoder, "num_layers": layers, "dropout": 0.0, "carry_hidden": True}
    task = task_for({"recipe": recipe, "training": {"batch_size": 5}})
    model = task.build_model({"features": moments(3)}, {})
    stream, targets = torch.randn(5, 36, 3), torch.randn(5, 4)
    windows = [Batch({"features": w, "targets": targets}, 5) for w in stream.split(12, 1)]
    found = []
    for window in windows:
        model.zero_grad()
        loss = task.loss(model, window)["loss"]
        loss.backward()
        found.append(loss.item())
    gradients = {name: one.grad for name, one in model.named_parameters()}

    rnn, weights = model.get_submodule("encoder"), model.state_dict()
    mean, std = moments(3)
    patches = ((stream - mean) / std).reshape(5, 12, 9)
    model.zero_grad()
    _, before = rnn(patches[:, :8])
    kept = tuple(one.detach() for one in before) if encoder == "lstm" else before.detach()
    states, end = rnn(patches[:, 8:], kept)
    expected = (states[:, -1] @ weights["head.weight"].T + weights["head.bias"] - targets).abs()
    assert found[-1] == pytest.approx(expected.mean().item(), rel=1e-6)
    for name, tensor in task.carried(model).items():
        torch.testing.assert_close(tensor, end[name == "cell"] if encoder == "lstm" else end)
    nn.functional.l1_loss(model.get_submodule("head")(states[:, -1]), targets).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_an_evaluation_begins_each_window_with_zeros_and_leaves_what_is_carried() -> None:
    task = task_for({"recipe": {"carry_hidden": True}, "training": {"batch_size": 5}})
    model = task.build_model({}, {})
    batch = Batch({"features": torch.randn(5, 12, 3), "targets": torch.randn(5, 4)}, 5)
    task.loss(model, batch)
    kept = {name: one.clone() for name, one in task.carried(model).items()}
    assert all(one.any() for one in kept.values())
    model.eval()
    fewer = Batch({name: one[:2] for name, one in batch.arrays.items()}, 2)
    assert task.measure(model, fewer)["loss"] == task.measure(model, fewer)["loss"]
    assert all(torch.equal(one, kept[name]) for name, one in task.carried(model).items())
    task.begin("epoch", model)
    assert not any(one.any() for one in task.carried(model).values())


@pytest.mark.parametrize("patch", [SEVERAL, merged(LANES, SEVERAL)], ids=["shuffled", "carried"])
def test_a_run_that_is_killed_ends_as_one_that_was_not(frames: Lab, patch: dict[str, Any]) -> None:
    counting = StopAtPoll()
    whole = frames.run(patch=patch, stop=counting)
    resumed_after = []
    for poll in range(counting.polls // 3, counting.polls, 5):
        run_dir = frames.new_run()
        with pytest.raises(Killed):
            frames.run(run_dir, patch, stop=StopAtPoll(poll, kill=True))
        resumed = frames.run(run_dir, patch)
        resumed_after.append(resumed.of_kind("restored"))
        assert (resumed.losses, resumed.weights) == (whole.losses, whole.weights)
    assert sum(map(bool, resumed_after)) >= 2


@pytest.mark.parametrize("inputs", [["features"], ["features", "slow"]])
@pytest.mark.parametrize("encoder", ["lstm", "gru"])
def test_a_run_with_a_carried_state_interrupted_anywhere_ends_as_one_that_was_not(
    frames: Lab, encoder: str, inputs: list[str]
) -> None:
    own = {"recipe": {"encoder": encoder}, "data": {"inputs": inputs}}
    patch, counting = merged(LANES, own), StopAtPoll()
    whole = frames.run(patch=patch, stop=counting)
    without = frames.run(patch=merged(patch, {"recipe": {"carry_hidden": False}}))
    assert whole.weights != without.weights
    stopped, steps = frames.in_stages(patch, counting.polls // 2, counting.polls // 4, None)
    assert 0 < steps[0] < steps[1] < steps[2]
    assert (stopped.losses, stopped.weights) == (whole.losses, whole.weights)


@pytest.mark.parametrize(("named", "numbers"), [(True, "01"), (["slow"], "1"), (["features"], "0")])
def test_the_state_of_all_inputs_is_carried_or_of_those_named(
    named: bool | list[str], numbers: str
) -> None:
    recipe = {"carry_hidden": named, "dropout": 0.0}
    task = task_for(merged(SEVERAL, {"recipe": recipe, "training": {"batch_size": 2}}))
    model = task.build_model({}, {})
    kept = task.carried(model)
    assert sorted(kept) == sorted(f"{number}.{part}" for number in numbers for part in STATES)
    arrays = {name: torch.randn(2, *shape) for name, shape in SHAPES.items()}
    first = task.loss(model, Batch(arrays, 2))["loss"].item()
    assert all(one.all() for one in kept.values())
    task.begin_lanes(model, torch.tensor([False, True]))
    for one in kept.values():
        assert one[:, 0].all()
        assert not one[:, 1].any()
    task.begin("epoch", model)
    assert task.loss(model, Batch(arrays, 2))["loss"].item() == first
    assert task.loss(model, Batch(arrays, 2))["loss"].item() != first


@pytest.mark.parametrize("residency", ["resident", "stream"])
def test_lanes_are_the_same_however_they_are_read(frames: Lab, residency: str) -> None:
    loader = {"residency": residency, **({"chunk_size": "1KiB"} if residency == "stream" else {})}
    chunked = frames.run(patch=merged(LANES, {"data": {"loader": loader}}))
    by_torch = {"data": {"loader": {"kind": "dataloader", "shuffle": "lanes"}}}
    patch = {**LANES, "data": by_torch["data"]}
    assert chunked.weights == frames.run(patch=patch).weights


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ({"recipe": {"carry_hidden": True, "encoder": "transformer"}}, "no state to carry on"),
        ({"recipe": {"carry_hidden": ["slow"]}}, "'slow' is none of data.inputs"),
    ],
)
def test_what_has_no_state_carries_none(patch: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecMismatch, match=told):
        task_for(patch)


def test_a_state_is_not_carried_over_the_filling_of_ragged_samples() -> None:
    spec = task_for({"recipe": {"carry_hidden": True}}).spec
    arrays = {name: Array(shape, "float32", name == "features") for name, shape in SHAPES.items()}
    [problem] = spec.recipe.problems(spec.data, arrays)
    assert problem.fix == {"/recipe/carry_hidden": False}


def test_each_input_is_standardized_by_its_own_statistics(frames: Lab) -> None:
    weights = safetensors.torch.load(frames.run(patch=SEVERAL).weights)
    with h5py.File(frames.data) as file:
        for number, name in enumerate(SEVERAL["data"]["inputs"]):
            trained = file[name][:42].astype(np.float64)  # 30 % are held out
            mean, std = weights[f"timeframes.{number}.mean"], weights[f"timeframes.{number}.std"]
            np.testing.assert_allclose(mean, trained.mean((0, 1)), rtol=1e-5)
            np.testing.assert_allclose(std, trained.std((0, 1)), rtol=1e-5)


def carried(outcome: Any) -> list[dict[str, Any]]:
    return [{"path": str(outcome.checkpoint()), "carry": "weights", "own": False}]


def test_weights_are_carried_to_data_of_other_statistics(frames: Lab) -> None:
    first = frames.run(patch=SEVERAL)
    with h5py.File(frames.data, "r+") as file:
        file["slow"][:] = file["slow"][:] + 7
    second = frames.run(patch=SEVERAL, restore=carried(first))
    first_mean, mean = (
        safetensors.torch.load(one.weights)["timeframes.1.mean"] for one in (first, second)
    )
    torch.testing.assert_close(mean, first_mean + 7)


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ({"data": {"inputs": ["slow", "features"]}}, r"num_features is \[3, 2\] there"),
        ({"recipe": {"num_heads": 2}}, "num_heads is 4 there and 2 in this run"),
        ({"recipe": {"fusion": "attention"}}, "fusion is block there and attention in this run"),
    ],
)
def test_weights_that_would_mean_something_else_are_not_carried(
    frames: Lab, patch: dict[str, Any], told: str
) -> None:
    first = frames.run(patch=SEVERAL)
    with pytest.raises(TrainerError, match=told) as caught:
        frames.run(patch=merged(SEVERAL, patch), restore=carried(first))
    assert caught.value.reason is Reason.carry_mismatch


def test_a_checkpoint_of_one_input_has_the_names_that_it_always_had(lab: Lab) -> None:
    outcome = lab.run(patch={"recipe": {"num_layers": 1}})
    names = set(safetensors.torch.load(outcome.weights))
    rnn = {f"encoder.{part}_{way}_l0" for part in ("weight", "bias") for way in ("ih", "hh")}
    moments_of = {f"{of}_{one}" for of in ("input", "target") for one in ("mean", "std")}
    assert names == rnn | moments_of | {"head.weight", "head.bias"}
    manifest = json.loads(Path(outcome.checkpoint() / "manifest.json").read_text())
    assert (manifest["recipe"]["window"], manifest["recipe"]["num_features"]) == (12, 3)


@pytest.mark.parametrize("patch", [{}, SEVERAL], ids=["one input", "several"])
def test_the_encoders_are_the_backbone_and_the_rest_is_the_head(patch: dict[str, Any]) -> None:
    task = task_for(patch)
    model = task.build_model({}, {})
    groups = grouped_parameters(task, model)
    encoders = [one for name, one in model.named_parameters() if "encoder." in name]
    assert [id(one) for one in groups["backbone"]] == [id(one) for one in encoders]
    heads = {
        name.split(".")[0]
        for name, one in model.named_parameters()
        if any(one is other for other in groups["head"])
    }
    assert heads == {"head", "fusion"} if patch else {"head"}
