"""Examples in the OpenAPI document, and the body of POST /runs, which is read by hand."""

from typing import Any

EXAMPLE_SPEC: dict[str, Any] = {
    "name": "weather-lstm",
    "recipe": {"kind": "sequence", "encoder": "lstm", "hidden_size": 64, "patch": 6},
    "data": {"dataset": "weather"},
    "training": {"epochs": 5, "batch_size": 128},
    "optimizer": {"kind": "adamw", "lr": 0.003},
}

EXAMPLE_YAML = """\
name: weather-lstm
recipe: {kind: sequence, encoder: lstm, hidden_size: 64, patch: 6}
data: {dataset: weather}
training: {epochs: 5, batch_size: 128}
optimizer: {kind: adamw, lr: 3e-3}
"""

_SPEC = {"$ref": "#/components/schemas/RunSpec"}

RUN_BODY: dict[str, Any] = {
    "required": True,
    "description": "A run spec; what is left out comes from the preset, then from the defaults.",
    "content": {
        "application/json": {"schema": _SPEC, "example": EXAMPLE_SPEC},
        "application/yaml": {"schema": _SPEC, "example": EXAMPLE_YAML},
    },
}
