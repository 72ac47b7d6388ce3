"""An attempt directory that grows, read in pieces."""

import json
import tracemalloc

import pytest

from app.store.telemetry.logs import HEAD_BYTES, TAIL_BYTES
from worker.agent.attempt_folder import LONGEST_EVENT_BYTES, PIECE_BYTES, AttemptDir
from worker.agent.beat_report import BeatReport
from worker.agent.follower import UNTOLD_EVENT_BYTES, UNTOLD_LOG_CHARACTERS, Follower

MIB = 2**20


def test_events_are_whole_lines_in_their_order(tmp_path):
    attempt = AttemptDir(tmp_path)
    assert attempt.events.read() == []
    with (tmp_path / "events.jsonl").open("w") as file:
        file.write('{"kind": "phase", "t": 1, "phase": "a"}\n{"kind": "pro')
        file.flush()
        assert [e["kind"] for e in attempt.events.read()] == ["phase"]
        file.write('gress", "t": 2}\n')
        file.flush()
        assert [e["kind"] for e in attempt.events.read()] == ["progress"]


def test_what_is_no_event_is_passed_over(tmp_path):
    lines = [
        "not json",
        "[]",
        "[" * 10**5,
        '{"no": "kind"}',
        '{"kind": "phase", "t": 1, "phase": "a"}',
        '{"kind": "torn',
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert [e["kind"] for e in AttemptDir(tmp_path).events.read()] == ["phase"]


def test_a_file_that_a_smaller_one_has_replaced_is_read_to_an_end(tmp_path):
    attempt = AttemptDir(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"kind": "phase", "t": 1, "phase": "a"}\n' * 3)
    assert len(attempt.events.read()) == 3
    (tmp_path / "events.jsonl").write_text('{"kind": "phase", "t": 1, "phase": "a"}\n')
    assert attempt.events.read() == []


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
    begin, middle, end = b"a" * HEAD_BYTES, b"b" * 1000, b"c" * TAIL_BYTES
    (tmp_path / "trainer.log").write_bytes(begin + middle + end)
    assert attempt.log.read() == begin.decode()
    text = attempt.log.read()
    assert "[1000 bytes left out" in text
    assert "b" not in text.partition("]")[2]
    while (more := attempt.log.read()) != "":
        text += more
    assert text.endswith("]\n" + end.decode())


@pytest.fixture
def peak():
    """The most memory that Python has held since the last call, in bytes."""
    tracemalloc.start()

    def read():
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        return most

    yield read
    tracemalloc.stop()


def event(number):
    return {"kind": "warning", "t": 1.0, "code": f"{number:08}", "message": "m" * 64_000}


def told(follower, report):
    """All that beats tell of what is there, one after the other."""
    while not follower.is_through:
        follower.read()
        yield report.beat()
        report.told()


def test_a_flood_of_events_is_told_in_pieces_and_nothing_is_lost(tmp_path, peak):
    count = 3200  # about 200 MiB
    with (tmp_path / "events.jsonl").open("w") as file:
        for number in range(count):
            file.write(json.dumps(event(number)) + "\n")
    report = BeatReport(tmp_path, tmp_path)
    follower = Follower(AttemptDir(tmp_path), report)
    seen, beats = [], 0
    for beat in told(follower, report):
        assert sum(len(e.data["message"]) for e in beat.events) <= PIECE_BYTES + 64_000
        seen += [e.data["code"] for e in beat.events]
        beats += 1
    assert seen == [f"{number:08}" for number in range(count)]
    assert beats >= 190
    assert peak() < 16 * MIB


def test_of_a_flood_of_output_the_begin_and_the_end_are_told(tmp_path, peak):
    lines = [f"{number:07} of a great many lines\n".encode() for number in range(2**16)]
    with (tmp_path / "trainer.log").open("wb") as file:
        file.write(b"first\n" + b"x" * HEAD_BYTES)
        for _ in range(100):
            file.writelines(lines)
        file.write(b"last\n")
        size = file.tell()
    del lines
    peak()
    report = BeatReport(tmp_path, tmp_path)
    text = "".join(b.log_text for b in told(Follower(AttemptDir(tmp_path), report), report))
    assert size > 180 * MIB
    assert peak() < 32 * MIB
    written = (tmp_path / "trainer.log").read_bytes()
    assert text[:HEAD_BYTES] == written[:HEAD_BYTES].decode()
    assert text[-TAIL_BYTES:] == written[-TAIL_BYTES:].decode()
    assert len(text) < HEAD_BYTES + TAIL_BYTES + 200


def test_while_the_store_takes_nothing_files_are_read_to_a_bound_and_then_not_lost(tmp_path):
    count = 160
    lines = [json.dumps(event(number)) for number in range(count)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "trainer.log").write_text("x" * 3 * MIB)
    report = BeatReport(tmp_path, tmp_path)
    follower = Follower(AttemptDir(tmp_path), report)
    sent = report.beat()
    for _ in range(20):
        follower.read()
    assert report.beat() is sent
    assert report.outbox.event_bytes < UNTOLD_EVENT_BYTES + PIECE_BYTES
    assert len(report.outbox.log_text) < UNTOLD_LOG_CHARACTERS + PIECE_BYTES
    report.told()
    beats = list(told(follower, report))
    assert [e.data["code"] for b in beats for e in b.events] == [f"{n:08}" for n in range(count)]
    assert sum(len(b.log_text) for b in beats) == 3 * MIB


def test_a_line_longer_than_a_piece_is_an_event_as_any_other(tmp_path):
    lines = [json.dumps({**event(n), "message": "m" * size}) for n, size in enumerate((3 * MIB, 1))]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    report = BeatReport(tmp_path, tmp_path)
    beats = list(told(Follower(AttemptDir(tmp_path), report), report))
    told_events = [e for b in beats for e in b.events]
    assert [len(e.data["message"]) for e in told_events] == [3 * MIB, 1]


def test_a_line_too_long_for_an_event_is_left_out_and_that_is_said(tmp_path, peak):
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.write(b'{"kind": "phase", "t": 1, "phase": "')
        for _ in range(10):
            file.write(b"x" * LONGEST_EVENT_BYTES)
        file.write(b'"}\n' + json.dumps(event(7)).encode() + b"\n")
        size = file.tell()
    report = BeatReport(tmp_path, tmp_path)
    peak()
    beats = list(told(Follower(AttemptDir(tmp_path), report), report))
    first, second = [e for b in beats for e in b.events]
    assert first.data["code"] == "event_too_long"
    length = size - len(json.dumps(event(7))) - 2
    assert f"{length:,} bytes" in first.data["message"]
    assert second.data["code"] == "00000007"
    assert peak() < 4 * LONGEST_EVENT_BYTES


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
