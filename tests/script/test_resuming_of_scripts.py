"""A script that refuses what is to resume it is not said to go on, nor tried for ever."""

from pathlib import Path
from typing import Any

import pytest

from tests.script.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SAVES = """
import argparse, os, sys, zipfile
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
options = parser.parse_args()
os.makedirs("out", exist_ok=True)
with zipfile.ZipFile("out/ckpt-5.pt", "w") as archive:
    archive.writestr("step", "5")
print("resumed from", options.resume)
"""
TELLS_A_NUMBER = """
with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "w") as file:
    file.write('{"step": 6, "loss": 1.0}')
"""


def named(option: str) -> dict[str, Any]:
    return {"resume": [option, "{checkpoint}"], "checkpoints": ["out/*.pt"]}


@pytest.fixture
def kept(stage: Stage) -> tuple[Path, ...]:
    """What a first attempt has saved."""
    stage.write(SAVES)
    stage.run(**named("--resume"))
    (folder,) = (stage.attempt() / "checkpoints").glob("step-*")
    return (folder,)


def test_one_that_takes_it_is_told_as_restored(stage: Stage, kept: tuple[Path, ...]):
    end = stage.run(attempt=2, restore=kept, **named("--resume"))
    assert end["reason"] == "completed"
    (restored,) = stage.events("restored", 2)
    assert (restored["step"], Path(restored["path"]).parent) == (5, kept[0])


def test_one_that_refuses_it_is_tried_once_more_and_not_told_as_restored(
    stage: Stage, kept: tuple[Path, ...]
):
    wrong = named("--resume_from")
    first = stage.run(attempt=2, restore=kept, **wrong)
    assert (first["reason"], first["result"]["exit_code"]) == ("crashed", 2)
    assert (
        f"It had been given `--resume_from {kept[0]}/ckpt-5.pt`, as --resume says"
        in (first["message"])
    )
    assert "unrecognized arguments: --resume_from" in first["message"]
    again = stage.run(attempt=3, restore=kept, **wrong)
    assert again["reason"] == "spec_error"
    assert "as at the attempt before; it is not tried again" in again["message"]
    assert "`stoker restart 1 --from scratch`" in again["message"]
    stage.write("raise SystemExit(7)")
    other = stage.run(attempt=4, restore=kept, **wrong)
    assert other["reason"] == "crashed", "another code may be another reason"
    assert [stage.events("restored", number) for number in (2, 3, 4)] == [[], [], []]


def test_one_that_fails_past_its_start_has_gone_on(stage: Stage, kept: tuple[Path, ...]):
    stage.write(SAVES.replace("ckpt-5", "ckpt-6") + TELLS_A_NUMBER + "raise SystemExit(2)")
    for attempt in (2, 3):
        end = stage.run(attempt=attempt, restore=kept, **named("--resume"))
        assert (end["reason"], "--resume" in end["message"]) == ("crashed", False)
        assert len(stage.events("restored", attempt)) == 1


def test_one_that_fails_without_a_checkpoint_is_told_as_ever(stage: Stage):
    stage.write("raise SystemExit(2)")
    for attempt in (1, 2):
        end = stage.run(attempt=attempt, **named("--resume"))
        assert (end["reason"], "--resume" in end["message"]) == ("crashed", False)
