"""The spec model: complete, described, bounded, and strict."""

import json

import pytest
from pydantic import ValidationError

from app.spec.run import RunSpec

SMALLEST = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}

# The contract's §4, with the defaults of options that come later set to what stands in for them.
CONTRACT = {
    "name": "weather-lstm",
    "notes": "",
    "labels": {"team": "weather"},
    "priority": 0,
    "mode": "train",
    "preset": "auto",
    "recipe": {
        "kind": "sequence", "version": "1", "encoder": "lstm", "fusion": "block",
        "quantiles": None, "task": "regression", "classes": None,
        "residual": "last", "highway": 24, "normalize": "none",
        "hidden_size": 64, "num_layers": 1, "num_heads": None, "patch": 6, "dropout": 0.0,
        "carry_hidden": False, "loss": "mae",
    },
    "data": {
        "dataset": "weather",
        "inputs": ["features"],
        "targets": ["targets"],
        "split": {
            "validation_fraction": 0.2, "test_fraction": 0.0, "method": "chronological",
            "gap": "auto",
        },
        "standardize": {"inputs": True, "targets": True},
        "loader": {
            "kind": "chunked", "residency": "auto", "chunk_size": "auto", "shuffle": "auto",
            "shuffle_group": "auto", "shuffle_block": "auto",
        },
    },
    "training": {
        "epochs": 5, "max_steps": None, "batch_size": 128, "gradient_accumulation_steps": 1,
        "clip_grad_norm": 1.0, "seed": 0, "drop_last": False, "log_every_steps": "auto",
    },
    "early_stopping": None,
    "loss_weights": {},
    "pos_weight": None,
    "class_weights": None,
    "optimizer": {
        "kind": "adamw", "lr": 1.0e-3, "weight_decay": 0.01, "betas": [0.9, 0.999],
        "backbone_lr": None, "decay": "matrices",
    },
    "schedule": {
        "kind": "onecycle", "warmup_fraction": 0.3, "warmup_steps": None, "div_factor": 25,
        "final_div_factor": 10000,
    },
    "averaging": {"kind": "none"},
    "runtime": {
        "device": "auto", "gpus": 1, "precision": "auto", "compile": {"mode": "none"},
        "cuda_graphs": "auto", "activation_checkpointing": False, "deterministic": False,
        "threads": "auto", "attention": "auto",
    },
    "evaluation": {
        "every_epochs": 1, "every_steps": None, "batch_size": "auto", "max_batches": None,
        "metrics": ["mae"],
    },
    "checkpoint": {
        "every_seconds": 300, "every_steps": None, "keep_last": 2, "keep_best": 1,
        "monitor": "val_loss", "mode": "min",
    },
    "policy": {
        "max_retries": 3, "on_oom": "ladder", "on_nonfinite": "fail",
        "hang_timeout_seconds": "auto", "max_duration_seconds": None, "preemptible": False,
    },
    "init_from": None,
    "accept_risks": [],
}  # fmt: skip


def parse(document):
    return RunSpec.model_validate_json(json.dumps(document))


def test_the_defaults_are_those_of_the_contract():
    spec = parse({**SMALLEST, "name": "weather-lstm", "labels": {"team": "weather"}})
    assert spec.model_dump(mode="json") == CONTRACT


def test_a_resolved_spec_parses_to_itself():
    assert parse(CONTRACT).model_dump(mode="json") == CONTRACT


def every_property(node, path=""):
    for name, schema in node.get("properties", {}).items():
        yield f"{path}.{name}", schema


def test_every_field_has_a_description_and_every_number_has_bounds():
    schema = RunSpec.model_json_schema()
    models = {"RunSpec": schema, **schema["$defs"]}
    fields = [item for name, model in models.items() for item in every_property(model, name)]
    assert len(fields) > 80
    for name, field in fields:
        assert field.get("description"), f"{name} has no description"
        for option in (field, *field.get("anyOf", [])):
            if option.get("type") in ("integer", "number"):
                low = {"minimum", "exclusiveMinimum"} & option.keys()
                high = {"maximum", "exclusiveMaximum"} & option.keys()
                assert low, f"{name} has no lower bound"
                assert high, f"{name} has no upper bound"


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"epochs": "5"}},
        {"training": {"epochs": 5.5}},
        {"training": {"epochs": True}},
        {"training": {"epochs": 0}},
        {"training": {"epocs": 5}},
        {"labels": {"a b": "c"}},
        {"data": {"dataset": ""}},
        {"data": {"dataset": "weather", "inputs": []}},
        {"optimizer": {"kind": "sgd", "momentum": 0.0, "nesterov": True}},
        {"schedule": {"kind": "constant", "warmup_fraction": 0.1}},
        {"schedule": {"kind": "onecycle", "warmup_fraction": 0.1, "warmup_steps": 5}},
        {"schedule": {"kind": "onecycle", "warmup_fraction": None}},
        {
            "data": {
                "dataset": "weather",
                "loader": {"kind": "chunked", "shuffle": "full", "shuffle_group": 64},
            }
        },
        {"data": {"dataset": "w", "loader": {"shuffle": "none", "shuffle_block": 8}}},
        {"data": {"dataset": "w", "loader": {"shuffle_group": 8, "shuffle_block": 9}}},
        {"data": {"dataset": "w", "loader": {"kind": "dataloader", "prefetch_factor": 2}}},
        {"data": {"dataset": "w", "loader": {"kind": "dataloader", "persistent_workers": True}}},
        {"accept_risks": ["x" * 101]},
    ],
)
def test_what_the_schema_makes_impossible_to_say(change):
    with pytest.raises(ValidationError):
        parse({**SMALLEST, **change})


def test_a_spec_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        parse(SMALLEST).training.epochs = 7


def test_warmup_steps_take_the_place_of_the_fraction():
    spec = parse({**SMALLEST, "schedule": {"kind": "onecycle", "warmup_steps": 7}})
    resolved = spec.model_dump(mode="json")
    assert resolved["schedule"]["warmup_fraction"] is None
    assert parse(resolved) == spec
