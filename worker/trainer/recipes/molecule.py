"""Recipe `molecule`: a network that passes messages along bonds, and what it learns."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.molecule import Molecule
from app.spec.recipe import BACKBONE
from worker.trainer.data.source import Arrays, arrays_of
from worker.trainer.data.statistics import array_statistics
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import DataError, NothingToScore
from worker.trainer.recipes.auc import auc_of, class_counts
from worker.trainer.recipes.base import (
    Batch,
    Exported,
    Predictor,
    Statistics,
    Tables,
    Task,
    TrainingSamples,
    WeightedLoss,
)
from worker.trainer.recipes.encoders import exact_for
from worker.trainer.recipes.fitting import can_fit, log_shares, ridge

Graphs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Of a batch: features of atoms (atoms, …) and bonds (bonds, …), the two atoms of each bond, the
molecule of each atom, and how many atoms and bonds each molecule has (molecules, 2). Behind the
atoms of the last one are some that are of none, and bonds between these.
"""


Labels = NDArray[Any]
# The name by which an exported model of task masked is told which atoms are hidden.
HIDDEN = "hidden"
# Targets whose metrics are given one by one, beside those over all.
MOST_SCORED_TARGETS = 32
RIDGE = "ridge on atom counts"
# Known labels that a ridge is fitted on, and the least chance that it gives a class.
LEAST_LABELS, LEAST_CHANCE = 8, 1e-3
# Atoms that a sum is divided by, so that it begins about as large as a mean.
USUAL_ATOMS = 16
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
        targets: int,
        scale: tuple[Tensor, Tensor],
        class_weights: Tensor | None = None,
    ) -> None:
        """`scale`: mean and deviation of each target. `class_weights`: float32 (classes,), if the
        loss has some.
        """
        super().__init__()
        width, self.readout = recipe.hidden_size, recipe.readout
        self.gives_classes = recipe.task == "classification"
        self.encoder = Encoder(recipe, *features)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(recipe.readouts * width, width), nn.ReLU(), nn.Dropout(recipe.dropout),
            nn.Linear(width, recipe.outputs(targets)),
        )  # fmt: skip
        self.register_buffer("target_mean", scale[0])
        self.register_buffer("target_std", scale[1])
        # On the device from the first step on; a checkpoint does without: the spec has them.
        self.register_buffer("class_weights", class_weights, persistent=False)

    def of_molecules(self, said: Tensor, of: Tensor, molecules: int) -> Tensor:
        """(molecules, outputs), by the mean or the sum over the atoms of each, or by both."""
        # One more, for the atoms that are of none.
        total = said.new_zeros(molecules + 1, said.shape[1]).index_add(0, of, said)[:molecules]
        described = []
        if self.readout != "sum":
            counts = said.new_zeros(molecules + 1).index_add(0, of, said.new_ones(len(of)))
            described.append(total / counts[:molecules, None].clamp(min=1))
        if self.readout != "mean":
            described.append(total / USUAL_ATOMS)
        answers: Tensor = self.head(torch.cat(described, 1))
        return answers

    def forward(self, atoms: Tensor, bonds: Tensor, edges: Tensor, *more: Tensor) -> Tensor:
        """Logits (atoms, values) of the elements, if `more` says which atoms are hidden, bool
        (atoms,). Else `more` has what `Graphs` has behind the edges, and the answers are numbers
        (molecules, targets) in the targets' own units, or logits (molecules, targets × classes).
        """
        if len(more) == 1:
            logits: Tensor = self.head(self.norm(self.encoder(atoms, bonds, edges, *more)))
            return logits
        of, counts = more
        said = self.norm(self.encoder(atoms, bonds, edges))
        answers = self.of_molecules(said, of, len(counts))
        if self.gives_classes:
            return answers
        mean, std = self.get_buffer("target_mean"), self.get_buffer("target_std")
        return answers.to(mean.dtype) * std + mean


class MoleculeTask(Task):
    """Cross entropy of hidden elements or of classes; or the error of numbers, as `loss` says.

    A target that is NaN is not known: it counts neither in the loss nor in a metric. A metric is
    the mean over the targets, each over the molecules in which it is known.
    """

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
    def num_targets(self) -> int:
        return self.recipe.num_targets(self.spec.data, arrays_of(self.fields)) or 1

    @property
    def standardized(self) -> tuple[str, ...]:
        """None by the trainer, which knows of no missing labels: `prepare` does it."""
        return ()

    def prepare(self, data: TrainingData) -> Tables:
        """Mean and deviation of each target's known labels in the training part, for regression.

        Looks at every feature and label first: one that is out of range would end a step on a GPU
        without a word about where it lies. Raises DataError.
        """
        begin, names = 0, dict.fromkeys((self.molecules, self.target))
        for piece in data.whole(*names):
            self._require_in_range(data, begin, piece)
            begin += len(piece[f"{self.molecules}/counts"])
        if self.recipe.task == "masked":
            return {}
        each = [self._known_labels(data, target) for target in range(self.num_targets)]
        for target, known in enumerate(each):
            if not any(len(labels) for labels in known()):
                raise DataError(
                    f"No label of {self._name_of(target)} is known in the training part, so "
                    "nothing can be learned of it. Leave it out of the array, or give the training "
                    "part molecules with that label, by data.split or by a larger file."
                )
        if self.recipe.task == "classification":
            return {}
        moments = [
            array_statistics(self.target, ((labels, None) for labels in known()), pooled=True)
            for known in each
        ]
        mean, std = (torch.stack(one) for one in zip(*moments, strict=True))
        return {"mean": mean, "std": std}

    def _known_labels(self, data: TrainingData, target: int) -> Callable[[], Iterator[Labels]]:
        """Reads one target's known labels in the training part, each time it is called."""

        def known() -> Iterator[Labels]:
            for piece in data.pieces(self.target):
                labels = _in_columns(piece[self.target])[:, target]
                yield labels[~np.isnan(labels)]

        return known

    def _name_of(self, target: int) -> str:
        column = f", column {target}" if self.num_targets > 1 else ""
        return f"{self.target!r}{column}"

    def made_up_tables(self) -> Tables:
        if self.recipe.task != "regression":
            return {}
        return {"mean": torch.zeros(self.num_targets), "std": torch.ones(self.num_targets)}

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
                raise _out_of_range(repr(part), what, where, f"features are 0 to {values - 1:,}")
        if self.recipe.task != "masked":
            self._require_labels(data, begin, _in_columns(piece[self.target]))

    def _require_labels(self, data: TrainingData, begin: int, labels: Labels) -> None:
        """Numbers that are finite, or classes; NaN where one is not known."""
        known = ~np.isnan(labels)
        if self.recipe.task == "classification":
            classes = self.recipe.classes
            fits = (labels >= 0) & (labels < classes) & (labels % 1 == 0)
            rule = f"classes are whole numbers from 0 to {classes - 1:,}"
            fix = (
                "Number the classes so, raise recipe.classes if there are more of them, or learn "
                "the number itself by recipe.task: regression."
            )
        else:
            fits, rule, fix = np.isfinite(labels), "a property is a finite number", ""
        wrong = np.argwhere(known & ~fits)
        if len(wrong):
            row, target = wrong[0]
            where = data.place_of(begin + int(row))
            found = f"{labels[row, target]}"
            raise _out_of_range(self._name_of(int(target)), found, where, rule, fix)

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        targets = self.num_targets
        # Of one target the shape is that of earlier versions' checkpoints.
        shape = (targets,) if targets > 1 else ()
        moments = torch.zeros(shape), torch.ones(shape)
        if self.spec.data.standardize.targets is True:
            moments = tables["mean"].view(shape), tables["std"].view(shape)
        scale = exact_for(self.fields[self.target], moments)
        given = self.spec.class_weights
        weights = None if given is None else torch.tensor(given)
        return MoleculeModel(self.recipe, self._features, targets, scale, weights)

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
            "targets": self.num_targets,
        }

    def baseline_facts(self) -> Mapping[str, Any]:
        facts = self.recipe.model_dump(mode="json", include={"task", "values", "classes", "loss"})
        if self.recipe.task == "masked":  # which atoms are hidden
            facts |= {"fraction": self.recipe.mask_fraction, "seed": self.spec.training.seed}
        return facts

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """The most common element or class; or the mean. For numbers, and for two classes, also a
        ridge on how many atoms of each element a molecule has.
        """
        atoms, _, _, of, _ = self._graphs(samples.batch)
        elements, molecules = atoms[:, 0].long(), samples.batch.size
        if self.recipe.task == "masked":
            counts = elements[of < molecules].bincount(minlength=self.recipe.values)
            return {"most common element": OfAtoms(log_shares(counts))}
        labels = samples.batch.arrays[self.target].reshape(molecules, -1)
        if self.recipe.task == "classification":
            classes = self.recipe.classes
            each = [one[~one.isnan()].long().bincount(minlength=classes) for one in labels.T]
            usual = torch.stack([log_shares(one) for one in each])
            baselines: dict[str, Predictor] = {"most common class": OfMolecules(usual.flatten())}
            chances = self._atom_ridge(samples, labels.double()) if classes == 2 else None
            return baselines | ({RIDGE: OfChances(chances)} if chances else {})
        numbers = labels.double()
        baselines = {"training mean": OfMolecules(numbers.nanmean(0).nan_to_num())}
        fitted = self._atom_ridge(samples, numbers)
        return baselines | ({RIDGE: fitted} if fitted else {})

    def _atom_ridge(self, samples: TrainingSamples, labels: Tensor) -> "OfMolecules | None":
        """Returns None if the ridges are too large, or there is no time for all of them."""
        budget, molecules = samples.budget, samples.batch.size
        if labels.shape[1] > MOST_SCORED_TARGETS:
            budget.too_large.append(RIDGE)
            return None
        # Only the shape, since counts of many elements may not fit into memory.
        shape = torch.empty(molecules, self.recipe.values, device="meta")
        if not can_fit(samples, RIDGE, shape, 1):
            return None
        atoms, _, _, of, _ = self._graphs(samples.batch)
        counts = element_counts(atoms[:, 0].long(), of, molecules, self.recipe.values)
        ridges = []
        for column in labels.T:
            if not budget.has_time_for(RIDGE):
                return None
            ridges.append(ridge_of(counts, column))
        intercepts, weights = zip(*ridges, strict=True)
        return OfMolecules(torch.stack(intercepts), torch.stack(weights, 1))

    def loss(self, model: nn.Module, batch: Batch) -> WeightedLoss:
        """Means over hidden atoms, or over known labels; of classes by their weights."""
        if self.recipe.task == "masked":
            each, hides, _ = self._masked(model, batch)
            return WeightedLoss({"loss": (each * hides).sum()}, hides.sum())
        if self.recipe.task == "classification":
            each, weights, *_ = self._class_losses(model, batch)
            return WeightedLoss({"loss": each.sum()}, weights.sum())
        error, known = self._error(model, batch)
        std = model.get_buffer("target_std")
        return WeightedLoss({"loss": self._criterion(error / std).sum()}, known.sum())

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Sums of hidden atoms, or of the known labels of each target, (targets,)."""
        if self.recipe.task == "masked":
            each, hides, right = self._masked(model, batch)
            atoms = {"loss": each * hides, "right": right & hides, "hidden": hides}
            return {name: one.double().sum() for name, one in atoms.items()}
        if self.recipe.task == "classification":
            return self._measure_classes(model, batch)
        error, known = self._error(model, batch)
        exact, std = error.double(), model.get_buffer("target_std")
        molecules = {
            "loss": self._criterion(error / std), "known": known,
            "absolute": exact.abs(), "squared": exact.square(),
        }  # fmt: skip
        return {name: one.double().sum(0) for name, one in molecules.items()}

    def scores(self, sums: Mapping[str, Any], samples: int) -> dict[str, float]:
        """Returns the spec's metrics over all targets. Several targets have their own as well, by
        column (`mae_0`), if some of their labels are known.
        """
        task = self.recipe.task
        if task == "masked":
            if not (hidden := sums["hidden"]):
                raise NothingToScore(f"no atom of {self.molecules!r} is hidden")
            scores = {"loss": sums["loss"] / hidden, "accuracy": sums["right"] / hidden}
            return {name: scores[name] for name in ("loss", *self.spec.evaluation.metrics)}
        is_known = sums["known"] > 0
        if not is_known.any():
            raise NothingToScore(f"no label of {self.target!r} is known")
        if task == "classification":
            loss, each = sums["loss"] / sums["weight"], self._rates_of_classes(sums)
        else:
            mse = sums["squared"] / sums["known"]
            each = {"mae": sums["absolute"] / sums["known"], "mse": mse, "rmse": mse.sqrt()}
            loss = sums["loss"].sum().item() / sums["known"].sum().item()
        scores = {"loss": loss}
        no_area = ""
        for name in self.spec.evaluation.metrics:
            is_scored = (sums["there"] > 0).all(1) if name == "auc" else is_known
            if not is_scored.any():
                no_area = f"no target of {self.target!r} has molecules of both classes"
                continue
            scores[name] = each[name][is_scored].mean().item()
            if 1 < len(is_scored) <= MOST_SCORED_TARGETS:
                columns = is_scored.nonzero()[:, 0].tolist()
                scores |= {f"{name}_{column}": each[name][column].item() for column in columns}
        if no_area:
            raise NothingToScore(no_area, metric="auc", others=scores)
        return scores

    def _graphs(self, batch: Batch) -> Graphs:
        atoms, bonds, edges, of, counts = (batch.arrays[name] for name in self._parts)
        return atoms, bonds, edges, of, counts

    @property
    def _parts(self) -> tuple[str, ...]:
        """The names of the arrays of `Graphs`."""
        name = self.molecules
        return name, *(f"{name}/{part}" for part in ("edge_values", "edges", "samples", "counts"))

    def exported(self, batch: Batch) -> Exported:
        """The arrays of `Graphs`, for any number of molecules, atoms and bonds; in task masked
        which atoms are hidden, in place of the last two.
        """
        graphs = self._graphs(batch)
        atoms, bonds, edges, of, _ = self._parts
        axes = {atoms: "atoms", bonds: "bonds", edges: "bonds", of: "atoms"}
        if self.recipe.task != "masked":
            inputs = dict(zip(self._parts, graphs, strict=True))
            return Exported(inputs, axes=axes, more=self._twice)
        hides = self._hidden(graphs)
        inputs = dict(zip((atoms, bonds, edges, HIDDEN), (*graphs[:3], hides), strict=True))
        axes |= {HIDDEN: "atoms", "output": "atoms"}
        return Exported(inputs, axes=axes, more=self._twice)

    def _twice(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All molecules of these inputs, and once more behind them."""
        atoms, _, edges, of, counts = self._parts
        twice = {name: torch.cat([one, one]) for name, one in inputs.items()}
        twice[edges] = torch.cat([inputs[edges], inputs[edges] + len(inputs[atoms])])
        if of in inputs:
            first, molecules = inputs[of], len(inputs[counts])
            # Atoms that are of no molecule stay so: their number is that of the molecules.
            twice[of] = torch.cat([
                first.masked_fill(first == molecules, 2 * molecules), first + molecules
            ])  # fmt: skip
        return twice

    def _masked(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns each atom's cross entropy, if it was hidden, and if its element was right."""
        graphs = self._graphs(batch)
        atoms, bonds, edges, *_ = graphs
        hides = self._hidden(graphs, by_chance=model.training)
        logits, elements = model(atoms, bonds, edges, hides).float(), atoms[:, 0].long()
        each = functional.cross_entropy(logits, elements, reduction="none")
        return each, hides, logits.argmax(1) == elements

    def _hidden(self, graphs: Graphs, *, by_chance: bool = False) -> Tensor:
        """Atoms that are hidden, bool (atoms,). The training hides others each time; evaluations
        always the same, or equal weights would get other scores from one to the next.
        """
        atoms, *_, of, counts = graphs
        if by_chance:
            drawn = torch.rand(len(atoms), device=atoms.device)
        else:
            drawn = fixed_draws(graphs, self.spec.training.seed)
        return (drawn < self.recipe.mask_fraction) & (of < len(counts))

    def _classes(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (molecules, targets, classes); classes, and which are known: (molecules,
        targets).
        """
        labels, known = self._labels(batch)
        logits = model(*self._graphs(batch)).float()
        logits = logits.view(*labels.shape, self.recipe.classes)
        return logits, labels.long(), known

    def _class_losses(
        self, model: nn.Module, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The weighted cross entropy of each label and its weight, (molecules × targets,), both 0
        where it is not known; then what `_classes` gives.
        """
        logits, target, known = self._classes(model, batch)
        weights = _class_weights(model)
        flat = target.flatten()
        each = functional.cross_entropy(logits.flatten(0, 1), flat, weights, reduction="none")
        of_each = torch.ones_like(each) if weights is None else weights[flat]
        return each * known.flatten(), of_each * known.flatten(), logits, target, known

    def _measure_classes(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Also the labels of each class, and those that were predicted, (targets, classes)."""
        each, weights, logits, target, known = self._class_losses(model, batch)
        targets, classes = target.shape[1], self.recipe.classes
        places = (target + classes * torch.arange(targets, device=target.device)).flatten()
        there, right = known.double(), (known & (logits.argmax(2) == target)).double()
        none = there.new_zeros(targets * classes)
        sums = {
            "loss": each.double().sum(),
            "weight": weights.double().sum(),
            "known": there.sum(0),
            "there": none.index_add(0, places, there.flatten()).view(targets, classes),
            "right": none.index_add(0, places, right.flatten()).view(targets, classes),
        }
        if "auc" in self.spec.evaluation.metrics:
            chances = logits.softmax(2)[..., 1]
            columns = zip(chances.T, target.T, there.T, strict=True)
            sums["counts"] = torch.stack([class_counts(*one) for one in columns])
        return sums

    def _rates_of_classes(self, sums: Mapping[str, Any]) -> dict[str, Tensor]:
        """Each metric by target, (targets,)."""
        there, right = sums["there"], sums["right"]
        rates = {
            "accuracy": right.sum(1) / there.sum(1),
            "balanced_accuracy": (right / there).nanmean(1),
        }
        if "counts" in sums:
            areas = [auc_of(one) for one in sums["counts"]]
            rates["auc"] = torch.tensor(areas, dtype=torch.float64)
        return rates

    def _labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Targets, 0 where they are not known, and which are known: (molecules, targets)."""
        labels = batch.arrays[self.target].reshape(batch.size, -1)
        known = ~labels.isnan()
        return labels.masked_fill(~known, 0), known

    def _error(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The error of each answer, in the target's own units, 0 where the label is not known; and
        which are known. (molecules, targets)
        """
        labels, known = self._labels(batch)
        answers: Tensor = model(*self._graphs(batch))
        return (answers - labels.to(answers.dtype)).masked_fill(~known, 0), known

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

    def forward(self, atoms: Tensor, *_: Tensor) -> Tensor:
        return self.logits.expand(len(atoms), -1)


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

    def forward(self, *graphs: Tensor) -> Tensor:
        atoms, _, _, of, counts = graphs
        if self.weights is None:
            return self.values.expand(len(counts), -1)
        elements = element_counts(atoms[:, 0].long(), of, len(counts), len(self.weights))
        return elements @ self.weights + self.values


class OfChances(nn.Module):
    """Answers with the logits of two classes for each target, by the chance of the second one."""

    def __init__(self, chances: nn.Module) -> None:
        super().__init__()
        self.chances = chances

    def forward(self, *graphs: Tensor) -> Tensor:
        chance = self.chances(*graphs).clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)
        return torch.stack([1 - chance, chance], 2).log().flatten(1)


def ridge_of(counts: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fits a ridge for one target, on the molecules whose label is known.

    Returns the intercept () and the weights (elements,). A target with too few labels for a fit
    has its mean, or 0 without any.
    """
    known = ~labels.isnan()
    if known.sum() < LEAST_LABELS:
        return labels.nanmean().nan_to_num(), counts.new_zeros(counts.shape[1])
    fitted = ridge(counts[known][:, None], labels[known][:, None])
    return fitted.intercept[0], fitted.weights[0, :, 0]


def element_counts(elements: Tensor, of: Tensor, molecules: int, values: int) -> Tensor:
    """Atoms of each element by molecule, float64 (molecules, values). Atoms that fill up a batch
    are of none: `of` is `molecules` there.
    """
    counts = torch.zeros((molecules + 1) * values, dtype=torch.float64, device=elements.device)
    places = of.clamp(max=molecules) * values + elements
    counts.index_add_(0, places, torch.ones_like(places, dtype=torch.float64))
    return counts.view(molecules + 1, values)[:molecules]


def fixed_draws(graphs: Graphs, seed: int) -> Tensor:
    """Of each atom a number as if drawn from [0, 1], float32 (atoms,): the same wherever a molecule
    lies, for it follows from the seed, the molecule's atoms and the atom's place among them.
    """
    atoms, *_, of, counts = graphs
    begins = functional.pad(counts[:, 0].cumsum(0) - counts[:, 0], (0, 1))
    places = torch.arange(len(atoms), device=atoms.device) - begins.index_select(0, of)
    said = _scattered(places & LOWEST_BITS)
    for feature in atoms.long().unbind(1):
        said = _scattered(said ^ (feature & LOWEST_BITS))
    of_molecules = said.new_zeros(len(counts) + 1).index_add(0, of, said)
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


def _in_columns(labels: Labels) -> Labels:
    """(molecules, targets)"""
    return labels.reshape(len(labels), -1)


def _out_of_range(name: str, what: str, where: str, rule: str, fix: str = "") -> DataError:
    fix = fix or "Mend or drop such samples."
    return DataError(
        f"{name} has {what} in {where}, and {rule}. {fix} Register the data again if it has "
        "changed, and restart the run."
    )
