"""Which kernels compute: those of attention that are asked for, and convolutions as timed."""

from typing import Any

import pytest
import torch
from torch.backends.cuda import SDPAParams

from app.lifecycle import Reason
from app.spec.runtime import Runtime
from tests.trainer.lab import Lab, merged
from worker.trainer import device
from worker.trainer.device import attention_kernels, configure_torch, lacking_for_attention
from worker.trainer.errors import SpecMismatch
from worker.trainer.failure import explain

TRANSFORMER: dict[str, Any] = {"recipe": {"encoder": "transformer", "dropout": 0.0}}


def attending(kind: str, **recipe: Any) -> dict[str, Any]:
    return merged(TRANSFORMER, {"recipe": recipe, "runtime": {"attention": kind}})


def kernel() -> str:
    """Of a small attention, as PyTorch's backward pass names it."""
    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    found = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert found.grad_fn is not None
    return found.grad_fn.name()


@pytest.mark.parametrize(
    ("kind", "kernels"), [("auto", ["flash", "math"]), ("flash", ["flash"]), ("math", ["math"])]
)
def test_attention_is_computed_by_the_kernels_that_are_asked_for(
    lab: Lab, kind: str, kernels: list[str]
) -> None:
    outcome = lab.run(patch=attending(kind))
    assert ("Flash" in kernel()) == ("flash" in kernels)
    (applied,) = outcome.of_kind("applied")
    assert applied["applied"]["attention"] == kernels
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed


def test_a_recipe_without_attention_applies_no_kernels_of_it(lab: Lab) -> None:
    (applied,) = lab.run().of_kind("applied")
    assert applied["applied"]["attention"] is None


def test_what_auto_may_choose_on_a_gpu_is_what_pytorch_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the device alone: the tensors lie on none here."""
    zeros, ones = torch.zeros, torch.ones
    asked: list[SDPAParams] = []

    def can_use(params: SDPAParams) -> bool:
        asked.append(params)
        return True

    on_cuda = torch.device("cuda:0")
    at_meta = {"device": "meta"}
    monkeypatch.setattr(torch, "zeros", lambda *shape, **how: zeros(*shape, **(how | at_meta)))
    monkeypatch.setattr(torch, "ones", lambda *shape, **how: ones(*shape, **(how | at_meta)))
    monkeypatch.setattr(device, "can_use_cudnn_attention", can_use)
    kinds = {
        (precision, masked): attention_kernels(Runtime(), precision, on_cuda, masked=masked)
        for precision, masked in (("bf16-mixed", False), ("tf32", True))
    }
    assert set(map(tuple, kinds.values())) == {("cudnn", "math")}, "no flash without a GPU"
    assert [params.query.dtype for params in asked] == [torch.bfloat16, torch.float32]
    assert [params.attn_mask is None for params in asked] == [True, False]


def test_kernels_that_a_cpu_lacks_end_the_run_with_a_sentence(lab: Lab) -> None:
    with pytest.raises(SpecMismatch, match="memory-efficient needs a GPU"):
        lab.run(patch=attending("memory-efficient"))


def test_attention_that_no_kernel_can_compute_ends_the_run_with_a_sentence(lab: Lab) -> None:
    """A CPU's flash has no dropout."""
    with pytest.raises(RuntimeError) as caught:
        lab.run(patch=attending("flash", dropout=0.2))
    reason, message = explain(caught.value, "training")
    assert reason is Reason.spec_error
    assert message.startswith("The kernels that runtime.attention allows cannot compute")


@pytest.mark.parametrize(
    ("capability", "precision", "told"),
    [
        ((7, 5), "fp16-mixed", "compute capability 8.0, and this one has 7.5"),
        ((8, 0), "tf32", "computes in bf16 or fp16, and this run in tf32"),
        ((8, 0), "bf16-mixed", None),
    ],
)
def test_flash_is_for_newer_gpus_in_half_precision(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str, told: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = lacking_for_attention(Runtime(attention="flash"), precision, torch.device("cuda:0"))
    assert (found is None) if told is None else (found is not None and told in found)


@pytest.mark.parametrize("deterministic", [True, False])
def test_convolutions_are_timed_unless_results_must_not_vary(deterministic: bool) -> None:
    before = torch.get_num_threads()
    try:
        configure_torch(Runtime(deterministic=deterministic), "fp32", before)
        assert torch.backends.cudnn.benchmark is not deterministic
    finally:
        configure_torch(Runtime(), "fp32", before)


def test_a_cpu_has_nothing_to_time(lab: Lab) -> None:
    (applied,) = lab.run().of_kind("applied")
    assert applied["applied"]["cudnn_autotuning"] is False
