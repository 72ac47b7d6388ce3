"""What others see of an attempt: events, progress, pulse, losses.csv, where the time went."""

import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from app.container import Limits
from app.planning.residency import memory_for_data
from tests.trainer.lab import BUILDING_POLLS, Lab, StopAtPoll, read_pulse
from worker.reporting import PHASES, PULSE_FORMAT, EventLog, Pulse
from worker.trainer.data.feed.residency import device_memory
from worker.trainer.report.losses import LossFile
from worker.trainer.report.memory import MemoryMeter, host_free_bytes
from worker.trainer.report.phases import PARTS, PhaseClock
from worker.trainer.report.rates import Rates, Totals
from worker.trainer.step import TrainingStep

PROGRESS = {
    "phase", "phase_step", "phase_steps", "phase_rate", "phase_eta_seconds", "epoch", "epochs",
    "step", "steps", "samples_per_second", "iterations_per_second", "eta_seconds", "loss", "lr",
    "grad_norm", "best", "data_wait_ratio", "host_memory_bytes", "gpu_memory_bytes",
    "torch_memory", "peak_memory", "totals", "phase_seconds", "queue_depth",
    "mean_samples_per_second", "mean_iterations_per_second", "step_durations",
}  # fmt: skip


def test_progress_has_every_agreed_field(lab: Lab) -> None:
    progress = lab.run().of_kind("progress")[-1]
    assert progress.keys() - {"seq", "t", "kind"} == PROGRESS
    assert progress["totals"] | {"bytes_read": 0, "written_seconds": 0} == {
        "train_iterations": 9,
        "train_samples": 126,
        "eval_iterations": 5 * 3 + 2,
        "eval_samples": 5 * 12 + 6,
        "bytes_read": 0,
        "h2d_seconds": None,  # the device is the host
        "written_seconds": 0,
    }
    assert progress["totals"]["written_seconds"] > 0
    assert progress["totals"]["bytes_read"] > 0
    assert (progress["step"], progress["steps"], progress["epoch"]) == (9, 9, 3)
    assert progress["eta_seconds"] == 0
    assert progress["phase_seconds"].keys() == set(PARTS)
    # All are measured; nothing was compiled, and nothing copied to a device.
    assert {part for part, seconds in progress["phase_seconds"].items() if seconds == 0} == {
        "graph_build",
        "h2d",
    }
    assert 0 <= progress["data_wait_ratio"] <= 1


def test_what_was_applied_is_there_as_a_whole_or_not_at_all(lab: Lab) -> None:
    """In place, it would be seen half done; a file that takes its place leaves the other."""
    folder = lab.prepare()
    earlier = folder / "earlier"
    earlier.write_text("as it was")
    (folder / "applied.json").hardlink_to(earlier)
    lab.execute(folder)
    assert json.loads((folder / "applied.json").read_text())["applied"]
    assert earlier.read_text() == "as it was"


def test_totals_are_the_attempts_and_steps_are_the_runs(lab: Lab) -> None:
    parent = lab.run()
    restore = [{"path": str(parent.checkpoint(4)), "carry": "full", "own": False}]
    progress = lab.run(restore=restore).of_kind("progress")[-1]
    assert progress["step"] == 9
    assert progress["totals"]["train_iterations"] == 5


def test_metrics_come_at_log_points_and_evaluations(lab: Lab) -> None:
    outcome = lab.run()
    train = [e for e in outcome.of_kind("metrics") if "train_loss" in e["values"]]
    assert [event["step"] for event in train] == [2, 3, 4, 6, 8, 9]
    assert train[-1]["values"].keys() >= {
        "train_loss", "lr", "grad_norm", "iterations_per_second", "samples_per_second",
        "data_wait_ratio",
    }  # fmt: skip
    tested = [e for e in outcome.of_kind("metrics") if "test_loss" in e["values"]]
    assert [event["values"].keys() for event in tested] == [
        {"test_loss", "test_mae", "test_mse", "test_rmse"}
    ]


def test_losses_are_written_to_the_last_bit(lab: Lab) -> None:
    outcome = lab.run()
    events = {e["step"]: e["values"] for e in outcome.of_kind("metrics") if "lr" in e["values"]}
    rows = [row for row in outcome.rows if row[2] == "train"]
    assert outcome.losses.startswith(b"step,epoch,split,loss\n")
    assert [float(row[3]) for row in rows] == [events[int(row[0])]["train_loss"] for row in rows]
    assert [(row[0], row[1]) for row in rows] == [
        ("2", "1"), ("3", "1"), ("4", "2"), ("6", "2"), ("8", "3"), ("9", "3"),
    ]  # fmt: skip


def test_a_loss_file_is_cut_back_to_what_a_checkpoint_knew(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    first = LossFile(path, 0)
    first.append(1, 1, "train", 0.1 + 0.2)
    known = first.length()
    first.append(2, 1, "train", 0.5)
    first.close()
    second = LossFile(path, known)
    second.append(2, 1, "train", 0.25)
    second.close()
    assert path.read_text() == (
        "step,epoch,split,loss\n1,1,train,0.30000000000000004\n2,1,train,0.25\n"
    )
    assert second.missing_bytes == 0
    LossFile(path, 0).close()
    assert path.read_text() == "step,epoch,split,loss\n"


def test_events_are_strict_json_and_numbered(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("metrics", values={"loss": math.nan, "more": (1.5, math.inf)})
    log.close()
    again = EventLog(tmp_path / "events.jsonl")
    again.emit("end")
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2]
    assert lines[0]["values"] == {"loss": None, "more": [1.5, None]}


def test_the_pulse_is_two_little_endian_numbers(tmp_path: Path) -> None:
    path = tmp_path / "pulse"
    pulse = Pulse(path)
    pulse.enter("training")
    pulse.beat()
    assert path.read_bytes() == bytes([5, *[0] * 7, 2, *[0] * 7])
    assert PHASES.index("training") == 5
    assert PULSE_FORMAT.size == 16
    assert read_pulse(path) == ("training", 2)
    pulse.close()


def test_the_pulse_moves_with_every_batch(lab: Lab) -> None:
    outcome = lab.run()
    pulse = read_pulse(outcome.folder / "pulse")
    batches = 18 + 5 * 3 + 2 + (3 + 2)  # the last are those of the baselines
    assert pulse[1] == BUILDING_POLLS + batches + len(outcome.of_kind("phase"))


def test_the_pulse_moves_with_every_piece_of_a_load(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.trainer.data.feed.rows.PIECE_BYTES", 800)  # five samples
    monkeypatch.setattr("worker.trainer.data.feed.transfer.HOST_PIECE_BYTES", 1_600)
    stop = StopAtPoll(1 + 5 + 2 + 1 + 2)  # restoring, the three parts, some of the statistics
    outcome = lab.run(stop=stop)
    pulse = read_pulse(outcome.folder / "pulse")
    assert outcome.end is not None
    assert outcome.end.step is None
    assert pulse == ("building", stop.polls + len(outcome.of_kind("phase")))


def test_the_parts_of_time_add_up_and_nothing_counts_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def perf_counter() -> float:
        now[0] += 1.0
        return now[0]

    fake_time = SimpleNamespace(perf_counter=perf_counter)
    monkeypatch.setattr("worker.trainer.report.phases.time", fake_time)
    clock = PhaseClock()  # reads 1
    for _ in clock.waiting(iter("ab")):  # each wait and each body: one reading apart
        with clock.part("checkpoint"):
            pass
    seconds = clock.read()
    assert sum(seconds.values()) == now[0] - 1.0
    assert seconds == {
        "data_wait": 3.0, "h2d": 0.0, "compute": 4.0, "sync": 0.0, "graph_build": 0.0,
        "checkpoint": 2.0, "eval": 0.0, "other": 2.0,
    }  # fmt: skip


def test_the_loop_looks_at_the_device_only_at_log_points(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read of a tensor's value goes through one of these."""
    reads = []
    for name in ("item", "tolist", "__bool__", "__float__"):
        original = getattr(torch.Tensor, name)

        def counted(tensor: torch.Tensor, original: object = original) -> object:
            reads.append(tensor)
            return original(tensor)  # type: ignore[operator]

        monkeypatch.setattr(torch.Tensor, name, counted)
    quiet = {
        "evaluation": {"every_epochs": None, "every_steps": None},
        "checkpoint": {"every_steps": None},
    }
    counts = []
    for epochs in (20, 40):
        reads.clear()
        outcome = lab.run(patch={**quiet, "training": {"epochs": epochs, "log_every_steps": 30}})
        epochs_told = len(outcome.of_kind("epoch"))
        log_points = sum(row[2] == "train" for row in outcome.rows)
        counts.append(len(reads) - epochs_told - log_points)
    assert counts[0] == counts[1]  # 60 steps more, and not one read more beside those two kinds


def test_memory_is_asked_for_with_progress_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MemoryMeter] = []
    original = MemoryMeter.in_use

    def counted(meter: MemoryMeter, loader: Iterable[int]) -> dict[str, Any]:
        asked.append(meter)
        return original(meter, loader)

    monkeypatch.setattr(MemoryMeter, "in_use", counted)
    outcome = lab.run(patch={"training": {"log_every_steps": 1}})
    assert len(asked) == len(outcome.of_kind("progress")) < 9
    monkeypatch.setattr("worker.trainer.report.report.MIN_PROGRESS_SECONDS", 0.0)
    assert lab.run().of_kind("metrics")[0]["values"]["host_memory_bytes"] > 0


def test_a_gpus_memory_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {
        "allocated_bytes.all.current": 1,
        "reserved_bytes.all.current": 2,
        "allocated_bytes.all.peak": 3,
    }
    calls = iter([stats])
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: next(calls))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 100))
    used = MemoryMeter(torch.device("cuda")).in_use()
    assert used["gpu_memory_bytes"] == 40
    assert used["torch_memory"] == {"allocated": 1, "reserved": 2, "peak": 3}
    assert used["peak_memory"]["device_bytes"] == 3


def test_the_peak_is_that_above_the_imports_and_outlives_what_caused_it() -> None:
    meter = MemoryMeter(torch.device("cpu"))
    before = meter.in_use()["peak_memory"]["host_bytes"]
    taken = 100 * 2**20
    room = before + taken  # whatever the process had at its peak before, it must grow beyond it
    torch.ones(room + taken, dtype=torch.uint8)
    peak = meter.in_use()["peak_memory"]
    assert peak["host_bytes"] >= room
    assert peak["device_bytes"] is None


def test_each_phase_has_a_peak_of_its_own() -> None:
    """What training took is not counted as an evaluation's; the whole peak is kept beside."""
    meter = MemoryMeter(torch.device("cpu"))
    for phase, mib in (("training", 300), ("evaluating", 40), ("training", 100)):
        meter.enter(phase)
        torch.ones(mib * 2**20, dtype=torch.uint8)
    peak = meter.in_use()["peak_memory"]
    trained, evaluated = peak["phases"]["training"], peak["phases"]["evaluating"]
    assert trained - evaluated > 200 * 2**20
    assert peak["host_bytes"] >= trained


def test_where_the_kernel_keeps_the_peak_no_phase_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: MemoryMeter) -> None:
        raise OSError

    monkeypatch.setattr(MemoryMeter, "forget_peak", refuse)
    meter = MemoryMeter(torch.device("cpu"))
    meter.enter("training")
    peak = meter.in_use()["peak_memory"]
    assert peak["phases"] is None
    assert peak["host_bytes"] > 0


class FakeClock:
    """Training time that passes only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def training(self) -> tuple[float, float]:
        return self.seconds, 0.0


@pytest.fixture
def trained() -> tuple[Rates, Callable[..., None]]:
    """Rates, and a step that takes so many seconds for so many samples."""
    clock, totals = FakeClock(), Totals()
    rates = Rates(cast("PhaseClock", clock), totals)

    def step(seconds: float, samples: int = 100) -> None:
        clock.seconds += seconds
        totals.train_iterations += 1
        totals.train_samples += samples
        rates.step()

    return rates, step


def test_a_short_last_batch_does_not_make_the_speed(
    trained: tuple[Rates, Callable[..., None]],
) -> None:
    """Steps of 0.1 s with 100 samples, and at the end one of 0.01 s with 1."""
    rates, step = trained
    assert rates.lap()["iterations_per_second"] is None
    assert set(rates.means().values()) == {None}
    for _ in range(30):
        step(0.1)
        told = rates.lap()
    assert told["iterations_per_second"] == pytest.approx(10.0)
    step(0.01, 1)
    told = rates.lap()
    assert told["iterations_per_second"] == pytest.approx(11 / 1.01)
    assert told["samples_per_second"] == pytest.approx(1001 / 1.01)
    step(5.0)
    told = rates.lap()
    assert told["iterations_per_second"] == pytest.approx(1 / 5.0), "a slow step is told at once"
    assert rates.means() == {
        "mean_iterations_per_second": pytest.approx(32 / 8.01),
        "mean_samples_per_second": pytest.approx(3101 / 8.01),
    }


def test_a_rate_ends_at_a_step_and_not_in_the_middle_of_one(
    trained: tuple[Rates, Callable[..., None]],
) -> None:
    """Steps of 6 s, of whose micro-batches some report: it is one in 6 s each time."""
    rates, step = trained
    told = []
    for _ in range(3):
        step(6.0)
        told += [rates.lap()["iterations_per_second"] for _ in range(5)]
    assert told == [pytest.approx(1 / 6.0)] * 15


def test_each_step_is_in_the_bucket_of_its_own_duration(
    trained: tuple[Rates, Callable[..., None]],
) -> None:
    rates, step = trained
    for seconds in (0.02, 0.02, 6.0, 0.02, 400.0):
        step(seconds)
    counted = rates.durations()
    assert counted["seconds"] == pytest.approx(406.06)
    places = [*map(str, counted["bounds"]), "beyond"]
    by_bound = dict(zip(places, counted["counts"], strict=True))
    assert {bound: n for bound, n in by_bound.items() if n} == {
        "0.025": 3, "10.0": 1, "beyond": 1,
    }  # fmt: skip


def test_slow_steps_are_told_without_a_log_point(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    original = TrainingStep.apply

    def slow(step: TrainingStep, learning_rate: float) -> None:
        original(step, learning_rate)
        time.sleep(0.4)

    monkeypatch.setattr(TrainingStep, "apply", slow)
    quiet = {
        "training": {"log_every_steps": 1000, "epochs": 2},
        "evaluation": {"every_epochs": None, "every_steps": None},
        "data": {"split": {"validation_fraction": 0.0, "test_fraction": 0.0}},
        "checkpoint": {"every_steps": None, "monitor": "val_loss"},
        "early_stopping": None,
    }
    outcome = lab.run(patch=quiet)
    progress = outcome.of_kind("progress")
    logged = next(e["seq"] for e in outcome.of_kind("metrics"))
    between = [e for e in progress if e["seq"] < logged and e["totals"]["train_iterations"]]
    assert between[0]["step"] == 1, "the first step is told at once"
    assert len({e["step"] for e in between}) > 2
    for event in between:
        assert 0 < event["iterations_per_second"] < 1 / 0.4
        done = event["totals"]["train_iterations"]
        assert sum(event["step_durations"]["counts"]) == done
        assert event["step_durations"]["seconds"] >= 0.4 * (done - 1)


def test_what_the_container_allows_is_said_and_kept_to(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = Limits(allowed_cores=64, cpu_quota=2.0, memory_bytes=8 * 2**30)
    monkeypatch.setattr("worker.trainer.build.limits", lambda: allowed)
    for module in ("report.memory", "data.feed.residency"):
        monkeypatch.setattr(f"worker.trainer.{module}.available_memory", lambda: 6 * 2**30)
    (event,) = lab.run().of_kind("applied")
    assert event["applied"]["limits"] == {
        "cores": 2, "allowed_cores": 64, "cpu_quota": 2.0, "memory_bytes": 8 * 2**30,
    }  # fmt: skip
    assert host_free_bytes() <= 6 * 2**30
    assert device_memory(torch.device("cpu"), None) == memory_for_data(6 * 2**30)
