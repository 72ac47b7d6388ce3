"""Rules about how rows come from the file: chunks that hold a batch, reads that follow the file."""

from collections.abc import Iterator

from app.guard.derived import dataset_of
from app.guard.facts import DatasetFacts, Facts, FieldFacts, known
from app.guard.memory import MemoryPlan, fields_of, memory_plan
from app.guard.memory_fit import with_values
from app.guard.rule import Finding, rule
from app.guard.wording import size
from app.spec.arithmetic import resolved_shuffle
from app.spec.data import ChunkedLoader
from app.spec.run import RunSpec

# What HDF5 2.0 keeps of an array's chunks unless told otherwise; a larger chunk is read, and
# decompressed, anew by every read that touches it.
CHUNK_CACHE_BYTES = 8 * 2**20
MOST_AMPLIFICATION = 2.0
BLOCKS = {"/data/loader/shuffle": "block", "/data/loader/shuffle_group": "auto"}


@rule(
    "speed.chunk_below_batch",
    stands_on="A batch from several chunks waits for each of them and is put together once more. "
    "Not timed here yet.",
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
    automatic = {"/data/loader/chunk_size": "auto"}
    larger = memory_plan(with_values(spec, automatic), facts).data.chunk_samples
    yield Finding(
        ("data", "loader", "chunk_size"),
        f"A chunk holds {chunk:,} samples, and a batch {batch:,}.",
        f"A sample takes {size(plan.need.sample_bytes)}. Every batch would wait for "
        f"{-(-batch // chunk)} chunks, with no chunk read while another is in use.",
        automatic if larger >= batch else {},
    )


def _streamed_fully_shuffled(spec: RunSpec, facts: Facts) -> MemoryPlan | None:
    """The plan of a run that reads rows from all over the file for each chunk."""
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency == "resident":
        return None
    dataset = dataset_of(spec, facts)
    total = known(dataset.size_bytes, f"the size of {dataset.name}")
    if resolved_shuffle(loader, total)[0] != "full":
        return None
    plan = memory_plan(spec, facts)
    one_pass = plan.data.chunk_samples >= plan.need.train_samples
    return None if plan.data.kind == "resident" or one_pass else plan


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
    "rows and from how the reader sorts its own. Not timed here yet.",
)
def random_reads_of_chunks(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """Chunked files are not read row by row from all over."""
    plan = _streamed_fully_shuffled(spec, facts)
    if plan is None:
        return
    dataset = dataset_of(spec, facts)
    share = plan.data.chunk_samples / plan.need.train_samples
    factor = _amplification(spec, dataset, share)
    if factor <= MOST_AMPLIFICATION:
        return
    squeezed = any(array.compression for array in fields_of(spec, dataset))
    done = "read and decompressed" if squeezed else "read"
    yield Finding(
        ("data", "loader", "shuffle"),
        f"Every epoch would read the file about {factor:,.0f} times over.",
        f"It is stored in chunks that can only be {done} whole, and each of the run's chunks takes "
        f"{share:.1%} of the samples from all over it. Shuffled in blocks it is read about once; "
        "written without chunks, row by row would do.",
        BLOCKS,
    )


@rule(
    "speed.network_full_shuffle",
    stands_on="Every run of neighbouring rows is a request of its own, and network storage answers "
    "in about a millisecond. Not timed here yet.",
)
def network_full_shuffle(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """What streams from network storage is read in blocks."""
    plan = _streamed_fully_shuffled(spec, facts)
    if plan is None:
        return
    dataset = dataset_of(spec, facts)
    if not known(dataset.network, f"whether {dataset.name} is on network storage"):
        return
    share = plan.data.chunk_samples / plan.need.train_samples
    requests = int(plan.need.train_samples * (1 - share))
    yield Finding(
        ("data", "loader", "shuffle"),
        "The file is on network storage, and its rows would be read one by one.",
        f"About {requests:,} requests of {size(plan.need.sample_bytes)} an epoch: at a millisecond "
        f"each, {requests / 1000:,.0f} seconds of waiting. Blocks are read at once.",
        BLOCKS,
    )


RULES = (chunk_below_batch, random_reads_of_chunks, network_full_shuffle)
