"""The largest chunk, batch and number of loader processes that the free memory has room for."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.guard.facts import Facts
from app.guard.memory import MemoryPlan, memory_plan
from app.planning.residency import LEAST_BATCHES_A_CHUNK, MIB, SLOTS
from app.planning.worker_pool import PREFETCH_FACTOR
from app.spec.data import ChunkedLoader, DataLoaderLoader
from app.spec.run import RunSpec

MOST_ACCUMULATION = 65_536  # as the schema has it
# A batch cut into more parts than this would leave too little work in each for any device.
MOST_PARTS = 32
# Of what is free: the plan is right to about 15 %, and what is free changes until the claim.
FILL = 0.85


def fitting(spec: RunSpec, facts: Facts) -> dict[str, Any]:
    """The values with which the plan fits; empty where none do.

    First a smaller chunk, which changes no result; then smaller batches of which so many more make
    a step that the effective batch stays, each with the largest chunk beside it.
    """
    batch, accumulation = spec.training.batch_size, spec.training.gradient_accumulation_steps
    most = min(MOST_PARTS, MOST_ACCUMULATION // accumulation, batch)
    ways = [_in_parts(spec, parts) for parts in range(1, most + 1) if batch % parts == 0]
    return _first_that_fits(spec, facts, ways) or {}


def fitting_batch(spec: RunSpec, facts: Facts) -> int | None:
    """The largest power of two below the batch that fits, whatever the effective batch is then;
    None where a single sample does not.
    """
    smaller = [2**power for power in reversed(range((spec.training.batch_size - 1).bit_length()))]
    found = _first_that_fits(spec, facts, [_with_batch(spec, size) for size in smaller])
    return None if found is None else int(found["/training/batch_size"])


def _first_that_fits(
    spec: RunSpec, facts: Facts, ways: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    """Of ways that take less and less: the first that fits, with a chunk where it needs one."""
    low, high = 0, len(ways) - 1
    best = _fits(spec, facts, ways[high]) if ways else None
    while best is not None and low < high:
        middle = (low + high) // 2
        found = _fits(spec, facts, ways[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    return best


def _fits(spec: RunSpec, facts: Facts, values: dict[str, Any]) -> dict[str, Any] | None:
    smaller = with_values(spec, values)
    if has_room(memory_plan(smaller, facts)):
        return values
    chunk = largest_chunk(smaller, facts)
    return None if chunk is None else values | chunk


def _in_parts(spec: RunSpec, parts: int) -> dict[str, Any]:
    if parts == 1:
        return {}
    training = spec.training
    steps = {"/training/gradient_accumulation_steps": training.gradient_accumulation_steps * parts}
    return _with_batch(spec, training.batch_size // parts) | steps


def _with_batch(spec: RunSpec, batch: int) -> dict[str, Any]:
    """The values that make it so large, of training, and of evaluation at most."""
    values: dict[str, Any] = {"/training/batch_size": batch}
    if spec.evaluation.batch_size != "auto" and spec.evaluation.batch_size > batch:
        values["/evaluation/batch_size"] = batch
    return values


def largest_chunk(spec: RunSpec, facts: Facts) -> dict[str, Any] | None:
    """The residency and chunk size that leave room for the rest; None where none does."""
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader):
        return None
    plan = memory_plan(spec, facts)
    room, need = plan.model_room, plan.need
    least = LEAST_BATCHES_A_CHUNK * spec.training.batch_size * need.slot_sample_bytes
    beside = room.peak_bytes - plan.data.needed_bytes
    left = int((room.budget_bytes or 0) * FILL) - beside
    chunk = min(left, plan.data_memory.limit_bytes) // (SLOTS * (1 + len(need.held_out))) // MIB
    if chunk < 1 or chunk * MIB < least:
        return None
    values = {"/data/loader/residency": "stream", "/data/loader/chunk_size": f"{chunk}MiB"}
    return values if has_room(memory_plan(with_values(spec, values), facts)) else None


def without_processes(spec: RunSpec) -> RunSpec:
    """The spec as it is where its loader reads in the trainer."""
    loader = spec.data.loader
    return with_values(spec, _pool(loader, 0, 1)) if isinstance(loader, DataLoaderLoader) else spec


def fewer_processes(spec: RunSpec, facts: Facts) -> dict[str, Any]:
    """The values with which the loader's processes fit on the host: first fewer batches ahead, then
    half as many processes, and half of these; none at last.
    """
    loader = spec.data.loader
    if not isinstance(loader, DataLoaderLoader):
        return {}
    workers, ahead = loader.num_workers, loader.prefetch_factor or PREFETCH_FACTOR
    ways = [(workers, part) for part in _halves(ahead)] + [(n, 1) for n in _halves(workers)]
    for way in ways:
        values = _pool(loader, *way)
        room = memory_plan(with_values(spec, values), facts).host
        if room.peak_bytes <= FILL * (room.budget_bytes or 0):
            return values
    return _pool(loader, 0, 1)


def _halves(count: int) -> list[int]:
    """Half of it, half of that, … 1."""
    return [count >> power for power in range(1, count.bit_length())]


def _pool(loader: DataLoaderLoader, workers: int, prefetch_factor: int) -> dict[str, Any]:
    """The values, as far as they are not the loader's already."""
    values = {
        "num_workers": workers,
        "prefetch_factor": prefetch_factor if workers else None,
        "persistent_workers": loader.persistent_workers and workers > 0,
    }
    return {f"/data/loader/{n}": v for n, v in values.items() if getattr(loader, n) != v}


def has_room(plan: MemoryPlan) -> bool:
    """Whether it fits with something to spare, and a chunk has all of a batch."""
    room = plan.model_room
    return (
        plan.fits
        and plan.data.holds(plan.batch)
        and room.peak_bytes <= FILL * (room.budget_bytes or 0)
    )


def with_values(spec: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """The spec with other values, by JSON Pointer of two or three names; they are not checked. One
    that is an object is the chunked loader.
    """
    changed = spec
    for pointer, value in values.items():
        if isinstance(value, dict):
            value = ChunkedLoader(**value)
        block, *rest = pointer.strip("/").split("/")
        part = getattr(changed, block)
        if len(rest) == 2:
            inner = getattr(part, rest[0]).model_copy(update={rest[1]: value})
            part = part.model_copy(update={rest[0]: inner})
        else:
            part = part.model_copy(update={rest[0]: value})
        changed = changed.model_copy(update={block: part})
    return changed
