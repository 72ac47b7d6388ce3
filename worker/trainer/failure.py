"""From an exception to the reason of an attempt's end and a sentence a person can act on."""

import errno

import torch

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError

LESS_MEMORY = (
    "Lower training.batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "which keeps the result, or set data.loader.residency to stream."
)


# What CUDA, cuBLAS and cuDNN say of device memory that ran out, beside torch's own error.
DEVICE_OOM = ("out of memory", "STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED")
HOST_OOM = ("DefaultCPUAllocator", "HOST_ALLOCATION_FAILED")


def explain(error: BaseException, phase: str) -> tuple[Reason, str]:
    """`phase` is what the attempt was doing."""
    text = str(error)
    if isinstance(error, TrainerError):
        return error.reason, error.message
    if isinstance(error, MemoryError) or _tells(error, HOST_OOM):
        return Reason.host_oom, f"The host ran out of memory while {phase}. {LESS_MEMORY}"
    on_gpu = isinstance(error, torch.AcceleratorError) or _tells(error, ("CUDA error", "cuDNN err"))
    if isinstance(error, torch.OutOfMemoryError) or (on_gpu and _tells(error, DEVICE_OOM)):
        return Reason.device_oom, f"The GPU ran out of memory while {phase}. {LESS_MEMORY}"
    if on_gpu:
        return Reason.gpu_fault, (
            f"The GPU reported a fault while {phase}: {_first_line(text)} If it comes again, look "
            "at the driver's messages (dmesg, nvidia-smi -q) and try another GPU."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Reason.disk_full, (
            f"The disk is full while {phase} ({error.filename or 'artifact root'}). Earlier "
            "checkpoints are intact. Free space and restart the run from its latest."
        )
    if phase == "checkpointing" and isinstance(error, OSError):
        return Reason.checkpoint_error, (
            f"The checkpoint could not be written: {text}. Earlier checkpoints are intact. Mend "
            "the artifact root and restart the run from its latest."
        )
    return Reason.trainer_error, (
        f"An unexpected {type(error).__name__} ended the attempt while {phase}: "
        f"{_first_line(text)} trainer.log of the attempt has the details."
    )


def _tells(error: BaseException, words: tuple[str, ...]) -> bool:
    """torch and the libraries below it tell most failures as a RuntimeError with a text."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0][:300]
    return line if line.endswith((".", "!", "?")) else f"{line}."
