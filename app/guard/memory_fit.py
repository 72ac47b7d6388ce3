"""The largest chunk and the largest batch that fit into the memory that is free."""

from collections.abc import Mapping
from typing import Any

from app.guard.facts import Facts
from app.guard.memory import memory_plan
from app.spec.data import ChunkedLoader
from app.spec.residency import MIB, SLOTS
from app.spec.run import RunSpec

MOST_ACCUMULATION = 65_536
# Of what is free: the plan is right to about 15 %, and what is free changes until the claim.
FILL = 0.85
# Fewer samples in a chunk than this many batches would make the loop wait for the reader.
LEAST_BATCHES_A_CHUNK = 4


def fitting(spec: RunSpec, facts: Facts) -> dict[str, Any]:
    """The values with which the plan fits; empty where none do.

    First a smaller chunk, which changes no result; then smaller batches of which so many more make
    a step that the effective batch stays, each with the largest chunk beside it.
    """
    batch, accumulation = spec.training.batch_size, spec.training.gradient_accumulation_steps
    for parts in range(1, batch + 1):
        if batch % parts or accumulation * parts > MOST_ACCUMULATION:
            continue
        values = _in_parts(spec, parts)
        smaller = with_values(spec, values)
        if _has_room(smaller, facts):
            return values
        chunk = largest_chunk(smaller, facts)
        if chunk is not None:
            return values | chunk
    return {}


def _in_parts(spec: RunSpec, parts: int) -> dict[str, Any]:
    if parts == 1:
        return {}
    training, evaluation = spec.training, spec.evaluation
    batch = training.batch_size // parts
    values: dict[str, Any] = {
        "/training/batch_size": batch,
        "/training/gradient_accumulation_steps": training.gradient_accumulation_steps * parts,
    }
    if evaluation.batch_size != "auto" and evaluation.batch_size > batch:
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
    chunk = left // (SLOTS * (1 + len(need.held_out))) // MIB
    while chunk and chunk * MIB >= least:
        values = {"/data/loader/residency": "stream", "/data/loader/chunk_size": f"{chunk}MiB"}
        if _has_room(with_values(spec, values), facts):
            return values
        chunk //= 2
    return None


def _has_room(spec: RunSpec, facts: Facts) -> bool:
    plan = memory_plan(spec, facts)
    room = plan.model_room
    return plan.fits and room.peak_bytes <= FILL * (room.budget_bytes or 0)


def with_values(spec: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """The spec with other values, by JSON Pointer of two or three names; they are not checked."""
    changed = spec
    for pointer, value in values.items():
        block, *rest = pointer.strip("/").split("/")
        part = getattr(changed, block)
        if len(rest) == 2:
            inner = getattr(part, rest[0]).model_copy(update={rest[1]: value})
            part = part.model_copy(update={rest[0]: inner})
        else:
            part = part.model_copy(update={rest[0]: value})
        changed = changed.model_copy(update={block: part})
    return changed
