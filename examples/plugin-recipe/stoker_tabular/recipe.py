"""The half without PyTorch: parameters, and what they ask of the data."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.spec.data import Data
from app.spec.recipe import Array, Mode, Problem, Recipe


class Tabular(Recipe):
    """A network of two hidden layers over the columns of each row."""

    kind: Literal["tabular"]
    """Which recipe."""
    task: Literal["regression", "classification"] = "regression"
    """Numbers or classes; default regression."""
    classes: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """How many classes there are, under classification; default none."""
    hidden_size: Annotated[int, Field(ge=1, le=16_384)] = 128
    """Width of the hidden layers, in units; default 128."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of units dropped behind each hidden layer, 0 to below 1; default 0."""

    shape_fields: ClassVar[tuple[str, ...]] = ("task", "classes", "hidden_size")
    has_scale: ClassVar[tuple[str, ...]] = ("inputs",)

    @property
    def metric_modes(self) -> Mapping[str, Mode]:
        """Those that the task has."""
        return (
            {"accuracy": "max"} if self.task == "classification" else {"mae": "min", "rmse": "min"}
        )

    @property
    def takes_weights(self) -> Mapping[str, int]:
        """A factor for each class."""
        return {"class_weights": self.classes or 0} if self.task == "classification" else {}

    def problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """Rows of numbers in; a number each or a class out."""
        rows, target = arrays.get(data.inputs[0]), arrays.get(data.targets[0])
        if rows is not None and len(rows.shape) != 1:
            yield Problem(
                ("data", "inputs", 0),
                f"{data.inputs[0]!r} has samples of shape {rows.shape}; tabular reads one row of "
                "columns for each sample.",
                "Its first layer has one weight for each column.",
            )
        if self.task == "classification" and self.classes is None:
            yield Problem(
                ("recipe", "classes"),
                "Classification needs recipe.classes.",
                "The last layer gives one number for each class.",
            )
        if self.task == "classification" and target is not None and target.shape not in ((), (1,)):
            yield Problem(
                ("data", "targets", 0),
                f"{data.targets[0]!r} has samples of shape {target.shape}; a class is one number.",
                "Give the class of each sample as an integer from 0.",
            )

    def num_parameters(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Weights and biases of the three layers."""
        rows, target = arrays[data.inputs[0]], arrays[data.targets[0]]
        if len(rows.shape) != 1:
            return None
        hidden, outputs = self.hidden_size, self.outputs(target.shape)
        return (rows.shape[0] + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * outputs

    def outputs(self, target_shape: tuple[int, ...]) -> int:
        """Numbers that the last layer gives for a sample."""
        return self.classes or 1 if self.task == "classification" else prod(target_shape)
