"""Rules about how rows come from the file: chunks that hold a batch, reads that follow the file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from app.guard.derived import LEAST_LOSS_SECONDS, as_read, dataset_of, epochs_of
from app.guard.facts import DatasetFacts, Facts, FieldFacts, known
from app.guard.memory import MemoryPlan, fields_of, memory_plan, order_of
from app.guard.memory_fit import with_values
from app.guard.rule import Finding, Loc, rule
from app.guard.wording import duration, size
from app.planning.arithmetic import block_samples
from app.planning.residency import CHUNK_CACHE_BYTES, PIECE_BYTES
from app.spec.data import ChunkedLoader
from app.spec.run import RunSpec

MOST_AMPLIFICATION = 2.0
MOST_FILLING = 0.75
LARGER = {"/data/loader/chunk_size": "auto"}
KEPT = {"/data/loader/residency": "auto"}
BLOCKS = {"/data/loader/shuffle": "block", "/data/loader/shuffle_group": "auto"}


@rule(
    "speed.chunk_below_batch",
    stands_on="A batch from several chunks waits for each of them, and shuffled rows are read one "
    "by one where a chunk holds few of them.",
    measured_by="chunk_below_batch",
)
def chunk_below_batch(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A chunk holds at least one batch."""
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency == "resident":
        return
    plan = memory_plan(spec, facts)
    chunk = plan.data.chunk_samples
    batch = min(spec.training.batch_size, plan.need.train_samples)
    if plan.data.kind == "resident" or chunk >= batch:
        return
    larger = memory_plan(with_values(spec, LARGER), facts).data.chunk_samples
    yield Finding(
        ("data", "loader", "chunk_size"),
        f"A chunk holds {chunk:,} samples, and a batch {batch:,}.",
        f"A sample takes {size(plan.need.sample_bytes)}. Every batch would wait for "
        f"{-(-batch // chunk)} chunks, with no chunk read while another is in use.",
        LARGER if larger >= batch else {},
    )


@dataclass(frozen=True)
class Reading:
    """How the chunks of a streamed run take their rows from the file."""

    within: float
    """Of the samples that are shuffled together, those that one chunk takes."""
    around: float
    """Of all samples, those of one chunk, or of the group that it is a part of."""
    block: int
    """Neighbours that the order keeps together."""
    piece: int
    """Rows that are asked for at once at most."""
    remembers: bool = True
    """Whether a storage chunk that one read leaves in the cache is there for the next."""
    readers: int = 1
    """Processes that take turns with the batches, each of which unpacks for itself."""


def reading_of(spec: RunSpec, facts: Facts) -> Reading | None:
    """None where the data stays on the device; UnknownFact."""
    loader = spec.data.loader
    if isinstance(loader, ChunkedLoader) and loader.residency == "resident":
        return None
    plan = memory_plan(spec, facts)
    if plan.data.kind == "resident":
        return None
    need = plan.need
    if not isinstance(loader, ChunkedLoader):
        batch = min(spec.training.batch_size, need.train_samples)
        if loader.shuffle == "none":  # each process reads every so many batches
            readers = max(1, loader.num_workers)
            return Reading(1.0, 1.0, 1, batch, remembers=False, readers=readers)
        return Reading(batch / need.train_samples, 1.0, 1, batch)
    chunk = min(plan.data.chunk_samples, need.train_samples)
    piece = max(1, PIECE_BYTES // need.sample_bytes)
    kind, _ = order_of(spec, dataset_of(spec, facts), loader)
    if kind == "block":
        group = min(need.group_samples, need.train_samples)
        around = max(chunk, group) / need.train_samples
        block = block_samples(need.group_samples, need.sample_bytes)
        return Reading(min(1.0, chunk / group), around, block, piece)
    within = chunk / need.train_samples if kind == "full" else 1.0
    return Reading(within, 1.0, 1, piece)


def _gathered(
    spec: RunSpec, facts: Facts, helps: Callable[[RunSpec, Facts], bool]
) -> dict[str, Any]:
    """The first change that helps: larger chunks, which leave the order as it is, blocks, both, or
    data that stays on the device; of the PyTorch loader, the chunked one, in its order or in
    blocks. Nothing where none does.
    """
    ways: tuple[dict[str, Any], ...] = (LARGER, BLOCKS, {**LARGER, **BLOCKS}, KEPT)
    if not isinstance(spec.data.loader, ChunkedLoader):
        orders = (spec.data.loader.shuffle, "block")
        ways = tuple({"/data/loader": {"kind": "chunked", "shuffle": kind}} for kind in orders)
    for values in ways:
        if helps(with_values(spec, values), facts):
            return values
    return {}


def _place(fix: dict[str, Any]) -> Loc:
    """Chunks are too small where larger ones would do, batches where chunks would; otherwise the
    shuffle asks too much.
    """
    what = "kind" if "/data/loader" in fix else "chunk_size" if fix == LARGER else "shuffle"
    return ("data", "loader", what)


def read_amplification(array: FieldFacts, chunk_rows: int, reading: Reading) -> float:
    """How often an array is read in an epoch.

    The reader sorts a chunk's rows and reads each run of neighbours at once. A storage chunk that
    the cache holds is read once for each of the run's chunks that has a row of it, one that is
    larger for every run of neighbours. Of a packed record batch nothing is unpacked twice before
    the reader has gone on to the next.
    """
    within, around, block = reading.within, reading.around, reading.block
    aligned = gcd(chunk_rows, block)
    stays = chunk_rows * array.kept_bytes <= CHUNK_CACHE_BYTES or array.is_unpacked_in_batches
    if array.is_unpacked_in_batches and not reading.remembers:
        return float(min(reading.readers, max(1, -(-chunk_rows // reading.piece))))
    if reading.remembers and stays:
        blocks = 1 + (chunk_rows - aligned) / block  # that a storage chunk has a part of
        groups = (1 - (1 - around) ** blocks) / around
        return float(groups * (1 - (1 - within) ** (chunk_rows / groups)) / within)
    ends = 1 - within * (1 - (1 - around) / block)  # of runs of neighbours, for each row
    ends += (1 - ends) / reading.piece
    unbroken = within * (1 - (1 - around) * aligned / block)  # of the borders of storage chunks
    return max(1.0, float(chunk_rows * ends + unbroken * (1 - 1 / reading.piece)))


def _amplification(spec: RunSpec, facts: Facts) -> float:
    """Of all arrays of the run, by their bytes; 1 where they stay on the device; UnknownFact."""
    reading = reading_of(spec, facts)
    if reading is None:
        return 1.0
    dataset = dataset_of(spec, facts)
    read = useful = 0.0
    for array in fields_of(spec, dataset):
        storage = known(array.storage, f"how the arrays of {dataset.name} are stored")
        factor = 1.0
        in_chunks = storage == "chunked" and array.series_steps is None
        if in_chunks or array.is_unpacked_in_batches:
            rows = known(array.chunk_rows, f"the chunks of {dataset.name}")
            factor = read_amplification(array, rows, reading)
        useful += array.kept_bytes
        read += factor * array.kept_bytes
    return read / useful


def _is_read_about_once(spec: RunSpec, facts: Facts) -> bool:
    return _amplification(spec, facts) <= MOST_AMPLIFICATION


@rule(
    "speed.random_reads_of_chunks",
    stands_on="HDF5 reads and decompresses a storage chunk as a whole, and keeps 32 MiB of them; "
    "of Arrow files packed record batches are read so, and the last is kept. The factor follows "
    "from its rows and from how the reader sorts its own.",
    measured_by="random_reads_of_chunks",
)
def random_reads_of_chunks(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """The chunks of a file are read about once in an epoch, or cost less than a minute in all."""
    reading = reading_of(spec, facts)
    if reading is None:
        return
    factor = _amplification(spec, facts)
    if factor <= MOST_AMPLIFICATION:
        return
    dataset, plan = dataset_of(spec, facts), memory_plan(spec, facts)
    once = _reading_seconds(plan, dataset)
    if once is not None and (factor - 1) * once * epochs_of(spec, facts) <= LEAST_LOSS_SECONDS:
        return
    squeezed = any(array.compression for array in fields_of(spec, dataset))
    done = "read and decompressed" if squeezed else "read"
    fix = _gathered(spec, facts, _is_read_about_once)
    yield Finding(
        _place(fix),
        f"Every epoch would read the file about {factor:,.1f} times over.",
        f"It is stored in {_chunks(spec, facts)} that can only be {done} whole, and "
        f"{_told(reading)}." + _reading_time(dataset, once, factor) + _instead(fix, spec, facts),
        fix,
    )


def _chunks(spec: RunSpec, facts: Facts) -> str:
    arrays = fields_of(spec, dataset_of(spec, facts))
    is_arrow = any(array.is_unpacked_in_batches for array in arrays)
    return "record batches" if is_arrow else "chunks"


def _told(reading: Reading) -> str:
    """What does not go with the storage chunks, in words."""
    if reading.within < 1:
        return (
            f"each read of the run takes {reading.within:.1%} of the samples that are shuffled "
            "together"
        )
    if reading.block > 1:
        return f"the order keeps no more than {reading.block:,} neighbours together"
    return f"a read takes no more than {reading.piece:,} rows"


def _instead(fix: dict[str, Any], spec: RunSpec, facts: Facts) -> str:
    if not fix:
        chunked = isinstance(spec.data.loader, ChunkedLoader)
        values = BLOCKS if chunked else {"/data/loader": {"kind": "chunked", "shuffle": "block"}}
        blocks = _amplification(with_values(spec, values), facts)
        fewer = blocks < _amplification(spec, facts)
        least = f" In blocks it would still be {blocks:,.1f} times." if fewer else ""
        return (
            f"{least} No loader's setting mends that; a file without chunks, or with chunks of few "
            f"rows and at most {size(CHUNK_CACHE_BYTES)}, does."
        )
    after = _amplification(with_values(spec, fix), facts)
    return f" With the fix it is about {after:,.1f} times; a file without chunks is read once."


def _reading_seconds(plan: MemoryPlan, dataset: DatasetFacts) -> float | None:
    """What an epoch takes to read once at the rate of the inspection; None where there is none."""
    if dataset.read_bytes_per_second is None:
        return None
    return plan.need.train_samples * plan.need.sample_bytes / dataset.read_bytes_per_second


def _reading_time(dataset: DatasetFacts, once: float | None, factor: float) -> str:
    """What the factor comes to."""
    if once is None or dataset.read_bytes_per_second is None:
        return ""
    return (
        f" At the {size(dataset.read_bytes_per_second)} a second that its inspection read, an "
        f"epoch waits {duration(factor * once)} for its data and not {duration(once)}."
    )


@rule(
    "speed.network_full_shuffle",
    stands_on="Every run of neighbouring rows is a request of its own, and a round trip in a data "
    "centre takes half a millisecond (Dean, Numbers everyone should know, 2009), beside the "
    "storage's own work. Timing it needs network storage; not timed here.",
)
def network_full_shuffle(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """What streams from network storage is read in whole pieces."""
    reading = reading_of(spec, facts)
    if reading is None or reading.within == 1:
        return
    dataset = dataset_of(spec, facts)
    if not known(dataset.network, f"whether {dataset.name} is on network storage"):
        return
    need = memory_plan(spec, facts).need
    requests = int(need.train_samples * (1 - reading.within))
    fix = _gathered(spec, facts, _is_in_order)
    yield Finding(
        _place(fix),
        "The file is on network storage, and its rows would be read one by one.",
        f"About {requests:,} requests of {size(need.sample_bytes)} an epoch: at a millisecond "
        f"each, {duration(requests / 1000)} of waiting. A chunk that holds all that is shuffled "
        "together is read in large pieces.",
        fix,
    )


def _is_in_order(spec: RunSpec, facts: Facts) -> bool:
    reading = reading_of(spec, facts)
    return reading is None or reading.within == 1


@rule(
    "speed.mostly_filling",
    severity="warning",
    stands_on="All samples of a batch have the steps of the longest: a step of the recipe's "
    "defaults with 128 samples of 24 hours took 1.4 ms, and filled up to 240 hours 7.4.",
    measured_by="mostly_filling",
)
def mostly_filling(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """Samples of different lengths are filled up to no more than four times their mean."""
    dataset = as_read(spec, facts)
    for position, name in enumerate(spec.data.inputs):
        array = dataset.fields.get(name)
        if array is None or array.lengths is None or not array.lengths.mean:
            continue
        longest, mean = array.shape[0], array.lengths.mean
        if 1 - mean / longest <= MOST_FILLING:
            continue
        yield Finding(
            ("data", "inputs", position),
            f"Samples of {name!r} have {mean:,.1f} values on average, and in a batch each is "
            f"filled up to {longest:,}: {1 - mean / longest:.0%} of it are zeros.",
            f"A batch takes {longest / mean:,.0f} times the memory and the steps of its values. "
            "Where few samples are so long, cut them or leave them out of the file: pad_ragged of "
            "worker.trainer.data.ragged_files writes the first values of each.",
        )


@rule(
    "memory.chunk_size_unused",
    severity="warning",
    stands_on="Data that stays on the device is read once, and never in chunks.",
)
def chunk_size_unused(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A chunk size is given where the data may be read in chunks."""
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency != "resident":
        return
    if loader.chunk_size != "auto":
        kept = memory_plan(spec, facts).need.kept_bytes
        yield Finding(
            ("data", "loader", "chunk_size"),
            f"All {size(kept)} of data stay on the device, so a chunk size of {loader.chunk_size} "
            "has no effect.",
            "It is the size of what is read at once under residency stream, and under auto where "
            "the data does not fit.",
            LARGER,
        )


RULES = (
    chunk_size_unused,
    chunk_below_batch,
    random_reads_of_chunks,
    network_full_shuffle,
    mostly_filling,
)
