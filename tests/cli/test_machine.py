"""`stoker gpus` shows what an agent writes about its GPUs."""

import os

from app.settings import load_settings
from app.store import open_store
from app.store.worker_records import NewWorker
from worker.registration import describe_devices
from worker.telemetry import GpuSample

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


def test_gpus_are_listed_with_what_they_do(cli, api):
    store = open_store(load_settings(home=api))
    worker = NewWorker(
        name="box",
        host="box",
        boot_id="elsewhere",
        pid=os.getpid(),
        start_time=0.0,
        version="0",
        slots=[],
        devices=describe_devices([GPU]),
        facts={},
    )
    worker_id = store.workers.register(worker)
    try:
        shown = cli("gpus").out
    finally:
        store.workers.set_state(worker_id, "gone")
        store.close()
    for part in ("RTX 4090", "87%", "6.0 GiB", "24.0 GiB"):
        assert part in shown
