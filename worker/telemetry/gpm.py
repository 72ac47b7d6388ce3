"""How busy the multiprocessors of a GPU are, by NVML's GPM, which Hopper and newer GPUs have."""

from typing import Any

import pynvml


class Gpm:
    """Keeps the last sample of each GPU: what it counts is what happened between two."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def sm_active(self, uuid: str, handle: Any) -> float | None:
        """Share of its multiprocessors that had work since the last call, 0-1; None at the first,
        and where the GPU does not count it. NVMLError.
        """
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle, sample)
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(sample)
            raise
        before, self._last[uuid] = self._last.get(uuid), sample
        if before is None:
            return None
        try:
            return _sm_active(before, sample)
        finally:
            pynvml.nvmlGpmSampleFree(before)


def _sm_active(before: Any, after: Any) -> float | None:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = 1
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    metric = pynvml.nvmlGpmMetricsGet(asked).metrics[0]
    return metric.value / 100 if metric.nvmlReturn == pynvml.NVML_SUCCESS else None
