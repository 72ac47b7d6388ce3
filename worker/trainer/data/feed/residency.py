"""The memory of the device that a run is on, and what its loader's settings come to with it."""

from dataclasses import replace

import torch

from app.container import available_memory
from app.planning.ladder import NO_RUNG, Rung
from app.planning.residency import (
    DataMemory,
    Need,
    Residency,
    in_gib,
    memory_for_data,
    settle_residency,
)
from app.spec.data import ChunkedLoader
from worker.trainer.errors import SpecMismatch


def device_memory(
    device: torch.device, host_budget_bytes: int | None, beside_bytes: int | None = None
) -> DataMemory:
    """Of a GPU, or of the host, where `host_budget_bytes` may say how much data may take.

    `beside_bytes`: what the memory plan has beside the data; None: nobody could plan it.
    """
    if host_budget_bytes is not None and device.type != "cuda":
        return DataMemory(host_budget_bytes, host_budget_bytes)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = available_memory()
    return memory_for_data(free, beside_bytes, on_gpu=device.type == "cuda")


def choose_residency(
    loader: ChunkedLoader, need: Need, memory: DataMemory, rung: Rung = NO_RUNG
) -> Residency:
    """Raises SpecMismatch when what the loader asks for does not fit."""
    loader, memory = rung.of_data(loader, memory)
    chosen = settle_residency(loader, need, memory)
    if rung.data_bytes is not None:
        chosen = replace(chosen, why=f"rung {rung.number} of the memory ladder")
    if chosen.needed_bytes <= memory.limit_bytes:
        return chosen
    if chosen.kind == "resident":
        raise SpecMismatch(
            f"data.loader.residency is resident, but the data takes {in_gib(chosen.needed_bytes)}"
            f" and {in_gib(memory.limit_bytes)} are free for it on the device, beside a reserve for"
            " the model; set it to auto or stream."
        )
    chunk_bytes = chosen.chunk_samples * need.slot_sample_bytes
    evaluation_bytes = chosen.evaluation_chunk_samples * need.slot_sample_bytes
    raise SpecMismatch(
        f"Chunks of {in_gib(chunk_bytes)} for training and of at most {in_gib(evaluation_bytes)}"
        f" for each of {len(need.held_out)} held-out parts, two of each that is not read at once,"
        f" come to {in_gib(chosen.needed_bytes)}, but only {in_gib(memory.limit_bytes)} are free"
        " for data on the device, beside a reserve for the model; lower data.loader.chunk_size."
    )
