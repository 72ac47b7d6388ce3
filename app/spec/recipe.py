"""Parameters of the recipes; what they compute lives in worker.trainer.recipes."""

from typing import Annotated, Literal

from pydantic import Field

from app.spec.base import OpenFraction, SpecModel


class SequenceRecipe(SpecModel):
    """Direct multi-horizon forecasts from a window: patches → LSTM or GRU → linear head."""

    kind: Literal["sequence"]
    """Which recipe."""
    encoder: Literal["lstm", "gru"] = "lstm"
    """The recurrent encoder; default lstm."""
    hidden_size: Annotated[int, Field(ge=1, le=16_384)] = 64
    """Width of the encoder's state, in units; default 64."""
    num_layers: Annotated[int, Field(ge=1, le=32)] = 1
    """Stacked encoder layers; default 1."""
    patch: Annotated[int, Field(ge=1, le=4_096)] = 6
    """Time steps folded into one encoder step (divides the window's length); default 6."""
    dropout: OpenFraction = 0.0
    """Share of units dropped between layers and before the head, 0 to below 1; default 0."""
    carry_hidden: bool = False
    """Carry the state from one window to the next; not available yet. Default false."""
    loss: Literal["mae", "mse", "huber"] = "mae"
    """Training loss, in standardized target units; default mae."""


Recipe = SequenceRecipe
# Of `inputs` and `targets`, which may be ragged.
TAKES_RAGGED: dict[str, tuple[str, ...]] = {"sequence": ("inputs",)}
RECIPES: dict[str, type[SpecModel]] = {"sequence": SequenceRecipe}
RECIPES_TO_COME = ("panel-graph", "molecule", "board")
