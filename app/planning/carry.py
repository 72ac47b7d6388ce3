"""What a restarted run takes over from its parent: the whole state, the weights, or nothing."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.plainjson import dump_json
from app.spec.installed import RECIPES
from app.spec.layers import Document, leaves
from app.spec.stored import completed

# Changes that leave the meaning of optimizer state, schedule position and order untouched.
FULL = (
    "/name", "/notes", "/labels", "/priority", "/preset", "/accept_risks", "/policy", "/evaluation",
    "/checkpoint", "/early_stopping", "/runtime", "/training/epochs", "/training/max_steps",
    "/training/log_every_steps", "/data/loader/kind", "/data/loader/residency",
    "/data/loader/chunk_size", "/data/loader/num_workers", "/data/loader/prefetch_factor",
    "/data/loader/persistent_workers", "/data/loader/pin_memory",
    "/data/loader/multiprocessing_context", "/init_from",
)  # fmt: skip
# Values of fields that a spec may lack: a loader of another kind has no groups, a split of another
# method no gap and no seed, and an earlier version of Stoker had no weights of loss terms.
UNSAID = {
    "/data/loader/shuffle_group": "auto",
    "/data/loader/shuffle_block": "auto",
    "/data/split/gap": 0,
    "/data/split/seed": 0,
    "/loss_weights": {},
    "/recipe/version": "1",
}
# Changes after which the parent's weights no longer fit the model; its recipe has more of them.
SHAPE = ("/recipe/kind", "/data/inputs", "/data/targets", "/data/standardize")
# What a run begins with, which has no say in one that goes on from another.
INIT_FROM = "/init_from"
# Where a spec names a dataset.
DATASETS = ("/data/dataset", "/data/split/validation", "/data/split/test")
STARTS_ANEW = ("optimizer state", "learning-rate schedule", "order of samples", "step count")


# Longer values of a difference are cut.
LONGEST_VALUE = 200


@dataclass(frozen=True)
class Difference:
    """A field of a child's spec that is not as its parent's, with both values; null: not set.

    Equal values of a dataset: its file is another one by now.
    """

    pointer: str
    before: Any
    after: Any


@dataclass(frozen=True)
class CarryPlan:
    """`kind` is what is expected to be carried; the trainer compares the checkpoint with the model.

    `changed` has the pointers of all changes, `decided` those that settle the kind.
    """

    kind: Literal["full", "weights", "scratch"]
    starts_anew: tuple[str, ...]
    decided: tuple[str, ...] = ()
    why: str = ""
    differences: tuple[Difference, ...] = ()

    @property
    def changed(self) -> tuple[str, ...]:
        """JSON Pointers of all changes, in order."""
        return tuple(one.pointer for one in self.differences)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "changed": list(self.changed)}


def only_weights(decided: tuple[str, ...], differences: tuple[Difference, ...]) -> CarryPlan:
    """The model is the same, what was learned of the training itself has no meaning any more."""
    why = f"The model has the same shape, but {_named(decided)} changed."
    return CarryPlan("weights", STARTS_ANEW, decided, why, differences)


def carry_between(
    parent: Document,
    child: Document,
    other_data: Collection[str] = (),
    shapes: tuple[Document | None, Document | None] = (None, None),
) -> CarryPlan:
    """Compare two complete specs; `scratch` means that the parent's weights cannot be used.

    `other_data`: datasets that have another file by now than the parent trained on. `shapes`: as
    parent and child declare them; what is not known is left to the trainer.
    """
    differences = differences_between(parent, child, other_data)
    changed = [one.pointer for one in differences]
    of_recipe = tuple(f"/recipe/{name}" for name in _shape_fields(child))
    begins = tuple(pointer for pointer in changed if _under(pointer, (INIT_FROM,)))
    if begins and child.get("init_from") is not None:
        why = "init_from names other weights to begin with."
        return from_scratch(begins, why, differences)
    shape = tuple(pointer for pointer in changed if _under(pointer, (*SHAPE, *of_recipe)))
    data = () if None in shapes else _other_arrays(*shapes)
    if shape or data:
        why = f"{_named(shape)} changed." if shape else " ".join(data)
        decided = shape or ("/data/dataset",)
        return from_scratch(decided, f"The model has another shape: {why}", differences)
    other = tuple(pointer for pointer in changed if not _under(pointer, FULL))
    if other:
        return only_weights(other, differences)
    why = "The model and what it trains with are the same."
    return CarryPlan("full", (), (), why, differences)


def differences_between(
    parent: Document, child: Document, other_data: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Every field that differs between two complete specs, in the order of their pointers."""
    before, after = (_said(spec) for spec in (parent, child))
    return tuple(
        Difference(pointer, _short(before.get(pointer)), _short(after.get(pointer)))
        for pointer in sorted(before.keys() | after.keys())
        if before.get(pointer) != after.get(pointer)
        or (pointer in DATASETS and after.get(pointer) in other_data)
    )


def _short(value: Any) -> Any:
    text = dump_json(value)
    return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _said(spec: Document) -> Document:
    """By pointer; what the recipe had no word for when the spec was stored has its default."""
    model = RECIPES.get(spec["recipe"]["kind"])
    fields = model.model_fields.items() if model is not None else ()
    usual = {f"/recipe/{name}": one.default for name, one in fields if not one.is_required()}
    return usual | UNSAID | dict(leaves(completed(spec)))


def _shape_fields(spec: Document) -> tuple[str, ...]:
    model = RECIPES.get(spec["recipe"]["kind"])
    return model.shape_fields if model is not None else ()


def from_scratch(
    decided: tuple[str, ...], why: str, differences: tuple[Difference, ...]
) -> CarryPlan:
    return CarryPlan("scratch", ("weights", *STARTS_ANEW), decided, why, differences)


def arrays_of(shape: Mapping[str, Any] | None, part: str) -> dict[str, list[int]]:
    """The sizes of `inputs` or `targets` that a recipe has declared, in its order: weights follow
    from the places of arrays, whatever these are called. {} where none is known.
    """
    declared = dict(shape or {})
    if part == "inputs" and part not in declared:  # an earlier version filed them beside
        return {name: sizes for name, sizes in declared.items() if isinstance(sizes, list)}
    return dict(declared.get(part) or {})


def _other_arrays(parent: Document | None, child: Document | None) -> tuple[str, ...]:
    """A sentence for each array of another shape than that which the parent has learned from."""
    told = []
    for part, what in (("inputs", "values a row"), ("targets", "values")):
        before, after = arrays_of(parent, part), arrays_of(child, part)
        for was, (name, now) in zip(before.values(), after.items(), strict=False):
            if was != now:
                told.append(f"{name} has {_sizes(now)} {what}, not {_sizes(was)}.")
    read, reads = (parent or {}).get("past"), (child or {}).get("past")
    if read and reads and read != reads:
        new, old = (f"feature {feature} of {name}" for name, feature in (reads, read))
        told.append(f"The target's past is {new}, not {old}.")
    return tuple(told)


def _sizes(sizes: Iterable[int]) -> str:
    return " × ".join(map(str, sizes)) or "1"


def _named(pointers: Iterable[str]) -> str:
    return ", ".join(pointer.strip("/").replace("/", ".") for pointer in pointers)


def _under(pointer: str, roots: tuple[str, ...]) -> bool:
    return any(pointer == root or pointer.startswith(root + "/") for root in roots)
