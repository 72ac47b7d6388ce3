"""What the benchmarks of workloads compare is the same work: every arm brings every sample."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
import torch

from benchmarks.confidence import FEWEST
from benchmarks.steps import spec_of
from benchmarks.workloads import board, molecules, panel, panel_made, panel_parts, timeframes
from tests.trainer.recipes.molecules import write
from worker.trainer.data.source import Field
from worker.trainer.recipes.panel_graph import PanelGraphTask
from worker.trainer.tools import sample_board
from worker.trainer.tools.panel.sample_panel import MadeSize, make


@pytest.fixture
def few_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The same samples as series and written out."""
    monkeypatch.setattr(timeframes, "SAMPLES", 24)
    monkeypatch.setattr(timeframes, "FEATURES", 2)
    monkeypatch.setattr(timeframes, "BATCH", 8)
    monkeypatch.setattr(timeframes, "CHUNK_SAMPLES", 16)
    return timeframes.make(tmp_path)


def test_timeframes_are_trained_beside_batches_in_memory(few_bars: tuple[Path, Path]) -> None:
    with ExitStack() as held:
        found = timeframes._efficiency(*few_bars, FEWEST, held)
    names = [figure.name for figure in found]
    assert names == [
        "timeframes: Stoker, a stream over in memory, lower bound",
        "timeframes: Stoker, kept as series over in memory, lower bound",
    ]
    assert all(0 < figure.value <= figure.also["median"] for figure in found)
    assert [(figure.bound, figure.at_least, figure.n) for figure in found] == 2 * [(0.95, True, 5)]


def test_a_board_is_trained_beside_batches_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("pyspiel")
    sample_board.build(tmp_path / "board", sample_board.Size(games=10, files=3))
    with ExitStack() as held:
        resident, streamed = board._efficiency(tmp_path / "board", 1, held)
    assert (resident.name, resident.n) == ("board, legal: Stoker, resident over in memory", 1)
    assert streamed.value > 0


def test_molecules_are_trained_beside_batches_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "molecules.h5")
    with h5py.File(path, "a") as file:
        file["scaffold_part"] = [0] * 180 + [1] * 20
    with ExitStack() as held:
        resident, streamed = molecules._efficiency(path, 1, held)
    assert resident.name == "molecules, masked: Stoker, resident over in memory"
    assert (resident.bound, streamed.bound) == (0.95, 0.95)
    assert streamed.value > 0


@pytest.mark.parametrize("residency", ["stream", "resident"])
def test_every_arm_of_timeframes_brings_the_same_samples(
    few_bars: tuple[Path, Path], residency: str
) -> None:
    series, tables = few_bars
    with h5py.File(tables) as file:
        kept = {name: torch.from_numpy(file[name][:]) for name in (*timeframes.NAMES, "targets")}
    assert [len(kept[name][0]) for name in timeframes.NAMES] == [480, 288, 192, 96, 48]
    with ExitStack() as held:
        arms = {
            "none": timeframes._stoker(tables, "none", held, residency),
            "series": timeframes._stoker(series, "none", held, residency),
            "full": timeframes._stoker(tables, "full", held, residency),
            "items": timeframes._items(tables, 0),
            "chunks": timeframes._chunks(tables),
        }
        for name, batches in arms.items():
            each = [{key: a.clone() for key, a in batch.items()} for batch in batches()]
            found = {key: torch.cat([batch[key] for batch in each]) for key in kept}
            for key, whole in kept.items():
                order = found["targets"][:, 0].argsort(), kept["targets"][:, 0].argsort()
                assert torch.equal(found[key][order[0]], whole[order[1]]), name


def test_every_arm_of_panels_looks_at_as_many_and_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "NEIGHBORS", 3)
    path, graph = tmp_path / "panel.h5", {"neighbors": 3}
    make(path, MadeSize(24, 300))
    with ExitStack() as held:
        each = graph | {"rebuild_every": "batch", "lookback": 60}
        arms = [
            panel.arm_of("kept", path, held, graph)[0],
            panel.arm_of("made", path, held, each)[0],
            panel.arm_of("pairs", path, held, graph, panel.PairByPair)[0],
        ]
        for arm in arms:
            assert arm.data.validation is not None
            batch = next(arm.data.validation.iterate(0))
            task = arm.step.task
            assert isinstance(task, PanelGraphTask)
            looks_at = task.looks_at(replace(batch, tables=arm.step.tables))
            assert looks_at is not None
            assert looks_at.shape == (panel.BATCH, 24, 24)
            assert looks_at.sum(2).max() == 4  # itself and three others
            assert arm.evaluation() > 0
        resident, streamed = panel._efficiency(path, 1, held)
    assert (resident.name, resident.bound) == ("panel: Stoker, resident over in memory", 0.95)
    assert streamed.value > 0


@pytest.mark.parametrize("kind", panel_made.MADE)
def test_every_part_of_panels_can_be_trained_on_each_made_panel(tmp_path: Path, kind: str) -> None:
    """And an arm changes the example, but for the one of that name."""
    path = tmp_path / "panel.h5"
    panel_made.write(path, kind)
    entities = panel_made.entities_of(path)
    with h5py.File(path) as file:
        windows = {"features": file["features/series"], "present": file["present/series"]}
        fields = {
            name: Field((panel_made.WINDOW, *one.shape[1:]), one.dtype)
            for name, one in windows.items()
        }
        fields |= {
            name: Field(file[name].shape[1:], file[name].dtype)
            for name in ("date", "targets", "known")
        }
    specs = []
    for arm in panel_parts.ARMS:
        spec = spec_of(panel_parts.spec_for(kind, arm, 0, entities))
        PanelGraphTask.for_run(spec, fields)
        specs.append(spec.model_dump_json())
    assert len(set(specs)) == len(specs)
