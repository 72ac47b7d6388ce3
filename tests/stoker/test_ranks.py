"""Several processes of one script: when they stop, what they save together, who says what."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import ranks

ROOT = Path(__file__).parents[2]
# Each is a rank: it does as it is told, and tells at the end.
BEGIN = """
import json, os, sys, time, pathlib
import stoker
from stoker import ranks
rank, here = int(os.environ["RANK"]), pathlib.Path(os.environ["STOKER_RUN_DIR"])
run = stoker.init(config={"rank": rank})
def tell(**told):
    (here / f"told-{rank}").write_text(json.dumps(told))
"""
ASKS = """
# Together, however much later one was started.
(here / f"here-{rank}").touch()
late = time.monotonic() + 50
while not all((here / f"here-{other}").exists() for other in range(3)):
    assert time.monotonic() < late, "a rank has not started"
    time.sleep(0.001)
# Rank 2 is the fastest; the stop file comes in the middle.
for step in range(1, 3000):
    time.sleep(0.001 / (rank + 1))
    if rank == 1 and step == 200:
        pathlib.Path(os.environ["STOKER_STOP_FILE"]).touch()
    if stoker.init().should_stop():
        break
tell(step=step)
"""
SAVES = """
with run.checkpoint(7, {"loss": 0.5}) as folder:
    (folder / f"shard-{rank}").write_text(str(rank))
    run.log({"loss": float(rank)}, step=7)
run.finish()
tell(done=sorted(p.name for p in (here / "checkpoints" / "step-7").iterdir()))
"""
ONE_FAILS = """
try:
    with run.checkpoint(7) as folder:
        if rank == {failing}:
            raise OSError("the disk is full")
        time.sleep(0.2)
        (folder / f"shard-{rank}").write_text("")
    tell(ended="saved")
except (OSError, RuntimeError) as error:
    tell(ended=str(error))
with run.checkpoint(8) as folder:
    pass
"""
ONE_STAYS_AWAY = """
ranks.TELL_SECONDS, ranks.MEET_SECONDS = 0.1, 0.5
if rank == 0:
    try:
        with run.checkpoint(7) as folder:
            pass
    except RuntimeError as error:
        tell(ended=str(error))
"""


class Crew:
    """Processes of one script, as torchrun would start them, without torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "checkpoints").mkdir()

    def run(self, program: str, size: int = 3) -> list[dict[str, Any] | None]:
        """What each tells."""
        named = {
            "PYTHONPATH": str(ROOT),
            "WORLD_SIZE": str(size),
            "STOKER_RUN_ID": "1",
            "STOKER_ATTEMPT": "1",
            "STOKER_RUN_DIR": str(self.folder),
            "STOKER_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "STOKER_STOP_FILE": str(self.folder / "stop"),
        }
        started = [
            subprocess.Popen(
                [sys.executable, "-c", BEGIN + program],
                env={**named, "RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        self.said = [process.communicate(timeout=60)[1] for process in started]
        assert [process.returncode for process in started] == [0] * size, self.said
        told = [self.folder / f"told-{rank}" for rank in range(size)]
        return [json.loads(path.read_text()) if path.exists() else None for path in told]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


def test_all_stop_at_the_same_step_however_fast_each_is(crew: Crew) -> None:
    first, *others = crew.run(ASKS)
    assert first is not None
    assert 200 <= first["step"] < 2999
    assert others == [first, first]


def test_who_asks_alone_is_answered_at_once(crew: Crew) -> None:
    """One that has ended, or never asks, holds up nobody."""
    (crew.folder / "stop").touch()
    asks = "if rank != 1: tell(stops=run.should_stop())\n"
    assert crew.run(asks) == [{"stops": True}, None, {"stops": True}]


def test_they_save_together_and_the_first_one_logs_and_finishes(crew: Crew) -> None:
    done = ["manifest.json", "shard-0", "shard-1", "shard-2"]
    assert crew.run(SAVES) == [{"done": done}] * 3
    lines = (crew.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [0.0]
    assert json.loads((crew.folder / "config.json").read_text()) == {"rank": 0}
    assert (crew.folder / "finished").exists()


def test_only_the_first_one_finishes_the_run(crew: Crew) -> None:
    crew.run("if rank: run.finish()\n")
    assert not (crew.folder / "finished").exists()


@pytest.mark.parametrize("failing", [0, 2])
def test_where_one_cannot_save_none_has_and_the_next_checkpoint_is_made(
    crew: Crew, failing: int
) -> None:
    told = crew.run(ONE_FAILS.replace("{failing}", str(failing)))
    other = {"ended": f"checkpoint(7) failed in rank {failing}, whose own error says why"}
    expected = [other, other, other]
    expected[failing] = {"ended": "the disk is full"}
    assert told == expected
    assert [path.name for path in (crew.folder / "checkpoints").iterdir()] == ["step-8"]


def test_a_checkpoint_that_others_do_not_come_to_is_an_error_and_no_deadlock(crew: Crew) -> None:
    told = crew.run(ONE_STAYS_AWAY, size=2)[0]
    assert told is not None
    assert "rank 1 has not come there" in told["ended"]
    assert "Every process has to enter the block" in crew.said[0]


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert ranks.rank_and_size() == (0, 1)
