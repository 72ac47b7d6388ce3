"""Tells from an exception that memory ran out: which, how much was wanted, how much was free."""

import errno
import re

import torch

from app.lifecycle import Reason
from app.planning.residency import LEAST_RESERVE_BYTES, UNITS, in_gib
from worker.trainer.errors import OutOfMemory
from worker.trainer.report.memory import host_free_bytes

# What CUDA, cuBLAS and cuDNN say of device memory that ran out, beside torch's own error.
DEVICE_OOM = ("out of memory", "STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED")
HOST_OOM = ("DefaultCPUAllocator", "HOST_ALLOCATION_FAILED")
FAULTS_OF_GPUS = ("CUDA error", "cuDNN err")
# What oneDNN and Python's threads say when they get no memory, and for other reasons too: it counts
# where the host has less left than a trainer should have for its model.
PERHAPS_OOM = ("could not create a primitive", "could not execute a primitive", "start new thread")
# As the allocators of torch say it, for a GPU and for the host, and as NumPy does.
WANTED = re.compile(r"(?:[Tt]ried to allocate|Unable to allocate) ([\d.]+) (bytes|[KMGTPE]iB)")
FREE = re.compile(r"of which ([\d.]+) (bytes|[KMGTPE]iB) is free")
BYTES = {**UNITS, "bytes": 1, "PiB": 2**50, "EiB": 2**60}


def out_of_memory(error: BaseException, phase: str) -> OutOfMemory | None:
    """None when it is something else. To be asked while what was there is still held, for what is
    free is measured now. `phase` is what the attempt was doing.
    """
    error = behind(error)
    reason = which_memory(error)
    if reason is None:
        return None
    told = str(error)
    wanted = _bytes(WANTED.search(told))
    free = host_free_bytes() if reason is Reason.host_oom else _bytes(FREE.search(told))
    whose = "host" if reason is Reason.host_oom else "GPU"
    message = f"The {whose} ran out of memory while {phase}"
    if wanted is not None:
        message += f": {in_gib(wanted)} were asked for"
        message += f", {in_gib(free)} were free" if free is not None else ""
    return OutOfMemory(reason, f"{message}.", wanted, free)


def behind(error: BaseException) -> BaseException:
    """What PyTorch's compiler met, where it is the compiler that tells of it."""
    met = getattr(error, "inner_exception", error)
    return met if isinstance(met, BaseException) else error


def which_memory(error: BaseException) -> Reason | None:
    """The host's or the device's, as the error tells; None when it is something else."""
    is_enomem = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or is_enomem or tells(error, HOST_OOM):
        return Reason.host_oom
    if tells(error, PERHAPS_OOM) and host_free_bytes() < LEAST_RESERVE_BYTES:
        return Reason.host_oom
    if isinstance(error, torch.OutOfMemoryError) or (of_gpu(error) and tells(error, DEVICE_OOM)):
        return Reason.device_oom
    return None


def of_gpu(error: BaseException) -> bool:
    """Whether the GPU or a library of it reports the error."""
    return isinstance(error, torch.AcceleratorError) or tells(error, FAULTS_OF_GPUS)


def tells(error: BaseException, words: tuple[str, ...]) -> bool:
    """torch and the libraries below it tell most failures as a RuntimeError with a text."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _bytes(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(float(found[1]) * BYTES[found[2]])
