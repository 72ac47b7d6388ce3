"""Recipe `board`: a residual tower over planes of bits, which are unpacked on the device."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.board import VALUE_PLANES, VALUE_UNITS, Board
from app.spec.recipe import BACKBONE
from worker.trainer.data.bits import unpack_bits
from worker.trainer.data.source import Arrays
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import DataError
from worker.trainer.recipes.base import (
    Batch,
    Exported,
    Predictor,
    Statistics,
    Tables,
    Task,
    TrainingSamples,
)
from worker.trainer.recipes.fitting import log_shares

GROUPS = 8
# The bias that logits begin with where labels are rare: a rate of 0.7 %.
RARE = -5.0
# Samples whose legal moves are counted together.
SAMPLES_AT_ONCE = 1_024


class Block(nn.Module):
    """Two convolutions beside a shortcut. Norms are of groups, not of batches: so a batch that is
    cut where memory is short trains as the whole one does.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels, channels)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = _conv3x3(channels, channels)
        self.norm2 = nn.GroupNorm(GROUPS, channels)

    def forward(self, planes: Tensor) -> Tensor:
        """(batch, channels, rows, columns), as what comes."""
        inner = functional.relu(self.norm1(self.conv1(planes)))
        return functional.relu(planes + self.norm2(self.conv2(inner)))


class Tower(nn.Module):
    """Planes (batch, planes, rows, columns) to features (batch, channels, rows, columns)."""

    def __init__(self, recipe: Board) -> None:
        super().__init__()
        self.stem = _conv3x3(recipe.planes, recipe.channels)
        self.norm = nn.GroupNorm(GROUPS, recipe.channels)
        self.blocks = nn.Sequential(*(Block(recipe.channels) for _ in range(recipe.blocks)))

    def forward(self, planes: Tensor) -> Tensor:
        features: Tensor = self.blocks(functional.relu(self.norm(self.stem(planes))))
        return features


class BoardModel(nn.Module):
    """Bits of planes to a logit for each move, and in stage play the expected result.

    `tower` is named alike in both stages, so that play can begin with that of legal.
    """

    def __init__(self, recipe: Board) -> None:
        super().__init__()
        self.size, self.moves = (recipe.planes, *recipe.board), recipe.moves
        self.tower = Tower(recipe)
        self.policy = nn.Conv2d(recipe.channels, recipe.kinds, 1)
        if recipe.stage == "legal":
            nn.init.constant_(self.policy.bias, RARE)  # type: ignore[arg-type]
            return
        self.value = nn.Sequential(
            nn.Conv2d(recipe.channels, VALUE_PLANES, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(VALUE_PLANES * recipe.squares, VALUE_UNITS), nn.ReLU(),
            nn.Linear(VALUE_UNITS, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, bits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Packed (batch, bytes) or plain bits to logits (batch, moves) and results (batch,)."""
        count = self.size[0] * self.size[1] * self.size[2]
        features = self.tower(as_bits(bits, count).view(-1, *self.size).float())
        logits = self.policy(features).permute(0, 2, 3, 1).flatten(1)[:, : self.moves]
        value = getattr(self, "value", None)
        return logits, None if value is None else value(features).squeeze(1)


class BoardTask(Task):
    """Binary cross entropy a move, or cross entropy and the square error of the result."""

    recipe: Board
    prepared_by: ClassVar[tuple[str, ...]] = ("stage", "moves")

    @property
    def standardized(self) -> tuple[str, ...]:
        """Nothing: see the recipe's problems."""
        return ()

    def prepare(self, data: TrainingData) -> Tables:
        """No tables, but a look at every move and result: one that is out of range would end a step
        on a GPU without a word about where it lies. Raises DataError.
        """
        if self.recipe.stage == "play":
            begin, (_, *masks) = 0, self.spec.data.inputs
            for piece in data.whole(*masks, *self.spec.data.targets):
                self._require_in_range(data, begin, piece)
                begin += len(piece[self.spec.data.targets[0]])
        return {}

    def made_up_tables(self) -> Tables:
        return {}

    def _require_in_range(self, data: TrainingData, begin: int, piece: Arrays) -> None:
        (_, *masks), (move_name, result_name) = self.spec.data.inputs, self.spec.data.targets
        moves, results = (piece[n].reshape(-1) for n in (move_name, result_name))
        in_range = (moves >= 0) & (moves < self.recipe.moves)
        wanted = {
            move_name: (in_range, moves, f"a move is 0 to {self.recipe.moves - 1:,}"),
            result_name: ((results >= -1) & (results <= 1), results, "a result is -1 to 1"),
        }
        for mask in masks:
            legal = as_bits(torch.from_numpy(piece[mask]), self.recipe.moves).numpy()
            chosen = legal[np.arange(len(moves)), np.where(in_range, moves, 0)] > 0
            wanted[mask] = (
                chosen | ~in_range,
                moves,
                f"a move that is played is legal by {mask!r}",
            )
        for name, (is_right, values, rule) in wanted.items():
            wrong = np.flatnonzero(~is_right)
            if len(wrong):
                row = int(wrong[0])
                column = move_name if name in masks else name
                raise DataError(
                    f"{column!r} is {values[row]} in {data.place_of(begin + row)}, and {rule}. Mend"
                    " or drop such rows, register the data again and restart the run."
                )

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        return BoardModel(self.recipe)

    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """The tower, and the heads on top of it."""
        named = list(model.named_parameters())
        return {
            BACKBONE: [weight for name, weight in named if name.startswith("tower.")],
            "head": [weight for name, weight in named if not name.startswith("tower.")],
        }

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """Those of the tower."""
        return [module for module in model.modules() if isinstance(module, Block)]

    def parameters_json(self) -> dict[str, Any]:
        return self.recipe.model_dump(mode="json")

    def made_up(self, size: int, device: torch.device) -> Batch:
        """All bits set, so that any move is legal, and the first one chosen."""
        batch, data = super().made_up(size, device), self.spec.data
        if self.recipe.stage == "play":
            batch.arrays[data.targets[0]].fill_(0)
            batch.arrays[data.inputs[-1]].fill_(255)
        return batch

    def baseline_facts(self) -> Mapping[str, Any]:
        return self.recipe.model_dump(mode="json", include={"stage", "moves"})

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """Each move as often legal as in the training part, and those that are legal most often; or
        all legal moves alike, and the moves that are played most, with the mean result.
        """
        arrays, data = samples.batch.arrays, self.spec.data
        if self.recipe.stage == "legal":
            packed = arrays[data.targets[0]]
            # Bits of a few samples fit into the processor's cache. Counts of these are exact.
            often = torch.zeros(self.recipe.moves, dtype=torch.float64)
            for begin in range(0, len(packed), SAMPLES_AT_ONCE):
                legal = as_bits(packed[begin : begin + SAMPLES_AT_ONCE], self.recipe.moves)
                often += legal.sum(0, dtype=torch.float32)
            share = (often + 1) / (len(packed) + 2)
            return {
                "moves as often legal as in training": Guess(share.logit().float(), None),
                "moves that are legal most often": Guess(_most_common(share), None),
            }
        moves, results = (arrays[name].reshape(-1) for name in data.targets)
        counts = moves.long().bincount(minlength=self.recipe.moves)
        mean = results.double().mean().float()
        return {
            "uniform over legal moves": Guess(torch.zeros(self.recipe.moves), mean),
            "most common moves": Guess(log_shares(counts), mean),
        }

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if self.recipe.stage == "legal":
            logits, legal = self._legal(model, batch)
            return {"loss": self._legal_loss(logits, legal)}
        logits, move, value, result = self._play(model, batch)
        return {
            "policy": functional.cross_entropy(logits, move),
            "value": functional.mse_loss(value, result),
        }

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if self.recipe.stage == "legal":
            logits, legal = self._legal(model, batch)
            loss = self._legal_loss(logits, legal)
            return {"loss": loss.double() * batch.size, **_agreement(logits > 0, legal > 0)}
        logits, move, value, result = self._play(model, batch)
        return {
            "policy": functional.cross_entropy(logits, move).double() * batch.size,
            "right": (logits.argmax(1) == move).double().sum(),
            "squared": (value - result).double().square().sum(),
            "absolute": (value - result).double().abs().sum(),
        }

    def exported(self, batch: Batch) -> Exported:
        """Bits of planes to a logit a move: in stage legal above 0 for what is legal, in stage play
        for all moves, legal or not, with the expected result, -1 to 1.
        """
        name = self.spec.data.inputs[0]
        outputs = ("legal",) if self.recipe.stage == "legal" else ("policy", "value")
        return Exported({name: batch.arrays[name]}, outputs)

    def scores(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        means = {name: total / samples for name, total in sums.items()}
        if self.recipe.stage == "legal":
            metrics = {"f1": means["f1"], "exact": means["exact"]}
            loss = means["loss"]
        else:
            metrics = {
                "policy_accuracy": means["right"],
                "policy_loss": means["policy"],
                "value_mae": means["absolute"],
            }
            weights = self.spec.loss_weights
            terms = {"policy": means["policy"], "value": means["squared"]}
            loss = sum(weights.get(term, 1.0) * mean for term, mean in terms.items())
        return {"loss": loss, **{name: metrics[name] for name in self.spec.evaluation.metrics}}

    def _legal_loss(self, logits: Tensor, legal: Tensor) -> Tensor:
        """The mean over moves and samples; of legal ones times `pos_weight`."""
        factor = self.spec.pos_weight
        weight = None if factor is None else logits.new_full((1,), factor)
        return functional.binary_cross_entropy_with_logits(logits, legal, pos_weight=weight)

    def _legal(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels, both (batch, moves) float32."""
        data = self.spec.data
        logits, _ = model(batch.arrays[data.inputs[0]])
        legal = as_bits(batch.arrays[data.targets[0]], self.recipe.moves)
        return logits.float(), legal.float()

    def _play(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits (batch, moves), of the legal moves alone where these are known; the moves played;
        and the results expected and seen, (batch,) each.
        """
        inputs, targets = self.spec.data.inputs, self.spec.data.targets
        logits, value = model(batch.arrays[inputs[0]])
        logits = logits.float()
        if len(inputs) == 2:
            legal = as_bits(batch.arrays[inputs[1]], self.recipe.moves)
            logits = logits.masked_fill(legal == 0, -torch.inf)
        move, result = (batch.arrays[name].reshape(-1) for name in targets)
        return logits, move.long(), value.float(), result.float()


class Guess(nn.Module):
    """Answers the same logits, and the same result, in each position."""

    logits: Tensor
    value: Tensor | None

    def __init__(self, logits: Tensor, value: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("logits", logits)
        self.register_buffer("value", value)

    def forward(self, bits: Tensor) -> tuple[Tensor, Tensor | None]:
        value = None if self.value is None else self.value.expand(len(bits))
        return self.logits.expand(len(bits), -1), value


def _most_common(share: Tensor) -> Tensor:
    """Returns logits (moves,) that are positive for the most common moves: as many as have the best
    F1 over all samples. `share` is how often each move is legal.
    """
    ordered = share.sort(descending=True).values
    count = torch.arange(1, len(share) + 1, dtype=torch.float64)
    least = ordered[int((ordered.cumsum(0) / (count + share.sum())).argmax())]
    return torch.where(share >= least, -RARE, RARE)


def as_bits(array: Tensor, count: int) -> Tensor:
    """(batch, count) of 0 and 1, out of packed bytes, or of numbers or booleans in any axes."""
    return unpack_bits(array, count) if array.dtype is torch.uint8 else array.flatten(1)


def _agreement(guessed: Tensor, legal: Tensor) -> dict[str, Tensor]:
    """Sums over the samples of F1, 1 where neither has a move, and of whether all moves agree."""
    right = (guessed & legal).sum(1).double()
    either = (guessed.sum(1) + legal.sum(1)).double()
    f1 = torch.where(either > 0, 2 * right / either.clamp(min=1), 1.0)
    return {"f1": f1.sum(), "exact": (guessed == legal).all(1).double().sum()}


def _conv3x3(channels: int, wide: int) -> nn.Conv2d:
    return nn.Conv2d(channels, wide, 3, padding=1, bias=False)
