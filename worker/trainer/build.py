"""From the spec to what computes: device, precision, threads."""

import os

import torch

from app.lifecycle import Reason
from app.spec.runtime import Runtime
from worker.trainer.errors import SpecMismatch, TrainerError


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


def configure_torch(runtime: Runtime, precision: str, threads: int) -> None:
    """Settings of the whole process: threads, TF32, determinism."""
    torch.set_num_threads(threads)
    _use_tf32(precision != "fp32")
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
