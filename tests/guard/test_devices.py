"""Which device a request is planned for, and that every kind of device can train the default."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from app.guard.case import Case
from app.guard.facts import DeviceFacts, known
from app.guard.plan import RunPlan
from app.guard.rules.precision import precision_needs_gpu, precision_not_supported
from app.planning.imports import IMPORTS
from app.spec.parse import parse_spec
from app.spec.run import RunSpec
from app.spec.runtime import Runtime
from tests.guard.world import A100, CPU, GIB, HOST, REQUEST, RTX, TURING, codes, plan_of, world
from worker.trainer.device import lacking_for


def gpu(name: str, memory_gib: int, capability: tuple[int, int]) -> DeviceFacts:
    memory = memory_gib * GIB
    return DeviceFacts("cuda", name, memory, memory - GIB, capability, HOST)


PASCAL = gpu("NVIDIA TITAN Xp", 12, (6, 1))
V100 = gpu("Tesla V100", 16, (7, 0))
QUADRO = gpu("Quadro RTX 8000", 48, (7, 5))
H200 = gpu("NVIDIA H200", 141, (9, 0))
RTX_5090 = gpu("NVIDIA RTX 5090", 32, (12, 0))
EVERY = (CPU, PASCAL, V100, TURING, QUADRO, A100, RTX, H200, RTX_5090)
PRECISIONS = get_args(Runtime.model_fields["precision"].annotation)
IN_BF16 = {"runtime": {"precision": "bf16-mixed"}, "training": {"batch_size": 128}}


def spec_of(plan: RunPlan) -> RunSpec:
    spec, issues = parse_spec(plan.require_ok())
    assert spec is not None, issues
    return spec


@pytest.mark.parametrize("device", EVERY, ids=lambda device: device.name)
def test_every_device_trains_the_default_request_as_fast_as_it_computes(device):
    facts = world(devices=(device,))
    plan = plan_of({"training": {"batch_size": 128}}, facts)
    assert plan.issues == []
    spec = spec_of(plan)
    assert (spec.preset != "auto") == (device.kind == "cpu" or device.total_memory_bytes > 7 * GIB)
    assert Case(spec, facts).precision == ("bf16-mixed" if device.bf16 else "fp32")


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
@pytest.mark.parametrize("devices", [(), (CPU,)], ids=["nobody", "CPU"])
def test_what_no_device_was_there_for_has_no_preset_and_no_number_format(wanted, devices):
    plan = plan_of({"runtime": {"device": wanted}}, world(devices=devices))
    spec = spec_of(plan)
    assert spec.runtime.precision == "auto"
    if (wanted, devices) == ("auto", (CPU,)):
        assert (spec.preset, codes(plan)) == ("cpu", [])
    else:
        assert (spec.preset, codes(plan)) == ("auto", ["speed.no_worker"])


@pytest.mark.parametrize("devices", [(), (RTX,)], ids=["nobody", "GPU"])
def test_every_host_has_a_cpu(devices):
    """A worker with GPUs tells of them alone, and takes runs for the CPU as well."""
    plan = plan_of({"runtime": {"device": "cpu"}}, world(devices=devices))
    assert spec_of(plan).preset == "cpu"
    assert codes(plan) == ([] if devices else ["speed.no_worker"])
    assert (plan.memory is None) == (not devices)
    if plan.memory is not None:
        left = known(HOST.available_bytes, "memory") - IMPORTS["cpu"].trainer
        assert plan.memory["host"]["budget_bytes"] == left


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32"])
def test_of_two_gpus_the_one_counts_that_computes_as_the_run_wants(precision):
    change = {"runtime": {"precision": precision}, "training": {"batch_size": 128}}
    plan = plan_of(change, world(devices=(QUADRO, RTX)))
    assert (spec_of(plan).preset, plan.errors) == ("rtx-24g", [])
    assert [issue.code for issue in plan_of(change, world(devices=(QUADRO,))).errors] == [
        "correctness.precision_not_supported"
    ]


@pytest.mark.parametrize(
    ("device", "precision"), [(PASCAL, "auto"), (V100, "fp16-mixed"), (TURING, "fp16-mixed")],
    ids=lambda value: getattr(value, "name", value),
)  # fmt: skip
def test_fp16_is_offered_only_where_it_is_fast(device, precision):
    (issue,) = plan_of(IN_BF16, world(devices=(device,))).errors
    assert [op.value for op in issue.fix] == [precision]
    assert ("fp16" in issue.why) == (precision == "fp16-mixed")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", EVERY, ids=lambda device: device.name)
def test_the_guard_refuses_what_the_trainer_would_refuse(device, precision, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: bool(device.bf16))
    refused = lacking_for(precision, torch.device(device.kind)) is not None
    document: dict[str, Any] = {**REQUEST, "runtime": {"precision": precision}}
    spec, _ = parse_spec(document)
    assert spec is not None
    case = Case(spec, world(devices=(device,)))
    rules = (precision_needs_gpu, precision_not_supported)
    assert any(list(rule(case)) for rule in rules) == refused


@pytest.mark.parametrize(
    ("device", "found"),
    [
        *((replace(RTX, name=f"NVIDIA {name}"), True) for name in ("L40S", "A10", "RTX A6000")),
        (replace(RTX, name="NVIDIA A10G"), False),
        (replace(A100, name="NVIDIA B200", capability=(10, 0)), True),
        (A100, True),
        (H200, True),
        (RTX, False),
        (RTX_5090, False),
        (TURING, False),
        (CPU, False),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_tf32_is_asked_for_where_it_is_known_to_be_faster(device, found):
    change = {"runtime": {"precision": "fp32"}, "training": {"batch_size": 128}}
    plan = plan_of(change, world(devices=(device,)))
    assert codes(plan) == (["speed.tf32_off"] if found else [])


@pytest.mark.parametrize(
    ("devices", "runtime", "recipe", "told"),
    [
        ((CPU,), {"attention": "memory-efficient"}, "transformer", "A CPU has no such kernels"),
        ((CPU,), {"attention": "flash"}, "transformer", None),
        ((A100,), {"attention": "flash"}, "transformer", None),
        ((A100,), {"attention": "flash", "precision": "tf32"}, "transformer", "the run in tf32"),
        ((TURING,), {"attention": "flash"}, "transformer", "capability 7.5, and flash begins"),
        (
            (A100,), {"attention": "memory-efficient", "deterministic": True}, "transformer",
            "Its gradients vary from run to run",
        ),
        ((A100,), {"attention": "math"}, "lstm", "The recipe sequence computes no attention"),
    ],
)  # fmt: skip
def test_kernels_of_attention_are_those_that_the_device_has(devices, runtime, recipe, told):
    change = {"runtime": runtime, "recipe": {"encoder": recipe}}
    plan = plan_of(change, world(devices=devices))
    found = [issue for issue in plan.issues if issue.code == "correctness.attention_kind"]
    assert len(found) == (told is not None)
    for issue in found:
        assert told in issue.message
