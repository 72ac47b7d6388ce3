"""Whether a run's data stays on the device as a whole or passes through in chunks, and how big.

Pure arithmetic: the trainer chooses by it, and the guard's memory plan reckons by it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.spec.data import ChunkedLoader

MIB, GIB = 2**20, 2**30
UNITS = {"KiB": 2**10, "MiB": MIB, "GiB": GIB, "TiB": 2**40}

# Files are read in pieces of about this size, on the way to a GPU through page-locked memory.
PIECE_BYTES = 32 * MIB
# So much of an array's storage chunks HDF5 keeps unpacked. A chunk above that is unpacked anew for
# every run of neighbours in it: of 4,096 windows in gzip chunks of 16 MiB, read 16 at a time, 23 s
# with the 8 MiB that HDF5 keeps by itself and 0.6 s with these, in groups of 1,024 24 s and 2.5 s.
CHUNK_CACHE_BYTES = PIECE_BYTES
# By so many threads: more than the memory bus can feed only take cores from the training.
MOST_READ_THREADS = 4
# To place a smaller sample while it is read takes more of the processor than to copy it into its
# batch later. Microseconds of the processor for a sample, chunks of a quarter of the file, placed
# and copied: of 1.4 KiB 1.7 and 2.4, of 2.8 KiB 2.4 and 3.9, of 11 KiB 4.3 and 8.5.
LEAST_PLACED_BYTES = 2**10
# Chunks need not be larger than this to be read at full speed, unless a shuffle group is.
AUTO_CHUNK_BYTES = GIB
EVALUATION_CHUNK_BYTES = 256 * MIB
SLOTS = 2
# Fewer samples in a chunk than this many batches would make the loop wait for the reader.
LEAST_BATCHES_A_CHUNK = 4
PLACE_BYTES = 8  # of a sample's place in the order, beside the sample
# Of what is free: for weights, optimizer, activations and libraries, also where the memory plan has
# less for them, or where there is none.
RESERVE_SHARE, LEAST_RESERVE_BYTES = 10, GIB // 2
# The plan of what lies beside the data is right to about so many percent.
PLAN_ERROR = 15


@dataclass(frozen=True)
class DataMemory:
    """Bytes that data may take on the device: at the utmost, and when nothing was asked for."""

    limit_bytes: int
    budget_bytes: int


def memory_for_data(
    free_bytes: int, beside_bytes: int | None = None, *, on_gpu: bool = False
) -> DataMemory:
    """All but a reserve is the limit. The budget is what the memory plan leaves: `beside_bytes` is
    what it has beside the data, and it may be wrong.

    Without a plan the budget is half of what is free; so it is of a host's memory, which is also
    that of other programs, and of the files that are read.
    """
    reserve = max(free_bytes * RESERVE_SHARE // 100, LEAST_RESERVE_BYTES)
    limit = max(0, free_bytes - reserve)
    if beside_bytes is None or not on_gpu:
        return DataMemory(limit, min(limit, free_bytes // 2))
    surely = beside_bytes * (100 + PLAN_ERROR) // 100
    return DataMemory(limit, max(0, min(limit, free_bytes - surely)))


def free_for_data(limit_bytes: int) -> int:
    """The least that has to be free for data to come to so many bytes, as `memory_for_data` limits
    it.
    """
    beside_share = (limit_bytes - 1) * 100 // (100 - RESERVE_SHARE) + 1
    return max(limit_bytes + LEAST_RESERVE_BYTES, beside_share)


def slots_for(chunk_samples: int, part_samples: int) -> int:
    """Slots that a streamed part takes turns in; one whose chunk holds all of it needs no other."""
    return SLOTS if chunk_samples < part_samples else 1


@dataclass(frozen=True)
class Need:
    """What a run's data comes to: bytes of a sample, samples that are shuffled together, samples
    of the training part and of each held-out part.

    `saved_bytes`: less of all parts, where windows stay on the device as the series that they slide
    over. `longest_bytes`: of the longest sample of each ragged array, for which there is room
    behind the samples of every slot and part.
    """

    sample_bytes: int
    group_samples: int
    train_samples: int
    held_out: tuple[int, ...] = ()
    saved_bytes: int = 0
    longest_bytes: int = 0

    @property
    def data_bytes(self) -> int:
        return (self.train_samples + sum(self.held_out)) * self.sample_bytes

    @property
    def kept_bytes(self) -> int:
        """Of all parts where they stay on the device."""
        return self.data_bytes - self.saved_bytes

    @property
    def resident_bytes(self) -> int:
        parts = 1 + len(self.held_out)
        places = self.train_samples * PLACE_BYTES
        return self.kept_bytes + places + parts * self.longest_bytes

    @property
    def slot_sample_bytes(self) -> int:
        return self.sample_bytes + PLACE_BYTES

    def slots_bytes(self, chunk: int, parts: Iterable[int]) -> int:
        """Of the slots of parts of so many samples each, for chunks of `chunk` samples."""
        return sum(slots_for(chunk, part) * self._slot_bytes(min(chunk, part)) for part in parts)

    def _slot_bytes(self, samples: int) -> int:
        """Of few samples it has room for the longest all the same."""
        few = max(0, self.longest_bytes - samples * self.sample_bytes)
        return samples * self.slot_sample_bytes + self.longest_bytes + few

    def stream_bytes(self, chunk: int, evaluation_chunk: int) -> int:
        """Of the slots of all parts, which are there from the beginning to the end."""
        training = self.slots_bytes(chunk, (self.train_samples,))
        return training + self.slots_bytes(evaluation_chunk, self.held_out)


@dataclass(frozen=True)
class Residency:
    """How the data is kept; `needed_bytes` of device memory, which may be more than there are."""

    kind: Literal["resident", "stream", "batches"]
    why: str
    chunk_samples: int  # of the training part; no meaning but for a stream
    evaluation_chunk_samples: int
    needed_bytes: int

    def holds(self, samples: int) -> bool:
        """Whether a chunk has so many; where it has less than a batch, training is only slower."""
        return self.kind != "stream" or self.chunk_samples >= samples


def settle_residency(loader: ChunkedLoader, need: Need, memory: DataMemory) -> Residency:
    """What the loader's settings come to with this data and this memory."""
    fits = need.resident_bytes <= memory.budget_bytes
    resident = loader.residency == "resident" or (loader.residency == "auto" and fits)
    chunk, evaluation = _chunks(loader.chunk_size, need, memory)
    stream_bytes = need.stream_bytes(chunk, evaluation)
    why = "asked for"
    if loader.residency == "auto":
        why = f"{in_gib(need.kept_bytes)} of data, {in_gib(memory.budget_bytes)} of memory for it"
    if resident:
        return Residency("resident", why, chunk, evaluation, need.resident_bytes)
    return Residency("stream", why, chunk, evaluation, stream_bytes)


def _chunks(size: str, need: Need, memory: DataMemory) -> tuple[int, int]:
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
    """Bytes of a training and of an evaluation chunk whose slots, two a part, come to
    `total_bytes`.
    """
    even = total_bytes // (SLOTS * (1 + len(need.held_out)))
    evaluation = min(EVALUATION_CHUNK_BYTES, even)
    held = sum(min(evaluation, samples * need.slot_sample_bytes) for samples in need.held_out)
    return total_bytes // SLOTS - held, evaluation


def in_gib(count: int) -> str:
    """Bytes in GiB, small ones in MiB."""
    return in_one_unit([count])[0]


def in_one_unit(counts: Sequence[int]) -> list[str]:
    """Bytes to be compared, all in GiB; in MiB if the largest is small."""
    size, unit = (GIB, "GiB") if max(counts, default=0) >= GIB // 10 else (MIB, "MiB")
    return [f"{count / size:,.2f} {unit}" for count in counts]
