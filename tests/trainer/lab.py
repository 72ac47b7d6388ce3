"""A laboratory for attempts: a tiny dataset, specs, attempt directories, and runs of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from app.lifecycle import Reason
from app.planning.ladder import NO_RUNG, Rung
from app.planning.rollback import Rollback
from worker.reporting import PHASES, PULSE_FORMAT, EventLog, Pulse
from worker.trainer.checkpoints import disk
from worker.trainer.data.batch import Batch
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.recipes.base import Task
from worker.trainer.report import baselines
from worker.trainer.report.preparing import Preparing
from worker.trainer.run import End, execute
from worker.trainer.step import WINDOW as SINCE_LOG_POINT
from worker.trainer.step import Precision, TrainingStep
from worker.trainer.stop import StopFlag

WINDOW, FEATURES, HORIZON, SAMPLES = 12, 3, 4, 60
# Polls of the stop flag before the first step: after restoring, three parts, their statistics.
BUILDING_POLLS = 5
DISK = {
    name: getattr(disk, name)
    for name in ("make_folder", "write_file", "sync_file", "sync_folder", "rename")
}


def write_waves(path: Path, samples: int = SAMPLES, seed: int = 0) -> None:
    """Noisy waves in units far from standard: features (N, 12, 3), targets (N, 4)."""
    random = np.random.default_rng(seed)
    begin = random.uniform(0, 6, (samples, 1))
    time = begin + 0.3 * np.arange(WINDOW + HORIZON)
    wave = 20 + 5 * np.sin(time) + random.normal(0, 0.3, time.shape)
    rest = random.normal(3, 2, (samples, WINDOW, FEATURES - 1))
    features = np.concatenate([wave[:, :WINDOW, None], rest], axis=2)
    with h5py.File(path, "w") as file:
        file["features"] = features.astype(np.float32)
        file["targets"] = wave[:, WINDOW:].astype(np.float32)
        file["flat"] = features[:, 0].astype(np.float32)
        file["cube"] = np.zeros((samples, 2, 2, 2), np.float32)


def merged(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """As a JSON merge patch, but that a recipe of another kind takes the place of the whole."""
    result = dict(document)
    for key, value in patch.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        is_kind = key == "recipe" and both and "kind" in value
        if is_kind and value["kind"] != result[key].get("kind"):
            both = False
        result[key] = merged(result[key], value) if both else value
    return result


BASE_SPEC: dict[str, Any] = {
    "recipe": {
        "kind": "sequence",
        "hidden_size": 8,
        "num_layers": 2,
        "patch": 3,
        "dropout": 0.2,
        "residual": "none",
        "highway": 0,  # its files do not say where the target's past is
    },
    "data": {
        "dataset": "waves",
        "split": {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1},
    },
    "training": {
        "epochs": 3,
        "batch_size": 8,
        "gradient_accumulation_steps": 2,
        "log_every_steps": 2,
        "seed": 7,
    },
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "evaluation": {"every_steps": 4, "batch_size": 5, "metrics": ["mae", "mse", "rmse"]},
    "early_stopping": {"patience": 50},
    "checkpoint": {"every_seconds": None, "every_steps": 2},
    "runtime": {"precision": "fp32"},
}


@dataclass
class Outcome:
    """What a user would see of an attempt."""

    folder: Path
    run_dir: Path
    end: End | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def result(self) -> dict[str, Any]:
        assert self.end is not None
        assert self.end.result is not None
        return self.end.result

    @property
    def losses(self) -> bytes:
        return (self.run_dir / "losses.csv").read_bytes()

    @property
    def rows(self) -> list[list[str]]:
        return [line.split(",") for line in self.losses.decode().splitlines()[1:]]

    def checkpoint(self, step: int | None = None) -> Path:
        folders = (self.folder / "checkpoints").glob("step-*[0-9]")
        by_step = {int(folder.name.split("-")[1]): folder for folder in folders}
        return by_step[max(by_step) if step is None else step]

    @property
    def weights(self) -> bytes:
        """Of the run's newest checkpoint, which an earlier attempt may have written."""
        newest = Path(own_checkpoints(self.run_dir)[0]["path"])
        return (newest / "model.safetensors").read_bytes()


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the trainer catches it, nothing more is written."""


def no_more(*_: Any) -> None:
    """In place of an operation on the disk, also for the thread that writes checkpoints."""
    raise Killed


class StopAtPoll(StopFlag):
    """Asks to stop when it is looked at for the n-th time, which may be inside an evaluation. Looks
    of the baselines, which come after the training, do not count.
    """

    def __init__(self, polls: int | None = None, kill: bool = False) -> None:
        super().__init__()
        self.polls_left = polls
        self.polls = 0
        self.kill = kill

    @property
    def requested(self) -> bool:
        if sys._getframe(1).f_code.co_filename == baselines.__file__:
            return False
        self.polls += 1
        if self.polls_left is not None and self.polls > self.polls_left:
            if self.kill:
                for name in DISK:
                    setattr(disk, name, no_more)
                raise Killed
            return True
        return False


class Lab:
    """Artifact root, dataset, and what the agent would do around a trainer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "waves.h5"
        write_waves(self.data)
        self.runs = root / "runs"
        self.count = 0
        self.data_cache: dict[str, Any] | None = None
        self.held_out: dict[str, Path] = {}
        """Datasets beside, by name."""

    def new_run(self) -> Path:
        self.count += 1
        run_dir = self.runs / str(self.count)
        run_dir.mkdir(parents=True)
        return run_dir

    def datasets(self) -> dict[str, Any]:
        files = {"waves": self.data, **self.held_out}
        return {
            name: {"path": str(path), "fingerprint": fingerprint(path)}
            for name, path in files.items()
        }

    def prepare(
        self,
        run_dir: Path | None = None,
        patch: dict[str, Any] | None = None,
        restore: list[dict[str, Any]] | None = None,
        threads: int = 1,
        device: str = "cpu",
        rung: Rung = NO_RUNG,
        rollback: Rollback | None = None,
    ) -> Path:
        """The next attempt of a run (a new run by default), restoring its own checkpoints."""
        run_dir = run_dir or self.new_run()
        number = len(list(run_dir.glob("attempt-*"))) + 1
        folder = run_dir / f"attempt-{number}"
        folder.mkdir()
        document = {
            "run_id": int(run_dir.name),
            "attempt": number,
            "spec": merged(BASE_SPEC, patch or {}),
            "datasets": self.datasets(),
            "device": device,
            "threads": threads,
            "restore": own_checkpoints(run_dir) if restore is None else restore,
            "run_dir": str(run_dir),
            "memory_rung": rung.as_json(),
            "rollback": rollback and rollback.as_json(),
            "keep": [],
            "data_cache": self.data_cache,
        }
        (folder / "spec.json").write_text(json.dumps(document))
        return folder

    def execute(self, folder: Path, stop: StopFlag | None = None) -> Outcome:
        """In this process; raises what ended the attempt."""
        outcome = Outcome(folder, folder.parent)
        events, pulse = EventLog(folder / "events.jsonl"), Pulse(folder / "pulse")
        try:
            outcome.end = execute(folder, stop or StopFlag(), events, pulse)
        finally:
            events.close()
            pulse.close()
            for name, operation in DISK.items():
                if getattr(disk, name) is no_more:
                    setattr(disk, name, operation)
            outcome.events = read_events(folder)
        return outcome

    def run(
        self,
        run_dir: Path | None = None,
        patch: dict[str, Any] | None = None,
        restore: list[dict[str, Any]] | None = None,
        stop: StopFlag | None = None,
        rung: Rung = NO_RUNG,
        rollback: Rollback | None = None,
    ) -> Outcome:
        folder = self.prepare(run_dir, patch, restore, rung=rung, rollback=rollback)
        return self.execute(folder, stop)

    def interrupted(
        self,
        straight: Outcome,
        polls: Iterable[int],
        patch: dict[str, Any] | None = None,
        *,
        kill: bool = False,
    ) -> Iterator[tuple[Outcome | None, Outcome]]:
        """Runs that are stopped, or killed, each at one of these polls and taken up again: both
        outcomes, of which a killed one has none. All have to end as the run that was not.
        """
        for poll in polls:
            run_dir, first = self.new_run(), None
            try:
                first = self.run(run_dir, patch, stop=StopAtPoll(poll, kill))
            except Killed:
                assert kill
            if first is not None and first.end and first.end.reason is Reason.completed:
                continue  # it had come to its end before
            resumed = self.run(run_dir, patch)
            assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
            yield first, resumed

    def in_stages(
        self, patch: dict[str, Any] | None, *polls: int | None
    ) -> tuple[Outcome, list[int]]:
        """One run that is stopped at each of these polls, in turn, and taken up again: the last
        outcome, and at which step each attempt ended.
        """
        run_dir = self.new_run()
        outcomes = [self.run(run_dir, patch, stop=StopAtPoll(poll)) for poll in polls]
        return outcomes[-1], [one.end.step or 0 for one in outcomes if one.end is not None]


# One that stands by imports at idle priority, and on busy cores that is for minutes. As on a host
# that does not allow this: it has its attempt at once.
STANDING_BY = """
import os, runpy

def refuse(*_):
    raise PermissionError

os.sched_setscheduler = refuse
runpy.run_module("worker.trainer", run_name="__main__", alter_sys=True)
"""


def start_trainer(
    folder: Path, *, standby: bool = False, **environment: str
) -> subprocess.Popen[bytes]:
    """The trainer as a process, which fails at a warning; with `standby` told of its attempt."""
    given = {"OMP_NUM_THREADS": "1", **environment}
    with (folder / "trainer.log").open("wb") as log, Path(os.devnull).open("wb") as unheard:
        standing_by = ["-c", STANDING_BY, "--standby", str(unheard.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-W", "error"]
            + (standing_by if standby else ["-m", "worker.trainer", str(folder)]),
            pass_fds=(unheard.fileno(),),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **given},
        )
    assert process.stdin is not None
    if standby:
        order = {"attempt_dir": str(folder), "environment": given}
        process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.close()
    return process


def step_of(
    task: Task, model: nn.Module, batches: Iterable[Batch], precision: str = "fp32"
) -> tuple[float, Tensor]:
    """The loss that an optimizer step of these micro-batches reports, and its gradients in one row.
    The model stays as it is.
    """
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    cpu = torch.device("cpu")
    weights = {term: task.spec.loss_weights.get(term, 1.0) for term in task.recipe.loss_terms}
    step = TrainingStep(model, task, optimizer, Precision(precision, cpu), None, weights)
    parts = list(batches)
    for batch in parts:
        step.accumulate(batch, batch.size / sum(part.size for part in parts))
    step.apply(1.0)
    gradients = before - nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(before, model.parameters())
    loss, *_, weight = step.loss_sums[SINCE_LOG_POINT].tolist()
    return loss / (weight or 1.0), gradients


def read_pulse(path: Path) -> tuple[str, int]:
    """The phase and the counter that the trainer wrote last."""
    index, counter = PULSE_FORMAT.unpack(path.read_bytes())
    return PHASES[index], counter


def unstopped(root: Path) -> Preparing:
    return Preparing(Pulse(root / "pulse"), StopFlag())


def own_checkpoints(run_dir: Path) -> list[dict[str, Any]]:
    """As the agent lists them: newest attempt first, then the highest step."""
    folders = [*run_dir.glob("attempt-*/checkpoints/step-*[0-9]")]
    folders.sort(
        key=lambda f: tuple(int(part.split("-")[1]) for part in (f.parts[-3], f.parts[-1]))
    )
    return [{"path": str(f), "carry": "full", "own": True} for f in reversed(folders)]


def read_events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
