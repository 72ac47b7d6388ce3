"""`stoker gpus` and `stoker workers` show what an agent writes about its GPUs and itself."""

import os
from contextlib import contextmanager
from dataclasses import replace

from app.settings import load_settings
from app.store import open_store
from app.store.worker_records import NewWorker
from worker.agent.registration import describe_devices
from worker.telemetry.gpus import GpuSample

GPU = GpuSample(
    index="0",
    uuid="GPU-1",
    model="NVIDIA RTX 4090",
    driver="580.65",
    utilization=0.87,
    sm_active=None,
    memory_used_bytes=6 * 2**30,
    memory_total_bytes=24 * 2**30,
    power_watts=None,
    temperature_celsius=None,
    energy_joules=None,
    capability=(8, 9),
    processes=((4242, 6 * 2**30),),
)


@contextmanager
def registered(home, state="alive", **changes):
    """A worker as an agent of this process would register it, by its id; it is gone afterwards."""
    worker = NewWorker(
        name="box",
        host="box",
        boot_id="elsewhere",
        pid=os.getpid(),
        start_time=0.0,
        version="0",
        slots=[],
        devices=[],
        facts={},
    )
    store = open_store(load_settings(home=home))
    worker_id = store.workers.register(replace(worker, **changes))
    try:
        store.workers.set_state(worker_id, state)
        yield worker_id
    finally:
        store.workers.set_state(worker_id, "gone")
        store.close()


def test_a_worker_that_exports_no_metrics_is_told_with_the_reason(cli, api):
    with registered(api, facts={"why_no_metrics": "127.0.0.1:8001 cannot be had"}):
        assert "Worker box exports no metrics: 127.0.0.1:8001 cannot" in cli("workers").err
        assert "Worker box exports no metrics: 127.0.0.1:8001 cannot" in cli("doctor").out


def test_gpus_are_listed_with_what_they_do(cli, api):
    with registered(api, devices=describe_devices([GPU])):
        shown = cli("gpus").out
    for part in ("RTX 4090", "87%", "6.0 GiB", "24.0 GiB"):
        assert part in shown


def test_workers_say_that_their_artifacts_are_away_also_where_all_slots_are_busy(cli, api):
    busy = [{"name": "gpu-1", "device": "cuda:0", "run_id": 7, "waiting": None}]
    away = {"artifacts_away": "The artifact root /mnt/runs may not be mounted."}
    with registered(api, slots=busy, facts=away):
        shown = cli("workers").out
    assert "alive, artifacts away" in shown
    assert "run 7" in shown
    with registered(api, slots=busy, facts={"artifacts_away": None}):
        assert "artifacts away" not in cli("workers").out
    with registered(api, state="gone", name="former", slots=busy, facts=away):
        (row,) = [line for line in cli("workers", "--all").out.splitlines() if "former" in line]
    assert "gone" in row
    assert "away" not in row, "it is what was so when it ended"


def test_a_machine_without_workers(cli, api):
    assert "No worker" in cli("workers").out
    assert "No worker sees a GPU" in cli("gpus").out
    assert cli("workers", "--json").document == {"data": []}
