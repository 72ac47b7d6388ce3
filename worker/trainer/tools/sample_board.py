"""Builds the board sample: positions of chess games, with legal moves, the move played, the result.

`python -m worker.trainer.tools.sample_board FOLDER` writes Feather files (LZ4) of uneven lengths.

OpenSpiel knows the rules, so legal moves are exact. Both players look one move ahead: they like to
take, promote, check and mate, and to move towards the centre; noise decides between moves of like
worth, more for one player than for the other, and the first moves are drawn at random. A move is
73 x its square + its kind, as AlphaZero numbers them, and a square is file x 8 + rank; all is seen
by the player to move.
"""

import argparse
import math
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import feather

from app.installing import pip_install
from worker.trainer.checkpoints.whole_file import whole_folder
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer

SQUARES, KINDS = 64, 73
MOVES = SQUARES * KINDS
# The king's two steps as moves of their kind, where OpenSpiel has two numbers of their own.
KING_SQUARE = 32
CASTLING = {MOVES: KING_SQUARE * KINDS + 28, MOVES + 1: KING_SQUARE * KINDS + 31}

PIECES = "PNBRQKpnbrqk"
PLANES = len(PIECES) + 6  # castling of both players, en passant, and whether Black is to move
WORTH = {"p": 1.0, "n": 3.0, "b": 3.0, "r": 5.0, "q": 9.0, "k": 0.0}
SAN = re.compile(r"([a-h])([1-8])(?:=([QRBN]))?[+#]?$")
UNFOLDED = str.maketrans({str(count): "." * count for count in range(1, 9)} | {"/": ""})

RANDOM_PLIES, MOST_PLIES = 6, 80
DECISIVE_PAWNS = 2  # ahead, where a game is cut
NOISES = [0.2, 1.5]  # in pawns, of the careful and of the careless player
PART_OF_TEN = (0,) * 8 + (1, 2)  # of ten games in a row
BATCH_ROWS = 1_024  # of a record batch


@dataclass(frozen=True)
class Size:
    """How much is made, and from which seed."""

    games: int = 500
    files: int = 40
    seed: int = 0

    def games_of_files(self) -> list[int]:
        """Uneven on purpose: between about a third and three times as many as the mean."""
        draw = random.Random(self.seed)
        shares = [3 ** draw.uniform(-1, 1) for _ in range(self.files)]
        ends = np.cumsum(shares) / sum(shares) * (self.games - self.files)
        return [int(count) + 1 for count in np.diff(np.round(ends), prepend=0)]


@dataclass(frozen=True)
class Position:
    board: str
    """64 letters as FEN has them, eighth rank first, dots for empty squares."""
    castling: str
    en_passant: str
    white: bool
    legal: list[int]
    played: int


def build(out: Path, size: Size) -> dict[str, Any]:
    """Write the folder as a whole or not at all; returns what it holds."""
    if not 1 <= size.files <= size.games:
        raise DataError("A file holds one game at least: ask for as many games as files, or more.")
    chess, samples, game = _chess(), 0, 0
    with whole_folder(out) as partial:
        for number, count in enumerate(size.games_of_files()):
            draw = random.Random(f"{size.seed} {number}")
            tables = [_table(*_play(chess, draw), game + one) for one in range(count)]
            table = pa.concat_tables(tables).combine_chunks()
            path = partial / f"games-{number:05}.feather"
            feather.write_feather(table, path, compression="lz4", chunksize=BATCH_ROWS)
            game, samples = game + count, samples + table.num_rows
    return {"path": str(out), "files": size.files, "games": game, "samples": samples}


def _chess() -> Any:
    try:
        import pyspiel  # an extra, for this alone
    except ImportError:
        raise DataError(
            "The board sample gets the rules of chess from OpenSpiel, which is not installed: "
            f"{pip_install('stoker[boards]')}."
        ) from None
    return pyspiel.load_game("chess")


def _play(chess: Any, draw: random.Random) -> tuple[list[Position], int]:
    """The positions of a game after its first moves, and its result: 1 when White has won."""
    state, positions = chess.new_initial_state(), []
    noises = draw.sample(NOISES, 2)
    while not state.is_terminal() and state.move_number() < MOST_PLIES:
        actions = state.legal_actions()
        if state.move_number() < RANDOM_PLIES:
            state.apply_action(draw.choice(actions))
            continue
        folded, mover, castling, en_passant, *_ = str(state).split()
        board = folded.translate(UNFOLDED)
        noise = noises[state.current_player()]
        worth = [_worth(board, state.action_to_string(a)) + draw.gauss(0, noise) for a in actions]
        played = actions[worth.index(max(worth))]
        legal = [CASTLING.get(one, one) for one in actions]
        move = CASTLING.get(played, played)
        positions.append(Position(board, castling, en_passant, mover == "w", legal, move))
        state.apply_action(played)
    return positions, _result(state)


def _worth(board: str, san: str) -> float:
    """Of a move, in pawns."""
    found = SAN.search(san)
    if found is None:  # castling
        return 0.5
    file, rank, promoted = ord(found[1]) - ord("a"), int(found[2]) - 1, found[3]
    taken = board[(7 - rank) * 8 + file].lower() if "x" in san else "."
    return (
        WORTH.get(taken, float("x" in san))  # en passant takes from an empty square
        + (WORTH[promoted.lower()] if promoted else 0.0)
        + 100.0 * ("#" in san) + 0.6 * ("+" in san)
        - 0.1 * (abs(file - 3.5) + abs(rank - 3.5))
    )  # fmt: skip


def _result(state: Any) -> int:
    """Of a game that was cut, by the pieces that are left."""
    if state.is_terminal():
        return int(state.player_return(1))  # White is player 1
    board = str(state).split()[0]
    ahead = sum(WORTH[one.lower()] * (1 if one.isupper() else -1) for one in board if one.isalpha())
    return int(math.copysign(1, ahead)) if abs(ahead) >= DECISIVE_PAWNS else 0


def _table(positions: list[Position], result: int, game: int) -> Any:
    """A game as a table: see docs/workloads/board.md for its columns."""
    count = len(positions)
    legal = np.zeros((count, MOVES), np.uint8)
    for row, position in enumerate(positions):
        legal[row, position.legal] = 1
    values = [result if position.white else -result for position in positions]
    part = PART_OF_TEN[game % 10]
    return pa.table(
        {
            "planes": _packed(_planes(positions)),
            "legal": _packed(legal),
            "move": pa.array([position.played for position in positions], pa.int16()),
            "value": pa.array(values, pa.int8()),
            "game": pa.array([game] * count, pa.int32()),
            "game_part": pa.array([part] * count, pa.int8()),
        }
    )


def _planes(positions: list[Position]) -> NDArray[np.uint8]:
    """(positions, PLANES * SQUARES) of 0 and 1, seen by the player to move."""
    count = len(positions)
    planes = np.zeros((count, PLANES, 8, 8), np.uint8)
    letters = "".join(one.board if one.white else one.board.swapcase() for one in positions)
    boards = np.frombuffer(letters.encode(), np.uint8).reshape(count, 8, 8)
    black = np.array([not one.white for one in positions], np.bool_)
    ranks = np.where(black[:, None, None], boards, boards[:, ::-1])  # own first rank first
    for number, piece in enumerate(PIECES):
        planes[:, number] = (ranks == ord(piece)).transpose(0, 2, 1)
    first = len(PIECES)
    for row, one in enumerate(positions):
        rights = one.castling if one.white else one.castling.swapcase()
        for number, right in enumerate("KQkq"):
            planes[row, first + number] = right in rights
        if one.en_passant != "-":
            file, rank = ord(one.en_passant[0]) - ord("a"), int(one.en_passant[1]) - 1
            planes[row, first + 4, file, rank if one.white else 7 - rank] = 1
    planes[:, first + 5] = black[:, None, None]
    return planes.reshape(count, -1)


def _packed(bits: NDArray[np.uint8]) -> Any:
    """A column of fixed-size binaries; bits as numpy.packbits has them."""
    packed = np.packbits(bits, axis=1)
    kind = pa.binary(packed.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(packed), [None, pa.py_buffer(packed.tobytes())]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sample_board", description="The board sample.")
    parser.add_argument("path", type=Path, metavar="FOLDER")
    for name, usual in vars(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    size = Size(options.games, options.files, options.seed)
    return answer(lambda: build(options.path, size), f"{options.path} cannot be written")


if __name__ == "__main__":
    sys.exit(main())
