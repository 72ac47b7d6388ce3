"""What the guard makes of the records of workers and datasets, as today's and earlier ones are."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import ClassFacts, DeviceFacts, FieldFacts, HostFacts, LengthFacts, PartFacts
from app.planning.arithmetic import PartSizes
from app.planning.imports import build_of
from app.planning.shuffle import Neighbours
from app.service.inventory import dataset_facts, worker_devices
from app.store.records import DatasetRecord, Document, Inspection
from tests.store.conftest import World
from worker.agent.registration import describe_devices
from worker.telemetry.gpus import GpuSample
from worker.telemetry.host import host_now, host_setup

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
        available_bytes=told["host_memory_bytes"],
        cores=told["cores"],
        slots=2,
        disk_free_bytes=told["disk_bytes"],
        missing_tools=told["missing_tools"],
        torch_build=build_of(told["versions"]["torch"]),
    )
    assert device == DeviceFacts("cuda", "NVIDIA H100", 80 * GIB, 80 * GIB, (9, 0), host)
    assert device.bf16
    assert worker.devices[0]["processes"] == [{"pid": 4711, "memory_bytes": 2 * GIB}]


def devices_of(world: World, slots: list[Document], devices: list[Document], **told: Any):
    facts = {"available_memory_bytes": 3 * GIB, "host_memory_bytes": 16 * GIB, **told}
    world.store.workers.beat(world.worker, "alive", slots, devices, facts)
    (worker,) = world.store.workers.list(alive_only=True)
    return worker_devices(worker)


def slot(device: str, run_id: int | None) -> Document:
    return {"name": device, "device": device, "run_id": run_id, "waiting": None}


@pytest.mark.parametrize("run_id", [None, 7], ids=["somebody else's", "ours"])
def test_a_device_counts_with_all_that_it_has_whoever_holds_it(
    world: World, run_id: int | None
) -> None:
    """What is held at this moment refuses nothing: a run waits until it is given back."""
    gpu = replace(GPU, memory_used_bytes=78 * GIB, processes=((4711, 70 * GIB),))
    told = {"disk_free_bytes": GIB, "disk_bytes": 500 * GIB}
    (device,) = devices_of(world, [slot("cuda:0", run_id)], describe_devices([gpu]), **told)
    assert device.free_memory_bytes == device.total_memory_bytes == 80 * GIB
    assert device.host.available_bytes == device.host.memory_bytes == 16 * GIB
    assert device.host.disk_free_bytes == 500 * GIB


def test_a_host_without_a_gpu_has_its_cpu(world: World) -> None:
    world.store.workers.beat(world.worker, "alive", [], describe_devices(None), {})
    (worker,) = world.store.workers.list(alive_only=True)
    (device,) = worker_devices(worker)
    assert (device.kind, device.host) == ("cpu", HostFacts(slots=0))


def test_what_was_inspected_is_what_rules_know_of_it(world: World) -> None:
    field = {
        "shape": [24, 3], "dtype": "float32", "storage": "chunked", "chunks": [50, 24, 3],
        "compression": "gzip", "nonfinite_count": 2, "mean": 0.5, "std": 2.0, "sorted": True,
        "neighbours": {"distances": [1, 2], "correlations": [0.5, 0.2], "shares": [1.0, 0.75]},
        "classes": [{"label": 3, "samples": 5, "absent": [[0, 80]]}],
    }  # fmt: skip
    layout = {"kind": "overlapping_windows", "window_steps": {"x": 6}, "network": True}
    facts = dataset_facts(inspected(world, {"x": field}, layout))
    assert facts.fields["x"] == FieldFacts(
        (24, 3), "float32", "chunked", 50, "gzip", nonfinite=2, mean=0.5, std=2.0, sorted=True,
        neighbours=Neighbours((1, 2), (1.0, 0.75)), classes=(ClassFacts(3, 5, ((0, 80),)),),
    )  # fmt: skip
    assert (facts.window_steps, facts.network) == ({"x": 6}, True)


def test_what_a_field_says_of_parts_is_known(world: World) -> None:
    told = {"training": 8, "validation": 2, "test": 0, "changes": [8]}
    part = {"shape": [], "dtype": "uint8", "parts": told}
    label = {"shape": [], "dtype": "int64", "not_a_part": {"sample": 4, "value": -1}}
    fields = dataset_facts(inspected(world, {"part": part, "label": label}, None)).fields
    assert fields["part"].parts == PartFacts(PartSizes(8, 2, 0), [8])
    assert (fields["label"].parts, fields["label"].not_a_part) == (None, (4, -1))


def test_the_chunks_of_a_series_are_not_those_of_its_windows(world: World) -> None:
    field = {
        "shape": [24, 3], "dtype": "float32", "storage": "chunked", "chunks": [50, 3],
        "series_steps": 900, "neighbours": None, "classes": None,
    }  # fmt: skip
    facts = dataset_facts(inspected(world, {"x": field}, None))
    assert facts.fields["x"] == FieldFacts((24, 3), "float32", "chunked", series_steps=900)


def test_an_array_of_different_lengths_has_the_shape_of_its_longest_sample(world: World) -> None:
    ragged = {
        "shape": [4], "dtype": "uint8", "lengths": {"min": 0, "mean": 7.5, "max": 41},
        "storage": "chunked", "chunks": [150, 4],
    }  # fmt: skip
    empty = {"shape": [], "dtype": "float32", "lengths": {"min": 0, "mean": 0.0, "max": 0}}
    plain = {"shape": [4], "dtype": "uint8", "lengths": None, "neighbours": None, "classes": None}
    facts = dataset_facts(inspected(world, {"atoms": ragged, "none": empty, "x": plain}, None))
    atoms = FieldFacts((41, 4), "uint8", "chunked", 20, lengths=LengthFacts(0, 7.5, 41))
    none = FieldFacts((1,), "float32", lengths=LengthFacts(0, 0.0, 1))
    assert facts.fields == {"atoms": atoms, "none": none, "x": FieldFacts((4,), "uint8")}
    assert (atoms.sample_bytes, atoms.kept_bytes) == (41 * 4 + 8, 30 + 16)


def test_what_an_earlier_version_did_not_look_at_is_not_known(world: World) -> None:
    facts = dataset_facts(inspected(world, {"x": {"shape": [4], "dtype": "float32"}}, None))
    not_inspected = ("neighbours", "classes")
    assert facts.fields["x"] == FieldFacts((4,), "float32", not_inspected=not_inspected)
    assert (facts.window_steps, facts.network) == (None, None)


@pytest.mark.parametrize(
    ("torch", "build"),
    [("2.13.0+cpu", "cpu"), ("2.13.0+cu130", "cuda"), ("2.13.0", "cuda"), (None, None)],
)
def test_a_host_has_the_build_of_pytorch_that_its_agent_found(
    world: World, torch: str | None, build: str | None
) -> None:
    versions = {"torch": torch} if torch else {}
    [device] = devices_of(world, [], [{"kind": "cpu", "name": "cpu"}], versions=versions)
    assert device.host.torch_build == build
