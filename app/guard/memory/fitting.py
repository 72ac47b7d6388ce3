"""The largest chunk and batch, and the most loader processes, for which there is memory."""

from collections.abc import Sequence
from typing import Any

from app.guard.case import Case
from app.guard.memory.memory_plan import MemoryPlan
from app.guard.memory.worker_pools import process_values
from app.planning.residency import LEAST_BATCHES_A_CHUNK, MIB, SLOTS
from app.planning.worker_pool import PREFETCH_FACTOR
from app.spec.data import ChunkedLoader, DataLoaderLoader
from app.spec.run import RunSpec

MOST_ACCUMULATION = 65_536  # as the schema has it
# A batch cut into more parts than this would leave too little work in each for any device.
MOST_PARTS = 32
# Of what is free: like runs do not take quite the same, and what is free changes until the claim.
FILL = 0.85


def fitting(case: Case) -> dict[str, Any]:
    """The values with which the plan fits; empty where none do.

    First a smaller chunk, which changes no result; then smaller batches of which so many more make
    a step that the effective batch stays, each with the largest chunk beside it.
    """
    training = case.spec.training
    batch, accumulation = training.batch_size, training.gradient_accumulation_steps
    most = min(MOST_PARTS, MOST_ACCUMULATION // accumulation, batch)
    ways = [_in_parts(case.spec, parts) for parts in range(1, most + 1) if batch % parts == 0]
    return _first_that_fits(case, ways) or {}


def fitting_batch(case: Case) -> int | None:
    """The largest power of two below the batch that fits, whatever the effective batch is then;
    None where a single sample does not.
    """
    powers = reversed(range((case.spec.training.batch_size - 1).bit_length()))
    found = _first_that_fits(case, [_with_batch(case.spec, 2**power) for power in powers])
    return None if found is None else int(found["/training/batch_size"])


def _first_that_fits(case: Case, ways: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of ways that take less and less: the first that fits, with a chunk where it needs one."""
    low, high = 0, len(ways) - 1
    best = _fits(case, ways[high]) if ways else None
    while best is not None and low < high:
        middle = (low + high) // 2
        found = _fits(case, ways[middle])
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    return best


def _fits(case: Case, values: dict[str, Any]) -> dict[str, Any] | None:
    smaller = case.with_values(values)
    if fits_well(smaller.memory):
        return values
    chunk = largest_chunk(smaller)
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


def largest_chunk(case: Case) -> dict[str, Any] | None:
    """The residency and chunk size that leave memory for the rest; None where none does."""
    if not isinstance(case.spec.data.loader, ChunkedLoader):
        return None
    plan = case.memory
    budget, need = plan.with_model, plan.need
    least = LEAST_BATCHES_A_CHUNK * case.spec.training.batch_size * need.slot_sample_bytes
    beside = max(budget.peak_bytes - plan.data.needed_bytes, plan.beside_bytes)
    left = int((budget.available_bytes or 0) * FILL) - beside
    chunk = min(left, plan.data_memory.limit_bytes) // (SLOTS * (1 + len(need.held_out))) // MIB
    if chunk < 1 or chunk * MIB < least:
        return None
    values = {"/data/loader/residency": "stream", "/data/loader/chunk_size": f"{chunk}MiB"}
    return values if fits_well(case.with_values(values).memory) else None


def fewer_processes(case: Case) -> dict[str, Any]:
    """The values with which the loader's processes fit on the host: first fewer batches ahead, then
    half as many processes, and half of these; none at last.
    """
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader):
        return {}
    workers, ahead = loader.num_workers, loader.prefetch_factor or PREFETCH_FACTOR
    ways = [(workers, part) for part in _halves(ahead)] + [(n, 1) for n in _halves(workers)]
    for way in ways:
        values = process_values(loader, *way)
        host = case.with_values(values).memory.host
        if host.peak_bytes <= FILL * (host.available_bytes or 0):
            return values
    return process_values(loader, 0, 1)


def _halves(count: int) -> list[int]:
    """Half of it, half of that, … 1."""
    return [count >> power for power in range(1, count.bit_length())]


def fits_well(plan: MemoryPlan) -> bool:
    """Whether it fits with something to spare, and a chunk has all of a batch; what nobody has
    measured takes nothing.
    """
    budget = plan.with_model
    return (
        plan.fits
        and plan.data.holds(plan.batch)
        and budget.peak_bytes <= FILL * (budget.available_bytes or 0)
    )
