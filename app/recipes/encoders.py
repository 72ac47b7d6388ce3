"""What recipes have in common whose models step through time: an encoder and its parameters."""

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Annotated, Literal

from pydantic import Field

from app.spec.base import OpenFraction
from app.spec.recipe import FORMATS, Format, Problem, Recipe

GATES = {"lstm": 4, "gru": 3}


class EncodingRecipe(Recipe):
    """An encoder of windows: `patch` time steps are folded into one, and each has a state."""

    encoder: Literal["lstm", "gru", "transformer"] = "lstm"
    """The encoder of each input; default lstm."""
    hidden_size: Annotated[int, Field(ge=1, le=16_384)] = 64
    """Width of the encoder's state, in units; default 64."""
    num_layers: Annotated[int, Field(ge=1, le=32)] = 1
    """Stacked encoder layers; default 1."""
    num_heads: Annotated[int, Field(ge=1, le=256)] | None = None
    """Attention heads of transformer and fusion, which divide hidden_size; default up to 4."""
    patch: Annotated[int, Field(ge=1, le=4_096)] = 6
    """Time steps folded into one encoder step (divides each input's window); default 6."""
    dropout: OpenFraction = 0.0
    """Share of units dropped between layers and before the head, 0 to below 1; default 0."""

    @property
    def has_blocks(self) -> bool:
        return self.encoder == "transformer"

    @property
    def has_random_blocks(self) -> bool:
        return self.dropout > 0

    @property
    def heads(self) -> int:
        """As many as were asked for, or the most of 4, 2 and 1 that divide the hidden size."""
        return self.num_heads or next(n for n in (4, 2, 1) if self.hidden_size % n == 0)

    @property
    def widths(self) -> Mapping[str, int]:
        return {"hidden_size": self.hidden_size}

    @property
    def recurrence(self) -> str | None:
        return self.encoder.upper() if self.encoder in GATES else None

    def computes_in(self, precision: str, device_kind: str) -> dict[str, Format]:
        """Under bf16-mixed an RNN stays in fp32, or TF32 on a GPU: cuDNN's has no bf16 under
        autocast, and oneDNN's refuses it on many CPUs.
        """
        usual: Format = FORMATS[precision]
        encoder = usual
        if usual == "bf16" and self.recurrence:
            encoder = "tf32" if device_kind == "cuda" else "fp32"
        return {self.encoder: encoder, "head": usual, "weights": "fp32"}

    def heads_problems(self, *, attends: bool, without: str) -> Iterator[Problem]:
        """`attends`: whether anything has heads; `without`: what has none, as a sentence begins."""
        if self.num_heads is None:
            return
        fix = {"/recipe/num_heads": None}
        if not attends:
            yield Problem(
                ("recipe", "num_heads"),
                f"{without} have no attention, so {self.num_heads} heads would do nothing.",
                "Heads are those of a transformer, and of the attention behind the encoders.",
                fix,
            )
        elif self.hidden_size % self.num_heads:
            yield Problem(
                ("recipe", "num_heads"),
                f"{self.num_heads} heads do not divide a hidden size of {self.hidden_size}.",
                "Each head has an equal part of the units.",
                fix,
            )

    def encoder_parameters(self, window: int, width: int) -> int:
        """Of every recurrent layer, input and state weights and two biases a gate. Of a
        transformer, embedding, positions and last norm, and by layer the attention's four matrices,
        the two of a hidden layer four times as wide, and two norms. `width`: numbers of a patch.
        """
        hidden = self.hidden_size
        if self.encoder == "transformer":
            layer = 4 * hidden * (hidden + 1) + hidden * (8 * hidden + 5) + 4 * hidden
            around = hidden * (width + 1) + window // self.patch * hidden + 2 * hidden
            return around + self.num_layers * layer
        gates = GATES[self.encoder]
        first = gates * hidden * (width + hidden + 2)
        return first + (self.num_layers - 1) * gates * hidden * (2 * hidden + 2)


def fitting_patches(lengths: Iterable[int]) -> list[int]:
    """Those that divide all windows of these lengths, ascending."""
    common = gcd(*lengths)
    return [patch for patch in range(1, common + 1) if common % patch == 0]
