"""Tails of a growing attempt directory."""

import json

from worker.attempt import LOG_BACKLOG_BYTES, AttemptDir


def test_events_are_whole_lines_in_their_order(tmp_path):
    attempt = AttemptDir(tmp_path)
    assert attempt.events.read() == []
    with (tmp_path / "events.jsonl").open("w") as file:
        file.write('{"kind": "phase", "t": 1}\n{"kind": "pro')
        file.flush()
        assert [e["kind"] for e in attempt.events.read()] == ["phase"]
        file.write('gress", "t": 2}\n')
        file.flush()
        assert [e["kind"] for e in attempt.events.read()] == ["progress"]


def test_what_is_no_event_is_passed_over(tmp_path):
    lines = ["not json", "[]", '{"no": "kind"}', '{"kind": "phase", "t": 1}', '{"kind": "torn']
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert [e["kind"] for e in AttemptDir(tmp_path).events.read_all()] == ["phase"]


def test_a_file_that_a_smaller_one_has_replaced_is_read_to_an_end(tmp_path):
    attempt = AttemptDir(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"kind": "phase", "t": 1}\n' * 3)
    assert len(attempt.events.read_all()) == 3
    (tmp_path / "events.jsonl").write_text('{"kind": "phase", "t": 1}\n')
    assert attempt.events.read_all() == []


def test_numbers_that_are_not_finite_become_null(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"kind": "progress", "t": 1, "loss": NaN}\n')
    assert AttemptDir(tmp_path).events.read()[0]["loss"] is None


def test_log_text_survives_any_bytes(tmp_path):
    attempt = AttemptDir(tmp_path)
    (tmp_path / "trainer.log").write_bytes("größe".encode()[:3] + b"\xff\0end")
    text = attempt.log.read()
    assert text.startswith("gr")
    assert text.endswith("end")
    assert "\0" not in text


def test_a_log_that_grows_too_fast_is_jumped_over_and_says_so(tmp_path):
    attempt = AttemptDir(tmp_path)
    (tmp_path / "trainer.log").write_bytes(b"a" * 1000 + b"b" * LOG_BACKLOG_BYTES)
    text = attempt.log.read_all()
    assert "[1000 bytes left out" in text
    assert "a" * 10 not in text


def test_the_last_line_with_something_on_it(tmp_path):
    (tmp_path / "trainer.log").write_text("first\nRuntimeError: no\n\n")
    assert AttemptDir(tmp_path).last_log_line() == "RuntimeError: no"


def test_exit_json_that_is_missing_or_torn_is_no_account(tmp_path):
    attempt = AttemptDir(tmp_path)
    assert attempt.exit() is None
    (tmp_path / "exit.json").write_text('{"pid"')
    assert attempt.exit() is None
    (tmp_path / "exit.json").write_text(json.dumps({"returncode": 0}))
    assert attempt.exit() == {"returncode": 0}
