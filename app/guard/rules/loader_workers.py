"""Rules about data.loader's processes: what they are worth, and what they cost."""

import math
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.facts import known
from app.guard.memory.fitting import FILL, fewer_processes
from app.guard.memory.worker_pools import START_SECONDS
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.wording import duration, share, size
from app.planning.arithmetic import threads_of_slot
from app.spec.data import DataLoaderLoader

# Of a run's time; a rule of speed has to save 5 %.
MOST_STARTING = 0.05
USUAL_PROCESSES = 4


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
        f"at least {size(host.least_bytes)}; {size(available)} are available.",
        f"Up to {pools.processes} processes have {size(taken)} of their own, and the batches that "
        f"they have read ahead come to {size(batches)}, of {size(pools.batch_bytes)} each in "
        "training. The kernel would end one of them, and the attempt with it.",
        fewer_processes(case),
    )


@rule(
    "correctness.pin_memory_needs_gpu",
    overridable=False,
    stands_on="Page-locked memory is for copies to a GPU; on a CPU a batch is not copied at all.",
)
def pin_memory_needs_gpu(case: Case) -> Iterator[Finding]:
    """Page-locked batches are asked for where there is a GPU."""
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader) or not loader.pin_memory:
        return
    if case.device.kind == "cpu":
        yield Finding(
            ("data", "loader", "pin_memory"),
            "Page-locked batches need a CUDA device; this run would be on a CPU.",
            "They make copies to a GPU faster, and here none is made: the option would do nothing, "
            "and the trainer would refuse to begin.",
            {"/data/loader/pin_memory": False},
        )


@rule(
    "speed.workers_above_cores",
    severity="warning",
    stands_on="The trainer starts no more loader processes than cores that it may use; those "
    "beyond a run's share of them take turns with the training and with the runs beside it. What "
    "that costs hangs on these, and is not timed here.",
)
def workers_above_cores(case: Case) -> Iterator[Finding]:
    """A loader has no more processes than its run has cores."""
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader) or not loader.num_workers:
        return
    host = case.device.host
    cores = known(host.cores, "the cores of the host")
    slots = known(host.slots, "how many runs train on the host at once")
    most = threads_of_slot(cores, slots)
    if loader.num_workers <= most:
        return
    beside = f", shared by {slots} runs" if slots > 1 else ""
    yield Finding(
        ("data", "loader", "num_workers"),
        f"{loader.num_workers} loader processes are asked for on {cores} cores{beside}.",
        f"{min(loader.num_workers, cores)} would be started, and those above {most} wait for a "
        "core. In reference reports more of them made nothing faster, and 16 leaked memory.",
        {"/data/loader/num_workers": most},
    )


@rule(
    "speed.workers_start_anew",
    stands_on="Until two processes have read their first batch it takes 1.3 s on two idle cores, "
    "most of it `import torch`; from a fork server 0.1 s.",
    measured_by="workers_start_anew",
)
def workers_start_anew(case: Case) -> Iterator[Finding]:
    """Loader processes that begin anew with each epoch and evaluation take less than a minute of a
    run, or a twentieth of it."""
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader) or not loader.num_workers:
        return
    if loader.persistent_workers:
        return
    evaluations = case.evaluations
    starts = math.ceil(case.epochs) + evaluations
    once = START_SECONDS[loader.multiprocessing_context]
    lost, history = starts * once, case.history
    trained = case.steps / history.iterations_per_second if history else 0.0
    if lost <= LEAST_LOSS_SECONDS or lost <= MOST_STARTING * (lost + trained):
        return
    of_all = f", {share(lost / (lost + trained))} of the time" if history else ""
    yield Finding(
        ("data", "loader", "persistent_workers"),
        f"The loader's processes would be started {starts:,} times, and take {duration(lost)}"
        f"{of_all}.",
        f"They end with each epoch and with each of {evaluations:,} evaluations, and begin anew, "
        f"{duration(once)} each time on idle cores. Those that stay begin once for each part.",
        {"/data/loader/persistent_workers": True},
    )


@rule(
    "speed.no_loader_processes",
    severity="warning",
    stands_on="PyTorch, Performance tuning guide: without workers the training process reads, and "
    "the GPU waits. Timing it needs a GPU; not timed here.",
)
def no_loader_processes(case: Case) -> Iterator[Finding]:
    """On a GPU the PyTorch loader has processes that read the next batches while it computes."""
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader) or loader.num_workers:
        return
    device = case.device
    if device.kind == "cpu":
        return
    cores = known(device.host.cores, "the cores of the host")
    slots = known(device.host.slots, "how many runs train on the host at once")
    most = min(USUAL_PROCESSES, threads_of_slot(cores, slots))
    fix = _processes_that_fit(case, most)
    if fix is None:
        return
    processes = fix["/data/loader/num_workers"]
    yield Finding(
        ("data", "loader", "num_workers"),
        f"The GPU would wait while the trainer itself reads each batch of {_batch(case)}.",
        f"{processes} of the host's {cores} cores could read the next batches meanwhile."
        + _reading(case),
        fix,
    )


def _processes_that_fit(case: Case, most: int) -> dict[str, Any] | None:
    """The values of so many processes as the host has memory for; None: for none."""
    for count in range(most, 0, -1):
        fix = {"/data/loader/num_workers": count, "/data/loader/persistent_workers": True}
        host = case.with_values(fix).memory.host
        if host.available_bytes is None or host.peak_bytes <= FILL * host.available_bytes:
            return fix
    return None


def _batch_bytes(case: Case) -> int:
    need = case.memory.need
    return min(case.spec.training.batch_size, need.train_samples) * need.sample_bytes


def _batch(case: Case) -> str:
    return size(_batch_bytes(case))


def _reading(case: Case) -> str:
    rate = case.dataset.read_bytes_per_second
    if rate is None:
        return ""
    seconds = duration(_batch_bytes(case) / rate)
    return f" At the rate at which its inspection read the file, a batch takes {seconds}."


@rule(
    "speed.batches_not_pinned",
    severity="warning",
    stands_on="PyTorch, CUDA semantics: copies to a GPU run beside its work only out of "
    "page-locked memory. Timing it needs a GPU; not timed here.",
)
def batches_not_pinned(case: Case) -> Iterator[Finding]:
    """On a GPU the PyTorch loader gives page-locked batches."""
    loader = case.spec.data.loader
    if not isinstance(loader, DataLoaderLoader) or loader.pin_memory:
        return
    if case.device.kind == "cpu":
        return
    yield Finding(
        ("data", "loader", "pin_memory"),
        f"Each batch of {_batch(case)} would be copied to the GPU from ordinary memory.",
        "The driver copies it into page-locked memory first, and the step waits for both copies; "
        "out of page-locked memory the GPU copies it itself, beside its work.",
        {"/data/loader/pin_memory": True},
    )
