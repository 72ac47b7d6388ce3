"""What a fix changes beside what it names."""

from collections.abc import Iterator

from app.guard.plan import RunPlan
from app.spec.issue import PatchOp
from app.spec.layers import DEFAULT_KINDS, RIVALS, leaves

NOTHING = object()


def unnamed_changes(before: RunPlan, after: RunPlan, fix: list[PatchOp]) -> set[str]:
    """Pointers of the resolved spec whose values are others after the fix, unasked.

    Not counted: fields that only one of two kinds of a block has, defaults that another kind has of
    its own, the other way to say what the fix says, and what the guard settles itself.
    """
    named = {pointer for op in fix for pointer in _named(op)}
    if "/preset" in named:
        return set()  # then everything that it sets may change
    old, new = dict(leaves(before.spec)), dict(leaves(after.spec))
    asked = tuple(f"{pointer}/" for pointer in named)
    return {
        pointer
        for pointer in old.keys() | new.keys()
        if old.get(pointer, NOTHING) != new.get(pointer, NOTHING)
        and pointer not in named
        and not pointer.startswith(asked)
        and not _is_of_one_kind(pointer, named, set(old), set(new))
        and not _is_rival(pointer, named)
        and "guard"
        not in (plan.provenance.get(pointer, {}).get("source") for plan in (before, after))
        and not _is_default_of_its_kind(pointer, named, after)
    }


def _is_default_of_its_kind(pointer: str, named: set[str], after: RunPlan) -> bool:
    block = pointer.rpartition("/")[0]
    return f"{block}/kind" in named and after.provenance[pointer]["source"] == "default"


def _named(op: PatchOp) -> Iterator[str]:
    """An operation on a block that is there names all of it; one that opens it what it brings."""
    if op.op == "add":
        yield from (pointer for pointer, _ in leaves(op.value, op.path))
    else:
        yield op.path


def _is_of_one_kind(pointer: str, named: set[str], old: set[str], new: set[str]) -> bool:
    block = pointer.rsplit("/", 1)[0]
    turned = block in DEFAULT_KINDS and f"{block}/{DEFAULT_KINDS[block][0]}" in named
    return turned and not (pointer in old and pointer in new)


def _is_rival(pointer: str, named: set[str]) -> bool:
    block, name = pointer.rsplit("/", 1)
    pair = RIVALS.get(block, ())
    return name in pair and any(f"{block}/{other}" in named for other in pair)
