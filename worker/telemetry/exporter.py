"""The worker's metrics port: a collector over the agent's last snapshot, and its server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app.container import available_memory, total_memory
from app.settings import Settings
from worker.telemetry.gpus import GpuSample
from worker.telemetry.histogram import CHECKPOINT_DURATIONS, Histogram
from worker.telemetry.host import free_bytes

log = structlog.get_logger("stoker.worker")

# Ends of attempts that are a checkpoint's failure.
FAILED_ENDS = ("checkpoint_error", "checkpoint_write_error", "disk_full")
CHECKPOINT_FAILURES = (*FAILED_ENDS, "quarantined")


@dataclass(frozen=True)
class RunView:
    """The latest of one running attempt; `progress` is the trainer's last progress event, `gpus`
    are those that it has, as NVML numbers them.
    """

    run_id: int
    attempt: int
    recipe: str
    gpus: tuple[str, ...]
    progress_timeout_seconds: float
    progress: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    iterations: Histogram | None = None
    checkpoints: Histogram = CHECKPOINT_DURATIONS


@dataclass(frozen=True)
class TelemetrySnapshot:
    """Everything a scrape shows; `gpus` is None where there is no GPU telemetry."""

    runs: tuple[RunView, ...] = ()
    gpus: tuple[GpuSample, ...] | None = None
    beat_at: float | None = None
    checkpoint_failures: Mapping[str, int] = field(default_factory=dict)


# name, help, unit-less key of a GpuSample
GPU_GAUGES = (
    ("stoker_gpu_utilization_ratio", "Share of time a kernel ran", "utilization"),
    (
        "stoker_gpu_sm_active_ratio",
        "Share of multiprocessors with work (Hopper on)",
        "sm_active",
    ),
    ("stoker_gpu_memory_used_bytes", "Device memory in use", "memory_used_bytes"),
    ("stoker_gpu_memory_total_bytes", "Device memory", "memory_total_bytes"),
    ("stoker_gpu_power_watts", "Power drawn", "power_watts"),
    ("stoker_gpu_temperature_celsius", "Temperature", "temperature_celsius"),
    ("stoker_gpu_sm_clock_hertz", "Clock of the multiprocessors", "sm_clock_hertz"),
    ("stoker_gpu_memory_clock_hertz", "Clock of the memory", "memory_clock_hertz"),
)
# name, help, key of a progress event
RUN_GAUGES = (
    ("stoker_train_learning_rate", "Learning rate of the last step", "lr"),
    ("stoker_train_grad_norm", "Gradient norm of the last step, before clipping", "grad_norm"),
    ("stoker_train_epoch", "Epoch under way", "epoch"),
    ("stoker_data_queue_depth", "Batches or chunks that wait for the trainer", "queue_depth"),
    ("stoker_run_last_progress_timestamp_seconds", "When the trainer last reported", "t"),
    ("stoker_run_host_memory_bytes", "Host memory of trainer and loader", "host_memory_bytes"),
)


class WorkerCollector(Collector):
    """Turns the snapshot that was published last into metric families; unknown is absent."""

    def __init__(self, **roots: Path) -> None:
        self._roots = roots
        self._snapshot = TelemetrySnapshot()

    def publish(self, snapshot: TelemetrySnapshot) -> None:
        """Replace what the next scrape shows."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield from _worker(snapshot)
        yield from _host(self._roots)
        yield from _gpus(snapshot)
        yield from _run_gauges(snapshot.runs)
        yield from _run_counters(snapshot.runs)
        yield from _run_histograms(snapshot.runs)


Rows = list[tuple[list[str], Any]]


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    _add_known(family, rows)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    _add_known(family, rows)
    return family


def _add_known(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> None:
    for values, value in rows:
        if value is not None:
            family.add_metric(values, float(value))


def _worker(snapshot: TelemetrySnapshot) -> Iterator[Metric]:
    yield _gauge(
        "stoker_worker_heartbeat_timestamp_seconds",
        "When the agent last reached the database",
        (),
        [([], snapshot.beat_at)],
    )
    yield _gauge(
        "stoker_telemetry_available",
        "Whether a source of telemetry answers",
        ("source",),
        [
            (["psutil"], 1),
            (["nvml"], int(snapshot.gpus is not None)),
            (["gpm"], int(any(gpu.sm_active is not None for gpu in snapshot.gpus or ()))),
        ],
    )
    yield _counter(
        "stoker_checkpoint_failures",
        "Checkpoints that could not be written or read",
        ("reason",),
        [([name], snapshot.checkpoint_failures.get(name, 0)) for name in CHECKPOINT_FAILURES],
    )


def _host(roots: Mapping[str, Path]) -> Iterator[Metric]:
    for name, text, value in (
        ("memory_available_bytes", "Memory that can be had without swapping", available_memory()),
        (
            "memory_total_bytes",
            "Memory of the host, or its container",
            total_memory(),
        ),
        ("swap_used_bytes", "Swap in use", psutil.swap_memory().used),
    ):
        yield _gauge(f"stoker_host_{name}", text, (), [([], value)])
    free = [([name], free_bytes(path)) for name, path in roots.items()]
    yield _gauge("stoker_disk_free_bytes", "Free disk under a root", ("root",), list(free))


def _gpus(snapshot: TelemetrySnapshot) -> Iterator[Metric]:
    gpus = snapshot.gpus or ()
    for name, text, key in GPU_GAUGES:
        rows = [([gpu.index], getattr(gpu, key)) for gpu in gpus]
        yield _gauge(name, text, ("gpu",), rows)
    yield _counter(
        "stoker_gpu_energy_joules",
        "Energy since the driver was loaded",
        ("gpu",),
        [([gpu.index], gpu.energy_joules) for gpu in gpus],
    )
    yield _gauge(
        "stoker_gpu_info",
        "What a GPU is",
        ("gpu", "uuid", "model", "driver"),
        [([gpu.index, gpu.uuid, gpu.model, gpu.driver], 1) for gpu in gpus],
    )
    yield _gauge(
        "stoker_gpu_runs",
        "Runs of this worker on a GPU",
        ("gpu",),
        [([gpu.index], sum(gpu.index in run.gpus for run in snapshot.runs)) for gpu in gpus],
    )


def _run_gauges(runs: tuple[RunView, ...]) -> Iterator[Metric]:
    for name, text, key in RUN_GAUGES:
        rows = [([str(run.run_id)], run.progress.get(key)) for run in runs]
        yield _gauge(name, text, ("run_id",), rows)
    yield _gauge(
        "stoker_train_progress_ratio",
        "Steps done of all steps, or the share that a script says is done",
        ("run_id",),
        [([str(run.run_id)], _progress_ratio(run.progress)) for run in runs],
    )
    yield _gauge(
        "stoker_run_progress_timeout_seconds",
        "How long a run may report nothing, at most, before its trainer is ended; a script's own "
        "silence ends nothing unless --hang-timeout is given",
        ("run_id",),
        [([str(run.run_id)], run.progress_timeout_seconds) for run in runs],
    )
    yield _gauge(
        "stoker_run_info",
        "What a run is",
        ("run_id", "recipe", "attempt"),
        [([str(run.run_id), run.recipe, str(run.attempt)], 1) for run in runs],
    )
    yield _gauge(
        "stoker_train_loss",
        "Last loss",
        ("run_id", "split"),
        [([str(run.run_id), split], loss) for run in runs for split, loss in run.losses.items()],
    )
    yield _gauge(
        "stoker_train_iterations_per_second",
        "Iterations a second in the phase that is under way",
        ("run_id", "phase"),
        [([str(run.run_id), *_phase_rate(run.progress)[:1]], _phase_rate(run.progress)[1])
         for run in runs],
    )  # fmt: skip
    for part in ("allocated", "reserved", "peak"):
        yield _gauge(
            f"stoker_torch_memory_{part}_bytes",
            f"Device memory of torch: {part}",
            ("run_id", "gpu"),
            [
                ([str(run.run_id), run.gpus[0]], (run.progress.get("torch_memory") or {}).get(part))
                for run in runs
                if len(run.gpus) == 1
            ],
        )


def _progress_ratio(progress: Mapping[str, Any]) -> float | None:
    step, steps = progress.get("step"), progress.get("steps")
    return step / steps if step is not None and steps else progress.get("ratio")


def _phase_rate(progress: Mapping[str, Any]) -> tuple[str, float | None]:
    phase = progress.get("phase")
    if phase in ("training", "running"):  # of a script, which is never anything else
        return "train", progress.get("iterations_per_second")
    if phase in ("evaluating", "testing"):
        return "eval", progress.get("phase_rate")
    return "train", None


def _run_counters(runs: tuple[RunView, ...]) -> Iterator[Metric]:
    totals = [(str(run.run_id), run.progress.get("totals") or {}) for run in runs]
    for unit in ("iterations", "samples"):
        yield _counter(
            f"stoker_train_{unit}",
            f"{unit.capitalize()} of this attempt",
            ("run_id", "phase"),
            [
                ([run_id, phase], total.get(f"{phase}_{unit}"))
                for run_id, total in totals
                for phase in ("train", "eval")
            ],
        )
    yield _counter(
        "stoker_data_read_bytes",
        "Bytes read by the loader",
        ("run_id",),
        [([run_id], total.get("bytes_read")) for run_id, total in totals],
    )
    yield _counter(
        "stoker_train_phase_seconds",
        "Where the trainer's wall time went. On CUDA `compute` is the time to launch the work; the "
        "device's own time appears as `sync`, where the host waits for it; `h2d` is what the host "
        "waited for copies to it",
        ("run_id", "phase"),
        [  # a part that the trainer does not measure is absent, not 0
            ([str(run.run_id), phase], seconds)
            for run in runs
            for phase, seconds in (run.progress.get("phase_seconds") or {}).items()
        ],
    )


def _run_histograms(runs: tuple[RunView, ...]) -> Iterator[Metric]:
    for name, text, key in (
        ("stoker_train_iteration_duration_seconds", "Duration of a training step", "iterations"),
        ("stoker_checkpoint_duration_seconds", "Duration of a checkpoint's write", "checkpoints"),
    ):
        family = HistogramMetricFamily(name, text, labels=("run_id",))
        for run in runs:
            histogram: Histogram | None = getattr(run, key)
            if histogram is not None and histogram.counts:
                family.add_metric(
                    [str(run.run_id)], histogram.buckets(), sum_value=histogram.total_seconds
                )
        yield family


class Exporter:
    """Owns the HTTP server and its thread; `close` joins it."""

    def __init__(self, collector: WorkerCollector, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop answering and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start_exporter(
    collector: WorkerCollector, settings: Settings
) -> tuple[Exporter | None, dict[str, str | None]]:
    """None when the port is taken, as by a second agent of this host; and what the worker's row
    tells: where metrics are, or why there are none and what to do.
    """
    host, port = settings.exporter_host, settings.exporter_port
    try:
        exporter = Exporter(collector, host, port)
    except OSError as error:
        why = (
            f"{host}:{port} cannot be had ({error.strerror or error}). End what uses it, or set "
            "STOKER_EXPORTER_PORT to another port, or to 0 for a free one; then start the worker "
            "again."
        )
        log.warning("no metrics are exported", why=why)
        return None, {"metrics_url": None, "why_no_metrics": why}
    log.info("metrics are exported", url=exporter.url)
    return exporter, {"metrics_url": exporter.url, "why_no_metrics": None}
