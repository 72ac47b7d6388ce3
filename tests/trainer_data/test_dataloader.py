"""Batches that processes of the PyTorch loader read: the same ones, whatever becomes of these."""

import errno
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partial
from itertools import islice
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from app.lifecycle import Reason
from tests.trainer_data.factories import (
    entry,
    kept,
    loaded,
    make_spec,
    opener,
    rows_of,
    write_arrays,
)
from tests.worker.eventually import eventually
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed import dataloader
from worker.trainer.data.feed.read_threads import READ_THREADS
from worker.trainer.data.order import Order
from worker.trainer.data.source import Source
from worker.trainer.data.split import Part
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch, TrainerError

PART, ORDER = Part("numbers", range(100)), Order(100, 3, "full")
STAYING: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
CONTEXTS = ["spawn", "forkserver"]


@pytest.fixture(autouse=True)
def _torch_looks_often(monkeypatch):
    """Whether its processes live; it does so every five seconds."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data") / "numbers.h5")


@pytest.fixture(scope="module", params=CONTEXTS)
def staying(path, request):
    """Two processes that stay, for each takes seconds to begin."""
    batches = loaded(path, PART, ORDER, multiprocessing_context=request.param, **STAYING)
    list(batches.iterate(0))  # torch's threads begin with the processes, and stay as long
    yield batches
    batches.close()


@pytest.fixture
def batches_of(path):
    """Makes loaders, and closes them."""
    made = []

    def make(**options):
        made.append(loaded(path, PART, ORDER, **options))
        return made[-1]

    yield make
    for batches in made:
        batches.close()


class Failing:
    """Gives rows until an error comes in their place."""

    def __init__(self, path: Path, error: Callable[[], Exception], reads: int) -> None:
        self._source, self._error, self._reads = opener(path)(), error, reads
        self.fields, self.places_rows = self._source.fields, self._source.places_rows
        self.num_samples, self.close = self._source.num_samples, self._source.close

    def read(self, extents, out):
        self._reads -= 1
        if self._reads < 0:
            raise self._error()
        self._source.read(extents, out)


class Secretive(Exception):
    """Cannot be made from what it was made with."""

    def __init__(self, one: str, *, other: str) -> None:
        super().__init__(f"{one} {other}")


def open_refused() -> Source:
    raise DataError("There is no such file. Bring it.")


def open_died() -> Source:
    os._exit(3)


def epoch_rows(epoch: int, start: int = 0) -> list[int]:
    return list(map(int, ORDER.rows(epoch, start, 100)))


def test_processes_bring_what_every_loader_brings(staying):
    for epoch in range(3):
        assert rows_of(staying.iterate(epoch)) == epoch_rows(epoch)


def test_an_epoch_that_is_left_leaves_nothing_of_it_to_the_next(staying):
    for left_after in (0, 1, 5):
        under_way = staying.iterate(4)
        taken = kept(islice(under_way, left_after))
        under_way.close()
        position = sum(batch.size for batch in taken)
        assert rows_of(taken) + rows_of(staying.iterate(4, position)) == epoch_rows(4)


def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(staying):
    """While the processes read as far ahead as they may."""
    position = 0
    for batch in staying.iterate(0):
        position += batch.size
        if position == 8:
            all_read(staying)
        assert rows_of([batch]) == epoch_rows(0, position - batch.size)[: batch.size]


def test_each_process_opens_the_file_for_itself_and_computes_with_one_thread(staying, path):
    under_way = staying.iterate(0)
    next(under_way)
    all_read(staying)
    for process in map(psutil.Process, staying.pids):
        assert str(path) in [opened.path for opened in process.open_files()]
        # Its own, those that read, one that looks after the trainer, three that hand over tensors.
        assert process.num_threads() <= 4 + READ_THREADS
    assert str(path) not in [opened.path for opened in psutil.Process().open_files()]


def test_processes_stay_between_epochs_only_where_they_are_to(staying, batches_of):
    list(staying.iterate(0))
    kept_pids = staying.pids
    list(staying.iterate(1))
    assert staying.pids == kept_pids != []
    batches = batches_of(num_workers=2, multiprocessing_context="forkserver")
    under_way = batches.iterate(0)
    next(under_way)
    first = batches.pids
    assert len(first) == 2
    list(under_way)
    assert batches.pids == []
    assert not any(map(psutil.pid_exists, first))


EIO = (errno.EIO, "Input/output error")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (partial(DataError, "Row 3 is torn."), DataError("Row 3 is torn.")),
        (partial(DatasetChanged, "It was changed."), DatasetChanged("It was changed.")),
        (partial(TrainerError, Reason.disk_full, "No."), TrainerError(Reason.disk_full, "No.")),
        (partial(OSError, *EIO), OSError(*EIO)),
        (MemoryError, MemoryError()),
        (partial(Secretive, "a", other="b"), RuntimeError("Secretive: a b")),
        (partial(ValueError, "x" * 10**6), RuntimeError("ValueError: " + "x" * 1000)),
    ],
    ids=["data", "changed", "trainer", "system", "memory", "any", "long"],
)
def test_an_error_of_a_read_is_raised_in_the_loop_as_it_is(
    batches_of, path, error, expected, workers
):
    """After the batches before it, and without the traceback of another process in its words."""
    context = {"num_workers": workers, "multiprocessing_context": "forkserver"}
    batches = batches_of(open_source=partial(Failing, path, error, 2), **context)
    under_way = batches.iterate(0)
    assert rows_of(islice(under_way, 2)) == epoch_rows(0)[:16]
    with pytest.raises(type(expected)) as caught:
        next(under_way)
    assert str(caught.value) == str(expected)
    assert caught.value.__dict__ == expected.__dict__
    assert batches.pids == []


def test_a_file_that_cannot_be_opened_is_told_by_whoever_opens_it(batches_of):
    asked = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    batches = batches_of(open_source=open_refused, **asked)
    with pytest.raises(DataError, match=r"^There is no such file\. Bring it\.$"):
        next(batches.iterate(0))


def test_a_file_cut_short_in_mid_epoch_ends_the_epoch_with_a_sentence(tmp_path):
    long = write_arrays(tmp_path / "long.h5", samples=4_000)
    part, order = Part("long", range(4_000)), Order(4_000, 0, "full")
    batches = loaded(long, part, order, num_workers=1, multiprocessing_context="forkserver")
    under_way = batches.iterate(0)
    next(under_way)
    os.truncate(long, long.stat().st_size // 3)
    with pytest.raises(DatasetChanged, match="cannot be trusted"):
        list(under_way)
    batches.close()


KILLED = "was killed by SIGKILL, as the kernel does when the host runs out of memory"


@pytest.mark.parametrize(
    ("context", "number", "reason", "sentence"),
    [
        ("spawn", signal.SIGKILL, Reason.killed, KILLED),
        ("forkserver", signal.SIGKILL, Reason.killed, KILLED),
        ("forkserver", signal.SIGSEGV, Reason.crashed, "ended by SIGSEGV without saying why"),
        ("starting", signal.SIGTERM, Reason.interrupted, "by SIGTERM as it started, as in a shut"),
    ],
)
def test_a_process_that_dies_ends_the_wait_for_its_batch(
    batches_of, context, number, reason, sentence, monkeypatch
):
    if context == "starting":  # as it is until it looks after itself
        monkeypatch.setattr(dataloader, "end_with_trainer", None)
        context = "forkserver"
    batches = batches_of(num_workers=2, multiprocessing_context=context)
    under_way = batches.iterate(0)
    next(under_way)
    pids = batches.pids
    os.kill(pids[1], number)
    with pytest.raises(TrainerError, match=sentence) as caught:
        list(under_way)
    assert caught.value.reason is reason
    assert str(caught.value).startswith(f"A loader process ({pids[1]}) ")
    assert batches.pids == []
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("when", ["in an epoch", "between epochs"])
def test_after_a_death_another_iteration_has_other_processes(batches_of, stay, when):
    batches = batches_of(
        num_workers=2, persistent_workers=stay, multiprocessing_context="forkserver"
    )
    under_way = batches.iterate(0)
    next(under_way)
    first = batches.pids
    if when == "between epochs":
        list(under_way)
        under_way = batches.iterate(1)
    if stay or when == "in an epoch":
        os.kill(first[0], signal.SIGKILL)
        with pytest.raises(TrainerError, match="killed by SIGKILL"):
            list(under_way)
    assert rows_of(batches.iterate(2)) == epoch_rows(2)
    assert not set(batches.pids) & set(first)


class Dying:
    """A process whose pipe is closed while the kernel has yet to give its exit code."""

    pid = 7
    exitcode: int | None = None

    def __init__(self) -> None:
        self.sentinel, ours = os.pipe()
        os.close(ours)

    def join(self) -> None:
        self.exitcode = -signal.SIGKILL

    def kill(self) -> None:
        os.close(self.sentinel)


def test_a_process_that_is_dying_is_told_as_dead(batches_of):
    batches = batches_of(num_workers=0)
    batches._processes.append(Dying())
    error = batches._why(EOFError())
    assert isinstance(error, TrainerError)
    assert error.reason is Reason.killed
    assert "A loader process (7) was killed by SIGKILL" in str(error)


def test_a_process_that_ends_by_itself_is_told_with_its_exit_code(batches_of):
    batches = batches_of(open_source=open_died, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(TrainerError, match="ended with exit code 3 without saying why"):
        next(batches.iterate(0))


def test_processes_that_cannot_be_started_are_told_of(batches_of, monkeypatch):
    def refused(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    batches = batches_of(num_workers=2)
    monkeypatch.setattr(SpawnProcess, "start", refused)
    with pytest.raises(TrainerError, match=r"could not be started .*temporarily.*num_workers\."):
        next(batches.iterate(0))


def all_read(batches):
    """Wait until the processes have read as far as they may, and so wait."""

    def asleep():
        return all(psutil.Process(pid).status() == psutil.STATUS_SLEEPING for pid in batches.pids)

    def idle():
        spent = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in batches.pids]
        threading.Event().wait(0.3)
        later = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in batches.pids]
        return spent == later and asleep()

    eventually(idle, "all that may be read ahead is there")


def test_a_shutdown_of_all_processes_leaves_the_next_batches_to_the_trainer(staying):
    under_way = staying.iterate(0)
    next(under_way)
    all_read(staying)  # one of them may still be starting, and would end
    for pid in staying.pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert rows_of(under_way) == epoch_rows(0)[8:]


def test_nothing_is_drawn_from_the_random_numbers_of_the_training(batches_of):
    before = torch.random.get_rng_state()
    for workers in (0, 1):
        batches = batches_of(num_workers=workers, multiprocessing_context="forkserver")
        list(batches.iterate(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_no_signal_of_a_child_raises_anything(batches_of):
    """As torch's own handler would, wherever the loop happens to be."""
    data = torch.utils.data.TensorDataset(torch.arange(4))
    next(iter(torch.utils.data.DataLoader(data, num_workers=1)))  # it may set its own
    batches = batches_of(num_workers=1, multiprocessing_context="forkserver")
    next(batches.iterate(0))
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


def test_what_is_read_is_counted(staying):
    before = staying.counters.bytes_read
    under_way = staying.iterate(0)
    first = next(under_way)
    next(under_way)
    assert staying.counters.queue_depth is None  # torch does not tell
    sample_bytes = (6 * 3 + 4) * 4
    assert staying.counters.bytes_read - before == 2 * first.size * sample_bytes


def test_nothing_is_left_in_shared_memory(batches_of):
    def named() -> set[str]:
        return {entry.name for entry in os.scandir("/dev/shm") if entry.name.startswith("torch")}

    before = named()
    batches = batches_of(num_workers=1, multiprocessing_context="forkserver")
    under_way = batches.iterate(0)
    next(under_way)
    os.kill(batches.pids[0], signal.SIGKILL)
    with pytest.raises(TrainerError):
        list(under_way)
    assert named() <= before


def test_batches_that_shared_memory_has_no_room_for_are_refused(path, unstopped, monkeypatch):
    disk = shutil.disk_usage("/dev/shm")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=2**10))
    for workers in (0, 1):
        spec = make_spec({"loader": {"kind": "dataloader", "num_workers": workers}})
        if workers:
            with pytest.raises(SpecMismatch, match=r"docker run --shm-size.*set num_workers to 0"):
                open_data(spec, {"numbers": entry(path)}, torch.device("cpu"), unstopped)
        else:
            open_data(spec, {"numbers": entry(path)}, torch.device("cpu"), unstopped).close()


def test_the_trainers_errors_travel_as_they_are():
    for error in (DataError("a"), SpecMismatch("b"), TrainerError(Reason.gpu_fault, "c")):
        arrived = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert type(arrived) is type(error)
        assert (arrived.reason, arrived.message, str(arrived)) == (
            error.reason, error.message, str(error),
        )  # fmt: skip
