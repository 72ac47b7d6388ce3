"""Whether a run's data stays on the device as a whole or passes through in chunks, and how big."""

from dataclasses import dataclass
from typing import Literal

import psutil
import torch

from app.spec.data import ChunkedLoader
from worker.trainer.errors import SpecMismatch

MIB, GIB = 2**20, 2**30
UNITS = {"KiB": 2**10, "MiB": MIB, "GiB": GIB, "TiB": 2**40}

# Chunks need not be larger than this to be read at full speed, unless a shuffle group is.
AUTO_CHUNK_BYTES = GIB
EVALUATION_CHUNK_BYTES = 256 * MIB
SLOTS = 2


@dataclass(frozen=True)
class Memory:
    """Bytes that data may take on the device: at the utmost, and when nothing was asked for."""

    limit_bytes: int
    budget_bytes: int


@dataclass(frozen=True)
class Need:
    """What a run's data comes to: bytes of a sample, of everything, samples shuffled together."""

    sample_bytes: int
    total_bytes: int
    group_samples: int


@dataclass(frozen=True)
class Residency:
    kind: Literal["resident", "stream"]
    why: str
    chunk_samples: int  # of the training part; no meaning when resident
    evaluation_chunk_samples: int


def device_memory(device: torch.device, host_budget_bytes: int | None) -> Memory:
    """Half of what is free is the budget; the rest is for the model and everybody else."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return Memory(free, free // 2)
    if host_budget_bytes is not None:
        return Memory(host_budget_bytes, host_budget_bytes)
    available = int(psutil.virtual_memory().available)
    return Memory(available, available // 2)


def choose_residency(loader: ChunkedLoader, need: Need, memory: Memory) -> Residency:
    """Raises SpecMismatch when what the loader asks for does not fit."""
    if loader.residency == "resident" and need.total_bytes > memory.limit_bytes:
        raise SpecMismatch(
            f"data.loader.residency is resident, but the data takes {_gib(need.total_bytes)} and"
            f" {_gib(memory.limit_bytes)} are free on the device; set it to auto or stream."
        )
    fits = need.total_bytes <= memory.budget_bytes
    resident = loader.residency == "resident" or (loader.residency == "auto" and fits)
    chunk = _chunk_samples(loader, need, memory)
    if not resident and SLOTS * chunk * need.sample_bytes > memory.limit_bytes:
        raise SpecMismatch(
            f"Two chunks of {_gib(chunk * need.sample_bytes)} are needed at once, but only"
            f" {_gib(memory.limit_bytes)} are free on the device; lower data.loader.chunk_size."
        )
    evaluation = min(chunk, max(1, EVALUATION_CHUNK_BYTES // need.sample_bytes))
    kind: Literal["resident", "stream"] = "resident" if resident else "stream"
    why = f"{_gib(need.total_bytes)} of data, {_gib(memory.budget_bytes)} of memory for it"
    if loader.residency != "auto":
        why = "asked for"
    return Residency(kind, why, chunk, evaluation)


def _chunk_samples(loader: ChunkedLoader, need: Need, memory: Memory) -> int:
    """Samples of a training chunk: whole shuffle groups, if one fits."""
    wanted = min(_chunk_bytes(loader.chunk_size, need, memory), need.total_bytes)
    samples = max(1, wanted // need.sample_bytes)
    whole_groups = samples // need.group_samples * need.group_samples
    return whole_groups or samples


def _chunk_bytes(size: str, need: Need, memory: Memory) -> int:
    if size == "auto":
        at_least_a_group = max(AUTO_CHUNK_BYTES, need.group_samples * need.sample_bytes)
        return min(at_least_a_group, memory.budget_bytes // SLOTS)
    if size.endswith("%"):  # of the memory, for both slots together
        return memory.limit_bytes * int(size[:-1]) // 100 // SLOTS
    return int(float(size[:-3]) * UNITS[size[-3:]])


def _gib(count: int) -> str:
    return f"{count / GIB:,.2f} GiB" if count >= GIB // 10 else f"{count / MIB:,.2f} MiB"
