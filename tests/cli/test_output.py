"""Numbers, sizes, times and courses as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from app.cli.output import ago, best_score, between, duration, number, size
from app.cli.progress import figures, note_of, where
from app.cli.results import sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00012345, "0.0001234"), (29.123, "29.12"), (144, "144"), (1234567, "1,234,567"),
     (3456789.0, "3,456,789"), (None, "–"), (True, "–")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB"), (None, "–")],
)
def test_sizes(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (125, "2:05"), (10925, "3:02:05"), (None, "–")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_times_of_the_service():
    then = datetime.now(UTC) - timedelta(hours=3)
    assert ago(then.isoformat().replace("+00:00", "Z")) == "3 h ago"
    assert ago(None) == "–"
    assert between("2026-03-01T12:00:00.000Z", "2026-03-01T12:02:05.000Z") == "2:05"


def test_the_best_is_told_by_the_metric_in_the_datas_units():
    assert best_score({"step": 9, "epoch": 1, "val_loss": 0.3, "val_mae": 3.49}) == "val_mae 3.49"
    assert best_score({"step": 9, "val_loss": 0.3}) == "val_loss 0.3"
    assert best_score(None) is None


def test_a_course_rises_with_its_values():
    assert sparkline([1.0, 2.0, 3.0]) == "▁▄█" or sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert sparkline([5.0]) == "▁"
    assert len(sparkline([float(i) for i in range(1000)])) == 32


def test_the_bar_follows_the_run_and_in_other_phases_the_phase():
    progress = {"phase": "training", "step": 36, "steps": 144, "phase_step": 36, "phase_steps": 24}
    assert where(progress) == ("training", 36, 144)
    assert where({**progress, "phase": "evaluating", "phase_step": 3, "phase_steps": 8}) == (
        "evaluating", 3, 8,
    )  # fmt: skip
    assert where({"phase": None}) == ("starting", 0, None)


def test_the_figures_of_a_progress():
    progress = {
        "epoch": 2, "epochs": 6, "step": 38, "steps": 144, "iterations_per_second": 29.1234,
        "loss": 0.4123, "best": {"step": 24, "val_loss": 0.5, "val_mae": 3.5}, "eta_seconds": 3.6,
    }  # fmt: skip
    assert figures(progress) == (
        "epoch 2/6 · step 38/144 · 29.1 it/s · loss 0.412 · best val_mae 3.5 · 4 s left"
    )
    assert figures({}) == ""


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (
            "state",
            {"to": "failed", "reason": "data_error", "message": "rows differ"},
            "rows differ",
        ),
        ("state", {"to": "queued", "reason": "worker_lost", "message": None}, "worker lost"),
        ("epoch", {"epoch": 2, "epochs": 6, "train_loss": 0.4, "val_mae": 3.5}, "val_mae 3.5"),
        ("checkpoint", {"action": "saved", "step": 24}, "saved at step 24"),
        ("warning", {"code": "x", "message": "the disk is nearly full"}, "nearly full"),
    ],
)
def test_what_happened_is_told(kind, data, words):
    note = note_of(kind, data)
    assert note is not None
    assert words in note[0]


def test_what_is_of_no_interest_is_not_told():
    assert note_of("phase", {"phase": "training"}) is None
    assert note_of("checkpoint", {"action": "removed", "step": 24}) is None
