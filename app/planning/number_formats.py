"""Which part of a step computes in which number format."""

from typing import Literal

from app.spec.recipe import Recipe

Format = Literal["fp32", "tf32", "bf16", "fp16"]


def number_formats(recipe: Recipe, precision: str, device_kind: str) -> dict[str, Format]:
    """By part of the model, what its products are computed in; `precision` is not auto.

    Under bf16-mixed an RNN stays in fp32, or TF32 on a GPU: cuDNN's has no bf16 under autocast, and
    oneDNN's refuses it on many CPUs. Weights, their updates and the loss are always fp32.
    """
    by_precision: dict[str, tuple[Format, Format]] = {
        "fp32": ("fp32", "fp32"),
        "tf32": ("tf32", "tf32"),
        "bf16-mixed": ("tf32" if device_kind == "cuda" else "fp32", "bf16"),
        "fp16-mixed": ("fp16", "fp16"),
    }
    encoder, head = by_precision[precision]
    return {recipe.encoder: encoder, "head": head, "weights": "fp32"}
