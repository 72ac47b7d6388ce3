"""The lines that tell of a run's events."""

import pytest

from app.cli.progress import PlainView, note_of


@pytest.mark.parametrize(
    ("cache", "told"),
    [("hit", "all from the cache"), ("partial", "some of it"), ("miss", "nothing was in"),
     (None, "nothing to compile")],
)  # fmt: skip
def test_compiling_is_told_before_and_after(cache, told):
    before = note_of("phase", {"phase": "compiling"})
    done = {"mode": "default", "cache": cache, "seconds": 21.3, "graphs": 9}
    after = note_of("applied", {"applied": {"compile": done}})
    assert before is not None
    assert after is not None
    assert before[0] == "compiling    the steps, before the first of them"
    assert after[0].startswith("compiled     in 21 s, ")
    assert told in after[0]


@pytest.mark.parametrize(
    ("shapes", "earlier", "told"),
    [
        (
            {"training step": 1, "smaller last batch": 1, "evaluation": 1},
            {"seconds": 41.2, "cache": "miss", "graphs": 5},
            "for 3 shapes of batches (training step, smaller last batch, evaluation); 5 graphs "
            "took 41 s before on this machine, nothing was in the cache",
        ),
        (
            {"training step": 7, "evaluation": 1}, None,
            "for 8 shapes of batches (7 for the training step, evaluation); no earlier time is "
            "known on this machine",
        ),
        (
            {"training step": 1}, {"seconds": 2.0, "cache": "hit", "graphs": 1},
            "for 1 shape of batches (training step); 1 graph took 2 s before on this machine, "
            "all from the cache",
        ),
    ],
)  # fmt: skip
def test_compiling_names_its_shapes_and_what_their_graphs_took_before(shapes, earlier, told):
    note = note_of("phase", {"phase": "compiling", "shapes": shapes, "earlier": earlier})
    assert note == (f"compiling    {told}", "dim")


def test_recording_is_told_before_and_after():
    before = note_of("phase", {"phase": "capturing"})
    done = {"captured": True, "launched_step_seconds": 0.0021, "replayed_step_seconds": 0.00043}
    after = note_of("applied", {"applied": {"cuda_graphs": done}})
    assert before == ("capturing    a step, and trying it against launched ones", "dim")
    assert after == ("captured     0.43 ms a step when tried, where launched it took 2.1 ms", "dim")
    launched = {"captured": False, "why_not": "This attempt is on the CPU."}
    assert note_of("applied", {"applied": {"cuda_graphs": launched}}) is None


@pytest.mark.parametrize(
    ("carry", "told"),
    [
        ("full", "restored     from step 7"),
        ("init", "begins       with the weights of step 7 of another run"),
    ],
)
def test_a_beginning_with_the_weights_of_another_run_is_no_resume(carry, told):
    note = note_of("restored", {"step": 7, "carry": carry})
    assert note is not None
    assert note[0] == told


def test_an_eager_run_tells_nothing_of_compiling():
    eager = {"mode": "none", "cache": None, "seconds": None, "graphs": None}
    for applied in ({"compile": eager}, {}):
        assert note_of("applied", {"applied": applied}) is None
    assert note_of("phase", {"phase": "building"}) is None


def test_watching_where_nobody_looks_tells_each_thing_once_in_lines_that_fit(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    view = PlainView()
    for ratio in (None, None, 0.5, 0.5):
        monkeypatch.setattr(view, "_said_at", 0.0)
        view.note(*note_of("state", {"to": "running"}) or ("", ""))
        view.progress({"phase": "running", "step": None, "ratio": ratio})
        view.note("checkpoint   saved at step 3")
    view.note("warning      " + "It is told in many words. " * 8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:9] == ["running", "checkpoint   saved at step 3"] * 2 + [
        "running", "running · 50 %", "checkpoint   saved at step 3", "running",
        "checkpoint   saved at step 3",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 100
    assert len(lines) == 12
    assert lines[-1].startswith(" " * 13 + "many")


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
        ("checkpoint", {"action": "saved", "step": 24, "seen": True}, "seen at step 24"),
        (
            "checkpoint",
            {"action": "saved", "step": 24, "of_run": 2},
            "the best so far, of step 24 of run 2, is kept here",
        ),
        (
            "checkpoint",
            {"action": "quarantined", "path": "runs/1/step-6", "message": "x is not as written"},
            "damaged      step-6 is passed over: x is not as written",
        ),
        ("warning", {"code": "x", "message": "the disk is nearly full"}, "nearly full"),
        # Not what the line before it said: why.
        (
            "retry",
            {"message": "It was killed.", "delay_seconds": 5, "retries_used": 1, "max_retries": 3},
            "retry        It is tried again in 5 s; 1 of 3 retries used.",
        ),
        (
            "retry",
            {"message": "Memory ran out. Rung 1: less.", "change": "Rung 1: less."}
            | {"delay_seconds": 0, "retries_used": 2, "max_retries": 3},
            "retry        It is tried again at once; 2 of 3 retries used. Rung 1: less.",
        ),
        (
            "retry",
            {"change": "Rung 1.", "delay_seconds": 0, "retries_used": 2, "max_retries": 3}
            | {"paused": True},
            "retry        It is tried again when it is resumed; 2 of 3 retries used. Rung 1.",
        ),
    ],
)
def test_what_happened_is_told(kind, data, words):
    note = note_of(kind, data)
    assert note is not None
    assert words in note[0]


def test_what_is_of_no_interest_is_not_told():
    assert note_of("phase", {"phase": "training"}) is None
    assert note_of("checkpoint", {"action": "removed", "step": 24}) is None
