"""What a run needs: the boundary of what the guard accepts; and on which devices it is judged."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard import needs
from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts, HostFacts
from app.guard.needs import device_wanted, requirements_of
from app.planning.imports import IMPORTS
from app.planning.requirements import Requirements
from app.planning.residency import (
    MIB,
    Residency,
    free_for_data,
    memory_for_data,
    settle_residency,
)
from app.spec.parse import parse_spec
from app.spec.run import RunSpec
from tests.guard.world import (
    A100,
    CPU,
    FIELDS,
    GIB,
    HOST,
    RTX,
    TURING,
    as_measured,
    codes,
    plan_of,
    point,
    weather,
    world,
)

MANY = weather(samples=400_000, size_bytes=9 * GIB)
SPECS: list[dict[str, Any]] = [
    {},
    {"training": {"batch_size": 2048}},
    {"recipe": {"hidden_size": 1024, "patch": 1}, "training": {"batch_size": 512}},
    {"data": {"loader": {"residency": "resident"}}},
    {"data": {"loader": {"residency": "stream", "chunk_size": "700MiB"}}},
    {"data": {"loader": {"residency": "stream", "chunk_size": "75%"}}},
    {"data": {"loader": {"shuffle_group": 100}}},
    {"data": {"loader": {"chunk_size": "6GiB"}}},
    {"data": {"loader": {"kind": "dataloader", "num_workers": 2}}},
    {"optimizer": {"kind": "sgd"}, "data": {"split": {"validation_fraction": 0.0}}},
]


def spec_of(change: dict[str, Any]) -> RunSpec:
    spec, issues = parse_spec(plan_of(change, world(MANY, devices=(A100,))).spec or {})
    assert spec is not None, issues
    return spec


MEASURED = point(128, 900), point(32, 300)


def fits(spec: RunSpec, device: DeviceFacts, facts: Facts) -> bool:
    return Case(spec, replace(facts, devices=(device,))).memory.fits


@pytest.mark.parametrize("points", [(), MEASURED], ids=["unknown", "measured"])
@pytest.mark.parametrize("change", SPECS, ids=str)
def test_what_is_needed_of_a_gpu_is_the_least_that_fits(change, points):
    spec = spec_of(change)
    host = replace(HOST, memory_bytes=2**40, available_bytes=2**40)
    card = replace(RTX, host=host)
    facts = as_measured(change, world(MANY, devices=(card,)), *points) if points else world(MANY)
    assert len(facts.profiles) == 2 * bool(points)
    needed = requirements_of(Case(spec, replace(facts, devices=(card,))))
    assert needed.device_bytes is not None
    assert fits(spec, replace(card, free_memory_bytes=needed.device_bytes), facts)
    assert not fits(spec, replace(card, free_memory_bytes=needed.device_bytes - MIB), facts)
    assert needed.host_bytes is not None
    enough = replace(host, available_bytes=needed.host_bytes)
    assert fits(spec, replace(card, free_memory_bytes=64 * GIB, host=enough), facts)


@pytest.mark.parametrize("points", [(), MEASURED], ids=["unknown", "measured"])
@pytest.mark.parametrize("change", SPECS, ids=str)
def test_what_is_needed_of_a_host_is_the_least_that_fits(change, points):
    asked = {**change, "runtime": {"device": "cpu"}}
    spec = spec_of(asked)
    facts = as_measured(asked, world(MANY), *points) if points else world(MANY)
    needed = requirements_of(Case(spec, facts))
    assert needed.cpu_bytes is not None

    def with_free(count: int) -> DeviceFacts:
        return replace(CPU, host=replace(HOST, memory_bytes=2**40, available_bytes=count))

    assert fits(spec, with_free(needed.cpu_bytes), facts)
    assert not fits(spec, with_free(needed.cpu_bytes - MIB), facts)


@pytest.mark.parametrize("change", SPECS[:5], ids=str)
def test_a_need_is_found_in_a_few_looks(change, monkeypatch):
    """A bisection to a MiB took some 80."""
    spec, looks = spec_of(change), []

    def counted(*asked: Any) -> Residency:
        looks.append(asked)
        return settle_residency(*asked)

    monkeypatch.setattr(needs, "settle_residency", counted)
    requirements_of(Case(spec, world(MANY)))
    assert len(looks) <= 20


@pytest.mark.parametrize("asked", [0, 1, 700 * MIB, 5 * GIB, 40 * GIB + 7])
def test_the_least_for_some_data_is_where_its_limit_is_that(asked):
    free = free_for_data(asked)
    assert memory_for_data(free).limit_bytes >= asked
    assert memory_for_data(free - 1).limit_bytes < max(1, asked)


def test_a_run_for_one_kind_of_device_needs_nothing_of_the_other():
    on_cpu = requirements_of(Case(spec_of({"runtime": {"device": "cpu"}}), world()))
    assert (on_cpu.device_bytes, on_cpu.host_bytes) == (None, None)
    on_gpu = requirements_of(Case(spec_of({"runtime": {"device": "cuda"}}), world(devices=(RTX,))))
    assert on_gpu.cpu_bytes is None
    either = requirements_of(Case(spec_of({}), world()))
    assert None not in (either.device_bytes, either.host_bytes, either.cpu_bytes)


@pytest.mark.parametrize(
    ("precision", "device", "capability"),
    [("auto", "auto", None), ("fp32", "auto", None), ("tf32", "cuda", 80),
     ("fp16-mixed", "cuda", None), ("bf16-mixed", "auto", 80)],
)  # fmt: skip
def test_a_precision_needs_a_device_that_computes_so(precision, device, capability):
    spec = spec_of({"runtime": {"precision": precision}})
    assert device_wanted(spec) == device
    assert requirements_of(Case(spec, world())).capability == capability


def test_what_is_not_known_is_not_needed():
    spec = spec_of({})
    assert requirements_of(Case(spec, Facts())) == Requirements()
    nobody = requirements_of(Case(spec, world(devices=())))
    assert nobody.cpu_bytes is not None  # the imports of the smallest build of PyTorch, then
    assert nobody.cpu_bytes >= IMPORTS["cpu"].trainer


def test_the_checkpoints_that_are_kept_need_disk():
    one = requirements_of(Case(spec_of({"checkpoint": {"keep_last": 1, "keep_best": 0}}), world()))
    five = requirements_of(Case(spec_of({"checkpoint": {"keep_last": 3, "keep_best": 1}}), world()))
    assert one.disk_bytes is not None
    assert five.disk_bytes == one.disk_bytes // 2 * 5


LARGE = {"recipe": {"hidden_size": 4096, "patch": 1}, "training": {"batch_size": 1024}}


def test_refused_is_only_what_no_device_can_do():
    """The rules judge a run on a device where it fits, be it not the best one."""
    big = replace(CPU, host=HostFacts(2**40, 2**40, cores=8, slots=1, torch_build="cpu"))

    def measured(*devices: DeviceFacts) -> Facts:
        return as_measured(LARGE, world(MANY, devices=devices), point(1024, 100 * 1024))

    assert "memory.over_budget" in codes(plan_of(LARGE, measured(TURING, CPU)))
    plan = plan_of(LARGE, measured(TURING, big))
    assert "memory.over_budget" not in codes(plan)
    assert plan.memory is not None
    assert plan.memory["device"] is None
    only_gpu = plan_of({**LARGE, "runtime": {"device": "cuda"}}, measured(TURING, big))
    assert "memory.over_budget" in codes(only_gpu)


def test_a_run_whose_slow_chunks_were_accepted_needs_no_more_than_its_card_has():
    """51,779 windows of 360 × 167, in chunks below a batch: or it would wait for ever."""
    features = replace(FIELDS["features"], shape=(360, 167))
    table = weather(
        samples=51_779, size_bytes=12_450_000_000, fields={**FIELDS, "features": features}
    )
    host = replace(HOST, memory_bytes=64 * GIB, available_bytes=60 * GIB)
    card = replace(RTX, total_memory_bytes=8 * GIB, free_memory_bytes=8 * GIB, host=host)
    asked = {"training": {"batch_size": 4096}, "accept_risks": ["speed.chunk_below_batch"]}
    facts = as_measured(asked, world(table, devices=(card,)), point(4096, 4.5 * 1024))
    plan = plan_of(asked, facts)
    assert [(issue.code, issue.accepted) for issue in plan.issues] == [
        ("speed.chunk_below_batch", True)
    ]
    assert plan.requirements.device_bytes is not None
    assert plan.requirements.device_bytes <= 8 * GIB
    spec, _ = parse_spec(plan.require_ok())
    assert spec is not None
    whole = requirements_of(Case(spec, facts), whole_batch=True).device_bytes
    assert whole is not None
    for free, holds in ((whole, True), (whole - MIB, False)):
        there = replace(facts, devices=(replace(card, free_memory_bytes=free),))
        assert Case(spec, there).memory.data.holds(4096) is holds
