"""A plan of memory beside what was measured."""

from collections.abc import Mapping
from typing import Any


def compared(plan: Mapping[str, Any] | None, peak: Mapping[str, Any] | None) -> dict[str, Any]:
    """The plan's peak beside the one that was measured, where the model and the data were.

    `plan` is a plan's JSON, `peak` the trainer's `peak_memory`; what is not known is null, as is a
    plan of which a part was not measured then.
    """
    on_device = peak is not None and peak.get("device_bytes") is not None
    budget = (plan or {}).get("device" if on_device else "host")
    measured = (peak or {}).get("device_bytes" if on_device else "host_bytes")
    planned = budget["planned_bytes"] if budget else None
    if on_device and budget and planned is not None:
        planned -= budget["items"]["context"]  # which is not PyTorch's
    ratio = planned / measured if planned is not None and measured else None
    return {"planned_bytes": planned, "measured_bytes": measured, "ratio": ratio, "plan": plan}
