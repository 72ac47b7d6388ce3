"""Rules about memory and disk: what the plan comes to has its place."""

from collections.abc import Iterator
from typing import Any

from app.guard.case import Case, Loc
from app.guard.facts import known
from app.guard.memory.budget import Budget
from app.guard.memory.fitting import (
    MOST_PARTS,
    fewer_processes,
    fitting,
    fitting_batch,
    largest_chunk,
)
from app.guard.memory.memory_plan import MemoryPlan
from app.guard.rule import Finding, rule
from app.guard.wording import size
from app.planning.residency import LEAST_RESERVE_BYTES
from app.spec.data import ChunkedLoader

LARGE_WINDOWS_BYTES = 2**30
MEASURED = "The memory plan, which is held against measured peaks: docs/memory.md."


def _largest(budget: Budget) -> str:
    """What takes most of the peak, in words."""
    phase = max(budget.peaks, key=lambda name: budget.peaks[name])
    items = [item for item in budget.items if phase in item.phases]
    most = sorted(items, key=lambda item: item.bytes, reverse=True)[:3]
    told = ", ".join(f"{item.name.replace('_', ' ')} {size(item.bytes)}" for item in most)
    return f"While {phase} the largest are {told}."


@rule("memory.over_budget", stands_on=MEASURED)
def over_budget(case: Case) -> Iterator[Finding]:
    """Model, batch and data fit into what is free on the device, beside the runs that are there,
    and the slots of chunks into what the trainer gives to data."""
    case = case.read_in_trainer  # of which loader_over_budget tells
    plan = case.memory
    budget = plan.with_model
    if plan.data.kind == "stream" and plan.data.needed_bytes > plan.data_memory.limit_bytes:
        yield _slots_over(case, plan)
        return
    if not budget.is_over:
        return
    device = case.device
    where = "host, beside the trainer's imports" if plan.device is None else device.name
    least, tried = "", ""
    if plan.measured is not None and plan.measured.ran_out is not None:
        least, tried = "at least ", f" One step was tried: {plan.measured.ran_out[2]}"
    fix = fitting(case)
    other = "" if fix else f" {_what_would_fit(case)}"
    yield Finding(
        ("training", "batch_size"),
        f"The run would take {least}{size(budget.peak_bytes)}, and "
        f"{size(budget.available_bytes or 0)} are available on the {where}.",
        f"It would run out of memory. {_largest(budget)}{tried}{other}",
        fix,
    )


def _slots_over(case: Case, plan: MemoryPlan) -> Finding:
    """More than the trainer, which keeps a reserve for the model, would begin with."""
    limit, loc = plan.data_memory.limit_bytes, ("data", "loader", "chunk_size")
    asked = getattr(case.spec.data.loader, "chunk_size", "auto")
    if not limit:
        return _nothing_left(case, loc)
    return Finding(
        loc,
        f"Chunks of {asked} make slots of {size(plan.data.needed_bytes)}; {size(limit)} may be "
        "used for them.",
        "A part of the data that is not read at once has two slots, one in use and one being "
        "filled; what they leave has to hold model, optimizer and activations.",
        _smaller_chunk(case, limit),
    )


def _what_would_fit(case: Case) -> str:
    """What is left where no change fits that keeps the effective batch."""
    batch = fitting_batch(case)
    if batch is None:
        return "A batch of one sample does not fit either."
    return (
        f"No smaller chunk fits, and no cut of the batch into at most {MOST_PARTS} equal parts. "
        f"A batch of {batch:,} does, but it would be another training."
    )


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
        yield _nothing_left(case, loc)
    elif plan.data.needed_bytes > plan.data_memory.limit_bytes:
        yield Finding(
            loc,
            f"The data takes {size(plan.data.needed_bytes)}, and "
            f"{size(plan.data_memory.limit_bytes)} are available for it.",
            "The trainer would refuse to begin; what is read in chunks needs a part of that, and "
            "is read while the chunk before is in use.",
            {"/data/loader/residency": "auto"},
        )


def _nothing_left(case: Case, loc: Loc) -> Finding:
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


def _smaller_chunk(case: Case, limit: int) -> dict[str, Any]:
    for size_asked in ("75%", "auto"):
        values = {"/data/loader/chunk_size": size_asked}
        plan = case.with_values(values).memory
        if plan.data.needed_bytes <= limit and plan.fits and plan.data.holds(plan.batch):
            return values
    return largest_chunk(case) or {}


@rule("memory.host_over_budget", stands_on=MEASURED)
def host_over_budget(case: Case) -> Iterator[Finding]:
    """What a run on a GPU takes of its host is free there."""
    if case.device.kind == "cpu":
        return  # its host is the device: memory.over_budget
    host = case.read_in_trainer.memory.host
    known(host.available_bytes, "the available memory of the host")
    if host.is_over:
        yield Finding(
            ("runtime", "device"),
            f"The run would take {size(host.peak_bytes)} of the host's memory, and "
            f"{size(host.available_bytes or 0)} are available, beside the trainer's imports.",
            f"The kernel would end it, or another program. {_largest(host)}",
            _less_of_host(case),
        )


def _less_of_host(case: Case) -> dict[str, Any]:
    """The first change that makes it fit and leaves what is learned as it is: no compiler, data
    that stays on the device and needs staging only at the start, or both. Nothing where none does.
    """
    spec = case.spec
    eager: dict[str, Any] = {"/runtime/compile/mode": "none"}
    ways = [eager] if spec.runtime.compile.mode != "none" else []
    if isinstance(spec.data.loader, ChunkedLoader) and spec.data.loader.residency == "stream":
        stays = {"/data/loader/residency": "auto"}
        ways += [stays, *(way | stays for way in ways)]
    for way in ways:
        plan = case.with_values(way).read_in_trainer.memory
        if not plan.host.is_over and plan.fits and plan.data.holds(plan.batch):
            return way
    return {}


@rule(
    "memory.loader_over_budget",
    stands_on="A process has 158 MiB of its own (docs/memory.md), and as many batches ahead as "
    "prefetch_factor says. Reference report: 8 processes with 4 batches of 128 ahead filled 32 GB.",
)
def loader_over_budget(case: Case) -> Iterator[Finding]:
    """The PyTorch loader's processes, and the batches that they have ready, fit on the host."""
    plan = case.memory
    host, pools = plan.host, plan.pools
    if pools is None or not pools.processes:
        return
    available = known(host.available_bytes, "the available memory of the host")
    if not host.is_over or case.read_in_trainer.memory.host.is_over:
        return
    taken, batches = pools.processes_bytes(pools.processes), pools.batches_bytes
    yield Finding(
        ("data", "loader", "num_workers"),
        f"The loader would take {size(taken + batches)} of the host's memory, and the run with it "
        f"{size(host.peak_bytes)}; {size(available)} are available.",
        f"Up to {pools.processes} processes have {size(taken)} of their own, and the batches that "
        f"they have read ahead come to {size(batches)}, of {size(pools.batch_bytes)} each in "
        "training. The kernel would end one of them, and the attempt with it.",
        fewer_processes(case),
    )


@rule(
    "memory.checkpoints_fill_disk",
    stands_on="A checkpoint holds weights and optimizer; a new one is written before an old one "
    "is removed.",
)
def checkpoints_fill_disk(case: Case) -> Iterator[Finding]:
    """The checkpoints that are kept, and the one being written, have room on the disk."""
    free = known(case.device.host.disk_free_bytes, "the free space below the artifact root")
    plan = case.memory
    state = sum(i.bytes for i in plan.with_model.items if i.name in ("weights", "optimizer"))
    kept = case.spec.checkpoint
    count = kept.keep_last + kept.keep_best + 1
    if count * state <= free:
        return
    room_for = free // state - 1
    best = min(kept.keep_best, max(0, room_for - 1))
    last = min(kept.keep_last, room_for - best)
    fix = {"/checkpoint/keep_last": last, "/checkpoint/keep_best": best} if last > 0 else {}
    yield Finding(
        ("checkpoint", "keep_last"),
        f"{count} checkpoints come to {size(count * state)}, and {size(free)} are available.",
        f"One takes {size(state)}; on a full disk none can be saved, and the run ends with it.",
        fix,
    )


@rule(
    "memory.expanded_windows",
    severity="warning",
    stands_on="51,779 windows of 360 × 167 float32 that slide over one series are 12.45 GB, the "
    "series 35 MB; `stoker data convert` writes it.",
)
def expanded_windows(case: Case) -> Iterator[Finding]:
    """Windows of one series that come to 1 GiB or more are stored as the series."""
    dataset = case.dataset
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    for part in ("inputs", "targets"):
        for position, name in enumerate(getattr(case.spec.data, part)):
            array = dataset.fields.get(name)
            if array is None or name not in moved_on or array.series_steps is not None:
                continue
            length, by = array.shape[0], moved_on[name]
            stored = samples * array.sample_bytes
            series = (samples * by + length - by) * array.sample_bytes // length
            if stored >= LARGE_WINDOWS_BYTES:
                yield Finding(
                    ("data", part, position),
                    f"{name!r} stores {samples:,} windows of {length:,} steps one by one, "
                    f"{size(stored)}, each moved on by {by} {'step' if by == 1 else 'steps'}.",
                    f"The series that they slide over takes about {size(series)}, and the windows "
                    "can be cut out of it on the device, the same to the last bit: `stoker data "
                    "convert` writes it; register that file.",
                )


RULES = (
    expanded_windows,
    resident_does_not_fit,
    over_budget,
    host_over_budget,
    loader_over_budget,
    checkpoints_fill_disk,
)
