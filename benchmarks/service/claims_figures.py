"""What the rules of speed claim: a refused spec beside the one that its fix makes of it."""

import statistics
from dataclasses import dataclass
from typing import Any

import h5py
import psutil

from app.spec.layers import merge_patch
from benchmarks.figures import Figure
from benchmarks.service.bench_service import BenchService, spec
from worker.trainer.data.formats.ragged_files import write_ragged

ROUNDS = 3
COMMAND = "python -m benchmarks claims"
# A rule that saves less than 5 % is not built.
LARGEST_RATIO = 0.95
Document = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A rule by its `measured_by`, and merge patches on the same request: refused and mended."""

    name: str
    refused: Document
    mended: Document


SMALL = {"recipe": {"hidden_size": 16, "patch": 36}, "training": {"max_steps": 400, "epochs": 50}}
# Its state, 27 MiB, takes longer to write than two steps do.
LARGE = {"recipe": {"hidden_size": 512, "patch": 36}, "training": {"max_steps": 60, "epochs": 50}}
ATTENDING = {
    "recipe": {"encoder": "transformer", "num_layers": 4, "patch": 6},
    "training": {"max_steps": 60, "epochs": 50},
}
SHORT = merge_patch(SMALL, {"training": {"max_steps": 72}})  # three epochs
STREAMED = merge_patch(SHORT, {"data": {"loader": {"residency": "stream"}}})
BY_PROCESSES = {"kind": "dataloader", "num_workers": 1}
CHUNKED, CHUNK_ROWS = "weather-chunked", 64
# The last hours of each window, and those with one whole window among them.
LAST_HOURS, ONE_WHOLE, HOURS = "weather-last-hours", "weather-one-whole", 72
RAGGED = {"recipe": {"patch": 6}, "training": {"max_steps": 120, "epochs": 50}}
CLAIMS = (
    Claim(
        "evaluation_share",
        {"evaluation": {"every_steps": 4}, "training": {"max_steps": 60}},
        {"evaluation": {"every_steps": None}, "training": {"max_steps": 60}},
    ),
    Claim(
        "frequent_checkpoints",
        merge_patch(LARGE, {"checkpoint": {"every_steps": 2}}),
        merge_patch(LARGE, {"checkpoint": {"every_steps": 200}}),
    ),
    Claim(
        "threads_above_cores",
        {"runtime": {"threads": 2 * (psutil.cpu_count() or 1)}, "training": {"max_steps": 60}},
        {"runtime": {"threads": "auto"}, "training": {"max_steps": 60}},
    ),
    Claim(
        "compiled_recurrence",
        merge_patch(SMALL, {"runtime": {"compile": {"mode": "default"}}}),
        merge_patch(SMALL, {"runtime": {"compile": {"mode": "none"}}}),
    ),
    Claim(
        "mixed_on_cpu",
        merge_patch(ATTENDING, {"runtime": {"precision": "bf16-mixed"}}),
        merge_patch(ATTENDING, {"runtime": {"precision": "fp32"}}),
    ),
    Claim(
        "chunk_below_batch",
        merge_patch(STREAMED, {"data": {"loader": {"chunk_size": "1MiB"}}}),
        merge_patch(STREAMED, {"data": {"loader": {"chunk_size": "auto"}}}),
    ),
    Claim(
        "chunked_is_faster",
        merge_patch(SMALL, {"data": {"loader": {"kind": "dataloader"}}}),
        merge_patch(SMALL, {"data": {"loader": {"kind": "chunked"}}}),
    ),
    Claim(
        "workers_start_anew",
        merge_patch(SHORT, {"data": {"loader": {**BY_PROCESSES, "persistent_workers": False}}}),
        merge_patch(SHORT, {"data": {"loader": {**BY_PROCESSES, "persistent_workers": True}}}),
    ),
    Claim(
        "mostly_filling",
        merge_patch(RAGGED, {"data": {"dataset": ONE_WHOLE}}),
        merge_patch(RAGGED, {"data": {"dataset": LAST_HOURS}}),
    ),
    Claim(
        "random_reads_of_chunks",
        merge_patch(STREAMED, {"data": {"dataset": CHUNKED, "loader": {"chunk_size": "8MiB"}}}),
        merge_patch(STREAMED, {"data": {"dataset": CHUNKED, "loader": {"chunk_size": "auto"}}}),
    ),
)


def measure(service: BenchService) -> list[Figure]:
    """Both specs of each claim in turn; the figure is the median of the rounds' ratios."""
    prepare_chunked(service)
    prepare_ragged(service)
    figures = []
    for claim in CLAIMS:
        ratios = []
        for number in range(ROUNDS):
            refused = trained_seconds(service, f"{claim.name}-{number}-refused", claim.refused)
            mended = trained_seconds(service, f"{claim.name}-{number}-mended", claim.mended)
            ratios.append(mended / refused)
        figures.append(
            Figure(
                f"{claim.name}: time of the mended spec over the refused one",
                *(statistics.median(ratios), "", LARGEST_RATIO, ROUNDS, COMMAND),
            )
        )
    return figures


def prepare_chunked(service: BenchService) -> None:
    """The weather sample again, its windows in compressed chunks."""
    path = service.home / "data" / service.client.dataset("weather")["path"]
    copy = path.with_name(f"{CHUNKED}.h5")
    with h5py.File(path) as old, h5py.File(copy, "w") as new:
        new["targets"] = old["targets"][:]
        windows = old["features"]
        chunks = (CHUNK_ROWS, *windows.shape[1:])
        new.create_dataset("features", data=windows[:], chunks=chunks, compression="gzip")
    service.client.register_dataset(CHUNKED, copy.name, wait_seconds=60)


def prepare_ragged(service: BenchService) -> None:
    """The weather sample again, of each window its last hours; and once with one window whole."""
    path = service.home / "data" / service.client.dataset("weather")["path"]
    with h5py.File(path) as old:
        windows, targets = old["features"][:], old["targets"][:]
    for name, first in ((LAST_HOURS, HOURS), (ONE_WHOLE, windows.shape[1])):
        samples = [windows[0, -first:], *windows[1:, -HOURS:]]
        copy = path.with_name(f"{name}.h5")
        with h5py.File(copy, "w") as new:
            write_ragged(new, "features", samples)
            new["targets"] = targets
        service.client.register_dataset(name, copy.name, wait_seconds=60)


def trained_seconds(service: BenchService, name: str, change: Document) -> float:
    """Seconds of a run that is let through: its steps and all that comes between them."""
    request = merge_patch(spec(name, epochs=5), {**change, "accept_risks": ["speed.*"]})
    run_id = service.client.submit(request)["id"]
    for _ in service.client.watch(run_id):  # until its end
        pass
    run = service.client.run(run_id)
    if run["state"] != "succeeded":
        raise RuntimeError(f"run {run_id} ended as {run['state']}: {run['message']}")
    spent: dict[str, float] = run["progress"]["phase_seconds"]
    return sum(spent.values()) - spent["other"]
