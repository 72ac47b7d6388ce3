"""Points that say no step go on, in a resumed attempt, where they ended at its checkpoint."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.manifest import MANIFEST, manifest_bytes
from tests.script.stage import Stage, spec_json
from worker.reporting import EventLog
from worker.script.curves import Curves
from worker.script.points import LastPoint
from worker.script.restoring import last_points
from worker.script.work import ScriptWork

Row = dict[str, Any]

# What it tells before and after it saves is read in one look.
SAVES_AT_500 = """
import json, stoker
run = stoker.init()
def tell(*epochs):
    for epoch in epochs:
        print(f"accuracy {epoch / 10}")
        with open("own.jsonl", "a") as file:
            file.write(json.dumps({"epoch": epoch, "loss": 1 / (1 + epoch)}) + chr(10))
if run.resume_from is None:
    tell(0, 1, 2)
    with run.checkpoint(500) as folder:
        (folder / "weights").write_text("x")
    tell(3)
else:
    tell(0, 1)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_points_go_on_after_what_was_written_before_the_save(stage: Stage):
    stage.write(SAVES_AT_500)
    metrics = {"file": "own.jsonl", "stdout": "accuracy (?P<accuracy>[0-9.]+)"}
    stage.run(metrics=metrics)
    assert stage.curve("train_loss") == {0: 1.0, 1: 0.5, 2: pytest.approx(1 / 3), 3: 0.25}
    assert stage.curve("accuracy") == {1: 0.0, 2: 0.1, 3: 0.2, 4: 0.3}
    saved = stage.attempt() / "checkpoints" / "step-500"
    told = last_points(saved)
    assert (told["train_loss"].step, told["accuracy"].step) == (2, 3)
    stage.run(attempt=2, restore=(saved,), metrics=metrics)
    assert stage.curve("train_loss", 2) == {3: 1.0, 4: 0.5}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_prints_go_on_like_those_that_a_pattern_names(stage: Stage):
    stage.write(SAVES_AT_500.replace("accuracy {epoch / 10}", "val_loss: {epoch / 10}"))
    code = (stage.cwd / "train.py").read_text()
    stage.write(code.replace("        with open", "        continue\n        with open"))
    stage.run()
    assert stage.curve("val_loss") == {1: 0.0, 2: 0.1, 3: 0.2, 4: 0.3}
    saved = stage.attempt() / "checkpoints" / "step-500"
    assert last_points(saved)["val_loss"].step == 3
    stage.run(attempt=2, restore=(saved,))
    assert stage.curve("val_loss", 2) == {501: 0.0, 502: 0.1}


# A save is kept at the second look that finds it, and what it tells is read sooner.
SAVES_AND_GOES_ON = """
import os, time
def tell(loss):
    with open("own.jsonl", "a") as file:
        file.write('{"loss": %s}' % loss + chr(10))
def until_told(count):
    while open(os.environ["STOKER_RUN_DIR"] + "/events.jsonl").read().count('"metrics"') < count:
        time.sleep(0.02)
tell(1.0)
open("model.txt", "w").write("x")
until_told(1)
tell(0.5)
until_told(2)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_was_written_while_a_save_waited_to_be_kept_comes_after_it(stage: Stage):
    stage.write(SAVES_AND_GOES_ON)
    metrics = {"file": "own.jsonl", "stdout": None}
    stage.run(metrics=metrics, checkpoints=["model.txt"])
    assert stage.curve("train_loss") == {1: 1.0, 2: 0.5}
    assert last_points(stage.attempt() / "checkpoints" / "step-1")["train_loss"].step == 1


class Past:
    """Attempts of a run that a test makes up."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def attempt(self, number: int, restored: Path | None = None) -> Path:
        """One that has begun; `restored`: the checkpoint that it went on from."""
        folder = self.root / f"attempt-{number}"
        folder.mkdir(exist_ok=True)
        self.emit(folder, "applied", applied={})
        if restored is not None:
            self.emit(folder, "restored", path=str(restored / "model.pt"), step=1)
        return folder

    def emit(self, folder: Path, kind: str, **data: Any) -> None:
        log = EventLog(folder / "events.jsonl")
        log.emit(kind, **data)
        log.close()

    def tell(self, folder: Path, points: dict[int, Row]) -> None:
        for step, values in points.items():
            self.emit(folder, "metrics", step=step, values=values)

    def save(self, folder: Path, step: int) -> Path:
        """A checkpoint as the first versions made it, of which the time alone says what came
        before; what is told from here on comes after it.
        """
        checkpoint = folder / "checkpoints" / f"step-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / MANIFEST).write_bytes(manifest_bytes({"step": step, "files": {}}))
        made_at = time.time()
        os.utime(checkpoint / MANIFEST, (made_at, made_at))
        while time.time() <= made_at + 1e-6:
            continue
        self.emit(folder, "checkpoint", action="saved", path=f"checkpoints/step-{step}")
        return checkpoint


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path)


def test_a_curve_ends_at_the_checkpoint_also_that_of_an_attempt_before(past: Past):
    first = past.attempt(1)
    past.tell(first, {3: {"train_loss": 0.5, "epoch": 3.0}, 4: {"val_loss": 0.5}})
    saved = past.save(first, 500)
    past.tell(first, {5: {"train_loss": 0.4, "epoch": 5.0}})
    second = past.attempt(2, saved)
    past.tell(second, {4: {"train_loss": 0.3, "epoch": 4.0}})
    again = past.save(second, 700)
    known = {"epoch": LastPoint(3, 3.0), "train_loss": LastPoint(3, 3.0)}
    assert last_points(saved) == {**known, "val_loss": LastPoint(4, None)}
    known = {"epoch": LastPoint(4, 4.0), "train_loss": LastPoint(4, 4.0)}
    assert last_points(again) == {**known, "val_loss": LastPoint(4, None)}


def test_of_an_adopted_checkpoint_the_attempt_before_tells(past: Past):
    first = past.attempt(1)
    past.tell(first, {3: {"train_loss": 0.5}})
    adopted = past.save(past.root / "attempt-2", 500)
    past.attempt(2, adopted)
    assert last_points(adopted) == {"train_loss": LastPoint(3, None)}


def test_a_line_that_a_kill_has_cut_hides_no_others(past: Past):
    first = past.attempt(1)
    past.tell(first, {3: {"train_loss": 0.5}})
    saved = past.save(first, 500)
    with (first / "events.jsonl").open("a") as file:
        file.write('{"seq": 9, "t": 1.5, "kind": "metrics", "st')
    assert last_points(saved) == {"train_loss": LastPoint(3, None)}


def test_nothing_is_known_without_its_events(past: Past):
    assert last_points(past.save(past.root / "attempt-7", 500)) == {}
    assert last_points(past.root / "attempt-8" / "checkpoints" / "step-1") == {}


def rows(*epochs: float) -> list[Row]:
    return [{"epoch": epoch, "loss": 1.0} for epoch in epochs]


@pytest.mark.parametrize(
    ("told", "written", "steps"),
    [
        ({9: {"train_loss": 1.0, "epoch": 9.0}}, rows(10, 11), [10, 11]),
        ({9: {"train_loss": 1.0, "epoch": 9.0}}, rows(8, 9), [8, 9]),
        ({9: {"train_loss": 1.0, "epoch": 9.0}}, rows(0, 1, 2), [10, 11, 12]),
        ({9: {"train_loss": 1.0, "epoch": 9.0}}, rows(1, 2), [10, 11]),
        ({49: {"train_loss": 1.0, "epoch": 9.0}}, rows(10, 10, 11), [50, 51, 52]),
        ({49: {"train_loss": 1.0, "epoch": 9.5}}, rows(10.5, 11), [501, 502]),
        ({49: {"train_loss": 1.0}}, [{"loss": 1.0}, {"loss": 1.0}], [501, 502]),
        ({3000: {"train_loss": 1.0}}, [{"loss": 1.0}, {"loss": 1.0}], [3001, 3002]),
        ({3000: {"other": 1.0}}, rows(0, 1), [0, 1]),
        ({3000: {"train_loss": 1.0}}, [{"loss": 1.0, "step": 600}], [600]),
    ],
    ids=[
        "epochs go on", "some are made again", "from 0", "from 1", "many rows an epoch",
        "fractions", "rows", "more rows than steps", "another curve", "steps",
    ],
)  # fmt: skip
def test_points_go_on_after_the_last_one(
    past: Past, told: dict[int, Row], written: Sequence[Row], steps: list[int]
):
    first = past.attempt(1)
    past.tell(first, told)
    saved = past.save(first, 500)
    folder = past.root / "attempt-2"
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps(spec_json(folder)))
    curves = Curves(ScriptWork.read(folder), time.time(), saved, lambda *_: None)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in written))
    assert [point.step for point in curves.read()] == steps
