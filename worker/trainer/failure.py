"""From an exception to the reason of an attempt's end and a sentence a person can act on."""

import errno

import torch

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError

LESS_MEMORY = (
    "Lower training.batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "which keeps the result, or set data.loader.residency to stream."
)


def explain(error: BaseException, phase: str) -> tuple[Reason, str]:
    """`phase` is what the attempt was doing."""
    text = str(error)
    if isinstance(error, TrainerError):
        return error.reason, error.message
    if isinstance(error, torch.OutOfMemoryError):
        return Reason.device_oom, f"The GPU ran out of memory while {phase}. {LESS_MEMORY}"
    if isinstance(error, MemoryError) or _is_cpu_allocation(error):
        return Reason.host_oom, f"The host ran out of memory while {phase}. {LESS_MEMORY}"
    if isinstance(error, torch.AcceleratorError) or "CUDA error" in text or "cuDNN error" in text:
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


def _is_cpu_allocation(error: BaseException) -> bool:
    """torch tells a failed allocation on the host as a RuntimeError."""
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0][:300]
    return line if line.endswith((".", "!", "?")) else f"{line}."
