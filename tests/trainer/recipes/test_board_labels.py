"""Labels of a board game that are out of range: told with their place, before the first step."""

import h5py
import pyarrow as pa
import pytest
from pyarrow import feather

from tests.trainer.lab import Lab, merged
from tests.trainer.recipes.test_board import PLAY, board, positions
from worker.trainer.errors import DataError

__all__ = ["board"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("move", 32, "'move' is 32 in row 41 of waves.h5, and a move is 0 to 31. Mend or drop"),
        ("move", -1, "'move' is -1 in row 41 of waves.h5"),
        ("value", 2, "'value' is 2 in row 41 of waves.h5, and a result is -1 to 1"),
        (
            "legal",
            0,
            "'move' is .* in row 41 of waves.h5, and a move that is played is legal by 'l",
        ),
    ],
)
def test_a_label_out_of_range_is_told_with_its_place(
    board: Lab, name: str, value: int, told: str
) -> None:
    """In whatever part it lies, and before the first step."""
    with h5py.File(board.data, "r+") as file:
        file[name][41] = value
    with pytest.raises(DataError, match=told):
        board.run(patch=PLAY)


def test_a_label_out_of_range_is_told_with_its_file_of_a_folder(board: Lab) -> None:
    folder, arrays = board.root / "games", positions()
    folder.mkdir()
    arrays["value"][50] = -128
    for number, rows in enumerate((slice(0, 10), slice(10, 45), slice(45, 60))):
        columns = {
            name: pa.array([row.tobytes() for row in arrays[name][rows]], pa.binary(4))
            for name in ("planes", "legal")
        } | {name: pa.array(arrays[name][rows]) for name in ("move", "value")}
        feather.write_feather(pa.table(columns), folder / f"{number}.feather", chunksize=4)
    board.data = folder
    with pytest.raises(DataError, match=r"'value' is -128 in row 5 of 2\.feather"):
        board.run(patch=PLAY)


def test_moves_that_were_in_range_of_more_are_looked_at_again_for_fewer(board: Lab) -> None:
    board.data_cache = {"folder": str(board.root / "cache"), "most_bytes": 2**20}
    without_mask = merged(PLAY, {"data": {"inputs": ["planes"]}})
    board.run(patch=without_mask)
    with pytest.raises(DataError, match="a move is 0 to 3"):
        board.run(patch=merged(without_mask, {"recipe": {"moves": 4}}))
