"""Scripts of real libraries, which know nothing of Stoker: curves, rates, and where they go on."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.e2e.service import eventually
from tests.e2e.shell import Shell

pytestmark = pytest.mark.minutes

PROJECTS = Path(__file__).parent / "projects"
SUPERVISED_SECONDS = 60.0
SAVE_STEPS = 20
PACE = 0.04
# The last rates are over ten seconds; before that there is the start.
STEPS = 600
NO_END = 1_000_000


class Library(NamedTuple):
    """How a script of it is typed."""

    command: tuple[str, ...]
    """The program comes first, of those of the environment."""
    options: tuple[str, ...]
    """Of `stoker run`."""
    curve: str | None = None
    """Known without an edit, or a word about it."""

    def typed(self, libraries: Path, *, steps: int, pace: float) -> tuple[str, ...]:
        program, script, *rest = self.command
        words = (str(PROJECTS / word) if word.endswith(".py") else word for word in (script, *rest))
        paced = ("--max_steps", str(steps), "--pace", str(pace), "--save_steps", str(SAVE_STEPS))
        return (str(libraries / program), *words, *paced)


HF_COMMAND = (
    *("python", "train_hf.py", "--output_dir", "out", "--logging_steps", "5"),
    *("--use_cpu", "--report_to", "none"),
)
LIBRARIES = {
    "hf": Library(HF_COMMAND, ("--like", "hf"), "train_loss"),
    "lightning": Library(("python", "train_lightning.py"), ("--like", "lightning"), "train_loss"),
    "accelerate": Library(
        ("accelerate", "launch", "--cpu", "train_accelerate.py", "--output_dir", "out"),
        ("--like", "accelerate"),
    ),
    "plain": Library(
        ("python", "train_plain.py"),
        ("--checkpoints", "out/ckpt.pt", "--resume", "--resume {checkpoint}"),
    ),
}
each_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)


def times_of(log: str) -> dict[int, float]:
    """When the script says that it made each step."""
    found = re.findall(r"step (\d+) at ([0-9.]+)\n", log)
    return {int(step): float(at) for step, at in found}


def losses_of(log: str) -> list[tuple[str, str]]:
    return re.findall(r"loss (\d+) (\S+)\n", log)


def rate_of(times: dict[int, float], last: int) -> float:
    """Steps a second by the script's own clock, in the ten seconds before a step."""
    first = min(step for step, at in times.items() if at >= times[last] - 10.0)
    return (last - first) / (times[last] - times[first])


def saved_step(shell: Shell, run_id: int) -> int:
    """What the newest checkpoint holds; a name that says no step has it inside."""
    newest = max(shell.checkpoints(run_id), key=lambda one: one["step"])
    runs = shell.service.home / "artifacts" / "runs" / str(run_id)
    (folder,) = runs.glob(f"attempt-*/checkpoints/step-{newest['step']}")
    file = folder / "ckpt.pt"
    return int(torch.load(file)["step"] if file.exists() else newest["step"])


def stop(shell: Shell, run_id: int) -> None:
    run = shell.service.http.post(f"/runs/{run_id}/stop", params={"wait": 60}).json()
    assert (run["state"], run["reason"]) == ("stopped", "stop_requested"), run["message"]


def restart(shell: Shell, run_id: int) -> int:
    return int(json.loads(shell.stoker("restart", str(run_id), "--json"))["id"])


@each_library
def test_it_is_supervised_as_it_is(shell: Shell, libraries: Path, library: Library):
    outside = shell.project / "outside"
    outside.mkdir()
    plain = subprocess.run(
        library.typed(libraries, steps=STEPS, pace=0.0),
        cwd=outside, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    typed = time.monotonic()
    command = library.typed(libraries, steps=STEPS, pace=PACE)
    run_id = shell.run_command(*library.options, command=command)["id"]
    shell.service.wait_for_step(run_id, 1)
    assert time.monotonic() - typed < SUPERVISED_SECONDS
    ended = shell.service.wait_for_end(run_id)
    assert ended["state"] == "succeeded", shell.log(run_id)
    log = shell.log(run_id)
    assert losses_of(log) == losses_of(plain)
    assert len(losses_of(log)) >= STEPS / 5
    assert ended["progress"]["step"] == STEPS
    rates = shell.curve(run_id, "iterations_per_second")
    times = times_of(log)
    last = max(step for step in rates if step < STEPS)
    assert rates[last] == pytest.approx(rate_of(times, last), rel=0.01)
    if library.curve is not None:
        assert len(shell.curve(run_id, library.curve)) >= 3


@each_library
def test_a_restart_goes_on_at_the_saved_step(shell: Shell, libraries: Path, library: Library):
    command = library.typed(libraries, steps=NO_END, pace=PACE)
    run_id = shell.run_command(*library.options, command=command)["id"]
    before = 0
    for _ in range(5):
        shell.service.wait_for_step(run_id, before + 2 * SAVE_STEPS + 5)
        stop(shell, run_id)
        saved = saved_step(shell, run_id)
        last = max(times_of(shell.log(run_id)))
        assert before < saved <= last < saved + 2 * SAVE_STEPS
        run_id, before = restart(shell, run_id), saved
        shell.until_log_has(run_id, f"start {saved}\n")
    shell.stoker("kill", str(run_id))


@pytest.mark.parametrize(
    ("name", "word"), [("hf", "--enable_jit_checkpoint"), ("lightning", "--save_on_exception")]
)
def test_one_word_of_the_trainer_saves_at_the_stop(
    shell: Shell, libraries: Path, name: str, word: str
):
    library = LIBRARIES[name]
    command = library.typed(libraries, steps=NO_END, pace=PACE)[:-1]
    run_id = shell.run_command(*library.options, command=(*command, str(NO_END), word))["id"]
    shell.service.wait_for_step(run_id, 10)
    stop(shell, run_id)
    last = max(times_of(shell.log(run_id)))
    saved = saved_step(shell, run_id)
    assert last - 1 <= saved <= last
    child = restart(shell, run_id)
    shell.until_log_has(child, f"start {saved}\n")


def test_a_table_of_lightning_is_read(shell: Shell, libraries: Path):
    command = LIBRARIES["lightning"].typed(libraries, steps=45, pace=0.1)
    run_id = shell.run_command(command=(*command, "--csv"))["id"]
    assert shell.service.wait_for_end(run_id)["state"] == "succeeded"
    assert shell.curve(run_id)
    assert shell.curve(run_id, "val_loss")


def test_a_script_of_scikit_learn_has_its_log_and_its_curve(shell: Shell, libraries: Path):
    pattern = r"Iteration (?P<step>[0-9]+), loss = (?P<loss>[0-9.]+)"
    command = (str(libraries / "python"), str(PROJECTS / "train_sklearn.py"))
    typed = time.monotonic()
    run_id = shell.run_command("--metrics-stdout", pattern, command=command)["id"]
    eventually(lambda: shell.curve(run_id), "its curve begins")
    assert time.monotonic() - typed < SUPERVISED_SECONDS
    ended = shell.service.wait_for_end(run_id)
    assert ended["state"] == "succeeded", shell.log(run_id)
    curve = shell.curve(run_id)
    told = {int(step): float(loss) for step, loss in re.findall(pattern, shell.log(run_id))}
    assert (min(curve), max(curve)) == (1, 15)
    assert all(told[step] == pytest.approx(loss, abs=1e-6) for step, loss in curve.items())
    assert (shell.project / "model.joblib").exists()


CALLBACKS = {
    "hf": (*HF_COMMAND[:1], "train_hf_callback.py", *HF_COMMAND[2:]),
    "lightning": ("python", "train_lightning_callback.py"),
}


@pytest.mark.parametrize("command", CALLBACKS.values(), ids=CALLBACKS)
class TestCallbacks:
    def test_it_ends_at_a_step_with_a_checkpoint_and_goes_on_there(
        self, shell: Shell, libraries: Path, command: tuple[str, ...]
    ):
        typed = Library(command, ()).typed(libraries, steps=NO_END, pace=PACE)
        run_id = shell.run_command(command=typed)["id"]
        shell.service.wait_for_step(run_id, 2 * SAVE_STEPS + 5)
        stop(shell, run_id)
        log = shell.log(run_id)
        saved = saved_step(shell, run_id)
        assert saved == max(times_of(log))
        assert len(shell.checkpoints(run_id)) >= 2
        assert shell.curve(run_id)
        child = restart(shell, run_id)
        shell.until_log_has(child, f"start {saved}\n")
        eventually(lambda: shell.checkpoints(child), "the child has saved")
        shell.stoker("pause", str(child), "--wait", "60")
        assert shell.service.run(child)["state"] == "paused"
        at = saved_step(shell, child)
        shell.stoker("resume", str(child))
        shell.until_log_has(child, f"start {at}\n")

    def test_outside_it_changes_nothing(
        self, shell: Shell, libraries: Path, command: tuple[str, ...]
    ):
        plain = (command[0], command[1].replace("_callback", ""), *command[2:])
        environment = os.environ | {"PYTHONPATH": str(PROJECTS.parents[2])}
        said = [
            subprocess.run(
                Library(words, ()).typed(libraries, steps=40, pace=0.0),
                cwd=shell.project, env=environment, capture_output=True, text=True, check=True,
            ).stdout
            for words in (plain, command)
        ]  # fmt: skip
        assert losses_of(said[0]) == losses_of(said[1]) != []


def test_several_ranks_of_lightning_stop_at_one_step(libraries: Path, tmp_path: Path):
    """With a signal that comes to each at a step of its own."""
    (tmp_path / "checkpoints").mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(PROJECTS.parents[2]),
        "STOKER_RUN_ID": "1",
        "STOKER_ATTEMPT": "1",
        "STOKER_RUN_DIR": str(tmp_path),
        "STOKER_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "STOKER_STOP_FILE": str(tmp_path / "stop"),
        "STOKER_STOP_SIGNAL": "SIGTERM",
    }
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    said = subprocess.run(
        (str(libraries / "python"), *launcher, str(PROJECTS / "train_lightning_ranks.py")),
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=True,
    ).stdout  # fmt: skip
    ended = re.findall(r"end (\d+)\n", said)
    (kept,) = (path.name for path in (tmp_path / "checkpoints").iterdir())
    assert ended == [kept.removeprefix("step-")] * 2
    assert 20 <= int(ended[0]) < 100
