"""A runner that is killed at any moment, with all that it has started, leaves whole checkpoints."""

import random
import re
import time
from pathlib import Path

import pytest

from stoker.manifest import MANIFEST, parse_manifest
from tests.script.stage import Stage
from tests.script.test_checkpoints_of_scripts import IN_PLACE, LOOP, NAMED, saved, step_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_kill_at_any_moment_leaves_whole_ones_alone(stage: Stage):
    survive_kills(stage, count=6, longest=4.0)


@pytest.mark.minutes
def test_so_do_kills_at_fifty_moments(stage: Stage):
    survive_kills(stage, count=50, longest=4.0)


def survive_kills(stage: Stage, *, count: int, longest: float) -> None:
    """The runner and all below are killed, or the script alone, after seconds at random."""
    stage.write(LOOP.format(path=IN_PLACE))
    chance = random.Random(7)
    kept: tuple[Path, ...] = ()
    began = 0
    for attempt in range(1, count + 1):
        runner = stage.start(attempt=attempt, restore=kept, **NAMED)
        stage.until_log_has("start ", attempt)
        found = re.search(r"start (\d+)\n", stage.log(attempt))
        assert found is not None
        assert int(found[1]) >= began, "nothing that was kept is lost"
        if not kept:  # a first save that is cut leaves nothing to go on from
            stage.until(lambda: saved(stage), "a first save is kept")
        time.sleep(chance.uniform(0.0, longest))
        if chance.random() < 0.5:
            runner.kill()
            runner.wait()
            stage.end_all()
            assert not stage.events("end", attempt)
        else:
            stage.end_all()
            runner.wait(60)
            assert stage.end(attempt)["reason"] == "killed"
        kept = (*saved(stage, attempt), *kept)
        for folder in kept:
            assert parse_manifest((folder / MANIFEST).read_bytes())["run_id"] == 1
            assert step_in(folder) > 0
        began = step_in(kept[0]) if kept else 0
    assert began > 0
