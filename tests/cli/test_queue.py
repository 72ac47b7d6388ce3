"""`stoker queue`, `queue move` and `edit`: what waits, what is next, and who goes first."""

from typing import Any

import pytest

from app.cli.failures import ExitCode
from app.cli.host.queue import _listed, starts_next
from tests.cli.host.test_machine import registered
from tests.cli.test_ls import script


@pytest.fixture
def waiting(cli, api, spec_file):
    """Three runs that are claimed before all others, in the order of their ids."""
    ids = [cli("submit", str(spec_file), "--set", "priority=950", "--json") for _ in range(3)]
    yield [answer.document["id"] for answer in ids]
    for answer in ids:
        cli("kill", str(answer.document["id"]))


def first(cli, count=3):
    return [run["id"] for run in cli("queue", "--json").document["data"]][:count]


def test_runs_are_moved_and_what_changed_is_said(cli, waiting):
    one, two, three = waiting
    assert cli("queue", "move", str(three), "--first").out == f"Run {three} now waits first.\n"
    assert first(cli) == [three, one, two]
    answer = cli("queue", "move", str(one), "--before", str(three))
    assert answer.out == f"Run {one} now waits before run {three}.\n"
    assert first(cli) == [one, three, two]
    answer = cli("queue", "move", str(one), "--after", str(two))
    assert answer.out == f"Run {one} now waits after run {two}.\n"
    assert first(cli) == [three, two, one]
    cli("queue", "move", str(one), "--before", str(three))
    cli("edit", str(two), "--priority", "960")
    assert first(cli) == [two, one, three]
    answer = cli("queue", "move", str(three), "--first")
    assert answer.out == f"Run {three} now waits first, with the priority 960.\n"
    moved = cli("queue", "move", str(three), "--last", "--json").document
    assert moved["id"] == three
    assert first(cli, 1000)[-1] == three


def test_what_cannot_be_moved_is_a_sentence(cli, waiting):
    one, two, three = map(str, waiting)
    for words in ((), ("--first", "--last"), ("--first", "--before", two),
                  ("--after", two, "--before", two)):  # fmt: skip
        answer = cli("queue", "move", one, *words)
        assert (answer.code, "one of --first, --last, --before RUN and" in answer.err) == (2, True)
    cli("pause", three)
    for words in ((three, "--first"), (one, "--before", three)):
        answer = cli("queue", "move", *words)
        assert answer.code == ExitCode.refused, answer
        assert f"Run {three} is paused; only a run that waits has a place" in answer.err
    cli("kill", three)


def test_name_notes_priority_and_labels_are_edited(cli, waiting):
    one = str(waiting[0])
    cli("edit", one, "--label", "team=weather", "--label", "old=x")
    shown = cli("edit", one, "--name", "night", "--notes", "", "--label", "old=", "--json").document
    assert (shown["name"], shown["notes"], shown["labels"]) == ("night", "", {"team": "weather"})
    assert cli("edit", one, "--priority", "951").out == f"Run {one} now has the priority 951.\n"
    assert "say what to change" in cli("edit", one).err
    assert "'team' is not KEY=VALUE" in cli("edit", one, "--label", "team").err
    wrong = cli("edit", one, "--priority", "5000")
    assert wrong.code == ExitCode.refused, wrong
    assert "priority" in wrong.err


def test_what_starts_next_and_when_is_said(cli, api, waiting):
    one = waiting[0]
    told = "Nothing starts: no worker is alive. `stoker up` starts one."
    assert cli("queue", "--json").document["next"] == told
    assert told in " ".join(cli("queue").out.split())
    slot = {"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}
    with registered(api, slots=[slot], facts={"host": "box", "uid": 0, "recipes": {}}):
        assert f"Run {one} " in cli("queue", "--json").document["next"]


class Told:
    """A client that says this of the service."""

    def __init__(self, slots, left):
        self.slots, self.left = slots, left

    def workers(self, **_):
        return {"data": [{"slots": self.slots}], "next_cursor": None}

    def every(self, call):
        return iter(call()["data"])

    def run(self, run_id):
        return {"progress": {"eta_seconds": self.left[run_id]}}


def told(slots, left, waiting):
    client: Any = Told(slots, left)
    return starts_next(client, waiting)


WAITING: list[dict[str, Any]] = [
    {"id": 6, "status": "waiting_for_parent", "message": None},
    {"id": 7, "status": "queued", "message": None},
]


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        ({}, "Run 7 starts next, at once."),
        ({3: 4800}, "Run 7 starts next, when run 3 ends (1:20:00 left)."),
        ({3: None}, "Run 7 starts next, when run 3 ends."),
        (
            {3: 4800, 4: 60},
            "Run 7 starts next, when one of the runs 3, 4 ends (run 4 has 1:00 left).",
        ),
        ({3: None, 4: None}, "Run 7 starts next, when one of the runs 3, 4 ends."),
    ],
)
def test_the_next_run_waits_for_the_one_that_ends_first(left, sentence):
    slots = [{"run_id": run_id, "waiting": None} for run_id in left or [None]]
    assert told(slots, left, WAITING) == sentence


def test_a_run_that_waits_for_something_else_says_for_what():
    slots = [{"run_id": None, "waiting": None}]
    run = {"id": 7, "status": "queued", "message": "It needs a GPU."}
    assert told(slots, {}, [run]) == "Run 7 is next, and waits: It needs a GPU."
    assert told(slots, {}, WAITING[:1]) is None
    held = [{"run_id": None, "waiting": "its GPU is used by others"}]
    assert told(held, {}, WAITING) == "Run 7 starts next, when a slot is free."


def test_the_queue_says_why_and_with_what_only_where_there_is_any():
    plain = {"priority": 0, "message": None}
    beside = ["place", "id", "name", "status", "priority", "created"]
    headers, rows = _listed([script(7, **plain), script(8, argv=None, **plain)], 100)
    assert headers == beside
    assert rows[0][:5] == ["1", "7", "train.py", "queued", "0"]
    runs = [script(7, "--lr", "1e-3", **plain), script(8, **plain | {"message": "It needs a GPU."})]
    headers, rows = _listed(runs, 100)
    assert headers == [*beside, "arguments", "why"]
    assert [row[-2:] for row in rows] == [["--lr 1e-3", ""], ["", "It needs a GPU."]]
    *_, (*_, shown) = _listed([script(7, "--data", "x" * 300, **plain)], 100)[1]
    assert shown.endswith("…")
    assert _listed([], 100) == (beside, [])
