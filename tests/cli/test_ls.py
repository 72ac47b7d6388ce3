"""`stoker ls` against a real API: filters, times, pages, and what is said of none."""

import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.cli.filters import moment
from app.cli.output import print_table, restart_facts, restart_line
from app.cli.runs import _fitted, why_they_wait
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
    assert f"  {away['artifacts_away']}\n" in submitted.out
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
def test_ls_fits_a_hundred_columns(capsys, monkeypatch, reason, name):
    monkeypatch.delenv("COLUMNS", raising=False)
    outcome = "succeeded" if reason == "completed" else "failed"
    progress = {"step": 123_456, "steps": 500_000, "loss": 0.034567, "best": {"val_mae": 3.5678}}
    moment = "2026-01-01T00:00:00.000Z"
    run = {
        "id": 12_345, "name": name, "state": outcome, "status": outcome, "reason": reason,
        "progress": progress, "created_at": moment, "started_at": moment, "finished_at": moment,
        "argv": None,
    }  # fmt: skip
    print_table(*_fitted([run, run | {"id": 7, "name": ""}], 100), "")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 100
    assert "123,456 of 500,000" in lines[1]
    assert "val_mae 3.568" in lines[1]
    assert name[:11] in lines[1]
    assert ("failed: " + reason in lines[1]) is (outcome == "failed")
    monkeypatch.setenv("COLUMNS", "1000")
    print_table(*_fitted([run], 1_000), "")
    assert name in capsys.readouterr().out, "where there is room all of it is shown"


def test_ls_of_nothing_has_no_columns():
    assert _fitted([], 100) == ([], [])


def script(run_id: int, *arguments: str, **told: Any) -> dict[str, Any]:
    moment = "2026-01-01T00:00:00.000Z"
    argv = ["/opt/venv/bin/python", "src/train.py", *arguments]
    run = {"id": run_id, "name": "train.py", "state": "queued", "status": "queued", "argv": argv,
           "progress": None, "created_at": moment, "started_at": None,
           "finished_at": None}  # fmt: skip
    return run | told


def listed(runs: list[dict[str, Any]], room: int = 100) -> list[str]:
    headers, rows = _fitted(runs, room)
    return [str(row[headers.index("arguments")]) for row in rows]


def test_runs_of_one_script_are_told_apart_by_their_arguments(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    runs = [script(1, "--lr", "1e-3", "--note", "two words"), script(2, "--lr", "3e-4")]
    assert listed(runs) == ["--lr 1e-3 --note 'two words'", "--lr 3e-4"]
    assert listed([script(1, "-c", "a\nb's", name="night")]) == [r"src/train.py -c $'a\nb\'s'"]
    print_table(*_fitted([script(3), script(1, "--lr", "1"), script(2, argv=None)], 100), "")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [
        "arguments", "–", "1", "–",
    ]  # fmt: skip
    assert "arguments" not in _fitted([script(1), script(2, argv=None)], 100)[0]


def test_restarts_say_what_they_change_as_far_as_there_is_room():
    lr = {"pointer": "/optimizer/lr", "before": 0.1, "after": 0.01}
    file = {"pointer": "/data/dataset", "before": "weather", "after": "weather"}
    child = script(2, argv=None, parent_id=1, differences=[file, lr])
    runs = [child, script(1, argv=None, parent_id=None, differences=None)]
    headers, rows = _fitted(runs, 200)
    assert headers[-1] == "restart of"
    assert [row[-1] for row in rows] == ["1: data.dataset: another file, optimizer.lr=0.01", None]
    for room in range(60, 120):
        headers, rows = _fitted(runs, room)
        widths = [max(len(str(one or "–")) for one in column)
                  for column in zip(headers, *rows, strict=True)]  # fmt: skip
        assert sum(widths) + 2 * (len(widths) - 1) <= room
    assert _fitted(runs, 80)[1][0][-1] == "1: data.dataset: anot…"
    old = {"parent_id": 1, "differences": None, "carry": {"changed": ["/optimizer/lr"]}}
    assert (restart_line(old), restart_facts(old)) == ("1", "1; different: optimizer.lr")


def test_arguments_that_few_runs_have_go_before_the_loss():
    told = {"progress": {"step": 123_456, "steps": 500_000, "loss": 0.1}}
    runs = [script(run_id, argv=None, **told) for run_id in (1, 2)]
    headers, _ = _fitted([*runs, script(3, "--data", "x" * 30)], 80)
    assert {"loss", "took"} <= set(headers)


def test_wide_names_and_those_of_two_lines_keep_a_run_in_its_line(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    runs = [script(1, "--lr", "1" * 90, name="日本語" * 9), script(2, "--lr", "2", name="a\nb")]
    print_table(*_fitted(runs, 100), "")
    first, wide, two = capsys.readouterr().out.splitlines()
    assert wide.startswith(" 1  日本語日本")
    assert wide.count("…") == 2
    assert two.startswith(" 2  a b  ")
    assert len(first) == len(two) == 100


def test_what_long_arguments_differ_in_is_shown(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    long = ["--data", "/mnt/data/" + "a" * 60, "--output", "out/" + "b" * 40, "--seed"]
    runs = [script(1, *long, "1"), script(2, *long, "22", "--wide"), script(3, "--lr", "1e-3")]
    assert listed(runs[:2]) == ["… --seed 1", "… --seed 22 --wide"]
    (alone,) = listed(runs[:1])
    assert alone.startswith("--data /mnt/data/aaa")
    assert alone.endswith("…")
    for room in (90, 100):
        failed = {"state": "failed", "status": "failed", "reason": "checkpoint_write_error"}
        told = {"progress": {"step": 123_456, "steps": 500_000, "loss": 0.1}, **failed}
        print_table(*_fitted([*runs, script(4, *long, **told)], room), "")
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert max(map(len, lines)) <= room
        assert "train.py" in lines[1]


def test_a_pipe_has_all_columns_and_whole_names_and_a_line_for_each_run(cli, api, spec_file):
    name = "a-name-that-is-as-long-as-some-people-like-them-to-be-" + "x" * 60
    assert cli("submit", str(spec_file), "--set", f"name={name}").code == 0
    shown = cli("ls", "-n", "1", columns=None).out.splitlines()
    assert shown[0].split() == [
        *("id", "name", "status", "steps", "loss", "best", "created", "took"),
    ]  # fmt: skip
    assert shown[1].split()[1] == name
    queued = cli("queue", columns=None).out.splitlines()
    assert [line.split()[2] for line in queued if name in line] == [name]
