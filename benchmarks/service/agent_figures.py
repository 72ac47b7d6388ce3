"""What the agent costs while one run trains: its share of a core, and its memory."""

import time

import psutil

from benchmarks.figures import Figure
from benchmarks.service.bench_service import BenchService

# The first beats of a process compile each of its SQL statements, once for its life.
WARM_SECONDS = 10.0
WINDOW_SECONDS = 40.0
AGENT_CORE_SHARE = 0.01
COMMAND = "python -m benchmarks agent"


def measure(service: BenchService, agent: psutil.Process) -> list[Figure]:
    """Processor time of the agent itself (not of launcher and trainer) over the window."""
    with service.long_run():
        time.sleep(WARM_SECONDS)
        before, start = cpu_seconds(agent), time.perf_counter()
        time.sleep(WINDOW_SECONDS)
        share = (cpu_seconds(agent) - before) / (time.perf_counter() - start)
        resident = agent.memory_info().rss / 2**20
    return [
        Figure("agent, share of a core", share, "", AGENT_CORE_SHARE, 1, COMMAND),
        Figure("agent, resident memory", resident, "MiB", None, 1, COMMAND),
    ]


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
