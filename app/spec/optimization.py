"""Optimizer, learning-rate schedule and weight averaging."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from app.spec.base import (
    Epochs,
    Fraction,
    LearningRate,
    OpenFraction,
    SpecModel,
    disagreement,
)
from app.spec.recipe import Mode
from app.spec.training import MOST_PATIENCE, Monitor

WeightDecay = Annotated[float, Field(ge=0.0, le=10.0)]


class _Optimizer(SpecModel):
    lr: LearningRate = 1.0e-3
    """Peak learning rate, per step; default 0.001."""
    weight_decay: WeightDecay = 0.01
    """Weight decay (decoupled in adamw, L2 otherwise); default 0.01."""
    decay: Literal["matrices", "all"] = "matrices"
    """Weights that decay: all, or no biases, norms, embeddings and positions; default matrices."""
    backbone_lr: LearningRate | None = None
    """Peak learning rate of the recipe's backbone, as of pretrained weights; default none: lr."""


class AdamW(_Optimizer):
    kind: Literal["adamw"] = "adamw"
    """AdamW: Loshchilov & Hutter, 2019."""
    betas: tuple[OpenFraction, OpenFraction] = (0.9, 0.999)
    """Decay of the first and second moment; default [0.9, 0.999]."""


class Adam(_Optimizer):
    kind: Literal["adam"]
    """Adam: Kingma & Ba, 2015."""
    betas: tuple[OpenFraction, OpenFraction] = (0.9, 0.999)
    """Decay of the first and second moment; default [0.9, 0.999]."""
    weight_decay: WeightDecay = 0.0
    """L2 penalty; default 0."""


class SGD(_Optimizer):
    kind: Literal["sgd"]
    """Stochastic gradient descent with momentum."""
    momentum: OpenFraction = 0.9
    """Momentum; default 0.9."""
    nesterov: bool = False
    """Nesterov's variant (needs momentum); default false."""
    weight_decay: WeightDecay = 0.0
    """L2 penalty; default 0."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0.0:
            raise disagreement(
                "nesterov",
                "nesterov needs a momentum above 0",
                "It looks ahead along the momentum, and with none there is nothing to look along.",
                {"nesterov": False},
            )
        return self


Optimizer = Annotated[AdamW | Adam | SGD, Field(discriminator="kind")]


class Constant(SpecModel):
    kind: Literal["constant"]
    """One learning rate throughout."""


class _Warmup(SpecModel):
    warmup_fraction: Fraction | None = 0.1
    """Share of all steps spent warming up, 0 to 1; default 0.1, null with warmup_steps."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Warm-up in steps, instead of the fraction; default none."""

    @model_validator(mode="before")
    @classmethod
    def _steps_take_the_place_of_the_fraction(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("warmup_steps") is not None:
            return {"warmup_fraction": None, **given}
        return given

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.warmup_fraction is None) == (self.warmup_steps is None):
            both = self.warmup_steps is not None
            usual = type(self).model_fields["warmup_fraction"].default
            raise disagreement(
                "warmup_fraction",
                "give either warmup_fraction or warmup_steps",
                "They are two ways to say how long the warm-up is, and "
                + ("here they may differ." if both else "here neither does."),
                {"warmup_fraction": None if both else usual},
            )
        return self


class OneCycle(_Warmup):
    """Up from lr/div_factor to lr and down to lr/(div_factor·final_div_factor), both as cosines.

    Only the learning rate moves. Momentum (beta1 of adam) stays, where torch's OneCycleLR cycles
    it: a recorded CUDA graph reads the rate from the device, but has the momentum written into it.
    """

    kind: Literal["onecycle"] = "onecycle"
    """One cycle: Smith & Topin, 2018."""
    warmup_fraction: Fraction | None = 0.3
    """Share of all steps on the way up, 0 to 1; default 0.3, null with warmup_steps."""
    div_factor: Annotated[float, Field(ge=1.0, le=1e9)] = 25.0
    """lr over the first learning rate; default 25."""
    final_div_factor: Annotated[float, Field(ge=1.0, le=1e12)] = 10_000.0
    """First learning rate over the last one; default 10000."""


class CosineWarmup(_Warmup):
    """Linear warm-up, from one step above 0, then a cosine down to 0."""

    kind: Literal["cosine_warmup"]
    """Cosine with warm-up: Loshchilov & Hutter, 2017."""


class LinearWarmup(_Warmup):
    """Linear warm-up, from one step above 0, then linearly down to 0."""

    kind: Literal["linear_warmup"]
    """Linear with warm-up."""


class Plateau(SpecModel):
    """At lr, which falls when the validation stops improving, as torch's ReduceLROnPlateau does;
    but of a best value below 0 the threshold is a share of its size.
    """

    kind: Literal["plateau"]
    """Reduce on plateau."""
    monitor: Monitor = "val_loss"
    """Which metric; default the recipe's own, else val_loss."""
    mode: Mode = "min"
    """Whether less or more is better; default as it is for the metric."""
    patience: Annotated[int, Field(ge=0, le=MOST_PATIENCE)] = 3
    """Evaluations without improvement that are borne; at the next one the rate falls. Default 3."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """What the rate is multiplied by; default 0.5."""
    threshold: Annotated[float, Field(ge=0.0, lt=1.0)] = 1.0e-4
    """Smallest change that counts as improvement, as a share of the best value; default 0.0001."""
    min_lr: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Lowest rate; default 0."""


Schedule = Annotated[
    OneCycle | CosineWarmup | LinearWarmup | Plateau | Constant, Field(discriminator="kind")
]


class NoAveraging(SpecModel):
    kind: Literal["none"] = "none"
    """Deliver the weights as trained."""


class StochasticAveraging(SpecModel):
    """The mean of the weights at the ends of epochs, which all weigh the same."""

    kind: Literal["swa"]
    """Stochastic weight averaging: Izmailov et al., 2018."""
    start_epoch: Epochs
    """First epoch, from 1, whose weights enter the average, at its end."""
    lr: LearningRate
    """Learning rate from that epoch on, in place of the schedule's."""
    anneal_epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Epochs on the way from the schedule's rate to it, as a cosine; default 0: at once."""


class ExponentialAveraging(SpecModel):
    """The mean of the weights after all steps; later ones weigh more."""

    kind: Literal["ema"]
    """Exponential moving average: Polyak & Juditsky, 1992."""
    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    """Weight of the past in each step; default 0.999."""
    ramp: bool = True
    """Begin at a smaller decay, min(decay, (1 + n)/(10 + n)) after n updates; default true."""


Averaging = Annotated[
    NoAveraging | StochasticAveraging | ExponentialAveraging, Field(discriminator="kind")
]
