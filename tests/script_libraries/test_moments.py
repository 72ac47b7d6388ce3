"""A stop in an import, the first step, an evaluation and a save of scripts of real libraries."""

import re
import time
from pathlib import Path

import pytest

from tests.e2e.service import eventually
from tests.e2e.shell import Shell
from tests.script_libraries.test_libraries import (
    LIBRARIES,
    NO_END,
    PACE,
    restart,
    saved_step,
    stop,
)

pytestmark = pytest.mark.minutes

# Long enough for a stop that is asked for to come while the script rests.
LINGER = 2.0
# Before the first step nothing is there to go on from.
EARLY = ("import", "first step")
EVALUATES = {"hf": ("--eval_strategy", "steps", "--eval_steps", "20")}
# Lightning handles SIGTERM: it ends what it is at, and only then the training.
DIES_AT_ONCE = ("hf", "plain")
LATER = re.compile(r"step \d+ at|evaluation \d|save \d")


def moments_in(log: str, moment: str) -> list[int]:
    """The steps of those that it has come to."""
    return [int(step) for step in re.findall(rf"{moment} (\d+)\n", log)]


def await_moment(shell: Shell, run_id: int, moment: str) -> int:
    """The step at which it is in one now; of evaluations and saves one after a first checkpoint."""
    if moment == "import":
        eventually(lambda: shell.processes_of(run_id), "it has started")
        time.sleep(0.5)
        return 0
    before: list[int] = []
    if moment not in EARLY:
        eventually(lambda: shell.checkpoints(run_id), "a first checkpoint is kept")
        before = moments_in(shell.said(run_id), moment)
    eventually(lambda: moments_in(shell.said(run_id), moment) > before, f"it is in its {moment}")
    return moments_in(shell.said(run_id), moment)[-1]


@pytest.mark.parametrize("moment", [*EARLY, "evaluation", "save"])
@pytest.mark.parametrize("name", ["plain", "hf", "lightning"])
def test_a_stop_in_it_goes_on_at_the_last_whole_save(
    shell: Shell, libraries: Path, name: str, moment: str
):
    library = LIBRARIES[name]
    typed = library.typed(libraries, steps=NO_END, pace=PACE)
    words = (*typed, "--linger", str(LINGER), *EVALUATES.get(name, ()))
    run_id = shell.run_command(*library.options, command=words)["id"]
    step = await_moment(shell, run_id, moment)
    stop(shell, run_id)
    assert not shell.processes_of(run_id)
    log = shell.log(run_id)
    if moment == "import":
        assert "start" not in log, "it was past its imports: this has shown nothing"
    elif name in DIES_AT_ONCE:
        after = log.rpartition(f"{moment} {step}\n")[2]
        assert not LATER.search(after), "it was past that moment: this has shown nothing"
    saved = 0 if moment in EARLY else saved_step(shell, run_id)
    assert bool(shell.checkpoints(run_id)) == (moment not in EARLY)
    if moment == "save" and name in DIES_AT_ONCE:
        assert saved < step
    child = restart(shell, run_id)
    shell.until_log_has(child, f"start {saved}\n")
    shell.stoker("kill", str(child))
