"""The same training inside Stoker and as a plain script, in turn; one core trains, one serves.

The script runs with the memory settings of a trainer, which shows what Stoker itself costs, and
without any, as its users run it.

Stoker's leaves out what the script does not do: scaling, clipping, a schedule, evaluations.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from app.spec.layers import merge_patch
from benchmarks.confidence import lower_bound
from benchmarks.figures import Figure, figure_of
from benchmarks.heap import OF_TRAINERS
from benchmarks.service.bench_service import POLL_SECONDS, BenchService, Document, spec, wait_until
from benchmarks.service.restart_figures import start_script

ROUNDS = 8
SERVING_CORE, TRAINING_CORE = 0, 1
# So that what comes with a start is over; then so long is measured.
SETTLING_SECONDS, MEASURED_SECONDS = 4.0, 5.0
LEAST_OF_A_SCRIPT = 0.97
COMMAND = "python -m benchmarks script"
BARE: Document = {
    "recipe": {"loss": "mse"},
    "data": {
        "split": {"validation_fraction": 0.0},
        "standardize": {"inputs": False, "targets": False},
    },
    "training": {"clip_grad_norm": None, "log_every_steps": 10},
    "schedule": {"kind": "constant"},
    "runtime": {"threads": 1},
    "accept_risks": ["learning.*"],
}


class Place(NamedTuple):
    """How far a training had come, and when (Unix time)."""

    step: int
    at: float


def measure(service: BenchService, agent: psutil.Process) -> list[Figure]:
    for process in (service.api, agent, *agent.children(recursive=True)):
        pin(process, SERVING_CORE)
    rounds = [
        (inside_rate(service, agent), script_rate(service, OF_TRAINERS), script_rate(service, {}))
        for _ in range(ROUNDS)
    ]
    inside, alike, plain = zip(*rounds, strict=True)
    return [
        figure_of("training inside Stoker", "it/s", inside, COMMAND),
        figure_of("a plain script with a trainer's memory settings", "it/s", alike, COMMAND),
        figure_of("a plain script", "it/s", plain, COMMAND),
        over("a script with the same memory settings", inside, alike, LEAST_OF_A_SCRIPT),
        over("a plain script", inside, plain),
    ]


def over(
    what: str, inside: Sequence[float], other: Sequence[float], bound: float | None = None
) -> Figure:
    """The lower confidence bound (95 %) of the rounds' ratios."""
    ratios = [one / its for one, its in zip(inside, other, strict=True)]
    figure = figure_of(f"inside over {what}, lower bound", "", ratios, COMMAND, bound)
    return replace(figure, value=lower_bound(ratios))


def pin(process: psutil.Process, core: int) -> None:
    """All threads that there are; later ones inherit it from the one that starts them."""
    for thread in process.threads():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, {core})


def inside_rate(service: BenchService, agent: psutil.Process) -> float:
    run_id = service.client.submit(merge_patch(spec("inside", epochs=1000), BARE))["id"]
    service.wait_for_training(run_id)
    attempt = service.home / "artifacts" / "runs" / str(run_id) / "attempt-1"
    pin(trainer_of(agent, attempt), TRAINING_CORE)
    rate = rate_of(lambda: told_by_stoker(attempt / "events.jsonl"))
    service.client.act(run_id, "kill", wait_seconds=30)
    return rate


def script_rate(service: BenchService, memory: Mapping[str, str]) -> float:
    lines = service.home / "script.log"
    with lines.open("w") as out:
        script = start_script(service, out, memory)
        pin(psutil.Process(script.pid), TRAINING_CORE)
    try:
        wait_until(lambda: len(whole_lines(lines)) > 1, "the script steps", service.api)
        return rate_of(lambda: told_by_script(lines))
    finally:
        script.kill()
        script.wait()


def rate_of(told: Callable[[], Place]) -> float:
    """Steps in a second, from one place to another."""
    time.sleep(SETTLING_SECONDS)
    begin = told()
    time.sleep(MEASURED_SECONDS)
    while (end := told()).step == begin.step:
        time.sleep(POLL_SECONDS)
    return (end.step - begin.step) / (end.at - begin.at)


def told_by_stoker(events: Path) -> Place:
    """The last log point."""
    points = (json.loads(line) for line in whole_lines(events) if '"metrics"' in line)
    *_, last = (Place(point["step"], point["t"]) for point in points)
    return last


def told_by_script(lines: Path) -> Place:
    step, at = whole_lines(lines)[-1].split()
    return Place(int(step), float(at))


def whole_lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def trainer_of(agent: psutil.Process, attempt: Path) -> psutil.Process:
    events = str(attempt / "events.jsonl")
    for process in agent.children(recursive=True):
        with suppress(psutil.Error):
            if any(file.path == events for file in process.open_files()):
                return process
    raise RuntimeError(f"nobody trains {attempt}")
