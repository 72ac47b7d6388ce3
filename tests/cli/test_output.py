"""Numbers, sizes, times and courses as people read them."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.cli.output import (
    ago,
    best_score,
    between,
    duration,
    in_words,
    number,
    print_explained,
    print_table,
    size,
    wrapped,
)
from app.cli.progress import (
    Figures,
    LiveView,
    Teller,
    figures,
    plain_line,
    where,
)
from app.cli.results import sparkline
from app.cli.specs.planview import print_plan
from stoker import Event


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00012345, "0.0001234"), (29.123, "29.12"), (144, "144"), (1234567, "1,234,567"),
     (3456789.0, "3,456,789"), (-7.838283e17, "-7.838e+17"), (None, "–"), (True, "–")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


def test_a_status_ends_a_sentence():
    shown = ["running", "killing", "waiting_for_parent", "paused", "succeeded", "stopped"]
    assert [in_words(one, 7) for one in shown] == [
        "is running", "is being killed", "is waiting for run 7", "is paused", "has succeeded",
        "has stopped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB"), (None, "–")],
)
def test_sizes(value, text):
    assert size(value) == text


def test_sizes_that_are_compared_have_one_unit():
    assert size(200 * 2**20, beside=3 * 2**29) == "0.2 GiB"
    assert size(5 * 2**20, beside=2**30) == "0.0049 GiB"
    assert size(2**30, beside=5) == "1.0 GiB"
    assert size(0, beside=2**30) == "0.0 GiB"


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
    assert where({"phase": "running", "step": 0, "ratio": 0.7}) == ("running", 70, 100)


def test_a_script_that_says_its_share_alone_has_that_as_a_figure():
    progress = {"phase": "running", "step": 0, "steps": None, "ratio": 0.7, "eta_seconds": 3.0}
    assert figures(progress) == "70 % · 3 s left"
    assert figures({**progress, "step": 12}) == "step 12 · 70 % · 3 s left"
    assert figures({**progress, "step": 12, "steps": 20}) == "step 12/20 · 3 s left"


def test_the_figures_of_a_progress():
    progress = {
        "epoch": 2, "epochs": 6, "step": 38, "steps": 144, "iterations_per_second": 29.1234,
        "loss": 0.4123, "best": {"step": 24, "val_loss": 0.5, "val_mae": 3.5}, "eta_seconds": 3.6,
    }  # fmt: skip
    assert figures(progress) == (
        "epoch 2/6 · step 38/144 · 29.1 it/s · loss 0.412 · best val_mae 3.5 · 4 s left"
    )
    assert figures({}) == ""


FULL = {
    "phase": "training", "epoch": 12, "epochs": 500, "step": 1200, "steps": 30000, "loss": 0.4123,
    "iterations_per_second": 29.1234, "eta_seconds": 10925.0,
    "best": {"step": 24, "val_loss": 0.5, "val_mae": 3.5},
}  # fmt: skip


def test_the_time_left_is_never_cut():
    for width in range(12, 100):
        line = figures(FULL, width)
        assert len(line) <= width
        assert line.endswith("3:02:05 left"), width


def test_a_plain_line_says_each_thing_once():
    progress = {"phase": "training", "epochs": 500, "epoch": 1, "step": 0, "steps": 3000}
    assert plain_line(progress) == "training · epoch 1/500 · step 0/3000"
    evaluating = {"phase": "evaluating", "phase_step": 3, "phase_steps": 8, "epochs": 5, "epoch": 1}
    assert plain_line(evaluating) == "evaluating 3/8 · epoch 1/5"
    assert plain_line({"phase": "restoring", "phase_steps": None}) == "restoring"


def test_figures_without_news_say_so():
    assert "29.1 it/s" in str(Figures(FULL, 80, time.monotonic()))
    assert str(Figures(FULL, 80, time.monotonic() - 8)) == "no news for 8 s"


def test_what_is_copied_is_never_broken(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    told = "word " * 18
    for copied in ("`stoker run -- x y`", "--set 'a.b=c d e'", "stoker ls --after 3 --limit 99 -n"):
        first, second = wrapped(f"  {told}{copied}")
        assert second == f"    {copied}"
        assert first == f"  {told}".rstrip()
    assert wrapped("x" * 200) == ["x" * 200]
    assert wrapped(told * 3, err=True) == [told * 3], "a log has errors whole"


def test_tables_where_nobody_looks_have_a_line_for_each_row(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    why = ("It waits for memory. " * 80).rstrip()
    for show in (print_table, print_explained):
        show(["name", "why"], [("a" * 30, why), ("日" * 60, "")], "")
        _, first, second = capsys.readouterr().out.splitlines()
        assert first.split("  ")[0] == "a" * 30
        assert first.endswith(why)
        assert second.rstrip() == "日" * 60


def test_tables_fit_the_columns_that_are_set_and_cut_no_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    print_table(["name", "why"], [("a" * 30, "It waits for memory. " * 8)], "")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 100
    assert len(lines) > 2
    print_table(["name", "file"], [("a" * 80, "b" * 80)], "")
    assert "a" * 80 + "  " + "b" * 80 in capsys.readouterr().out
    print_table(["name", "file"], [("日" * 80, "本" * 80)], "")
    assert "日" * 80 + "  " + "本" * 80 in capsys.readouterr().out


class Remembered:
    """A view that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.notes: list[str] = []

    def note(self, text: str, style: str = "") -> None:
        self.notes.append(text)

    def doing(self, what: str) -> None:
        self.told.append(what)

    def progress(self, progress: dict[str, object]) -> None:
        self.told.append(f"{progress['phase']} {progress['step']}")

    def close(self) -> None:
        return None


def test_what_a_dead_attempt_left_is_not_shown():
    view = Remembered()
    teller = Teller(view)
    training = Event(None, "progress", {"phase": "training", "step": 5})
    for event in (
        Event(1, "state", {"to": "running"}),
        Event(2, "phase", {"phase": "building"}),
        training,
        Event(3, "state", {"to": "queued", "reason": "worker_lost"}),
        training,
        Event(4, "phase", {"phase": "building"}),
    ):
        teller.tell(event)
    assert view.told == ["starting", "building", "training 5", "queued"]


def test_a_finding_that_was_shown_is_not_told_again():
    """`submit`, `run` and `restart` show all of them, with fixes, before they follow the run."""
    view = Remembered()
    shown = {"code": "a", "loc": ["recipe"], "message": "It is so."}
    teller = Teller(view, told=[shown])
    for event in (
        Event(1, "issue", {**shown, "t": "2026-11-25T10:15:52.535Z", "attempt": None}),
        Event(2, "issue", {**shown, "loc": ["data"], "attempt": 1}),
        Event(3, "warning", {"code": "a", "message": "It is so."}),
    ):
        teller.tell(event)
    assert view.notes == ["issue        It is so.", "warning      It is so."]


def test_figures_older_than_what_was_noted_are_not_shown():
    """Progress is told less often than checkpoints are, and may come after a newer one."""
    view = Remembered()
    teller = Teller(view)

    def training(step: int) -> Event:
        return Event(None, "progress", {"phase": "training", "step": step})

    for event in (
        Event(1, "state", {"to": "running"}),
        training(90),
        Event(2, "checkpoint", {"action": "saved", "step": 128}),
        training(91),
        training(128),
        Event(3, "state", {"to": "queued"}),
        Event(4, "state", {"to": "running"}),
        training(100),
    ):
        teller.tell(event)
    steps = [told for told in view.told if told.startswith("training")]
    assert steps == ["training 90", "training 128", "training 100"]


def test_a_live_view_shows_no_steps_where_none_are_counted(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    view = LiveView()
    view.progress(FULL)
    view._bar.refresh()
    drawn = capsys.readouterr().out
    assert "3:02:05 left" in drawn
    assert " 4 %" in drawn
    view.note(f"{'issue':<12} {'word ' * 40}")
    noted = [line for line in capsys.readouterr().out.splitlines() if "word" in line]
    assert [line[:17] for line in noted[1:]] == [" " * 13 + "word"] * (len(noted) - 1)
    assert len(noted) > 2
    view.doing("restoring")
    view._bar.refresh()
    drawn = capsys.readouterr().out
    view.close()
    assert "restoring" in drawn
    assert "%" not in drawn.partition("restoring")[2]
    assert "it/s" not in drawn.partition("restoring")[2]


@pytest.mark.parametrize(
    ("named", "told"), [({"command": "tune"}, "registration"), ({"like": "hf"}, "--like")]
)
def test_the_plan_of_a_script_says_what_filled_in_its_values(capsys, named, told):
    given = {f"/recipe/{name}": {"value": one, "source": "request"} for name, one in named.items()}
    filled = {"/recipe/resume": {"value": ["--resume"], "source": "script"}}
    answer: dict[str, Any] = {"issues": [], "spec": {}, "unchecked": [], "memory": None}
    print_plan({**answer, "provenance": given | filled}, everything=False)
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "resume" in one]
    assert line.split()[-1] == told
