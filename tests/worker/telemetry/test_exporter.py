"""The exporter's output, scraped over HTTP and compared with the contract's names."""

import urllib.request
from contextlib import closing
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from worker.telemetry.exporter import Exporter, RunView, TelemetrySnapshot, WorkerCollector
from worker.telemetry.gpus import GpuSample
from worker.telemetry.histogram import CHECKPOINT_DURATIONS, Histogram

GPU = GpuSample(
    index="0",
    uuid="GPU-0",
    model="Fake H200",
    driver="570.00",
    utilization=0.87,
    sm_active=0.5,
    memory_used_bytes=10,
    memory_total_bytes=100,
    power_watts=350.0,
    temperature_celsius=61,
    energy_joules=2000.0,
    sm_clock_hertz=1.98e9,
    memory_clock_hertz=2.619e9,
    capability=(9, 0),
    processes=(),
)
PROGRESS = {
    "t": 1_700_000_000.0,
    "phase": "training",
    "epoch": 2,
    "step": 50,
    "steps": 200,
    "iterations_per_second": 40.0,
    "loss": 0.5,
    "lr": 0.001,
    "grad_norm": 1.5,
    "queue_depth": 2,
    "host_memory_bytes": 4096,
    "torch_memory": {"allocated": 1, "reserved": 2, "peak": 3},
    "totals": {
        "train_iterations": 50,
        "train_samples": 400,
        "eval_iterations": 5,
        "eval_samples": 40,
        "bytes_read": 12345,
    },
    "phase_seconds": {"compute": 3.0, "data_wait": 0.25},
}
RUN = RunView(
    run_id=7,
    attempt=2,
    recipe="sequence",
    gpus=("0",),
    progress_timeout_seconds=3600.0,
    progress=PROGRESS,
    losses={"train": 0.5, "validation": 0.6},
    iterations=Histogram((0.025, 10.0), (50, 0, 1), 21.0),
    checkpoints=CHECKPOINT_DURATIONS.observe(0.2),
)
# Contract, section 6: name → (type, labels).
CONTRACT = {
    "stoker_gpu_utilization_ratio": ("gauge", {"gpu"}),
    "stoker_gpu_sm_active_ratio": ("gauge", {"gpu"}),
    "stoker_gpu_memory_used_bytes": ("gauge", {"gpu"}),
    "stoker_gpu_memory_total_bytes": ("gauge", {"gpu"}),
    "stoker_gpu_power_watts": ("gauge", {"gpu"}),
    "stoker_gpu_temperature_celsius": ("gauge", {"gpu"}),
    "stoker_gpu_sm_clock_hertz": ("gauge", {"gpu"}),
    "stoker_gpu_memory_clock_hertz": ("gauge", {"gpu"}),
    "stoker_gpu_energy_joules_total": ("counter", {"gpu"}),
    "stoker_gpu_info": ("gauge", {"gpu", "uuid", "model", "driver"}),
    "stoker_gpu_runs": ("gauge", {"gpu"}),
    "stoker_torch_memory_allocated_bytes": ("gauge", {"run_id", "gpu"}),
    "stoker_torch_memory_reserved_bytes": ("gauge", {"run_id", "gpu"}),
    "stoker_torch_memory_peak_bytes": ("gauge", {"run_id", "gpu"}),
    "stoker_train_iterations_total": ("counter", {"run_id", "phase"}),
    "stoker_train_samples_total": ("counter", {"run_id", "phase"}),
    "stoker_train_iterations_per_second": ("gauge", {"run_id", "phase"}),
    "stoker_train_iteration_duration_seconds": ("histogram", {"run_id"}),
    "stoker_train_phase_seconds_total": ("counter", {"run_id", "phase"}),
    "stoker_train_loss": ("gauge", {"run_id", "split"}),
    "stoker_train_learning_rate": ("gauge", {"run_id"}),
    "stoker_train_grad_norm": ("gauge", {"run_id"}),
    "stoker_train_epoch": ("gauge", {"run_id"}),
    "stoker_train_progress_ratio": ("gauge", {"run_id"}),
    "stoker_data_read_bytes_total": ("counter", {"run_id"}),
    "stoker_data_queue_depth": ("gauge", {"run_id"}),
    "stoker_run_last_progress_timestamp_seconds": ("gauge", {"run_id"}),
    "stoker_run_progress_timeout_seconds": ("gauge", {"run_id"}),
    "stoker_run_host_memory_bytes": ("gauge", {"run_id"}),
    "stoker_run_info": ("gauge", {"run_id", "recipe", "attempt"}),
    "stoker_checkpoint_duration_seconds": ("histogram", {"run_id"}),
    "stoker_checkpoint_failures_total": ("counter", {"reason"}),
    "stoker_host_memory_available_bytes": ("gauge", set()),
    "stoker_host_memory_total_bytes": ("gauge", set()),
    "stoker_host_swap_used_bytes": ("gauge", set()),
    "stoker_disk_free_bytes": ("gauge", {"root"}),
    "stoker_worker_heartbeat_timestamp_seconds": ("gauge", set()),
    "stoker_telemetry_available": ("gauge", {"source"}),
}


@pytest.fixture
def collector(tmp_path):
    return WorkerCollector(home=tmp_path)


@pytest.fixture
def scrape(collector):
    """Publish a snapshot and read it as Prometheus would."""
    with closing(Exporter(collector, "127.0.0.1", 0)) as exporter:

        def read(snapshot):
            collector.publish(snapshot)
            with urllib.request.urlopen(exporter.url, timeout=30) as answer:
                return list(text_string_to_metric_families(answer.read().decode()))

        yield read


def samples(families):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


FULL = TelemetrySnapshot(
    runs=(RUN,),
    gpus=(GPU,),
    beat_at=1.0,
    checkpoint_failures={"disk_full": 2, "checkpoint_write_error": 1},
)


def test_names_types_and_labels_are_those_of_the_contract(scrape):
    found = {}
    for family in scrape(FULL):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        found[name] = (family.type, labels)
    assert found == CONTRACT


def test_values_of_a_training_run(scrape):
    found = samples(scrape(FULL))
    run = ("run_id", "7")
    assert found["stoker_train_iterations_total", ("phase", "train"), run] == 50
    assert found["stoker_train_iterations_total", ("phase", "eval"), run] == 5
    assert found["stoker_train_iterations_per_second", ("phase", "train"), run] == 40
    assert found["stoker_train_progress_ratio", run] == 0.25
    assert found["stoker_train_loss", run, ("split", "validation")] == 0.6
    assert found["stoker_train_phase_seconds_total", ("phase", "data_wait"), run] == 0.25
    assert found["stoker_torch_memory_peak_bytes", ("gpu", "0"), run] == 3
    assert found["stoker_train_iteration_duration_seconds_count", run] == 51
    assert found["stoker_train_iteration_duration_seconds_sum", run] == pytest.approx(21.0)
    bucket = "stoker_train_iteration_duration_seconds_bucket"
    assert found[bucket, ("le", "0.025"), run] == 50
    assert found[bucket, ("le", "10.0"), run] == 50
    assert found[bucket, ("le", "+Inf"), run] == 51
    assert found["stoker_gpu_runs", ("gpu", "0")] == 1
    assert found["stoker_checkpoint_failures_total", ("reason", "disk_full")] == 2
    assert found["stoker_checkpoint_failures_total", ("reason", "checkpoint_write_error")] == 1
    assert found["stoker_checkpoint_failures_total", ("reason", "quarantined")] == 0


def test_the_series_of_a_run_vanish_with_it(scrape):
    scrape(FULL)
    later = samples(scrape(TelemetrySnapshot(gpus=(GPU,), beat_at=2.0)))
    assert not [labels for _, *labels in later if ("run_id", "7") in labels]
    assert later["stoker_gpu_runs", ("gpu", "0")] == 0


def test_what_is_unknown_is_absent_and_not_zero(scrape):
    starting = replace(
        RUN, run_id=8, progress={}, losses={}, iterations=None, checkpoints=CHECKPOINT_DURATIONS
    )
    found = samples(scrape(TelemetrySnapshot(runs=(starting,))))
    of_run = {name for name, *labels in found if ("run_id", "8") in labels}
    assert of_run == {"stoker_run_info", "stoker_run_progress_timeout_seconds"}
    assert not [name for name, *_ in found if name.startswith("stoker_gpu")]
    assert found["stoker_telemetry_available", ("source", "nvml")] == 0
    assert found["stoker_telemetry_available", ("source", "psutil")] == 1
    assert not [name for name, *_ in found if name == "stoker_worker_heartbeat_timestamp_seconds"]


def test_a_root_that_is_away_takes_no_other_figure_with_it(tmp_path):
    collector = WorkerCollector(home=tmp_path, data=tmp_path / "away")
    shown = {family.name: family.samples for family in collector.collect()}
    assert [sample.labels["root"] for sample in shown["stoker_disk_free_bytes"]] == ["home"]
    assert shown["stoker_host_memory_total_bytes"]


def test_a_rate_is_that_of_the_phase_under_way(scrape):
    evaluating = {**PROGRESS, "phase": "evaluating", "phase_rate": 90.0}
    run = replace(RUN, progress=evaluating)
    found = samples(scrape(TelemetrySnapshot(runs=(run,))))
    name = "stoker_train_iterations_per_second"
    assert {key[1]: value for key, value in found.items() if key[0] == name} == {
        ("phase", "eval"): 90.0
    }


def test_a_taken_port_is_an_error_and_not_a_second_listener(collector):
    with closing(Exporter(collector, "127.0.0.1", 0)) as exporter:
        port = int(exporter.url.rsplit(":", 1)[1].split("/")[0])
        with pytest.raises(OSError, match="in use"):
            Exporter(collector, "127.0.0.1", port)
    assert not exporter._thread.is_alive()


def test_where_multiprocessors_are_not_counted_it_is_absent_and_said(scrape):
    for sm_active, available in ((None, 0.0), (0.0, 1.0)):
        found = samples(scrape(replace(FULL, gpus=(replace(GPU, sm_active=sm_active),))))
        assert found["stoker_telemetry_available", ("source", "gpm")] == available
        assert found["stoker_telemetry_available", ("source", "nvml")] == 1.0
        assert (("stoker_gpu_sm_active_ratio", ("gpu", "0")) in found) == bool(available)
