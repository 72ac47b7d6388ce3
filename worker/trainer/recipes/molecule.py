"""Recipe `molecule`: a network that passes messages along bonds, and what it learns."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.molecule import Molecule
from app.spec.recipe import BACKBONE
from worker.trainer.data.source import Arrays
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import DataError, NothingToScore
from worker.trainer.recipes.base import (
    Batch,
    Predictor,
    Statistics,
    Tables,
    Task,
    TrainingSamples,
    WeightedLoss,
)
from worker.trainer.recipes.encoders import exact_for
from worker.trainer.recipes.fitting import log_shares, ridge

Graphs = tuple[Tensor, Tensor, Tensor, Tensor, int]
"""Of a batch: features of atoms (atoms, …) and bonds (bonds, …), the two atoms of each bond, the
molecule of each atom, and how many molecules there are. Behind the atoms of the last one are some
that are of none, and bonds between these.
"""


BITS = 31
LOWEST_BITS = 2**BITS - 1


class Layer(nn.Module):
    """Each atom adds up what its neighbours and the bonds to them say (GINE: Hu et al., 2020)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.update = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.Dropout(dropout)
        )

    def forward(self, atoms: Tensor, bonds: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """Atoms (atoms, width), as what comes; a bond says the same in both directions."""
        told = self.norm(atoms)
        # Not by `told[begins]`: its gradient would be added up in another order each time.
        there = functional.relu(told.index_select(0, begins) + bonds)
        back = functional.relu(told.index_select(0, ends) + bonds)
        heard = told.index_add(0, ends, there).index_add(0, begins, back)
        changed: Tensor = self.update(heard)
        return atoms + changed


class Encoder(nn.Module):
    """Graphs to a description of each atom (atoms, width)."""

    def __init__(self, recipe: Molecule, atom_features: int, bond_features: int) -> None:
        super().__init__()
        width, self.values = recipe.hidden_size, recipe.values
        self.atoms = nn.Embedding(atom_features * recipe.values, width)
        self.bonds = nn.Embedding(bond_features * recipe.values, width)
        self.hidden = nn.Parameter(torch.randn(width))
        for table, features in ((self.atoms, atom_features), (self.bonds, bond_features)):
            nn.init.normal_(table.weight, std=features**-0.5)
        layers = (Layer(width, recipe.dropout) for _ in range(recipe.num_layers))
        self.layers = nn.ModuleList(layers)

    def forward(
        self, atoms: Tensor, bonds: Tensor, edges: Tensor, hides: Tensor | None = None
    ) -> Tensor:
        """`hides`: bool (atoms,), of which atoms nothing but their bonds is shown."""
        said = self._embedded(self.atoms, atoms)
        if hides is not None:
            said = torch.where(hides[:, None], self.hidden.to(said.dtype), said)
        along = self._embedded(self.bonds, bonds)
        begins, ends = edges[:, 0], edges[:, 1]
        for layer in self.layers:
            said = layer(said, along, begins, ends)
        return said

    def _embedded(self, table: nn.Embedding, features: Tensor) -> Tensor:
        """The sum over features, each of which has a stretch of the table."""
        first = torch.arange(features.shape[1], device=features.device) * self.values
        found: Tensor = table(features.long() + first)
        return found.sum(1)


class MoleculeModel(nn.Module):
    """A description of each atom, or of each molecule, to what the task asks for.

    `encoder` is named alike in all tasks, so that one can begin with that of another.
    """

    def __init__(
        self,
        recipe: Molecule,
        features: tuple[int, int],
        scale: tuple[Tensor, Tensor],
        class_weights: Tensor | None = None,
    ) -> None:
        """`class_weights`: float32 (classes,), if the loss has some."""
        super().__init__()
        width = recipe.hidden_size
        self.encoder = Encoder(recipe, *features)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(recipe.dropout),
            nn.Linear(width, recipe.outputs),
        )  # fmt: skip
        self.register_buffer("target_mean", scale[0])
        self.register_buffer("target_std", scale[1])
        # On the device from the first step on; a checkpoint does without: the spec has them.
        self.register_buffer("class_weights", class_weights, persistent=False)

    def of_atoms(self, graphs: Graphs, hides: Tensor) -> Tensor:
        """Logits (atoms, values) of the elements."""
        atoms, bonds, edges, *_ = graphs
        logits: Tensor = self.head(self.norm(self.encoder(atoms, bonds, edges, hides)))
        return logits

    def of_molecules(self, graphs: Graphs) -> Tensor:
        """(molecules, outputs), by the mean over the atoms of each."""
        atoms, bonds, edges, of, molecules = graphs
        said = self.norm(self.encoder(atoms, bonds, edges))
        # One more, for the atoms that are of none.
        total = said.new_zeros(molecules + 1, said.shape[1]).index_add(0, of, said)
        counts = said.new_zeros(molecules + 1).index_add(0, of, said.new_ones(len(of)))
        means = total[:molecules] / counts[:molecules, None].clamp(min=1)
        answers: Tensor = self.head(means)
        return answers

    def forward(self, graphs: Graphs, hides: Tensor | None = None) -> Tensor:
        """Of atoms where some are hidden, else of molecules; numbers in standardized units."""
        if hides is not None:
            return self.of_atoms(graphs, hides)
        return self.of_molecules(graphs)


class MoleculeTask(Task):
    """Cross entropy of hidden elements or of classes; or the error of a number, as `loss` says."""

    recipe: Molecule
    prepared_by: ClassVar[tuple[str, ...]] = ("task", "values", "classes")
    data_buffers: ClassVar[tuple[str, ...]] = ("target_mean", "target_std")

    @property
    def molecules(self) -> str:
        return self.spec.data.inputs[0]

    @property
    def target(self) -> str:
        return self.spec.data.targets[0]

    @property
    def standardized(self) -> tuple[str, ...]:
        return (self.target,) if self.spec.data.standardize.targets is True else ()

    def prepare(self, data: TrainingData) -> Tables:
        """No tables, but a look at every feature, class and property: one that is out of range
        would end a step on a GPU without a word about where it lies. Raises DataError.
        """
        begin, names = 0, dict.fromkeys((self.molecules, self.target))
        for piece in data.whole(*names):
            self._require_in_range(data, begin, piece)
            begin += len(piece[f"{self.molecules}/counts"])
        return {}

    def made_up_tables(self) -> Tables:
        return {}

    def _require_in_range(self, data: TrainingData, begin: int, piece: Arrays) -> None:
        name, values = self.molecules, self.recipe.values
        counts = piece[f"{name}/counts"]
        for part, column in ((name, 0), (f"{name}/edge_values", 1)):
            of = np.repeat(np.arange(len(counts)), counts[:, column])
            wrong = np.argwhere((piece[part] < 0) | (piece[part] >= values))
            if len(wrong):
                row, feature = wrong[0]
                what = f"{piece[part][row, feature]} as feature {feature}"
                where = data.place_of(begin + int(of[row]))
                raise _out_of_range(part, what, where, f"features are 0 to {values - 1:,}")
        if self.recipe.task == "masked":
            return
        found = piece[self.target].reshape(-1)
        if self.recipe.task == "classification":
            classes = self.recipe.classes
            fits = (found >= 0) & (found < classes) & (found % 1 == 0)
            rule = f"classes are whole numbers from 0 to {classes - 1:,}"
        else:
            fits, rule = np.isfinite(found), "a property is a finite number"
        if not fits.all():
            row = int(np.flatnonzero(~fits)[0])
            raise _out_of_range(self.target, f"{found[row]}", data.place_of(begin + row), rule)

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        unscaled = torch.tensor(0.0), torch.tensor(1.0)
        scale = statistics.get(self.target, unscaled)
        mean, std = exact_for(self.fields[self.target], scale)
        given = self.spec.class_weights
        weights = None if given is None else torch.tensor(given)
        return MoleculeModel(self.recipe, self._features, (mean, std), weights)

    @property
    def _features(self) -> tuple[int, int]:
        """Of atoms and of bonds."""
        atoms, bonds = (self.fields[n] for n in (self.molecules, f"{self.molecules}/edge_values"))
        return atoms.shape[0], bonds.shape[0]

    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """The encoder, and what stands on it."""
        named = list(model.named_parameters())
        return {
            BACKBONE: [weight for name, weight in named if name.startswith("encoder.")],
            "head": [weight for name, weight in named if not name.startswith("encoder.")],
        }

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """Those of the encoder."""
        return [module for module in model.modules() if isinstance(module, Layer)]

    def parameters_json(self) -> dict[str, Any]:
        atoms, bonds = self._features
        return {
            **self.recipe.model_dump(mode="json"),
            "atom_features": atoms,
            "bond_features": bonds,
        }

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """The most common element or class; or the mean, and a ridge on how many atoms of each
        element a molecule has.
        """
        atoms, _, _, of, molecules = self._graphs(samples.batch)
        elements = atoms[:, 0].long()
        if self.recipe.task == "masked":
            counts = elements[of < molecules].bincount(minlength=self.recipe.values)
            return {"most common element": OfAtoms(log_shares(counts))}
        target = samples.batch.arrays[self.target].reshape(-1)
        if self.recipe.task == "classification":
            counts = target.long().bincount(minlength=self.recipe.classes)
            return {"most common class": OfMolecules(log_shares(counts))}
        mean, std = (model.get_buffer(f"target_{name}").cpu() for name in ("mean", "std"))
        scaled = ((target.to(mean.dtype) - mean) / std).double()[:, None]
        counts = element_counts(elements, of, molecules, self.recipe.values)
        fitted = ridge(counts[:, None], scaled)
        return {
            "training mean": OfMolecules(scaled.mean(0)),
            "ridge on atom counts": OfMolecules(fitted.intercept, fitted.weights[0]),
        }

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor] | WeightedLoss:
        """Means over hidden atoms, class weights or molecules."""
        if self.recipe.task == "masked":
            each, hides, _ = self._masked(model, batch)
            return WeightedLoss({"loss": (each * hides).sum()}, hides.sum())
        if self.recipe.task == "classification":
            logits, target = self._classes(model, batch)
            weights = _class_weights(model)
            if weights is None:
                return {"loss": functional.cross_entropy(logits, target)}
            each = functional.cross_entropy(logits, target, weights, reduction="none")
            return WeightedLoss({"loss": each.sum()}, weights[target].sum())
        return {"loss": self._criterion(self._error(model, batch)).mean()}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if self.recipe.task == "masked":
            each, hides, right = self._masked(model, batch)
            sums = {"loss": each * hides, "right": right & hides, "hidden": hides}
        elif self.recipe.task == "classification":
            logits, target = self._classes(model, batch)
            return self._measure_classes(logits, target, _class_weights(model))
        else:
            error = self._error(model, batch)
            exact = error.double() * model.get_buffer("target_std").double()
            sums = {
                "loss": self._criterion(error), "absolute": exact.abs(), "squared": exact.square()
            }  # fmt: skip
        return {name: one.double().sum() for name, one in sums.items()}

    def scores(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        task, wanted = self.recipe.task, self.spec.evaluation.metrics
        if task == "masked":
            if not (hidden := sums["hidden"]):
                raise NothingToScore(f"no atom of {self.molecules!r} is hidden")
            found = {"loss": sums["loss"] / hidden, "accuracy": sums["right"] / hidden}
        elif task == "classification":
            found = self._scores_of_classes(sums, samples)
        else:
            mse = sums["squared"] / samples
            found = {
                "loss": sums["loss"] / samples, "mae": sums["absolute"] / samples,
                "mse": mse, "rmse": math.sqrt(mse),
            }  # fmt: skip
        return {name: found[name] for name in ("loss", *wanted)}

    def _graphs(self, batch: Batch) -> Graphs:
        name, arrays = self.molecules, batch.arrays
        parts = name, f"{name}/edge_values", f"{name}/edges", f"{name}/samples"
        atoms, bonds, edges, of = (arrays[part] for part in parts)
        return atoms, bonds, edges, of, batch.size

    def _masked(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of each atom: its cross entropy, whether it was hidden, and whether it was told. The
        training hides others each time; evaluations always the same, or equal weights would get
        other scores from one to the next.
        """
        graphs = self._graphs(batch)
        atoms, *_, of, molecules = graphs
        if model.training:
            drawn = torch.rand(len(atoms), device=atoms.device)
        else:
            counts = batch.arrays[f"{self.molecules}/counts"]
            drawn = fixed_draws(graphs, counts, self.spec.training.seed)
        hides = (drawn < self.recipe.mask_fraction) & (of < molecules)
        logits, elements = model(graphs, hides).float(), atoms[:, 0].long()
        each = functional.cross_entropy(logits, elements, reduction="none")
        return each, hides, logits.argmax(1) == elements

    def _classes(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (molecules, classes) and classes (molecules,)."""
        logits = model(self._graphs(batch)).float()
        return logits, batch.arrays[self.target].reshape(-1).long()

    def _measure_classes(
        self, logits: Tensor, target: Tensor, weights: Tensor | None
    ) -> dict[str, Tensor]:
        """Also how many there are of each class, and how many of these were told."""
        loss = functional.cross_entropy(logits, target, weights, reduction="none")
        each = logits.new_ones(len(target)) if weights is None else weights[target]
        kinds = functional.one_hot(target, self.recipe.classes).double()
        right = kinds * (logits.argmax(1) == target).double()[:, None]
        found = {"loss": loss.double().sum(), "weight": each.double().sum()}
        for number in range(self.recipe.classes):
            found[f"there_{number}"] = kinds[:, number].sum()
            found[f"right_{number}"] = right[:, number].sum()
        return found

    def _scores_of_classes(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        each = [(sums[f"right_{n}"], sums[f"there_{n}"]) for n in range(self.recipe.classes)]
        rates = [right / there for right, there in each if there]
        return {
            "loss": sums["loss"] / max(sums["weight"], 1e-12),
            "accuracy": sum(right for right, _ in each) / samples,
            "balanced_accuracy": sum(rates) / len(rates),
        }

    def _error(self, model: nn.Module, batch: Batch) -> Tensor:
        """(molecules,), in standardized units and the type of the target's mean."""
        target = batch.arrays[self.target].reshape(-1)
        mean, std = (model.get_buffer(f"target_{name}") for name in ("mean", "std"))
        answers: Tensor = model(self._graphs(batch)).float()
        return answers[:, 0] - (target.to(mean.dtype) - mean) / std

    def _criterion(self, error: Tensor) -> Tensor:
        """Of each, float32."""
        error = error.float()
        if self.recipe.loss == "mae":
            return error.abs()
        if self.recipe.loss == "mse":
            return error.square()
        return functional.huber_loss(error, torch.zeros_like(error), reduction="none")


class OfAtoms(nn.Module):
    """Answers the same logits for each atom."""

    logits: Tensor

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.register_buffer("logits", logits)

    def forward(self, graphs: Graphs, hides: Tensor) -> Tensor:
        return self.logits.expand(len(graphs[0]), -1)


class OfMolecules(nn.Module):
    """Answers the same values for each molecule, and a linear map of its atoms' counts on top.
    weights: (elements, outputs).
    """

    values: Tensor
    weights: Tensor | None

    def __init__(self, values: Tensor, weights: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("weights", weights)

    def forward(self, graphs: Graphs) -> Tensor:
        atoms, _, _, of, molecules = graphs
        if self.weights is None:
            return self.values.expand(molecules, -1)
        counts = element_counts(atoms[:, 0].long(), of, molecules, len(self.weights))
        return counts @ self.weights + self.values


def element_counts(elements: Tensor, of: Tensor, molecules: int, values: int) -> Tensor:
    """Atoms of each element by molecule, float64 (molecules, values). Atoms that fill up a batch
    are of none: `of` is `molecules` there.
    """
    counts = torch.zeros((molecules + 1) * values, dtype=torch.float64, device=elements.device)
    places = of.clamp(max=molecules) * values + elements
    counts.index_add_(0, places, torch.ones_like(places, dtype=torch.float64))
    return counts.view(molecules + 1, values)[:molecules]


def fixed_draws(graphs: Graphs, counts: Tensor, seed: int) -> Tensor:
    """Of each atom a number as if drawn from [0, 1], float32 (atoms,): the same wherever a molecule
    lies, for it follows from the seed, the molecule's atoms and the atom's place among them.
    `counts`: atoms and bonds of each molecule, (molecules, 2).
    """
    atoms, *_, of, molecules = graphs
    begins = functional.pad(counts[:, 0].cumsum(0) - counts[:, 0], (0, 1))
    places = torch.arange(len(atoms), device=atoms.device) - begins.index_select(0, of)
    said = _scattered(places & LOWEST_BITS)
    for feature in atoms.long().unbind(1):
        said = _scattered(said ^ (feature & LOWEST_BITS))
    of_molecules = said.new_zeros(molecules + 1).index_add(0, of, said)
    of_molecules = _scattered((of_molecules + seed % 2**BITS) & LOWEST_BITS)
    drawn: Tensor = _scattered(of_molecules.index_select(0, of) ^ said).float() / 2**BITS
    return drawn


def _scattered(numbers: Tensor) -> Tensor:
    """Whole numbers of BITS bits to others, one to one, as if drawn: multiplied and folded twice.
    No product is beyond int64, where the compiler might take another one.
    """
    for _ in range(2):
        numbers = ((numbers ^ (numbers >> 16)) * 0x45D9F3B) & LOWEST_BITS
    return numbers ^ (numbers >> 16)


def _class_weights(model: nn.Module) -> Tensor | None:
    weights: Tensor | None = model.get_buffer("class_weights")
    return weights


def _out_of_range(name: str, what: str, where: str, rule: str) -> DataError:
    return DataError(
        f"{name!r} has {what} in {where}, and {rule}. Mend or drop such samples, register the data "
        "again and restart the run."
    )
