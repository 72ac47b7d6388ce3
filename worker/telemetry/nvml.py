"""Reads the GPUs through NVML in a process of its own, since a wedged driver can hang a probe.

`python -m worker.telemetry.nvml SECONDS` prints one JSON line a period, and one at once for each
line on its standard input: {"gpus": [...]} or, once and for all, {"unavailable": why}. It ends when
its standard input does.
"""

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import pynvml

from worker.telemetry.gpm import Gpm

Document = dict[str, Any]
# NVML wants two samples of its counters so far apart at least; and a line that was asked for in
# between shortens no period, less a tenth for a timer that fires early.
LEAST_GPM_SECONDS, PART_OF_PERIOD = 0.1, 0.9
MPS_SERVER = "nvidia-cuda-mps-server"


def sample(gpm: Gpm) -> Document:
    """All GPUs that answer now; a value that the driver does not give is null.

    One that has fallen off the bus is left out, and the others go on.
    """
    driver = pynvml.nvmlSystemGetDriverVersion()
    found = (_ask(_gpu, i, driver, gpm) for i in range(pynvml.nvmlDeviceGetCount()))
    return {"gpus": [gpu for gpu in found if gpu is not None]}


def _gpu(index: int, driver: str, gpm: Gpm) -> Document:
    """NVMLError when the GPU does not answer at all."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    # Before the memory: where none is listed any more, what they held is not counted either.
    computing = _computing(handle)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    milliwatts = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    millijoules = _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return {
        "index": str(index),
        "uuid": uuid,
        "model": pynvml.nvmlDeviceGetName(handle),
        "driver": driver,
        "utilization": None if rates is None else rates.gpu / 100,
        "sm_active": _ask(gpm.sm_active, uuid, handle),
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "power_watts": None if milliwatts is None else milliwatts / 1000,
        "temperature_celsius": _ask(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "sm_clock_hertz": _clock(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_hertz": _clock(handle, pynvml.NVML_CLOCK_MEM),
        "energy_joules": None if millijoules is None else millijoules / 1000,
        "capability": None if capability is None else list(capability),
        "is_divided": _is_divided(handle),
        "processes": computing,
        "graphics": _processes(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
    }


def _clock(handle: Any, kind: int) -> float | None:
    megahertz = _ask(pynvml.nvmlDeviceGetClockInfo, handle, kind)
    return None if megahertz is None else megahertz * 1e6


def _is_divided(handle: Any) -> bool:
    """True if MIG is on. Then CUDA sees slices of the GPU, each with a UUID of its own."""
    modes = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _computing(handle: Any) -> list[Document]:
    """Processes that compute, those that MPS passes on among them, without the server of MPS.

    The server holds a context, but no work of its own, and outlives the programs that it serves.
    """
    return [process for process in listed(handle) if not is_mps_server(process["pid"])]


def listed(handle: Any) -> list[Document]:
    """Returns every process that the driver lists as computing on this GPU."""
    processes = [
        *_processes(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
        *_processes(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
    ]
    return list({process["pid"]: process for process in processes}.values())


def is_mps_server(pid: int) -> bool:
    """True if the driver names the server of MPS as the process's program."""
    return _program(pid) == MPS_SERVER


def _program(pid: int) -> str | None:
    """The file name of a process's program, or None where the driver does not know it."""
    command = _ask(pynvml.nvmlSystemGetProcessName, pid)
    return PurePath(command.split()[0]).name if command else None


def _processes(function: Callable[..., Any], handle: Any) -> list[Document]:
    return [
        {"pid": process.pid, "memory_bytes": process.usedGpuMemory}
        for process in _ask(function, handle) or []
    ]


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer, or None where this GPU does not support the question, or is lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def main(period_seconds: float) -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(json.dumps({"unavailable": str(error)}), flush=True)  # noqa: T201 - the protocol
        return 0
    gpm = Gpm(max(LEAST_GPM_SECONDS, PART_OF_PERIOD * period_seconds))
    while True:
        print(json.dumps(sample(gpm)), flush=True)  # noqa: T201 - the protocol
        if select.select([sys.stdin], [], [], period_seconds)[0] and not os.read(0, 4096):
            return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
