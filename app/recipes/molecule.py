"""Recipe `molecule`: messages along bonds, from masked atoms to properties of whole molecules."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.spec.base import OpenFraction
from app.spec.data import Data
from app.spec.recipe import BACKBONE, Array, Mode, Problem, Recipe, Roles

WHOLE = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "int64")


class Molecule(Recipe):
    """Packed graphs: embedded atoms and bonds → messages along bonds → a head for the task."""

    kind: Literal["molecule"]
    """Which recipe."""
    task: Literal["masked", "regression", "classification"]
    """masked: the element of atoms that are hidden; or numbers, or classes, of each molecule."""
    hidden_size: Annotated[int, Field(ge=8, le=4_096)] = 64
    """Numbers that an atom is described by; default 64."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """How often atoms hear from their neighbours; default 4."""
    values: Annotated[int, Field(ge=2, le=65_536)] = 128
    """Each feature of atoms and bonds is a whole number from 0 to below this; default 128."""
    readout: Literal["mean", "sum", "both"] = "both"
    """The readout of a molecule's atoms in regression and classification; default both. A mean
    does not know how many atoms there are; a sum can count groups of atoms.
    """
    dropout: OpenFraction = 0.0
    """Share of units dropped in each layer and before the head, 0 to below 1; default 0."""
    mask_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of atoms that task masked hides, by chance; default 0.15."""
    loss: Literal["mae", "mse", "huber"] = "mae"
    """Training loss of task regression, in standardized target units; default mae."""
    classes: Annotated[int, Field(ge=2, le=65_536)] = 2
    """Classes of task classification, which each target numbers from 0; default 2."""

    takes_packed: ClassVar = ("inputs", "targets")
    takes_missing: ClassVar = ("targets",)
    shape_fields: ClassVar = ("task", "hidden_size", "num_layers", "values", "readout", "classes")
    earlier: ClassVar = {"readout": "mean"}

    @property
    def has_scale(self) -> tuple[str, ...]:
        """Features are numbers of kinds; a property that is measured has a scale."""
        return ("targets",) if self.task == "regression" else ()

    @property
    def hides_targets(self) -> bool:
        return self.task == "masked"

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        return (BACKBONE, "head")

    @property
    def has_blocks(self) -> bool:
        return True

    @property
    def has_random_blocks(self) -> bool:
        return self.dropout > 0

    def uses_attention(self, data: Data) -> bool:
        return False

    @property
    def takes_weights(self) -> Mapping[str, int]:
        return {"class_weights": self.classes} if self.task == "classification" else {}

    @property
    def widths(self) -> Mapping[str, int]:
        return {"hidden_size": self.hidden_size}

    @property
    def metric_modes(self) -> Mapping[str, Mode]:
        if self.task == "masked":
            return {"accuracy": "max"}
        if self.task == "classification":
            area: dict[str, Mode] = {"auc": "max"} if self.classes == 2 else {}
            return {"accuracy": "max", "balanced_accuracy": "max", **area}
        return {"mae": "min", "mse": "min", "rmse": "min"}

    @property
    def natural_metric(self) -> str | None:
        return "balanced_accuracy" if self.task == "classification" else None

    @property
    def readouts(self) -> int:
        """Descriptions of a molecule that the head takes, each of `hidden_size` numbers."""
        return 2 if self.readout == "both" and self.task != "masked" else 1

    def outputs(self, targets: int) -> int:
        """Numbers that the head gives for an atom, or for a molecule with so many targets."""
        if self.task == "masked":
            return self.values
        return targets * (self.classes if self.task == "classification" else 1)

    def roles(self, arrays: Mapping[str, Array]) -> Roles | None:
        """The packed graphs. The masked task has them as targets too; others have the one array of
        real numbers: one for each molecule, or else a row.
        """
        graphs = tuple(name for name in arrays if f"{name}/edge_values" in arrays)
        if self.task == "masked":
            return Roles(graphs, graphs) if len(graphs) == 1 else None
        real = {
            name: array.shape
            for name, array in arrays.items()
            if array.rows is None and array.dtype.startswith("float") and len(array.shape) <= 1
        }
        numbers = tuple(name for name, shape in real.items() if shape in ((), (1,)))
        targets = numbers or tuple(real)
        return Roles(graphs, targets) if len(graphs) == len(targets) == 1 else None

    def problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """Graphs in, and what the task asks for."""
        yield from self._scale_problems(data)
        if len(data.inputs) != 1 or len(data.targets) != 1:
            part = "inputs" if len(data.inputs) != 1 else "targets"
            yield Problem(
                ("data", part),
                f"The recipe molecule takes one array in data.{part}, not "
                f"{len(getattr(data, part))}.",
                "It reads one array of molecules. Several targets are the columns of one array, as "
                "`stoker data convert --target A --target B` writes them.",
                {f"/data/{part}": [getattr(data, part)[0]]},
            )
            return
        yield from self._graph_problems(data, arrays)
        if self.task == "masked":
            if data.targets != data.inputs:
                yield Problem(
                    ("data", "targets"),
                    f"Task masked learns from the molecules alone, and data.targets is "
                    f"{data.targets[0]!r}.",
                    "What it asks for are the atoms that it hides; so the targets are the inputs.",
                    {"/data/targets": list(data.inputs)},
                )
            return
        yield from self._target_problems(data, arrays)

    def _scale_problems(self, data: Data) -> Iterator[Problem]:
        wanted = {"inputs": False}
        if self.task != "regression":
            wanted["targets"] = False
        wrong = [part for part in wanted if getattr(data.standardize, part)]
        if wrong:
            fix = data.standardize.model_dump() | wanted
            yield Problem(
                ("data", "standardize"),
                f"Task {self.task} standardizes no {' and no '.join(wrong)}.",
                "Elements, bonds and classes are numbers of kinds, of which a mean says nothing.",
                {"/data/standardize": fix},
            )

    def _graph_problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        name = data.inputs[0]
        if (atoms := arrays.get(name)) is None:
            return
        bonds = arrays.get(f"{name}/edge_values")
        if atoms.rows is None:
            yield Problem(
                ("data", "inputs", 0),
                f"{name!r} has samples of {atoms.dtype} {atoms.shape}; the recipe molecule reads "
                "packed graphs.",
                "It passes messages along bonds. `stoker data convert` writes SMILES and SDF so.",
            )
        elif len(atoms.shape) != 1 or atoms.dtype not in WHOLE:
            yield Problem(
                ("data", "inputs", 0),
                f"The nodes of {name!r} are {atoms.dtype} {atoms.shape}; atoms have a row of whole "
                "numbers each.",
                "Each is looked up in an embedding: the first one is the element.",
            )
        elif bonds is None or len(bonds.shape) != 1 or bonds.dtype not in WHOLE:
            what = "nothing" if bonds is None else f"{bonds.dtype} {bonds.shape}"
            yield Problem(
                ("data", "inputs", 0),
                f"The edges of {name!r} have {what} as edge_values; bonds have a row of whole "
                "numbers each.",
                "Each is looked up in an embedding, such as whether the bond is single or double.",
            )

    def _target_problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        target = arrays.get(data.targets[0])
        if target is None or (len(target.shape) <= 1 and target.rows is None):
            return
        what = "graphs" if target.rows is not None else f"{target.dtype} {target.shape}"
        yield Problem(
            ("data", "targets", 0),
            f"{data.targets[0]!r} has samples of {what}; task {self.task} learns a number, or a "
            "row of numbers, for each molecule.",
            "The head gives an answer for each target of a molecule.",
        )

    def num_targets(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Numbers or classes that are learned of each molecule; None while the array is unknown.
        1 in task masked.
        """
        if self.task == "masked":
            return 1
        target = arrays.get(data.targets[0])
        return None if target is None else math.prod(target.shape)

    def shape(self, data: Data, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the features of atoms and bonds, and the number of targets, by array."""
        found = {name: arrays.get(name) for name in _graph_arrays(data)}
        inputs = {name: list(one.shape) for name, one in found.items() if one is not None}
        targets = self.num_targets(data, arrays)
        if self.task == "masked" or targets is None:
            return {"inputs": inputs}
        return {"inputs": inputs, "targets": {data.targets[0]: [targets]}}

    def num_parameters(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Embeddings, with one for hidden atoms; in each layer a norm and two linear ones; two as
        the head.
        """
        shapes = [arrays[name].shape for name in _graph_arrays(data) if name in arrays]
        targets = self.num_targets(data, arrays)
        if targets is None or len(shapes) != 2 or any(len(one) != 1 for one in shapes):
            return None
        features, wide = sum(one[0] for one in shapes), self.hidden_size
        layer = 2 * wide + (wide + 1) * 2 * wide + (2 * wide + 1) * wide
        head = 2 * wide + (self.readouts * wide + 1) * wide + (wide + 1) * self.outputs(targets)
        return (features * self.values + 1) * wide + self.num_layers * layer + head


def _graph_arrays(data: Data) -> tuple[str, str]:
    """The names of what is said of atoms and of bonds."""
    return data.inputs[0], f"{data.inputs[0]}/edge_values"
