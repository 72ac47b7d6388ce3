"""Specs of three lines train every file that `stoker data convert` and `stoker data sample` make.

The files come from the real converters; a spec names a recipe, a dataset and how long to train.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.guard.facts import DatasetFacts
from app.guard.plan import RunPlan, make_plan
from app.lifecycle import Reason
from app.service.inventory import dataset_facts
from app.store.records import DatasetRecord
from tests.guard.world import CATALOG, world
from tests.trainer.lab import Lab
from tests.trainer_data.tools import test_bars, test_panels
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats.ragged_files import write_ragged
from worker.trainer.tools import (
    bars,
    convert,
    numpy_arrays,
    padding,
    plain_rows,
    sample_bars,
    sample_board,
    sample_weather,
    samples,
)
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.molecules import convert as molecules
from worker.trainer.tools.molecules import sample as sample_molecules
from worker.trainer.tools.panel import panel_rows, sample_panel

SEQUENCE: dict[str, Any] = {"kind": "sequence"}
MASKED: dict[str, Any] = {"kind": "molecule", "task": "masked"}
REGRESSION: dict[str, Any] = {"kind": "molecule", "task": "regression"}
BOARD: dict[str, Any] = {"kind": "board", "planes": sample_board.PLANES}
RANDOM = np.random.default_rng(3)


def series_of(rows: int) -> Any:
    return RANDOM.normal(size=(rows, 3)).astype(np.float32)


def converted_windows(out: Path) -> None:
    series, whole = series_of(300), out.with_suffix(".whole.h5")
    with h5py.File(whole, "w") as file:
        file["features"] = np.stack([series[at : at + 24] for at in range(250)])
        file["targets"] = np.stack([series[at + 24 : at + 28, 0] for at in range(250)])
    assert convert.main([str(whole), str(out)]) == 0


def converted_table(out: Path) -> None:
    """A window that the usual patch does not divide."""
    table = out.with_suffix(".csv")
    rows = [",".join(map(str, row)) for row in series_of(300)]
    table.write_text("\n".join(["warmth,wind,rain", *rows]))
    given = ["--window=50", "--horizon=4", "--target=warmth", "--no-time"]
    assert samples.main([str(table), str(out), *given]) == 0


def write_labelled(out: Path) -> Path:
    """Rows of two features, and a text, a whole number and a number."""
    table = out.with_suffix(".csv")
    rows = [
        f"{a},{b},{'up' if a > b else 'down'},{int(a > 0) + int(b > 0)},{c}"
        for a, b, c in series_of(300)
    ]
    table.write_text("\n".join(["a,b,way,count,price", *rows]))
    return table


def converted_rows(out: Path) -> None:
    table = write_labelled(out)
    assert plain_rows.main([str(table), str(out), "--target=price"]) == 0


def converted_classes(out: Path) -> None:
    table = write_labelled(out)
    assert plain_rows.main([str(table), str(out), "--target=way", "--classes"]) == 0


def converted_states(out: Path) -> None:
    given = ["--window=8", "--horizon=2", "--target=way", "--classes", "--no-time"]
    assert samples.main([str(write_labelled(out)), str(out), *given]) == 0


def converted_labels(out: Path) -> None:
    rows = RANDOM.normal(size=(200, 3)).astype(np.float32)
    np.savez(out.with_suffix(".npz"), x=rows, y=np.digitize(rows[:, 0], [-0.5, 0.5]))
    assert numpy_arrays.main([str(out.with_suffix(".npz")), str(out)]) == 0


def converted_bars(out: Path) -> None:
    test_bars.write_csv(out.with_suffix(".csv"), test_bars.made_bars(400))
    given = ["--timeframes=M5:8,M1:20", "--horizon=4", "--max-gap=10m"]
    assert bars.main([str(out.with_suffix(".csv")), str(out), *given]) == 0


def converted_panel(out: Path) -> None:
    """Of fewer entities than one usually looks at, and of other horizons than the usual."""
    table = test_panels.write_csv(out.with_suffix(".csv"), test_panels.made_rows())
    given = ["--entity=ticker", "--window=10", "--horizon=1", "--horizon=3"]
    assert panel_rows.main([str(table), str(out), *given]) == 0


def converted_numpy(out: Path) -> None:
    np.savez(out.with_suffix(".npz"), x=RANDOM.normal(size=(200, 12, 3)), y=RANDOM.normal(size=200))
    assert numpy_arrays.main([str(out.with_suffix(".npz")), str(out)]) == 0


def converted_padded(out: Path) -> None:
    ragged = out.with_suffix(".ragged.h5")
    with h5py.File(ragged, "w") as file:
        write_ragged(file, "events", [series_of(1 + at % 9) for at in range(200)])
        file["label"] = RANDOM.normal(size=200)
    assert padding.main([str(ragged), str(out), "--pad=7"]) == 0


def converted_molecules(out: Path) -> None:
    table = out.with_suffix(".csv")
    table.write_text("smiles,energy\n" + "".join(f"{'C' * n}O,{n / 7}\n" for n in range(1, 60)))
    assert molecules.main([str(table), str(out), "--target=energy"]) == 0


def sampled_board(out: Path) -> None:
    sample_board.build(out, sample_board.Size(games=6, files=2))


def sampled_molecules(out: Path) -> None:
    sample_molecules.build(out)


FILES: dict[str, tuple[Callable[[Path], object], str, list[dict[str, Any]]]] = {
    "windows": (converted_windows, "", [SEQUENCE]),
    "table": (converted_table, "", [SEQUENCE, {**SEQUENCE, "loss": "quantile"}]),
    "rows": (converted_rows, "", [SEQUENCE]),
    "classes": (converted_classes, "", [SEQUENCE, {**SEQUENCE, "encoder": "transformer"}]),
    "windows of classes": (converted_states, "", [SEQUENCE]),
    "labels": (converted_labels, "", [{**SEQUENCE, "task": "classification"}]),
    "bars": (converted_bars, "", [SEQUENCE, {**SEQUENCE, "encoder": "transformer"}]),
    "panel": (converted_panel, "", [{"kind": "panel-graph"}]),
    "numpy": (converted_numpy, "", [SEQUENCE]),
    "padded": (converted_padded, "", [SEQUENCE]),
    "molecules": (converted_molecules, "", [MASKED, REGRESSION]),
    "sample weather": (sample_weather.build, "", [SEQUENCE]),
    "sample bars": (sample_bars.build, "", [SEQUENCE]),
    "sample panel": (sample_panel.build, "", [{"kind": "panel-graph"}]),
    "sample board": (
        sampled_board, "", [{**BOARD, "stage": "legal"}, {**BOARD, "stage": "play"}]
    ),
    "sample molecules": (sampled_molecules, "nci.h5", [MASKED]),
    "sample solubility": (sampled_molecules, "solubility.h5", [MASKED, REGRESSION]),
}  # fmt: skip


def facts_of(path: Path) -> DatasetFacts:
    """The dataset as the service knows it once it is registered."""
    report = inspect(path)
    assert report["problems"] == []
    known = {name: report[name] for name in ("fields", "samples", "layout", "size_bytes")}
    record = DatasetRecord(
        id=1, name="waves", path=path.name, state="ready", fingerprint=report["fingerprint"],
        problems=[], read_probe=report["read_probe"], message=None, created_at=0, updated_at=0,
        **known,
    )  # fmt: skip
    return dataset_facts(record)


def planned(recipe: dict[str, Any], path: Path) -> RunPlan:
    lines = {"recipe": recipe, "data": {"dataset": "waves"}, "training": {"max_steps": 2}}
    return make_plan(lines, world(facts_of(path)), CATALOG)


@pytest.mark.parametrize("name", FILES)
def test_a_spec_of_three_lines_trains(lab: Lab, name: str) -> None:
    make, part, recipes = FILES[name]
    made = lab.root / ("made" if part or "board" in name else "made.h5")
    make(made)
    path = made / part
    for recipe in recipes:
        plan = planned(recipe, path)
        assert plan.errors == []
        run_dir = lab.new_run()
        (run_dir / "attempt-1").mkdir()
        document = {
            "run_id": int(run_dir.name), "attempt": 1, "spec": plan.require_ok(),
            "datasets": {"waves": {"path": str(path), "fingerprint": fingerprint(path)}},
            "device": "cpu", "threads": 1, "restore": [], "run_dir": str(run_dir),
            "memory_rung": None, "rollback": None, "keep": [], "data_cache": None,
        }  # fmt: skip
        (run_dir / "attempt-1" / "spec.json").write_text(json.dumps(document))
        outcome = lab.execute(run_dir / "attempt-1")
        assert outcome.end is not None
        assert (outcome.end.reason, outcome.end.step) == (Reason.completed, 2)
        assert plan.require_ok()["checkpoint"]["monitor"] in outcome.result["best"]


def test_forecasts_start_from_the_targets_past_where_the_file_names_it(tmp_path: Path) -> None:
    named, unnamed = tmp_path / "named.h5", tmp_path / "unnamed.h5"
    converted_table(named)
    converted_windows(unnamed)

    recipe = planned(SEQUENCE, named).require_ok()["recipe"]
    assert (recipe["residual"], recipe["highway"]) == ("last", 24)
    recipe = planned(SEQUENCE, unnamed).require_ok()["recipe"]
    assert (recipe["residual"], recipe["highway"]) == ("none", 0)


def test_a_highway_that_nobody_asked_for_is_as_long_as_the_window(tmp_path: Path) -> None:
    path = tmp_path / "short.h5"
    converted_bars(path)
    assert planned(SEQUENCE, path).require_ok()["recipe"]["highway"] == 20


def test_a_highway_without_a_past_is_refused_where_it_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "unnamed.h5"
    converted_windows(path)
    (error,) = planned({**SEQUENCE, "highway": 6}, path).errors
    assert error.loc == ["recipe", "highway"]
    assert [(op.path, op.value) for op in error.fix] == [("/recipe/highway", 0)]


def test_a_file_of_classes_settles_what_follows_from_them(lab: Lab) -> None:
    path = lab.root / "made.h5"
    converted_classes(path)
    plan = planned(SEQUENCE, path)
    spec = plan.require_ok()
    recipe = {name: spec["recipe"][name] for name in ("task", "classes", "patch")}
    assert recipe == {"task": "classification", "classes": 2, "patch": 1}
    assert spec["data"]["standardize"] == {"inputs": True, "targets": False}
    assert spec["evaluation"]["metrics"] == ["f1", "accuracy"]
    assert (spec["checkpoint"]["monitor"], spec["checkpoint"]["mode"]) == ("val_f1", "max")
    assert plan.provenance["/checkpoint/monitor"] == {"value": "val_f1", "source": "guard"}
    assert planned({**SEQUENCE, "task": "classification"}, path).require_ok() == spec


def test_what_a_request_names_is_not_settled(lab: Lab) -> None:
    path = lab.root / "made.h5"
    converted_classes(path)
    lines = {
        "recipe": SEQUENCE,
        "data": {"dataset": "waves"},
        "training": {"max_steps": 2},
        "checkpoint": {"monitor": "val_accuracy"},
        "evaluation": {"metrics": ["accuracy", "auc"]},
    }
    spec = make_plan(lines, world(facts_of(path)), CATALOG).require_ok()
    assert spec["evaluation"]["metrics"] == ["accuracy", "auc"]
    assert (spec["checkpoint"]["monitor"], spec["checkpoint"]["mode"]) == ("val_accuracy", "max")
    (error,) = planned({**SEQUENCE, "task": "regression"}, path).errors
    assert "holds classes, which its file names" in error.message
    assert [(op.path, op.value) for op in error.fix] == [("/recipe/task", "classification")]


def test_labels_say_how_many_classes_there_are(lab: Lab) -> None:
    path = lab.root / "made.h5"
    converted_labels(path)
    spec = planned({**SEQUENCE, "task": "classification"}, path).require_ok()
    assert (spec["recipe"]["classes"], spec["data"]["inputs"], spec["data"]["targets"]) == (
        3, ["x"], ["y"],
    )  # fmt: skip
    (error,) = planned({**SEQUENCE, "task": "classification", "classes": 2}, path).errors
    assert "the labels of 'y' go up to 2" in error.message
    assert [(op.path, op.value) for op in error.fix] == [("/recipe/classes", 3)]
