"""What is told of like runs: which are alike, which count, and the medians of their figures."""

from dataclasses import dataclass
from typing import Any

import pytest

from app.lifecycle import Reason
from app.spec.layers import overlay
from app.store.records import Beat, Finish, NewCheckpoint
from app.store.runs.history import COUNTED
from tests.store.conftest import World, new_run

CPU = "cpu", "cpu"
H100 = "cuda", "NVIDIA H100"
SPEC: dict[str, Any] = {
    "name": "lstm",
    "recipe": {"kind": "sequence", "hidden_size": 64},
    "data": {
        "dataset": "weather", "inputs": ["features"], "targets": ["targets"],
        "split": {"method": "chronological"}, "loader": {"kind": "chunked"},
    },
    "training": {"epochs": 5, "batch_size": 128, "gradient_accumulation_steps": 1},
    "runtime": {"precision": "auto", "compile": {"mode": "none"}},
    "checkpoint": {"monitor": "val_loss", "mode": "min"},
}  # fmt: skip
ON_CPU = {"cuda": None, "device": "x86_64"}
ON_H100 = {"cuda": "12.8", "device": "NVIDIA H100"}


@dataclass(frozen=True)
class Done:
    """What an attempt did: `steps` in so many seconds, of which a fifth waited for data."""

    steps: int = 200
    seconds: float = 10.0
    saves: int = 0
    evaluating: float = 2.0
    phase: str = "training"
    compiling: float = 0.0


def progress_of(done: Done) -> dict[str, Any]:
    return {
        "phase": done.phase,
        "step": done.steps,
        "totals": {
            "train_iterations": done.steps,
            "eval_samples": 4000,
            "written_seconds": 2.0 * done.saves,
        },
        "phase_seconds": {
            "data_wait": done.seconds * 0.2, "compute": done.seconds * 0.7,
            "sync": done.seconds * 0.1, "checkpoint": 0.5 * done.saves, "eval": done.evaluating,
            "other": 1.0, "graph_build": done.compiling,
        },
    }  # fmt: skip


def train(
    world: World, done: Done, change: Any = None, environment: Any = ON_CPU, *, ends: bool = True
) -> int:
    """A run that has trained on such a device; it ends 3 seconds after what it counted."""
    spec = overlay(SPEC, change or {})
    lease = world.running(spec=spec, dataset=spec["data"]["dataset"])
    saved = [
        NewCheckpoint(i, 1, f"runs/{lease.run_id}/attempt-1/checkpoints/step-{i}", 9, {}, 1.0)
        for i in range(done.saves)
    ]
    beat = Beat(progress=progress_of(done), environment=environment, checkpoints=saved)
    world.store.leases.beat(lease.token, beat)
    if ends:
        world.clock.now += done.seconds + done.evaluating + 0.5 * done.saves + 3.0
        world.store.leases.finish(lease.token, Finish(Reason.completed, "It is done."))
    return lease.run_id


def test_without_a_like_run_there_is_nothing_to_tell(world: World) -> None:
    assert world.store.history.like(SPEC, *CPU) is None
    world.submit(spec=SPEC)
    assert world.store.history.like(SPEC, *CPU) is None


def test_the_figures_are_medians_over_like_runs(world: World) -> None:
    first = train(world, Done(seconds=10.0, saves=2, evaluating=1.2))
    second = train(world, Done(seconds=40.0, evaluating=3.0))
    third = train(world, Done(seconds=20.0), {"training": {"epochs": 9}, "name": "longer"})
    history = world.store.history.like(SPEC, *CPU)
    assert history is not None
    assert history.runs == (third, second, first)
    assert history.iterations_per_second == pytest.approx(10.0)
    assert history.checkpoint_seconds == pytest.approx(0.5)
    assert history.written_seconds == pytest.approx(2.0)
    assert history.evaluation_seconds == pytest.approx(2.0 / 4000)
    # Of the second: it evaluated longest, but beside the most training.
    assert history.least_evaluation_steps == pytest.approx(3.0 / 4000 * 200 / 40)
    assert history.other_seconds == pytest.approx(3.0)
    assert history.compiling_seconds is None


def test_how_long_compiling_took_is_told_of_runs_that_compiled(world: World) -> None:
    change = {"runtime": {"compile": {"mode": "default"}}}
    for seconds in (20.0, 4.0, 70.0):
        train(world, Done(compiling=seconds), change)
    history = world.store.history.like(overlay(SPEC, change), *CPU)
    assert history is not None
    assert history.compiling_seconds == pytest.approx(20.0)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"hidden_size": 65}},
        {"data": {"inputs": ["others"]}},
        {"data": {"loader": {"kind": "dataloader"}}},
        {"data": {"loader": {"residency": "stream"}}},
        {"data": {"loader": {"chunk_size": "16MiB"}}},
        {"training": {"batch_size": 64}},
        {"training": {"gradient_accumulation_steps": 2}},
        {"runtime": {"precision": "fp32"}},
        {"runtime": {"compile": {"mode": "default"}}},
        {"runtime": {"deterministic": True}},
        {"runtime": {"threads": 1}},
    ],
)
def test_a_run_that_takes_another_time_for_a_step_is_not_like_it(world: World, change: Any) -> None:
    train(world, Done(), change)
    assert world.store.history.like(SPEC, *CPU) is None
    assert world.store.history.like(overlay(SPEC, change), *CPU) is not None


def test_another_dataset_is_not_like_it(world: World) -> None:
    world.store.datasets.register("winter", "winter.h5")
    train(world, Done(), {"data": {"dataset": "winter"}})
    assert world.store.history.like(SPEC, *CPU) is None


def test_a_device_is_like_another_of_its_name(world: World) -> None:
    on_gpu = train(world, Done(), environment=ON_H100)
    on_cpu = train(world, Done())
    for device, expected in ((H100, on_gpu), (CPU, on_cpu)):
        history = world.store.history.like(SPEC, *device)
        assert history is not None
        assert history.runs == (expected,)
    assert world.store.history.like(SPEC, "cuda", "NVIDIA T4") is None


@pytest.mark.parametrize(
    ("done", "counts"),
    [
        (Done(steps=100), True),
        (Done(steps=99), False),
        (Done(steps=2, seconds=60.0), True),
        (Done(steps=0, seconds=60.0), False),
        (Done(phase="starting"), False),
    ],
)
def test_only_an_attempt_that_trained_for_long_enough_counts(
    world: World, done: Done, counts: bool
) -> None:
    train(world, done)
    assert (world.store.history.like(SPEC, *CPU) is not None) is counts


def test_a_run_under_way_tells_its_pace_and_not_how_long_it_took(world: World) -> None:
    run_id = train(world, Done(), ends=False)
    history = world.store.history.like(SPEC, *CPU)
    assert history is not None
    assert (history.runs, history.other_seconds) == ((run_id,), None)
    assert history.checkpoint_seconds is None


def test_an_attempt_that_begins_anew_tells_nothing_yet(world: World) -> None:
    """Until it trains, its run shows how far the attempt before had come."""
    lease = world.running(spec=SPEC)
    beat = Beat(progress=progress_of(Done(steps=500)), environment=ON_CPU)
    world.store.leases.beat(lease.token, beat)
    world.store.leases.finish(lease.token, Finish(Reason.crashed, "It died."))
    assert world.store.history.like(SPEC, *CPU) is not None
    world.clock.now += 3600
    assert world.claim() is not None
    assert world.store.history.like(SPEC, *CPU) is None


def test_a_deleted_run_tells_nothing(world: World) -> None:
    run_id = train(world, Done())
    world.store.runs.delete(run_id)
    assert world.store.history.like(SPEC, *CPU) is None


def test_the_newest_runs_count(world: World) -> None:
    ids = [train(world, Done(seconds=100.0 if i < 3 else 10.0)) for i in range(COUNTED + 3)]
    history = world.store.history.like(SPEC, *CPU)
    assert history is not None
    assert history.runs == tuple(reversed(ids[3:]))
    assert history.iterations_per_second == pytest.approx(20.0)


def test_runs_of_an_earlier_version_are_passed_over(world: World) -> None:
    """A spec without the blocks of today, and progress without totals."""
    for spec in (new_run().spec, SPEC):
        lease = world.running(spec=spec)
        beat = Beat(progress={"phase": "training", "step": 900}, environment=ON_CPU)
        world.store.leases.beat(lease.token, beat)
    assert world.store.history.like(SPEC, *CPU) is None
    known = train(world, Done())
    history = world.store.history.like(SPEC, *CPU)
    assert history is not None
    assert history.runs == (known,)
