"""The API: how long POST /runs takes, how much memory it holds, no torch in it; and under load."""

import json
import statistics
import time
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import Figure
from benchmarks.service import load_figures
from benchmarks.service.bench_service import BenchService, spec

WARM_UP = 20
MEASURED = 300
POST_P50_MILLISECONDS = 10.0
API_MEBIBYTES = 150.0
COMMAND = "python -m benchmarks api"


def measure(service: BenchService) -> list[Figure]:
    """One run after another, each answered before the next, while no worker runs; then by many."""
    direct = _submit(service)
    cuts = statistics.quantiles(direct, n=100)
    with_client = statistics.median(_submit_with_client(service))
    service.client.bulk("stop", {"filter": {"state": "queued"}})
    resident = service.api.memory_info().rss / 2**20
    torch_maps = "torch" in Path(f"/proc/{service.api.pid}/maps").read_text()
    return [
        _milliseconds("POST /runs, half within", cuts[49], POST_P50_MILLISECONDS),
        _milliseconds("POST /runs, 99 % within", cuts[98], None),
        _milliseconds("POST /runs by the Python client, half within", with_client, None),
        Figure("API, resident memory", resident, "MiB", API_MEBIBYTES, 1, COMMAND),
        Figure("API, torch libraries mapped", float(torch_maps), "", 0.0, 1, COMMAND),
        *load_figures.measure(service),
    ]


def _submit(service: BenchService) -> list[float]:
    """Seconds of each request on one connection, by a client that does next to nothing."""
    address = urlsplit(str(service.client.url))
    token = (service.home / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    seconds = []
    with closing(HTTPConnection(address.hostname or "", address.port)) as connection:
        for number in range(WARM_UP + MEASURED):
            body = json.dumps(spec(f"queued-{number}", epochs=1))
            start = time.perf_counter()
            connection.request("POST", "/runs", body, headers)
            answer = connection.getresponse()
            document = answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != HTTPStatus.CREATED:
                raise RuntimeError(f"the run was refused: {document.decode()}")
    return seconds[WARM_UP:]


def _submit_with_client(service: BenchService) -> list[float]:
    """As a Python program sees it, with what the client itself takes."""
    seconds = []
    for number in range(MEASURED):
        request = spec(f"queued-{number}", epochs=1)
        start = time.perf_counter()
        service.client.submit(request)
        seconds.append(time.perf_counter() - start)
    return seconds


def _milliseconds(name: str, seconds: float, bound: float | None) -> Figure:
    return Figure(name, seconds * 1e3, "ms", bound, MEASURED, COMMAND)
