"""The board sample: chess positions whose labels the rules decide."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from worker.trainer.tools import sample_board
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.sample_board import CASTLING, MOVES, PIECES, PLANES, Size

chess = pytest.importorskip("pyspiel").load_game("chess")


def make(path: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "worker.trainer.tools.sample_board", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "data" / "board"
    assert make(path, "--games=30", "--files=6") | {"samples": 0} == {
        "path": str(path), "files": 6, "games": 30, "samples": 0,
    }  # fmt: skip
    return path


def tables(path: Path) -> list[pa.Table]:
    return [feather.read_table(file) for file in sorted(path.iterdir())]


def bits_of(table: pa.Table, name: str) -> np.ndarray:
    rows = [np.frombuffer(row, np.uint8) for row in table[name].to_pylist()]
    return np.unpackbits(np.stack(rows), axis=1)


def test_it_is_a_folder_of_uneven_packed_files(sample):
    lengths = [table.num_rows for table in tables(sample)]
    assert max(lengths) > 2 * min(lengths) > 0
    schema = tables(sample)[0].schema
    assert {field.name: str(field.type) for field in schema} == {
        "planes": "fixed_size_binary[144]", "legal": "fixed_size_binary[584]", "move": "int16",
        "value": "int8", "game": "int32", "game_part": "int8",
    }  # fmt: skip


def test_a_seed_makes_the_same_files_and_another_does_not(sample, tmp_path):
    make(tmp_path / "same", "--games=30", "--files=6")
    make(tmp_path / "other", "--games=30", "--files=6", "--seed=1")
    for file in sample.iterdir():
        assert file.read_bytes() == (tmp_path / "same" / file.name).read_bytes()
    assert not tables(sample)[0].equals(tables(tmp_path / "other")[0])


def test_no_game_is_in_two_parts_or_files(sample):
    seen: dict[int, tuple[str, int]] = {}
    for number, table in enumerate(tables(sample)):
        for game, part in zip(*(table[n].to_pylist() for n in ("game", "game_part")), strict=True):
            assert seen.setdefault(game, (str(number), part)) == (str(number), part)
    assert sorted(seen) == list(range(30))
    assert {part for _, part in seen.values()} == {0, 1, 2}


def test_the_move_played_is_legal_and_results_are_seen_by_the_mover(sample):
    for table in tables(sample):
        legal, moves = bits_of(table, "legal"), table["move"].to_numpy()
        assert legal[np.arange(len(moves)), moves].all()
        games, values = table["game"].to_numpy(), table["value"].to_numpy()
        same_game = games[1:] == games[:-1]
        assert (values[1:][same_game] == -values[:-1][same_game]).all()


def test_planes_and_legal_moves_are_those_of_the_board():
    """A position with Black to move, castling and en passant, by another way of reading it."""
    fen = "r3k2r/8/8/8/3pP3/8/5q2/4K2N b kq e3 0 1"
    state = chess.new_initial_state(fen)
    board, _, castling, en_passant, *_ = str(state).split()
    letters = board.translate(sample_board.UNFOLDED)
    legal = [CASTLING.get(one, one) for one in state.legal_actions()]
    position = sample_board.Position(letters, castling, en_passant, False, legal, legal[0])
    planes = sample_board._planes([position]).reshape(PLANES, 8, 8)
    assert planes.sum() == 8 + 2 * 64 + 1 + 64  # pieces, rights, en passant, Black's move
    expected = {"R": {(0, 0), (7, 0)}, "K": {(4, 0)}, "P": {(3, 4)}, "Q": {(5, 6)},
                "p": {(4, 4)}, "k": {(4, 7)}, "n": {(7, 7)}}  # fmt: skip
    for number, piece in enumerate(PIECES):
        found = {tuple(place) for place in np.argwhere(planes[number]).tolist()}
        assert found == expected.get(piece, set())
    assert planes[12:16, 0, 0].tolist() == [1, 1, 0, 0]
    assert np.argwhere(planes[16]).tolist() == [[4, 5]]
    assert planes[17].all()
    assert max(legal) < MOVES


def test_castling_is_numbered_as_the_kings_two_steps():
    """As a queen on the king's square would go there, whose moves OpenSpiel numbers."""
    queen = chess.new_initial_state("7k/8/8/8/8/8/K7/4Q3 w - - 0 1")
    numbers = {queen.action_to_string(one): one for one in queen.legal_actions()}
    king = chess.new_initial_state("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1")
    castling = {king.action_to_string(one): one for one in king.legal_actions()}
    assert {
        castling["O-O-O"]: numbers["Qc1"], castling["O-O"]: numbers["Qg1"],
    } == CASTLING  # fmt: skip


def test_more_files_than_games_are_refused_in_a_sentence(tmp_path, capsys):
    assert sample_board.main([str(tmp_path / "board"), "--games=3", "--files=4"]) == 1
    assert "as many games as files" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_openspiel_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    assert sample_board.main([str(tmp_path / "board")]) == 1
    assert "stoker[boards]" in capsys.readouterr().err


def test_a_new_sample_takes_the_place_of_the_old_as_a_whole(tmp_path, monkeypatch):
    out, size = tmp_path / "board", Size(games=4, files=2)
    sample_board.build(out, Size(games=3, files=3))
    sample_board.build(out, size)
    assert [file.name for file in sorted(out.iterdir())] == [
        "games-00000.feather", "games-00001.feather",
    ]  # fmt: skip
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    monkeypatch.setattr(feather, "write_feather", lambda *_, **__: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):
        sample_board.build(out, size)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:2_000])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def garbled(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:3_000] + bytes(range(250)) * 8 + whole[5_000:])


def of_another_type(file: Path) -> None:
    table = feather.read_table(file)
    feather.write_feather(table.set_column(3, "value", table["value"].cast("int16")), file)


def without_a_column(file: Path) -> None:
    feather.write_feather(feather.read_table(file).drop_columns(["legal"]), file)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut_short, r"games-00003.feather cannot be read as a table .* cut short"),
        (emptied, r"games-00003.feather is no Arrow IPC file"),
        (garbled, r"games-00003.feather.* restore them from a copy"),
        (of_another_type, r"'value' is int16 in .*games-00003.feather and int8 in games-00000"),
        (without_a_column, r"'legal' is not there in .*games-00003.feather"),
    ],
)
def test_a_bad_file_of_the_folder_is_named_when_it_is_registered(sample, tmp_path, damage, told):
    folder = shutil.copytree(sample, tmp_path / "board")
    damage(folder / "games-00003.feather")
    (problem,) = inspect(folder)["problems"]
    assert re.search(told, problem["message"])
