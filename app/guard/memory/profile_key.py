"""By what the memory profile of a run is found: what changes the memory of a step, and no more."""

import json
from hashlib import sha256
from typing import Any

from app.guard.facts import DeviceFacts, FieldFacts
from app.guard.memory.workload import Workload
from app.planning.profile import ProfileKey
from app.spec.optimization import SGD

DIGITS = 32
# What of `runtime` says where it computes, and not how; the precision is that of the device.
WHERE = {"device", "gpus", "precision"}


def _of_graphs(array: FieldFacts) -> list[Any]:
    """Of graphs, how large they are: a batch takes what these come to."""
    if array.edges is None or array.lengths is None:
        return []
    return [round(array.lengths.mean), round(array.edges.mean), array.edges.shape]


def profile_key(work: Workload, device: DeviceFacts) -> ProfileKey:
    """Of a run on a device. Batches, chunks, steps and data of the same shapes are left open: for
    those a profile is reckoned with. UnknownFact.
    """
    spec = work.spec
    recipe, data, optimizer = spec.recipe, spec.data, spec.optimizer
    arrays = {
        role: [
            [list(array.shape), array.dtype, array.is_ragged, *_of_graphs(array)]
            for name in getattr(data, role)
            for array in [work.arrays[name]]
        ]
        for role in ("inputs", "targets")
    }
    computed = {
        **spec.runtime.model_dump(mode="json", exclude=WHERE),
        "device": device.kind,
        "torch": device.host.torch_build,
        "precision": device.settled_precision(spec.runtime.precision),
        "optimizer": optimizer.kind,
        "momentum": bool(optimizer.momentum) if isinstance(optimizer, SGD) else None,
        "clips": spec.training.clip_grad_norm is not None,
        "averaging": spec.averaging.kind,
        "standardize": data.standardize.model_dump(mode="json"),
    }
    return ProfileKey(
        recipe=recipe.kind,
        recipe_version=recipe.version,
        shape=_digest([recipe.model_dump(mode="json"), arrays]),
        runtime=_digest(computed),
        device="cpu" if device.kind == "cpu" else device.name,
    )


def _digest(document: Any) -> str:
    told = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return sha256(told.encode()).hexdigest()[:DIGITS]
