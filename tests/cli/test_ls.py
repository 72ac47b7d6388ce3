"""`stoker ls` against a real API: filters, times, pages, and what is said of none."""

import shlex
from datetime import UTC, datetime, timedelta

import pytest

from app.cli.filters import moment
from app.cli.output import print_table
from app.cli.runs import _fitted, _row, why_they_wait
from app.spec.installed import INSTALLED
from app.spec.run import SPEC_VERSION
from tests.cli.conftest import serving
from tests.cli.host.test_machine import registered


def test_submit_and_ls_say_that_runs_wait_for_their_artifacts(cli, api, spec_file):
    away = {"artifacts_away": "The artifact root /mnt/runs may not be mounted."}
    slots = [{"name": "cpu-0", "device": "cpu", "run_id": 7, "waiting": None}]
    facts = {**away, "spec_version": SPEC_VERSION, "recipes": INSTALLED.versions}
    with registered(api, slots=slots, facts=facts):
        submitted = cli("submit", str(spec_file))
        second = cli("submit", str(spec_file), "--json").document
        listed = cli("ls", "--limit", "2")
        as_json = cli("ls", "--limit", "2", "--json")
    assert f"  It waits: {away['artifacts_away']}\n" in submitted.out
    assert second["message"] == away["artifacts_away"], "also to who calls the API by hand"
    ids = f"{second['id'] - 1}, {second['id']}"
    assert listed.err == f"Runs {ids} wait: {away['artifacts_away']}\n"
    assert as_json.err == ""
    assert cli("ls").err == ""


def test_ls_names_the_commonest_reason_to_wait_in_one_line():
    def run(run_id, message, status="queued"):
        return {"id": run_id, "status": status, "state": "queued", "message": message}

    page = [run(9, "A."), run(8, "B.", "waiting_for_memory"), run(7, "B."), run(6, None)]
    assert why_they_wait(page) == "Runs 7, 8 wait: B. `stoker queue` says why the others wait."
    assert why_they_wait(page[:1]) == "Run 9 waits: A."
    assert why_they_wait(page[3:]) is None
    assert why_they_wait([{**run(5, "Stopped."), "state": "stopped"}]) is None


def test_ls_filters_and_pages(cli, api, spec_file):
    for mark in ("one", "two"):
        cli("submit", str(spec_file), "--set", f"labels={{page: '{mark}'}}")
    found = cli("ls", "--label", "page=one", "--json").document["data"]
    assert [run["labels"] for run in found] == [{"page": "one"}]
    first = cli("ls", "--label", "page", "-n", "1", "--json").document
    rest = cli("ls", "--label", "page", "--after", first["next_cursor"], "--json").document
    assert [run["labels"]["page"] for run in first["data"] + rest["data"]] == ["two", "one"]


def test_ls_without_any_run_says_how_there_would_be_one(cli, home):
    home.mkdir()
    with serving(home):
        assert cli("ls").out == "No runs. `stoker submit SPEC` creates one.\n"
        assert cli("ls", "--by", "no body").out == "No run matches --by 'no body'.\n"


@pytest.mark.parametrize(
    "given",
    [
        ["--dataset", "wether"], ["--parent", "77777"],
        ["--recipe", "seq", "--search", "two words"],
        ["--since", "2127-01-01T00:00:00Z"], ["--status", "killing", "--status", "pausing"],
        ["--after", "1"],
    ],
)  # fmt: skip
def test_ls_that_finds_nothing_says_which_filters_did(cli, api, run_id, given):
    assert cli("ls", *given).out == f"No run matches {shlex.join(given)}.\n"


def test_ls_names_the_whole_command_of_the_next_page(cli, api, spec_file):
    ids = [
        cli("submit", str(spec_file), "--set", "labels={next: 'a b'}", "--json").document["id"]
        for _ in range(3)
    ]
    given = ["--status", "queued", "--status", "paused", "--label", "next=a b"]
    *_, last = cli("ls", *given, "-n", "2").out.splitlines()
    further = f"ls {shlex.join(given)} --limit 2 --after {ids[1]}"
    assert last == f"older ones: stoker {further}"
    rest = cli(*shlex.split(further), "--json").document["data"]
    assert [run["id"] for run in rest] == ids[:1]


def test_the_next_page_of_the_last_day_is_of_the_same_day(cli, api, spec_file):
    for _ in range(2):
        cli("submit", str(spec_file))
    *_, last = cli("ls", "--since", "1d", "-n", "1").out.splitlines()
    since = shlex.split(last)[shlex.split(last).index("--since") + 1]
    assert timedelta(hours=23) < datetime.now(UTC) - datetime.fromisoformat(since)


@pytest.mark.parametrize("since", ["1d", "2h", "30m", "2026-01-31", "2026-01-31T01:00:00+02:00"])
def test_ls_takes_a_time_a_date_or_how_long_ago(cli, api, run_id, since):
    assert cli("ls", "--since", since, "--json", "-n", "1").document["data"][0]["id"] == run_id
    before = cli("ls", "--before", since, "--json").document["data"]
    assert run_id not in [run["id"] for run in before]


def test_a_date_is_its_midnight_in_utc():
    assert moment("2026-11-24", "--since") == "2026-11-24T00:00:00+00:00"


@pytest.mark.parametrize("option", ["--since", "--before"])
@pytest.mark.parametrize(
    "text", ["yesterday", "2026-13-01", "2026-03-01T12:00:00", "12", "-1d", "9999999d", "1e999d"]
)
def test_a_time_that_is_none_is_told_of_its_option(cli, api, option, text):
    answer = cli("ls", option, text)
    assert answer.code == 2
    assert option in answer.err
    assert "query" not in answer.err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--state", "burning"), ("--status", "burning"), ("--parent", "0"), ("--label", "x" * 999)],
)
def test_a_filter_that_is_refused_is_told_of_its_option(cli, api, option, value):
    answer = cli("ls", option, value)
    assert answer.code == 5
    assert f" at {option}: {option} = " in answer.err
    assert "query" not in answer.err


def test_several_statuses_in_one_are_told_apart(cli, api):
    answer = cli("ls", "--status", "running,paused")
    assert answer.code == 2
    said = " ".join(answer.err.replace("│", " ").split())
    assert "repeat the option: --status running --status paused" in said


@pytest.mark.parametrize("reason", ["completed", "hang", "checkpoint_write_error"])
@pytest.mark.parametrize("name", ["waves", "a-name-that-is-as-long-as-some-people-like-them-to-be"])
def test_ls_fits_a_hundred_columns(capsys, reason, name):
    outcome = "succeeded" if reason == "completed" else "failed"
    progress = {"step": 123_456, "steps": 500_000, "loss": 0.034567, "best": {"val_mae": 3.5678}}
    moment = "2026-01-01T00:00:00.000Z"
    run = {
        "id": 12_345, "name": name, "state": outcome, "status": outcome, "reason": reason,
        "progress": progress, "created_at": moment, "started_at": moment, "finished_at": moment,
    }  # fmt: skip
    print_table(*_fitted([_row(run), _row(run | {"id": 7, "name": None})], 100), "")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 100
    assert "123,456 of 500,000" in lines[1]
    assert "val_mae 3.568" in lines[1]
    assert name[:11] in lines[1]
    assert ("failed: " + reason in lines[1]) is (outcome == "failed")
    print_table(*_fitted([_row(run)], 1_000), "")
    assert name in capsys.readouterr().out, "where there is room all of it is shown"


def test_ls_of_nothing_has_no_columns():
    assert _fitted([], 100) == ([], [])
