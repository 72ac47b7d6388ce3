"""Rules about how rows come from the file: chunks that hold a batch, reads that follow the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.guard.derived import dataset_of
from app.guard.facts import DatasetFacts, Facts, FieldFacts, known
from app.guard.memory import MemoryPlan, fields_of, memory_plan
from app.guard.memory_fit import with_values
from app.guard.rule import Finding, Loc, rule
from app.guard.wording import duration, size
from app.spec.arithmetic import resolved_shuffle
from app.spec.data import ChunkedLoader
from app.spec.run import RunSpec

# What HDF5 2.0 keeps of an array's chunks unless told otherwise; a larger chunk is read, and
# decompressed, anew by every read that touches it.
CHUNK_CACHE_BYTES = 8 * 2**20
MOST_AMPLIFICATION = 2.0
LARGER = {"/data/loader/chunk_size": "auto"}
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
    chunk, batch = plan.data.chunk_samples, spec.training.batch_size
    if plan.data.kind == "resident" or chunk >= min(batch, plan.need.train_samples):
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
class Scatter:
    """Chunks of a run that do not hold all that is shuffled together, so that the rows of each
    come from all over it.
    """

    plan: MemoryPlan
    share: float
    """Of the samples that are shuffled together, those that one chunk takes."""

    @property
    def reads(self) -> int:
        """Runs of neighbouring rows in an epoch, each of which is a read of its own."""
        return int(self.plan.need.train_samples * (1 - self.share))


def scatter_of(spec: RunSpec, facts: Facts) -> Scatter | None:
    """None where each chunk is read in the order of the file; UnknownFact."""
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency == "resident":
        return None
    dataset = dataset_of(spec, facts)
    total = known(dataset.size_bytes, f"the size of {dataset.name}")
    kind = resolved_shuffle(loader, total)[0]
    if kind == "none":
        return None
    plan = memory_plan(spec, facts)
    need, chunk = plan.need, plan.data.chunk_samples
    together = (
        min(need.group_samples, need.train_samples) if kind == "block" else need.train_samples
    )
    if plan.data.kind == "resident" or chunk >= together:
        return None
    return Scatter(plan, chunk / together)


def _gathered(spec: RunSpec, facts: Facts) -> dict[str, Any]:
    """The first change after which chunks hold what is shuffled together: larger ones, which leave
    the order as it is, or blocks.
    """
    for values in (LARGER, BLOCKS, {**LARGER, **BLOCKS}):
        if scatter_of(with_values(spec, values), facts) is None:
            return values
    return {}


def _place(fix: dict[str, Any]) -> Loc:
    """Chunks are too small where larger ones would do; otherwise the shuffle asks too much."""
    return ("data", "loader", "chunk_size" if fix == LARGER else "shuffle")


def read_amplification(array: FieldFacts, chunk_rows: int, share: float) -> float:
    """How often an array is read in an epoch in which each chunk takes a `share` of its rows.

    The reader sorts a chunk's rows and reads each run of neighbours at once. A storage chunk that
    the cache holds is read once for all of them, one that is larger for every run.
    """
    storage_bytes = chunk_rows * array.sample_bytes
    if storage_bytes <= CHUNK_CACHE_BYTES:
        return float((1 - (1 - share) ** chunk_rows) / share)
    return float(chunk_rows * (1 - share) + 1)


def _amplification(spec: RunSpec, dataset: DatasetFacts, share: float) -> float:
    """Of all arrays of the run, by their bytes; UnknownFact."""
    read = useful = 0.0
    for array in fields_of(spec, dataset):
        storage = known(array.storage, f"how the arrays of {dataset.name} are stored")
        factor = 1.0
        if storage == "chunked":
            rows = known(array.chunk_rows, f"the chunks of {dataset.name}")
            factor = read_amplification(array, rows, share)
        useful += array.sample_bytes
        read += factor * array.sample_bytes
    return read / useful


@rule(
    "speed.random_reads_of_chunks",
    stands_on="HDF5 reads and decompresses a storage chunk as a whole; the factor follows from its "
    "rows and from how the reader sorts its own.",
    measured_by="random_reads_of_chunks",
)
def random_reads_of_chunks(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """Chunked files are not read row by row from all over."""
    scatter = scatter_of(spec, facts)
    if scatter is None:
        return
    dataset = dataset_of(spec, facts)
    factor = _amplification(spec, dataset, scatter.share)
    if factor <= MOST_AMPLIFICATION:
        return
    squeezed = any(array.compression for array in fields_of(spec, dataset))
    done = "read and decompressed" if squeezed else "read"
    fix = _gathered(spec, facts)
    yield Finding(
        _place(fix),
        f"Every epoch would read the file about {factor:,.0f} times over.",
        f"It is stored in chunks that can only be {done} whole, and each of the run's own takes "
        f"{scatter.share:.1%} of the samples that are shuffled together."
        + _reading_time(scatter.plan, dataset, factor)
        + " A chunk that holds them all reads the file about once; so would any on a file without "
        "chunks.",
        fix,
    )


def _reading_time(plan: MemoryPlan, dataset: DatasetFacts, factor: float) -> str:
    """What the factor comes to at the rate of the inspection, where there is one."""
    if dataset.read_bytes_per_second is None:
        return ""
    once = plan.need.train_samples * plan.need.sample_bytes / dataset.read_bytes_per_second
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
    scatter = scatter_of(spec, facts)
    if scatter is None:
        return
    dataset = dataset_of(spec, facts)
    if not known(dataset.network, f"whether {dataset.name} is on network storage"):
        return
    fix = _gathered(spec, facts)
    yield Finding(
        _place(fix),
        "The file is on network storage, and its rows would be read one by one.",
        f"About {scatter.reads:,} requests of {size(scatter.plan.need.sample_bytes)} an epoch: at "
        f"a millisecond each, {duration(scatter.reads / 1000)} of waiting. A chunk that holds all "
        "that is shuffled together is read in large pieces.",
        fix,
    )


RULES = (chunk_below_batch, random_reads_of_chunks, network_full_shuffle)
