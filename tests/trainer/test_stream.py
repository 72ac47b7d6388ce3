"""Whole trainings on data that comes piece by piece: they end as those that hold it all."""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.lifecycle import Reason
from tests.trainer.lab import Lab, StopAtPoll, merged, read_events, read_pulse, start_trainer
from tests.worker.eventually import eventually

RANDOM: dict[str, Any] = {"data": {"split": {"method": "random"}}}
BY_EPOCHS: dict[str, Any] = {"evaluation": {"every_epochs": 1, "every_steps": None}}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "accumulation": {},
    "random split": RANDOM,
    "drop_last, evaluation by epochs": {"training": {"drop_last": True}, **BY_EPOCHS},
    "max_steps in mid-epoch": {"training": {"max_steps": 5}},
    "blocks": {"data": {"loader": {"shuffle": "block", "shuffle_group": 16}}},
    "in order": {"data": {"loader": {"shuffle": "none"}}},
    "everything": {
        **RANDOM,
        "training": {"drop_last": True, "max_steps": 7, "gradient_accumulation_steps": 3},
        "evaluation": {"every_steps": 2, "max_batches": 2},
    },
}
RESIDENT = {"kind": "chunked", "residency": "resident"}
STREAM = {"kind": "chunked", "residency": "stream", "chunk_size": "1KiB"}
BY_TORCH: dict[str, Any] = {"kind": "dataloader"}
CASES = [
    pytest.param(patch, loader, id=f"{name}, {loader['kind']}")
    for name, patch in COMBINATIONS.items()
    for loader in (STREAM, BY_TORCH)
    if (name, loader) != ("blocks", BY_TORCH)  # which it has none of
]


def with_loader(patch: dict[str, Any], loader: dict[str, Any]) -> dict[str, Any]:
    return merged(patch, {"data": {"loader": loader}})


@pytest.mark.parametrize(("patch", "loader"), CASES)
def test_a_run_fed_in_pieces_is_the_resident_one_and_resumes_bit_exactly(
    lab: Lab, patch: dict[str, Any], loader: dict[str, Any]
) -> None:
    resident = lab.run(patch=with_loader(patch, RESIDENT))
    pieces = with_loader(patch, loader)
    stop = StopAtPoll()
    straight = lab.run(patch=pieces, stop=stop)
    used = straight.of_kind("applied")[0]["applied"]["data"]
    assert used["loader"] == loader["kind"]
    assert used.get("chunk_samples", 0) < 10
    assert (straight.weights, straight.losses) == (resident.weights, resident.losses)
    interrupted = 0
    for poll in range(1, stop.polls, stop.polls // 5):
        run_dir = lab.new_run()
        first = lab.run(run_dir, pieces, stop=StopAtPoll(poll))
        assert first.end is not None
        interrupted += first.end.reason is Reason.interrupted
        resumed = lab.run(run_dir, pieces)
        assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
    assert interrupted >= 3


@pytest.mark.parametrize("before", [STREAM, BY_TORCH])
def test_another_loader_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    lab: Lab, before: dict[str, Any]
) -> None:
    after = BY_TORCH if before is STREAM else STREAM
    straight = lab.run(patch=with_loader({}, RESIDENT))
    parent = lab.run(patch=with_loader({}, before), stop=StopAtPoll(18))
    path = str(parent.checkpoint())
    child = lab.run(
        patch=with_loader({}, after), restore=[{"path": path, "carry": "full", "own": False}]
    )
    assert child.of_kind("restored")[0]["step"] in range(1, 9)
    assert child.of_kind("warning") == []
    assert child.weights == straight.weights


LONG = {
    "training": {"epochs": 60, "log_every_steps": 10},
    "evaluation": {"every_epochs": 10, "every_steps": None},
    "checkpoint": {"every_steps": 20},
}


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("context", "standby"),
    [
        pytest.param("spawn", False, id="new"),
        pytest.param("forkserver", True, id="standing by"),
    ],
)
def test_a_trainer_with_loader_processes_stops_and_leaves_nobody(
    lab: Lab, context: str, standby: bool
) -> None:
    """As a process of its own, in which a warning is an error."""
    processes = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": context}
    patch = with_loader(LONG, {**BY_TORCH, **processes})
    straight = lab.run(patch=with_loader(LONG, RESIDENT))
    run_dir = lab.new_run()
    folder = lab.prepare(run_dir, patch)
    process = start_trainer(folder, standby=standby)
    eventually(lambda: has_saved(folder), "it trains")
    everyone = psutil.Process(process.pid).children(recursive=True)
    assert len(everyone) >= 3
    if context == "spawn":
        a_read_that_lasts_is_no_beat(folder, everyone)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == 0
    eventually(lambda: not any(one.is_running() for one in everyone), "all are gone")
    events = read_events(folder)
    assert events[-1]["reason"] == "interrupted"
    assert "multiprocessing" not in (folder / "trainer.log").read_text()
    progress = [event for event in events if event["kind"] == "progress"][-1]
    # The trainer alone has 350 MiB at the utmost, and each process 150 of its own.
    assert progress["host_memory_bytes"] > 500 * 2**20
    assert progress["peak_memory"]["host_bytes"] > 300 * 2**20
    resumed = lab.run(run_dir, with_loader(LONG, BY_TORCH))
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


def a_read_that_lasts_is_no_beat(folder: Path, loader: list[psutil.Process]) -> None:
    """As on a disk that stalls: the watchdog has to see it, whoever reads."""
    for each in loader:
        each.suspend()
    pulse = folder / "pulse"

    def stands_still() -> bool:
        before = read_pulse(pulse)
        time.sleep(0.3)
        return read_pulse(pulse) == before

    eventually(stands_still, "nothing beats any more")
    stood_at = read_pulse(pulse)
    for each in loader:
        each.resume()
    eventually(lambda: read_pulse(pulse) != stood_at, "it goes on")


def has_saved(folder: Path) -> bool:
    log = folder / "events.jsonl"
    return log.exists() and '"saved"' in log.read_text()
