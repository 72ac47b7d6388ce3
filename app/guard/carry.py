"""What a restarted run takes over from its parent: the whole state, the weights, or nothing."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.spec.layers import Document, leaves

# Changes that leave the meaning of optimizer state, schedule position and order untouched.
FULL = (
    "/name", "/notes", "/labels", "/priority", "/preset", "/accept_risks", "/policy", "/evaluation",
    "/checkpoint", "/early_stopping", "/runtime", "/training/epochs", "/training/max_steps",
    "/training/log_every_steps", "/data/loader/kind", "/data/loader/residency",
    "/data/loader/chunk_size", "/data/loader/num_workers", "/data/loader/prefetch_factor",
    "/data/loader/persistent_workers", "/data/loader/pin_memory",
    "/data/loader/multiprocessing_context",
)  # fmt: skip
# What a document says that has no word for it: a loader of another kind shuffles together what one
# does that shuffles all or nothing, and a split of another method, or of an earlier version of
# Stoker, leaves no sample out.
UNSAID = {"/data/loader/shuffle_group": "auto", "/data/split/gap": 0}
# Changes after which the parent's weights no longer fit the model.
SHAPE = (
    "/recipe/kind", "/recipe/encoder", "/recipe/hidden_size", "/recipe/num_layers", "/recipe/patch",
    "/data/inputs", "/data/targets", "/data/standardize",
)  # fmt: skip
# Where a spec names a dataset.
DATASETS = ("/data/dataset", "/data/split/validation", "/data/split/test")
STARTS_ANEW = ("optimizer state", "learning-rate schedule", "order of samples", "step count")


@dataclass(frozen=True)
class Carry:
    """`kind` is what is carried; `changed` the pointers that decided it."""

    kind: Literal["full", "weights", "scratch"]
    starts_anew: tuple[str, ...]
    changed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def carry_between(parent: Document, child: Document, other_data: Collection[str] = ()) -> Carry:
    """Compare two complete specs; `scratch` means that the parent's weights cannot be used.

    `other_data`: datasets that have another file by now than the parent trained on.
    """
    before, after = (UNSAID | dict(leaves(spec)) for spec in (parent, child))
    changed = sorted(
        pointer
        for pointer in before.keys() | after.keys()
        if before.get(pointer) != after.get(pointer)
        or (pointer in DATASETS and after.get(pointer) in other_data)
    )
    shape = tuple(pointer for pointer in changed if _under(pointer, SHAPE))
    if shape:
        return Carry("scratch", ("weights", *STARTS_ANEW), shape)
    other = tuple(pointer for pointer in changed if not _under(pointer, FULL))
    if other:
        return Carry("weights", STARTS_ANEW, other)
    return Carry("full", (), tuple(changed))


def _under(pointer: str, roots: tuple[str, ...]) -> bool:
    return any(pointer == root or pointer.startswith(root + "/") for root in roots)
