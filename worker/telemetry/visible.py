"""Which GPUs the agent was told to keep to, by the variable that CUDA programs go by."""

from collections.abc import Sequence
from itertools import takewhile

from worker.telemetry.gpus import GpuSample

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(gpus: Sequence[GpuSample], given: str | None) -> list[GpuSample]:
    """Those that `given` names, in its order; all where it is not set.

    A number is that of nvidia-smi, anything else the beginning of a UUID. As in CUDA the list ends
    at the first entry that is no GPU, so that "" and "-1" are none (CUDA C++ Programming Guide,
    "CUDA Environment Variables").
    """
    if given is None:
        return list(gpus)
    named = (_named(gpus, entry.strip()) for entry in given.split(","))
    found = takewhile(lambda gpu: gpu is not None, named)
    return list({gpu.uuid: gpu for gpu in found if gpu is not None}.values())


def _named(gpus: Sequence[GpuSample], entry: str) -> GpuSample | None:
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == entry), None)
    fitting = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
