"""Rules about data.loader: what is read at once, in which order, and what stays on the device."""

from collections.abc import Callable, Iterator
from typing import Any

from app.guard.case import Case, Loc
from app.guard.facts import DatasetFacts, UnknownFact, known
from app.guard.memory.memory_plan import MemoryPlan
from app.guard.reads import Reading
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.wording import duration, size
from app.planning.residency import CHUNK_CACHE_BYTES, LEAST_RESERVE_BYTES
from app.spec.data import ChunkedLoader, DataLoaderLoader

MOST_AMPLIFICATION = 2.0
# A batch that is worth less of its samples pays for more computing than it learns from.
LEAST_WORTH = 0.5
LARGER = {"/data/loader/chunk_size": "auto"}
KEPT = {"/data/loader/residency": "auto"}
OPEN_SIZES = {"/data/loader/shuffle_group": "auto", "/data/loader/shuffle_block": "auto"}
BLOCKS = {"/data/loader/shuffle": "block"} | OPEN_SIZES
FULL = {"/data/loader/shuffle": "full"} | OPEN_SIZES
CHUNKED = {"/data/loader": {"kind": "chunked"}}
SMALL_BYTES = 64 * 2**10


@rule(
    "learning.sorted_blocks",
    stands_on="`python -m benchmarks sorted`: on windows sorted by their targets, blocks end with "
    "an error that is 2 to 7 % above that of a full shuffle, and no shuffle with 25 to 30 % more.",
)
def sorted_blocks(case: Case) -> Iterator[Finding]:
    """Data that is sorted by its target is shuffled as a whole."""
    loader, kind = case.spec.data.loader, case.shuffle.kind
    name = case.sorted_target if kind != "full" and not _is_mixed(case) else None
    if name is not None:
        how = "in groups of neighbouring blocks" if kind == "block" else "not at all"
        yield Finding(
            ("data", "loader", "shuffle"),
            f"The file is sorted by {name!r}, and the samples are shuffled {how}.",
            "Long stretches of steps would see nearly one target value each, and unlearn the rest.",
            FULL if isinstance(loader, ChunkedLoader) else {"/data/loader/shuffle": "full"},
        )


def _is_mixed(case: Case) -> bool:
    """Returns whether a batch is known to be worth half of its samples."""
    try:
        worth = case.batch_worth
    except UnknownFact:
        return False
    return worth is not None and worth.share >= LEAST_WORTH


@rule(
    "learning.alike_batches",
    severity="warning",
    stands_on="The variance of a batch's mean target over that of independent samples (Cochran, "
    "Sampling Techniques, 1977, 9.2), by the variance of block means that the inspection measured; "
    "`python -m benchmarks batches` compares it with batches that were drawn.",
)
def alike_batches(case: Case) -> Iterator[Finding]:
    """A batch is worth half of its samples at least, as independent ones."""
    worth = case.batch_worth
    if worth is None or worth.share >= LEAST_WORTH:
        return
    if case.shuffle.kind != "full" and case.sorted_target is not None:
        return  # `learning.sorted_blocks` says it
    fix = _mixed(case)
    after = _with(case, fix).batch_worth if fix else None
    instead = f" With the fix it is {after.independent:,.0f}." if after is not None else ""
    yield Finding(
        ("data", "loader", "shuffle"),
        f"A batch of {worth.samples:,} samples is worth about {worth.independent:,.0f} independent "
        f"ones.",
        f"Neighbours in the file have alike values of {worth.target!r}, and {_drawn(case)}. The "
        f"gradients of such a batch are as noisy as those of the smaller one.{instead}",
        fix,
    )


def _drawn(case: Case) -> str:
    """Returns a clause that says how a batch is drawn."""
    shuffle = case.shuffle
    if shuffle.kind == "none":
        return "a batch is made of neighbours"
    return (
        f"a batch is drawn from {max(1, shuffle.group // shuffle.block):,} blocks of "
        f"{shuffle.block:,} neighbours"
    )


def _mixed(case: Case) -> dict[str, Any]:
    """The first order whose batches are worth half of their samples, and that reads the file about
    once; nothing where none does.
    """
    if not isinstance(case.spec.data.loader, ChunkedLoader):
        return {"/data/loader/shuffle": "full"}
    for values in (FULL, BLOCKS) if case.reading is None else (BLOCKS, FULL):
        changed = _with(case, values)
        if _is_mixed(changed) and _is_read_about_once(changed):
            return values
    return {}


@rule(
    "memory.resident_does_not_fit",
    overridable=False,
    stands_on="The trainer keeps a tenth of what is free, 0.5 GiB at least, for the model.",
)
def resident_does_not_fit(case: Case) -> Iterator[Finding]:
    """Data that is to stay on the device fits there, beside a reserve for the model."""
    loader = case.spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency != "resident":
        return
    plan, loc = case.memory, ("data", "loader", "residency")
    if not plan.data_memory.limit_bytes:
        yield nothing_left_for_data(case, loc)
    elif plan.data.needed_bytes > plan.data_memory.limit_bytes:
        yield Finding(
            loc,
            f"The data takes {size(plan.data.needed_bytes)}, and "
            f"{size(plan.data_memory.limit_bytes)} are available for it.",
            "The trainer would refuse to begin; what is read in chunks needs a part of that, and "
            "is read while the chunk before is in use.",
            {"/data/loader/residency": "auto"},
        )


def nothing_left_for_data(case: Case, loc: Loc) -> Finding:
    """What no spec would mend: there is less than the trainer keeps for the model."""
    device = case.device
    on_cpu = device.kind == "cpu"
    free = (device.host.available_bytes if on_cpu else device.free_memory_bytes) or 0
    imports = f" beside {size(device.host.imports.trainer)} for its imports" if on_cpu else ""
    return Finding(
        loc,
        f"The {'host' if on_cpu else device.name} has only {size(free)} available.",
        f"The trainer keeps {size(LEAST_RESERVE_BYTES)} for the model{imports}, so nothing is left "
        "for data. It can train once others have given memory back, or on another worker.",
    )


@rule(
    "memory.chunk_size_unused",
    severity="warning",
    stands_on="Data that stays on the device is read once, and never in chunks.",
)
def chunk_size_unused(case: Case) -> Iterator[Finding]:
    """A chunk size is given where the data may be read in chunks."""
    loader = case.spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency != "resident":
        return
    if loader.chunk_size != "auto":
        kept = case.memory.need.kept_bytes
        yield Finding(
            ("data", "loader", "chunk_size"),
            f"All {size(kept)} of data stay on the device, so a chunk size of {loader.chunk_size} "
            "has no effect.",
            "It is the size of what is read at once under residency stream, and under auto where "
            "the data does not fit.",
            LARGER,
        )


@rule(
    "speed.chunk_below_batch",
    stands_on="A batch from several chunks waits for each of them, and shuffled rows are read one "
    "by one where a chunk holds few of them.",
    measured_by="chunk_below_batch",
)
def chunk_below_batch(case: Case) -> Iterator[Finding]:
    """A chunk holds at least one batch."""
    loader = case.spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency == "resident":
        return
    plan = case.memory
    chunk = plan.data.chunk_samples
    batch = plan.batch
    if plan.data.kind == "resident" or chunk >= batch:
        return
    larger = case.with_values(LARGER).memory.data.chunk_samples
    yield Finding(
        ("data", "loader", "chunk_size"),
        f"A chunk holds {chunk:,} samples, and a batch {batch:,}.",
        f"A sample takes {size(plan.need.sample_bytes)}. Every batch would wait for "
        f"{-(-batch // chunk)} chunks, with no chunk read while another is in use.",
        LARGER if larger >= batch else {},
    )


def _gathered(case: Case, helps: Callable[[Case], bool]) -> dict[str, Any]:
    """The first change that helps: larger chunks, which leave the order as it is, blocks, both, or
    data that stays on the device; of the PyTorch loader, the chunked one, in its order or in
    blocks. Nothing where none does.
    """
    ways: tuple[dict[str, Any], ...] = (LARGER, BLOCKS, {**LARGER, **BLOCKS}, KEPT)
    if not isinstance(loader := case.spec.data.loader, ChunkedLoader):
        orders = (loader.shuffle, "block")
        ways = tuple({"/data/loader": {"kind": "chunked", "shuffle": kind}} for kind in orders)
    for values in ways:
        if helps(_with(case, values)):
            return values
    return {}


def _with(case: Case, values: dict[str, Any]) -> Case:
    """Returns the case with a fix, as it would be settled at its submission."""
    changed = case.with_values(values)
    return changed.with_values(changed.settled_order)


def _place(fix: dict[str, Any]) -> Loc:
    """Chunks are too small where larger ones would do, batches where chunks would; otherwise the
    shuffle asks too much.
    """
    what = "kind" if "/data/loader" in fix else "chunk_size" if fix == LARGER else "shuffle"
    return ("data", "loader", what)


def _is_read_about_once(case: Case) -> bool:
    return case.amplification <= MOST_AMPLIFICATION


@rule(
    "speed.random_reads_of_chunks",
    stands_on="HDF5 reads and decompresses a storage chunk as a whole, and keeps 32 MiB of them; "
    "of Arrow files packed record batches are read so, and the last is kept. The factor follows "
    "from its rows and from how the reader sorts its own.",
    measured_by="random_reads_of_chunks",
)
def random_reads_of_chunks(case: Case) -> Iterator[Finding]:
    """The chunks of a file are read about once in an epoch, or cost less than a minute in all."""
    reading = case.reading
    if reading is None:
        return
    factor = case.amplification
    if factor <= MOST_AMPLIFICATION:
        return
    dataset, plan = case.dataset, case.memory
    once = _reading_seconds(plan, dataset)
    if once is not None and (factor - 1) * once * case.epochs <= LEAST_LOSS_SECONDS:
        return
    squeezed = any(array.compression for array in case.arrays.values())
    done = "read and decompressed" if squeezed else "read"
    fix = _gathered(case, _is_read_about_once)
    yield Finding(
        _place(fix),
        f"Every epoch would read the file about {factor:,.1f} times over.",
        f"It is stored in {_chunks(case)} that can only be {done} whole, and "
        f"{_told(reading)}." + _reading_time(dataset, once, factor) + _instead(fix, case),
        fix,
    )


def _chunks(case: Case) -> str:
    arrays = case.arrays.values()
    is_arrow = any(array.is_read_in_batches for array in arrays)
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


def _instead(fix: dict[str, Any], case: Case) -> str:
    if not fix:
        chunked = isinstance(case.spec.data.loader, ChunkedLoader)
        values = BLOCKS if chunked else {"/data/loader": {"kind": "chunked", "shuffle": "block"}}
        blocks = _with(case, values).amplification
        fewer = blocks < case.amplification
        least = f" In blocks it would still be {blocks:,.1f} times." if fewer else ""
        return (
            f"{least} No loader's setting mends that; a file without chunks, or with chunks of few "
            f"rows and at most {size(CHUNK_CACHE_BYTES)}, does."
        )
    after = _with(case, fix).amplification
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
    "speed.reading_slower_than_step",
    severity="warning",
    stands_on="Samples a second of steps alone, as like runs or a probe made them, and bytes a "
    "second that the inspection of the file read. Reading hangs on the disk; not timed here.",
)
def reading_slower_than_step(case: Case) -> Iterator[Finding]:
    """A file is read as fast as the steps use it up, or the steps wait for less than a minute."""
    reading = None if case.dataset_arrays is not None else case.reading
    profile = None if reading is None else case.memory.profile
    rate = None if profile is None else profile.rates.get(case.memory.batch)
    if rate is None:
        return
    need, given = case.memory.need, case.dataset.read_bytes_per_second
    given = known(given, f"how fast {case.dataset.name} can be read")
    asked = rate * need.sample_bytes * case.amplification
    read = need.train_samples * need.sample_bytes * case.amplification * case.epochs
    lost = read / given - read / asked
    if lost <= LEAST_LOSS_SECONDS:
        return
    kept = KEPT if isinstance(case.spec.data.loader, ChunkedLoader) else CHUNKED
    stays = case.with_values(kept).reading is None
    instead = (
        "It all fits on the device, where it is read once."
        if stays
        else "Fewer bytes a sample (a narrower type, windows kept as their series: `stoker data "
        "convert`) or a faster disk would give them more."
    )
    yield Finding(
        ("data", "loader", "residency" if kept is KEPT else "kind"),
        f"The steps take {size(asked)} a second, and the file gives {size(given)}.",
        f"Like runs made {rate:,.0f} samples a second of {size(need.sample_bytes)} each. The steps "
        f"would wait {duration(lost)} of the run for their data. {instead}",
        kept if stays else {},
    )


@rule(
    "speed.network_full_shuffle",
    stands_on="Every run of neighbouring rows is a request of its own, and a round trip in a data "
    "centre takes half a millisecond (Dean, Numbers everyone should know, 2009), beside the "
    "storage's own work. Timing it needs network storage; not timed here.",
)
def network_full_shuffle(case: Case) -> Iterator[Finding]:
    """What streams from network storage is read in whole pieces."""
    reading = case.reading
    if reading is None or reading.within == 1:
        return
    dataset = case.dataset
    if not known(dataset.network, f"whether {dataset.name} is on network storage"):
        return
    need = case.memory.need
    requests = int(need.train_samples * (1 - reading.within))
    fix = _gathered(case, _is_in_order)
    yield Finding(
        _place(fix),
        "The file is on network storage, and its rows would be read one by one.",
        f"About {requests:,} requests of {size(need.sample_bytes)} an epoch: at a millisecond "
        f"each, {duration(requests / 1000)} of waiting. A chunk that holds all that is shuffled "
        "together is read in large pieces.",
        fix,
    )


def _is_in_order(case: Case) -> bool:
    reading = case.reading
    return reading is None or reading.within == 1


@rule(
    "speed.chunked_is_faster",
    severity="warning",
    stands_on="The arms of `python -m benchmarks loading` in turn, 3 to 5 rounds on 2 busy cores: "
    "shuffled samples of 23 KiB come 2 to 4 times as fast by the chunked loader; of 235 KiB as "
    "fast by either.",
    measured_by="chunked_is_faster",
)
def chunked_is_faster(case: Case) -> Iterator[Finding]:
    """Rows of a file come by the chunked loader where it keeps them on the device, or where they
    are small and shuffled."""
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader) or case.dataset_arrays is not None:
        return
    fix = {"/data/loader": {"kind": "chunked", "shuffle": loader.shuffle}}
    plan = case.with_values(fix).memory
    need = plan.need
    epochs = case.epochs
    stays = plan.data.kind == "resident" and epochs > 1
    is_small = need.sample_bytes < SMALL_BYTES and loader.shuffle == "full"
    if not (stays or is_small) or not (plan.fits and plan.data.holds(plan.batch)):
        return
    yield Finding(
        ("data", "loader", "kind"),
        "The chunked loader brings the same samples in the same order, faster.",
        (
            f"It would keep all {size(need.kept_bytes)} on the device and read them once, not in "
            f"each of {epochs:,.3g} epochs."
            if stays
            else f"It would read shuffled samples of {size(need.sample_bytes)} in the order of the "
            "file, a chunk at a time and not a batch, which is 2 to 4 times as fast."
        )
        + " The PyTorch loader is for what no file of arrays holds, and to compare with.",
        fix,
    )


@rule(
    "correctness.carried_state",
    overridable=False,
    stands_on="Truncated back-propagation through time: a state means something only to the window "
    "that follows the one which left it.",
)
def carried_state(case: Case) -> Iterator[Finding]:
    """A state that is carried on goes to the next window of its lane, in whole batches."""
    spec = case.spec
    if not spec.recipe.carries_state:
        return
    if spec.data.loader.shuffle != "lanes":
        yield Finding(
            ("data", "loader", "shuffle"),
            f"The recipe carries a state to the next window, and shuffle "
            f"{spec.data.loader.shuffle} puts another one there.",
            "Each place of a batch would go on with the state of a window that has nothing to do "
            "with its own. In lanes each place goes through a stretch of the file in order.",
            {"/data/loader/shuffle": "lanes"},
        )
    if not spec.training.drop_last:
        yield Finding(
            ("training", "drop_last"),
            "A carried state needs whole batches, and the last one of an epoch may be smaller.",
            f"Each of the {spec.training.batch_size:,} places of a batch has a state of its own.",
            {"/training/drop_last": True},
        )
    yield from _windows_that_overlap(case)


def _windows_that_overlap(case: Case) -> Iterator[Finding]:
    dataset, data = case.dataset, case.spec.data
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    carried = case.spec.recipe.carried_inputs(data)
    apart = tuple(name for name in carried if name not in moved_on)
    only_apart = case.spec.recipe.carrying(apart) if apart else {}
    for name in carried:
        array = dataset.fields.get(name)
        if array is None or name not in moved_on or name not in data.inputs:
            continue
        window, by = array.shape[0], moved_on[name]
        yield Finding(
            ("data", "inputs", data.inputs.index(name)),
            f"Windows of {name!r} overlap: each has {window:,} steps, and the next begins {by:,} "
            "further.",
            "The state that is carried on has seen most of the next window already. Cut samples "
            f"that follow each other (`stoker data convert` with --every {window}, and windows of "
            "all timeframes that span the same time), or carry the state of other inputs alone.",
            {f"/recipe/{name}": value for name, value in only_apart.items()},
        )
