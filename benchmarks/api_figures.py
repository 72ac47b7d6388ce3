"""The API alone: how long POST /runs takes, how much memory it holds, and no torch in it."""

import statistics
import time
from pathlib import Path

from benchmarks.bench_service import BenchService, spec
from benchmarks.figures import Figure

WARM_UP = 20
MEASURED = 300
POST_P50_MILLISECONDS = 10.0
API_MEBIBYTES = 150.0
COMMAND = "python -m benchmarks api"


def measure(service: BenchService) -> list[Figure]:
    """Submit one run after another, each answered before the next; no worker is running."""
    seconds = []
    for number in range(WARM_UP + MEASURED):
        request = spec(f"queued-{number}", epochs=1)
        start = time.perf_counter()
        service.client.submit(request)
        seconds.append(time.perf_counter() - start)
    cuts = statistics.quantiles(seconds[WARM_UP:], n=100)
    service.client.bulk("stop", {"filter": {"state": "queued"}})
    resident = service.api.memory_info().rss / 2**20
    torch_maps = "torch" in Path(f"/proc/{service.api.pid}/maps").read_text()
    return [
        Figure(
            "POST /runs, half within",
            cuts[49] * 1e3,
            "ms",
            POST_P50_MILLISECONDS,
            MEASURED,
            COMMAND,
        ),
        Figure("POST /runs, 99 % within", cuts[98] * 1e3, "ms", None, MEASURED, COMMAND),
        Figure("API, resident memory", resident, "MiB", API_MEBIBYTES, 1, COMMAND),
        Figure("API, torch libraries mapped", float(torch_maps), "", 0.0, 1, COMMAND),
    ]
