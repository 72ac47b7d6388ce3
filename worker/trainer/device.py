"""From the spec to what computes: device, precision, threads."""

import os

import torch
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)

from app.lifecycle import Reason
from app.spec.runtime import Runtime
from worker.trainer.errors import SpecMismatch, TrainerError

# The first GPUs that flash attention is for, and what it computes in there.
FLASH_FROM, HALF = (8, 0), {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def open_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise TrainerError(
                Reason.trainer_error,
                f"The attempt was given {name}, but this PyTorch ({torch.__version__}) sees no "
                "CUDA device. Install a CUDA build of PyTorch, or run with runtime.device cpu.",
            )
        torch.cuda.set_device(device)
    return device


def choose_precision(wanted: str, device: torch.device) -> str:
    """What `runtime.precision` comes to on this device. Raises SpecMismatch."""
    if wanted == "auto":
        fast = device.type == "cuda" and lacking_for("bf16-mixed", device) is None
        return "bf16-mixed" if fast else "fp32"
    if problem := lacking_for(wanted, device):
        raise SpecMismatch(problem)
    return wanted


def lacking_for(precision: str, device: torch.device) -> str | None:
    """A sentence that says why this device cannot compute so, or None when it can."""
    on_gpu = device.type == "cuda"
    if precision in ("fp16-mixed", "tf32") and not on_gpu:
        return (
            f"runtime.precision {precision} needs a GPU, and this run is on the CPU. "
            "Use auto, fp32 or bf16-mixed there."
        )
    # TF32 came with Ampere as bf16 did; an older GPU would compute in fp32 without a word.
    too_old = on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False)
    if precision in ("bf16-mixed", "tf32") and too_old:
        return (
            f"runtime.precision {precision} needs a GPU that computes so (Ampere or newer). "
            "Use auto, fp32 or fp16-mixed."
        )
    return None


def lacking_for_attention(
    runtime: Runtime, precision: str, device: torch.device, *, masked: bool = False
) -> str | None:
    """A sentence that says why attention cannot be computed as is asked here; None when it can.
    `masked`: whether some of it has a mask.
    """
    asked = f"runtime.attention {runtime.attention}"
    on_gpu, advice = device.type == "cuda", "Use auto, which takes what there is."
    if runtime.attention == "memory-efficient" and not on_gpu:
        return f"{asked} needs a GPU, and this run is on the CPU. {advice}"
    if runtime.attention == "memory-efficient" and runtime.deterministic:
        return f"{asked} has gradients that vary from run to run under deterministic. {advice}"
    if runtime.attention != "flash" or not on_gpu:
        return None
    if masked:
        return f"{asked} takes no mask, and the attention of this recipe has one. {advice}"
    capability = torch.cuda.get_device_capability(device)
    if capability < FLASH_FROM:
        have = ".".join(map(str, capability))
        return f"{asked} needs a GPU of compute capability 8.0, and this one has {have}. {advice}"
    if precision not in HALF:
        return f"{asked} computes in bf16 or fp16, and this run in {precision}. {advice}"
    return None


def _choose_attention(kind: str) -> None:
    """Which kernels may compute it, in the whole process and so in captured and compiled steps."""
    every = kind == "auto"
    torch.backends.cuda.enable_flash_sdp(every or kind == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(every or kind == "memory-efficient")
    torch.backends.cuda.enable_math_sdp(every or kind == "math")
    torch.backends.cuda.enable_cudnn_sdp(every)


def attention_kernels(
    runtime: Runtime, precision: str, device: torch.device, *, masked: bool = False
) -> list[str]:
    """Those that PyTorch may compute attention by, once it is configured: of auto each that this
    device has for numbers of this precision, of which it chooses call by call. `masked`: as above.
    """
    if runtime.attention != "auto":
        return [runtime.attention]
    if device.type != "cuda":
        return ["flash", "math"]
    states = torch.zeros(1, 1, 8, 64, dtype=HALF.get(precision, torch.float32), device=device)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool, device=device) if masked else None
    asked = SDPAParams(states, states, states, mask, 0.0, False, False)
    by_torch = {
        "flash": can_use_flash_attention,
        "memory-efficient": can_use_efficient_attention,
        "cudnn": can_use_cudnn_attention,
    }
    return [*(name for name, can_use in by_torch.items() if can_use(asked)), "math"]


def configure_torch(runtime: Runtime, precision: str, threads: int) -> None:
    """Settings of the whole process: threads, TF32, attention, determinism."""
    torch.set_num_threads(threads)
    _choose_attention(runtime.attention)
    # Convolutions by the algorithm that was fastest when each shape came first: it may be another
    # one the next time, with other last bits.
    torch.backends.cudnn.benchmark = not runtime.deterministic
    _use_tf32(precision != "fp32")
    # Attention layers would compute evaluations by kernels of their own, not those of training.
    torch.backends.mha.set_fastpath_enabled(False)
    if runtime.deterministic:
        # cuBLAS reads this when it starts: without it some of its results vary.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Not use_deterministic_algorithms, which imports the compiler to tell it as well.
    torch.set_deterministic_debug_mode("error" if runtime.deterministic else "default")


def _use_tf32(wanted: bool) -> None:
    """On a GPU. First by PyTorch's older names, which set the newer ones too: where only these are
    set, reading an older one is an error, and the compiler reads one when it tunes kernels.
    """
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cudnn.allow_tf32 = wanted
    fp32 = "tf32" if wanted else "ieee"
    torch.backends.cudnn.conv.fp32_precision = fp32  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn.fp32_precision = fp32  # type: ignore[attr-defined]
