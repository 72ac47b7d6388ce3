"""From the call of stop to `stopped`; its bound: two steps, the checkpoint's write, 0.5 s."""

import statistics
import time

from benchmarks.figures import Figure
from benchmarks.service.bench_service import BenchService, spec

REPETITIONS = 5
OVERHEAD_SECONDS = 0.5
COMMAND = "python -m benchmarks stop"


def measure(service: BenchService) -> list[Figure]:
    """Stop five runs in their training phase; the figure is what is left beyond steps and write."""
    totals, overheads = [], []
    for number in range(REPETITIONS):
        run_id = service.client.submit(spec(f"stop-{number}", epochs=1000))["id"]
        service.wait_for_training(run_id)
        rate = service.client.run(run_id)["progress"]["iterations_per_second"]
        start = time.perf_counter()
        run = service.client.act(run_id, "stop", wait_seconds=30)
        total = time.perf_counter() - start
        if run["state"] != "stopped":
            raise RuntimeError(f"run {run_id} did not stop: {run['status']}")
        totals.append(total)
        overheads.append(total - 2 / rate - checkpoint_seconds(service, run_id))
    return [
        Figure(
            "stop call to stopped, median",
            statistics.median(totals),
            "s",
            None,
            REPETITIONS,
            COMMAND,
        ),
        Figure(
            "stop beyond 2 steps and the write, worst",
            *(max(overheads), "s", OVERHEAD_SECONDS, REPETITIONS, COMMAND),
        ),
    ]


def checkpoint_seconds(service: BenchService, run_id: int) -> float:
    """How long the last checkpoint took to write, by the run's own events."""
    events = service.client.watch(run_id)
    saved = [event.data["seconds"] for event in events if event.kind == "checkpoint"
             and event.data["action"] == "saved"]  # fmt: skip
    return float(saved[-1])
