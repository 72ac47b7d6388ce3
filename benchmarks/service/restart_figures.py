"""From the call of stop, by way of a restart, to the first step; beside a script killed and begun.

One core trains and one is free, as beside a GPU: on cores that are all busy it takes a minute until
a trainer stands by.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

from app.spec.layers import merge_patch
from benchmarks.figures import Figure
from benchmarks.heap import plain_environment
from benchmarks.service.bench_service import BenchService, spec, wait_until

ROUNDS = 5
THREADS = 1
# Until a trainer stands by again.
REFILL_SECONDS = 10.0
MOST_OF_A_SCRIPT = 0.25
SCRIPT = Path(__file__).with_name("bare_training.py")
COMMAND = "python -m benchmarks restart"


def measure(service: BenchService) -> list[Figure]:
    """Both in turn; the ratio is the median of the rounds'."""
    pairs = [(restarted_seconds(service), script_seconds(service)) for _ in range(ROUNDS)]
    ours, scripts = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    return [
        Figure("stop, restart, first step", ours, "s", None, ROUNDS, COMMAND),
        Figure("kill, plain script, first step", scripts, "s", None, ROUNDS, COMMAND),
        Figure("restart over plain script", ratio, "", MOST_OF_A_SCRIPT, ROUNDS, COMMAND),
    ]


def restarted_seconds(service: BenchService) -> float:
    """Stop a run and restart it; to the child's first step, which its log point tells."""
    change = {"runtime": {"threads": THREADS}, "training": {"log_every_steps": 1}}
    request = merge_patch(spec("restart", epochs=1000), change)
    run_id = service.client.submit(request)["id"]
    service.wait_for_training(run_id)
    time.sleep(REFILL_SECONDS)
    begin = time.time()
    service.client.act(run_id, "stop", wait_seconds=30)
    child = service.client.restart(run_id)["id"]
    events = service.home / "artifacts" / "runs" / str(child) / "attempt-1" / "events.jsonl"
    wait_until(lambda: first_step(events) is not None, "the restarted run steps", service.api)
    service.client.act(child, "kill", wait_seconds=30)
    step_at = first_step(events)
    assert step_at is not None  # noqa: S101 - it was waited for
    return step_at - begin


def first_step(events: Path) -> float | None:
    """When the trainer told its first log point; None before."""
    lines = events.read_text().splitlines() if events.exists() else []
    times = (json.loads(line)["t"] for line in lines if '"metrics"' in line)
    return next(times, None)


def script_seconds(service: BenchService) -> float:
    """Kill the plain script and begin it again; to its first step."""
    before = start_script(service)
    _printed(before)  # its state is saved
    begin = time.time()
    before.kill()
    before.communicate()
    after = start_script(service)
    step_at = _printed(after)
    after.kill()
    after.communicate()
    return step_at - begin


def start_script(
    service: BenchService,
    out: IO[str] | int = subprocess.PIPE,
    memory: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.Popen[str]":
    """`memory`: settings that glibc reads; a user's script has none."""
    data = service.home / "data" / service.client.dataset("weather")["path"]
    command = [sys.executable, SCRIPT, data, service.home / "bare.pt", str(THREADS)]
    environment = {**plain_environment(), **memory}
    return subprocess.Popen(command, env=environment, stdout=out, text=True)


def _printed(script: "subprocess.Popen[str]") -> float:
    assert script.stdout is not None  # noqa: S101 - a pipe was asked for
    return float(script.stdout.readline().split()[1])
