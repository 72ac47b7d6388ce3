"""A driver with as many GPUs as FAKE_NVML says; put before the real binding by PYTHONPATH.

FAKE_NVML is JSON: {"gpus": [{"pids": [..] or a file with such a list, "used": bytes, "total":
bytes, "graphics": [..], "held": bytes of each compute process, "unsupported": ["power"], "lost":
true or a file that makes it so, "sm_active": percent, where the GPU counts it, "mps": [..] of
processes that MPS passes on, "mig": 0 or 1 where the GPU can be divided}], "programs": {pid:
command}}, or
{"error": text}, or {"hang": true}; "until": a file with which a hang ends.
"""

import json
import os
import time
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_SUCCESS = 0
NVML_DEVICE_MIG_ENABLE = 1
NVML_GPM_METRICS_GET_VERSION = 1
NVML_GPM_METRIC_SM_UTIL = 2
GIB = 2**30
WORLD = json.loads(os.environ["FAKE_NVML"])


class NVMLError(Exception):
    pass


def nvmlInit():  # noqa: N802 - the driver's names
    if "error" in WORLD:
        raise NVMLError(WORLD["error"])
    if WORLD.get("hang"):
        time.sleep(600)
    while "until" in WORLD and not os.path.exists(WORLD["until"]):  # noqa: PTH110
        time.sleep(0.05)


def nvmlSystemGetDriverVersion():  # noqa: N802
    return "570.00"


def nvmlDeviceGetCount():  # noqa: N802
    return len(WORLD["gpus"])


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    lost = WORLD["gpus"][index].get("lost")
    if lost is True or (lost and os.path.exists(lost)):  # noqa: PTH110
        raise NVMLError("GPU is lost")
    return index


def nvmlDeviceGetUUID(handle):  # noqa: N802
    return f"GPU-{handle}"


def nvmlDeviceGetName(handle):  # noqa: N802
    return "Fake H200"


def nvmlDeviceGetUtilizationRates(handle):  # noqa: N802
    return SimpleNamespace(gpu=87, memory=12)


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    gpu = WORLD["gpus"][handle]
    return SimpleNamespace(used=gpu.get("used", GIB), total=gpu.get("total", 100 * GIB))


def nvmlDeviceGetPowerUsage(handle):  # noqa: N802
    if "power" in WORLD["gpus"][handle].get("unsupported", ()):
        raise NVMLError("Not Supported")
    return 350_000


def nvmlDeviceGetTotalEnergyConsumption(handle):  # noqa: N802
    return 2_000_000


def nvmlDeviceGetTemperature(handle, sensor):  # noqa: N802
    return 61


def nvmlDeviceGetCudaComputeCapability(handle):  # noqa: N802
    return (9, 0)


def nvmlDeviceGetComputeRunningProcesses(handle):  # noqa: N802
    pids = WORLD["gpus"][handle].get("pids", ())
    if isinstance(pids, str):
        with open(pids) as file:  # noqa: PTH123
            pids = json.load(file)
    held = WORLD["gpus"][handle].get("held", 3 * GIB)
    return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid in pids]


def nvmlDeviceGetMPSComputeRunningProcesses(handle):  # noqa: N802
    pids = WORLD["gpus"][handle].get("mps", ())
    return [SimpleNamespace(pid=pid, usedGpuMemory=3 * GIB) for pid in pids]


def nvmlSystemGetProcessName(pid):  # noqa: N802
    try:
        return WORLD["programs"][str(pid)]
    except KeyError:
        raise NVMLError("Not Found") from None


def nvmlDeviceGetMigMode(handle):  # noqa: N802
    if "mig" not in WORLD["gpus"][handle]:
        raise NVMLError("Not Supported")
    return [WORLD["gpus"][handle]["mig"], 0]


def nvmlDeviceGetGraphicsRunningProcesses(handle):  # noqa: N802
    pids = WORLD["gpus"][handle].get("graphics", ())
    return [SimpleNamespace(pid=pid, usedGpuMemory=WORLD.get("drawn")) for pid in pids]


def nvmlDeviceGetClockInfo(handle, kind):  # noqa: N802
    return {NVML_CLOCK_SM: 1_980, NVML_CLOCK_MEM: 2_619}[kind]


class c_nvmlGpmMetricsGet_t:  # noqa: N801
    def __init__(self):
        self.metrics = [SimpleNamespace(metricId=None, nvmlReturn=None, value=None)]


def nvmlGpmQueryDeviceSupport(handle):  # noqa: N802
    return SimpleNamespace(isSupportedDevice=int("sm_active" in WORLD["gpus"][handle]))


def nvmlGpmSampleAlloc():  # noqa: N802
    return SimpleNamespace(gpu=None, is_free=False)


def nvmlGpmSampleGet(handle, sample):  # noqa: N802
    sample.gpu = handle


def nvmlGpmSampleFree(sample):  # noqa: N802
    assert not sample.is_free
    sample.is_free = True


def nvmlGpmMetricsGet(asked):  # noqa: N802
    assert (asked.version, asked.numMetrics) == (NVML_GPM_METRICS_GET_VERSION, 1)
    assert asked.sample1 is not asked.sample2
    assert not asked.sample1.is_free
    assert asked.sample1.gpu == asked.sample2.gpu
    (metric,) = asked.metrics
    assert metric.metricId == NVML_GPM_METRIC_SM_UTIL
    metric.value, metric.nvmlReturn = WORLD["gpus"][asked.sample1.gpu]["sm_active"], NVML_SUCCESS
    return asked
