"""What the guard makes of the records of workers and datasets, as today's and earlier ones are."""

from app.guard.facts import DeviceFacts, FieldFacts, HostFacts
from app.store.facts import dataset_facts, worker_devices
from app.store.records import DatasetRecord, Document, Inspection
from tests.store.conftest import World
from worker.host import host_now, host_setup
from worker.registration import describe_devices
from worker.telemetry import GpuSample

GIB = 2**30
GPU = GpuSample(
    index="0", uuid="GPU-1", model="NVIDIA H100", driver="570", utilization=0.0, sm_active=None,
    memory_used_bytes=3 * GIB, memory_total_bytes=80 * GIB, power_watts=None,
    temperature_celsius=None, energy_joules=None, capability=(9, 0), processes=((4711, 2 * GIB),),
)  # fmt: skip


def inspected(world: World, fields: Document, layout: Document | None) -> DatasetRecord:
    job = world.store.jobs.claim(world.worker)
    assert job is not None
    found = Inspection("ready", fields=fields, samples=9, layout=layout)
    world.store.jobs.finish(job.id, world.worker, inspection=found)
    return world.store.datasets.get("weather")


def test_what_an_agent_registers_is_what_rules_know_of_it(world: World) -> None:
    artifacts = world.settings.home
    told = host_setup() | host_now(artifacts)
    slots = [{"name": n, "device": "x", "run_id": None, "waiting": None} for n in ("a", "b")]
    world.store.workers.beat(world.worker, "alive", slots, describe_devices([GPU]), told)
    (worker,) = world.store.workers.list(alive_only=True)
    (device,) = worker_devices(worker)
    host = HostFacts(
        memory_bytes=told["host_memory_bytes"],
        available_bytes=told["available_memory_bytes"],
        cores=told["cores"],
        slots=2,
        disk_free_bytes=told["disk_free_bytes"],
    )
    assert device == DeviceFacts("cuda", "NVIDIA H100", 80 * GIB, 77 * GIB, (9, 0), host)
    assert device.bf16
    assert worker.devices[0]["processes"] == [{"pid": 4711, "memory_bytes": 2 * GIB}]


def test_a_host_without_a_gpu_has_its_cpu(world: World) -> None:
    world.store.workers.beat(world.worker, "alive", [], describe_devices(None), {})
    (worker,) = world.store.workers.list(alive_only=True)
    (device,) = worker_devices(worker)
    assert (device.kind, device.host) == ("cpu", HostFacts(slots=0))


def test_what_was_inspected_is_what_rules_know_of_it(world: World) -> None:
    field = {
        "shape": [24, 3], "dtype": "float32", "storage": "chunked", "chunks": [50, 24, 3],
        "compression": "gzip", "nonfinite_count": 2, "mean": 0.5, "std": 2.0, "sorted": True,
    }  # fmt: skip
    layout = {"kind": "overlapping_windows", "overlapping": ["x"], "network": True}
    facts = dataset_facts(inspected(world, {"x": field}, layout))
    assert facts.fields["x"] == FieldFacts(
        (24, 3), "float32", "chunked", 50, "gzip", nonfinite=2, mean=0.5, std=2.0, sorted=True
    )
    assert (facts.overlapping, facts.network) == (("x",), True)


def test_what_an_earlier_version_did_not_look_at_is_not_known(world: World) -> None:
    facts = dataset_facts(inspected(world, {"x": {"shape": [4], "dtype": "float32"}}, None))
    assert facts.fields["x"] == FieldFacts((4,), "float32")
    assert (facts.overlapping, facts.network) == (None, None)
