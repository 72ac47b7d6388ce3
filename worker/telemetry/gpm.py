"""How busy the multiprocessors of a GPU are, by NVML's GPM, which Hopper and newer GPUs have."""

import time
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass
class _Window:
    """Of one GPU: the sample that the next one is compared with, when it was made (monotonic
    seconds), and the share that was counted last.
    """

    sample: Any
    began: float
    share: float | None = None


class Gpm:
    """What it counts is what happened between two samples of a GPU, `least_seconds` apart or more:
    between samples less than 0.1 s apart NVML's counts are unreliable.
    """

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._windows: dict[str, _Window] = {}

    def sm_active(self, uuid: str, handle: Any) -> float | None:
        """Share of its multiprocessors that had work of late, 0-1; None before two samples were
        made, and where the GPU does not count it. A call in between, as for a GPU's processes, gets
        the share that was counted last. NVMLError.
        """
        now, window = time.monotonic(), self._windows.get(uuid)
        if window is not None and now - window.began < self._least_seconds:
            return window.share
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle, sample)
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(sample)
            raise
        self._windows[uuid] = _Window(sample, now)
        if window is None:
            return None
        try:
            share = self._windows[uuid].share = _sm_active(window.sample, sample)
        finally:
            pynvml.nvmlGpmSampleFree(window.sample)
        return share


def _sm_active(before: Any, after: Any) -> float | None:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = 1
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    metric = pynvml.nvmlGpmMetricsGet(asked).metrics[0]
    return metric.value / 100 if metric.nvmlReturn == pynvml.NVML_SUCCESS else None
