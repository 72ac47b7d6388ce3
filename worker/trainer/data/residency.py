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
PLACE_BYTES = 8  # of a sample's place in the order, beside the sample
# Of what is free: for weights, optimizer, activations and libraries. How much those will take is
# not known before the model is built, so this much is never given to data.
RESERVE_SHARE, LEAST_RESERVE_BYTES = 10, GIB // 2


@dataclass(frozen=True)
class Memory:
    """Bytes that data may take on the device: at the utmost, and when nothing was asked for."""

    limit_bytes: int
    budget_bytes: int


@dataclass(frozen=True)
class Need:
    """What a run's data comes to: bytes of a sample, samples that are shuffled together, samples
    of the training part and of each held-out part.
    """

    sample_bytes: int
    group_samples: int
    train_samples: int
    held_out: tuple[int, ...] = ()

    @property
    def data_bytes(self) -> int:
        return (self.train_samples + sum(self.held_out)) * self.sample_bytes

    @property
    def resident_bytes(self) -> int:
        return self.data_bytes + self.train_samples * PLACE_BYTES

    @property
    def slot_sample_bytes(self) -> int:
        return self.sample_bytes + PLACE_BYTES

    def stream_bytes(self, chunk: int, evaluation_chunk: int) -> int:
        """Of the slots of all parts, which are there from the beginning to the end."""
        training = min(chunk, self.train_samples)
        evaluation = sum(min(evaluation_chunk, samples) for samples in self.held_out)
        return SLOTS * (training + evaluation) * self.slot_sample_bytes


@dataclass(frozen=True)
class Residency:
    kind: Literal["resident", "stream"]
    why: str
    chunk_samples: int  # of the training part; no meaning when resident
    evaluation_chunk_samples: int


def device_memory(device: torch.device, host_budget_bytes: int | None) -> Memory:
    """Half of what is free is the budget, and all but a reserve for the model the limit."""
    if host_budget_bytes is not None and device.type != "cuda":
        return Memory(host_budget_bytes, host_budget_bytes)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = int(psutil.virtual_memory().available)
    limit = max(0, free - max(free * RESERVE_SHARE // 100, LEAST_RESERVE_BYTES))
    return Memory(limit, min(limit, free // 2))


def choose_residency(loader: ChunkedLoader, need: Need, memory: Memory) -> Residency:
    """Raises SpecMismatch when what the loader asks for does not fit."""
    if loader.residency == "resident" and need.resident_bytes > memory.limit_bytes:
        raise SpecMismatch(
            f"data.loader.residency is resident, but the data takes {_gib(need.resident_bytes)} and"
            f" {_gib(memory.limit_bytes)} are free for it on the device, beside a reserve for the"
            " model; set it to auto or stream."
        )
    fits = need.resident_bytes <= memory.budget_bytes
    resident = loader.residency == "resident" or (loader.residency == "auto" and fits)
    chunk, evaluation = _chunks(loader.chunk_size, need, memory)
    stream_bytes = need.stream_bytes(chunk, evaluation)
    if not resident and stream_bytes > memory.limit_bytes:
        raise SpecMismatch(
            f"Two chunks of {_gib(chunk * need.slot_sample_bytes)} for training and two of at most"
            f" {_gib(evaluation * need.slot_sample_bytes)} for each of {len(need.held_out)}"
            f" held-out parts come to {_gib(stream_bytes)}, but only {_gib(memory.limit_bytes)} are"
            " free for data on the device, beside a reserve for the model; lower"
            " data.loader.chunk_size."
        )
    kind: Literal["resident", "stream"] = "resident" if resident else "stream"
    why = f"{_gib(need.data_bytes)} of data, {_gib(memory.budget_bytes)} of memory for it"
    if loader.residency != "auto":
        why = "asked for"
    return Residency(kind, why, chunk, evaluation)


def _chunks(size: str, need: Need, memory: Memory) -> tuple[int, int]:
    """Samples of a training chunk, whole shuffle groups if one fits, and of an evaluation chunk."""
    group_bytes = need.group_samples * need.slot_sample_bytes
    if size == "auto":
        most, evaluation = _within(memory.budget_bytes, need)
        wanted = min(max(AUTO_CHUNK_BYTES, group_bytes), most)
    elif size.endswith("%"):  # of the memory, for the slots of all parts together
        wanted, evaluation = _within(memory.limit_bytes * int(size[:-1]) // 100, need)
    else:
        wanted = int(float(size[:-3]) * UNITS[size[-3:]])
        evaluation = EVALUATION_CHUNK_BYTES
    samples = max(1, min(wanted // need.slot_sample_bytes, need.train_samples))
    whole_groups = samples // need.group_samples * need.group_samples
    chunk = whole_groups or samples
    return chunk, min(chunk, max(1, evaluation // need.slot_sample_bytes))


def _within(total_bytes: int, need: Need) -> tuple[int, int]:
    """Bytes of a training and of an evaluation chunk whose slots come to `total_bytes`."""
    even = total_bytes // (SLOTS * (1 + len(need.held_out)))
    evaluation = min(EVALUATION_CHUNK_BYTES, even)
    held = sum(min(evaluation, samples * need.slot_sample_bytes) for samples in need.held_out)
    return total_bytes // SLOTS - held, evaluation


def _gib(count: int) -> str:
    return f"{count / GIB:,.2f} GiB" if count >= GIB // 10 else f"{count / MIB:,.2f} MiB"
