"""Lines that a script may write into its file of events: a bad one is left out alone."""

import json

import pytest

from worker.agent.attempt_folder import MOST_REFUSALS, AttemptDir
from worker.agent.event_lines import NotStorable, parse_event

ODD = [
    {"kind": "warning", "t": "yesterday", "code": "c", "message": "m"},
    {"kind": "warning", "t": 1.0, "code": "c", "message": {"deep": 1}},
    {"kind": "warning", "t": 1e400, "code": "c", "message": "m"},
    {"kind": "progress", "t": 1.0, "step": "many"},
    {"kind": "progress", "t": 1.0, "step": 2**63},
    {"kind": "progress", "t": 1.0, "step": 1, "totals": {"train_iterations": "x"}},
    {"kind": "progress", "t": 1.0, "step": 1, "peak_memory": {"device_bytes": "x"}},
    {"kind": "metrics", "t": 1.0, "step": 1, "values": {"val_loss": "low"}},
    {"kind": "metrics", "t": 1.0, "step": -1, "values": {}},
    {"kind": "checkpoint", "t": 1.0, "action": "saved", "path": "../../../etc", "step": 1},
    {"kind": "checkpoint", "t": 1.0, "action": "saved", "path": "a", "step": 1, "bytes": 2**70},
    {"kind": "applied", "t": 1.0, "applied": [1]},
    {"kind": "restored", "t": 1.0, "step": 1.5},
    {"kind": "phase", "t": 1.0, "phase": None},
    {"kind": "end", "t": 1.0, "reason": "completed", "message": "m", "result": {"best": 3}},
]


@pytest.mark.parametrize("event", ODD, ids=lambda one: f"{one['kind']}")
def test_a_line_that_cannot_be_stored_or_shown_is_refused(event):
    with pytest.raises(NotStorable, match=r"^\w+"):
        parse_event(json.dumps(event).encode())


def test_what_trainers_write_is_taken():
    """The totals of a progress event have seconds among the counts."""
    totals = {"train_iterations": 3, "written_seconds": 0.25, "eval_samples": None}
    peak = {"host_bytes": 5, "device_bytes": None, "phases": {"training": 5}}
    progress = {"kind": "progress", "t": 1.0, "step": 3, "loss": None, "totals": totals}
    event = {**progress, "peak_memory": peak, "phase_seconds": {"compute": 0.5}}
    assert parse_event(json.dumps(event).encode()) == event


def test_values_that_nest_deep_are_refused():
    line = b'{"kind": "warning", "t": 1, "code": "c", "message": "m", "x": ' + b"[" * 60 + b"]" * 60
    with pytest.raises(NotStorable, match="nested more than 20 deep"):
        parse_event(line + b"}")


def test_text_that_no_database_holds_is_replaced():
    event = parse_event(rb'{"kind": "phase", "phase": "a\u0000b\ud800", "x\u0000": "y"}')
    assert event == {
        "t": 0.0,
        "kind": "phase",
        "phase": "a\ufffdb\ufffd\ufffd\ufffd",
        "x\ufffd": "y",
    }


def test_what_is_no_event_is_passed_over():
    lines = (b"", b"no JSON", b"[]", b'{"kind": 3}', b"[" * 10_000)
    assert [parse_event(line) for line in lines] == [None] * 5


def test_odd_lines_cost_only_themselves_and_are_named_up_to_a_number(tmp_path):
    good = {"kind": "metrics", "t": 1.0, "step": 1, "values": {"loss": 1.5}}
    lines = [json.dumps(one) for one in (*ODD, good)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    events = AttemptDir(tmp_path).read(2**20, 0).events
    assert events[-1] == good
    warnings = events[:-1]
    assert len(warnings) == MOST_REFUSALS
    assert {one["code"] for one in warnings} == {"event_refused"}
    assert "Further ones are left out" in warnings[-1]["message"]
