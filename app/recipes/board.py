"""Recipe `board`: legal moves, or move and result, from the planes of a board."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.spec.data import Data
from app.spec.recipe import BACKBONE, Array, Mode, Problem, Recipe, Roles

Side = Annotated[int, Field(ge=1, le=64)]
# Of the value head: planes that the tower is narrowed to, and hidden units behind them.
VALUE_PLANES, VALUE_UNITS = 4, 64
# Arrays of the move that was played and of the result, as `stoker data sample board` names them.
PLAYED = ("move", "value")


class Board(Recipe):
    """Positions of a board game: planes of bits → residual tower → a head for each target."""

    kind: Literal["board"]
    """Which recipe."""
    stage: Literal["legal", "play"]
    """legal: which moves the rules allow; play: the move to choose and the result."""
    planes: Annotated[int, Field(ge=1, le=1_024)]
    """Planes of a position, each with a bit for every square."""
    board: tuple[Side, Side] = (8, 8)
    """Squares of a plane, rows and columns; default [8, 8]."""
    moves: Annotated[int, Field(ge=2, le=1_048_576)] = 4_672
    """Moves that can be told apart: square x kinds + kind; default 4672, AlphaZero's for chess."""
    channels: Annotated[int, Field(ge=8, le=4_096, multiple_of=8)] = 64
    """Width of the tower, in channels (a multiple of 8); default 64."""
    blocks: Annotated[int, Field(ge=0, le=256)] = 4
    """Residual blocks of the tower, two convolutions each; default 4."""

    shape_fields: ClassVar = ("stage", "planes", "board", "moves", "channels", "blocks")

    @property
    def has_scale(self) -> tuple[str, ...]:
        return ()

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        return (BACKBONE, "head")

    @property
    def takes_weights(self) -> Mapping[str, int]:
        return {"pos_weight": 1} if self.stage == "legal" else {}

    @property
    def has_blocks(self) -> bool:
        return self.blocks > 0

    @property
    def has_random_blocks(self) -> bool:
        return False

    def uses_attention(self, data: Data) -> bool:
        return False

    @property
    def squares(self) -> int:
        return prod(self.board)

    @property
    def kinds(self) -> int:
        """Moves from one square; of the last square some may not exist."""
        return -(-self.moves // self.squares)

    @property
    def metric_modes(self) -> Mapping[str, Mode]:
        if self.stage == "legal":
            return {"f1": "max", "exact": "max"}
        return {"policy_accuracy": "max", "policy_loss": "min", "value_mae": "min"}

    @property
    def natural_metric(self) -> str:
        return "f1" if self.stage == "legal" else "policy_loss"

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return ("loss",) if self.stage == "legal" else ("policy", "value")

    def roles(self, arrays: Mapping[str, Array]) -> Roles | None:
        """Arrays are told apart by their bits; a move and a result by their names."""
        planes = self._of_bits(arrays, self.planes * self.squares)
        legal = self._of_bits(arrays, self.moves)
        if len(planes) != 1 or len(legal) > 1:
            return None
        if self.stage == "legal":
            return Roles(planes, legal) if legal else None
        return Roles((*planes, *legal), PLAYED) if arrays.keys() >= {*PLAYED} else None

    def _of_bits(self, arrays: Mapping[str, Array], bits: int) -> tuple[str, ...]:
        return tuple(
            name
            for name, array in arrays.items()
            if is_packed(array, bits) or is_plain(array, bits)
        )

    def problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """Bits in; bits out, or a move's number and a result."""
        if data.standardize.inputs or data.standardize.targets:
            yield Problem(
                ("data", "standardize"),
                "The recipe board standardizes nothing: bits, moves and results are what they are.",
                "A mean of bits or of numbers of moves says nothing about a position.",
                {"/data/standardize": {"inputs": False, "targets": False}},
            )
        most = {"inputs": 1 if self.stage == "legal" else 2, "targets": len(self._targets)}
        for part, count in most.items():
            names = getattr(data, part)
            if len(names) > count or (part == "targets" and len(names) < count):
                yield Problem(
                    ("data", part),
                    f"Stage {self.stage} takes {self._wanted(part)}, not {len(names)} arrays.",
                    "Each array has a role of its own, by its place in the list.",
                )
                return
        yield from self._bits_problems("inputs", 0, data, arrays, self.planes * self.squares)
        if self.stage == "legal":
            yield from self._bits_problems("targets", 0, data, arrays, self.moves)
            return
        if len(data.inputs) == 2:
            yield from self._bits_problems("inputs", 1, data, arrays, self.moves)
        yield from self._number_problems(data, arrays)

    @property
    def _targets(self) -> tuple[str, ...]:
        return ("legal moves",) if self.stage == "legal" else ("move", "result")

    def _wanted(self, part: str) -> str:
        if part == "targets":
            return f"{' and '.join(self._targets)} in data.targets"
        return "planes in data.inputs" + (" and legal moves" if self.stage == "play" else "")

    def _bits_problems(
        self, part: str, place: int, data: Data, arrays: Mapping[str, Array], bits: int
    ) -> Iterator[Problem]:
        name = getattr(data, part)[place]
        array = arrays.get(name)
        if array is None or is_packed(array, bits) or is_plain(array, bits):
            return
        if (part, place) == ("inputs", 0):
            what = f"{self.planes} planes of {self.squares} squares"
        else:
            what = f"{self.moves:,} moves"
        yield Problem(
            ("data", part, place),
            f"{name!r} has samples of {array.dtype} {array.shape}; {what} are {bits:,} bits, so "
            f"bytes ({-(-bits // 8):,},) of packed bits or booleans ({bits:,},).",
            "Bits stay packed until the device; numpy.packbits writes them so.",
        )

    def _number_problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        move, result = (arrays.get(name) for name in data.targets)
        if move is not None and (prod(move.shape) != 1 or not _is_integer(move)):
            yield Problem(
                ("data", "targets", 0),
                f"{data.targets[0]!r} has samples of {move.dtype} {move.shape}; a move is one "
                "integer.",
                f"It is the number of the move that was played, 0 to {self.moves - 1:,}.",
            )
        if result is not None and prod(result.shape) != 1:
            yield Problem(
                ("data", "targets", 1),
                f"{data.targets[1]!r} has samples of {result.dtype} {result.shape}; a result is "
                "one number.",
                "It is -1 to 1, as the player to move sees it.",
            )

    def shape(self, data: Data, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The parameters say it all; how bits are kept in the file changes no weights."""
        return {}

    def num_parameters(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Convolutions of 3 x 3 without biases, each with its norm's scale and shift; and heads."""
        wide = self.channels
        tower = (9 * self.planes + 2) * wide + 2 * self.blocks * (9 * wide + 2) * wide
        policy = (wide + 1) * self.kinds
        if self.stage == "legal":
            return tower + policy
        hidden = (VALUE_PLANES * self.squares + 1) * VALUE_UNITS
        return tower + policy + (wide + 1) * VALUE_PLANES + hidden + VALUE_UNITS + 1


def is_packed(array: Array, bits: int) -> bool:
    """Eight bits to a byte."""
    return array.dtype == "uint8" and array.shape == (-(-bits // 8),) and not array.is_ragged


def is_plain(array: Array, bits: int) -> bool:
    """A boolean for each bit, in axes of any sizes."""
    return array.dtype == "bool" and prod(array.shape) == bits and not array.is_ragged


def _is_integer(array: Array) -> bool:
    return array.dtype.startswith(("int", "uint")) and not array.is_ragged
