"""Verbs that take several ids: a line for each run, and the exit code of the worst."""

import json
from contextlib import closing
from types import SimpleNamespace

import pytest
import typer

from app.cli import actions
from app.cli.arguments import for_each
from app.lifecycle import Reason
from app.planning.requirements import SlotOffer
from app.settings import load_settings
from app.spec.installed import INSTALLED
from app.spec.run import SPEC_VERSION
from app.store import open_store
from app.store.records import Finish
from stoker import Client, ServiceUnreachable
from tests.cli.host.test_machine import registered


@pytest.fixture
def two(cli, api, spec_file) -> list[str]:
    """Ids of two runs that wait."""
    return [str(cli("submit", str(spec_file), "--json").document["id"]) for _ in range(2)]


def test_verbs_take_several_runs(cli, two):
    assert cli("pause", *two).out == "".join(f"Run {run_id} is paused.\n" for run_id in two)
    again = cli("pause", two[0], "999999", two[1], two[0])
    assert again.code == 5, "as the worst of them"
    assert again.out == "".join(f"Run {run_id} is already paused.\n" for run_id in two)
    assert "error: There is no run 999999" in again.err
    resumed = cli("resume", "999999", *two, "--json")
    assert resumed.code == 5
    told = [(one["id"], one["exit_code"]) for one in resumed.document["results"]]
    assert told == [(999999, 5), (int(two[0]), 0), (int(two[1]), 0)]
    assert resumed.document["results"][0]["problem"]["code"] == "not_found"
    assert resumed.document["results"][1]["answer"]["state"] == "queued"
    edited = cli("edit", *two, "--priority", "3")
    assert edited.out.count("now has the priority 3") == 2
    stopped = cli("stop", *two, "--wait", "5")
    assert stopped.out == "".join(f"Run {run_id} has stopped.\n" for run_id in two)
    restarted = cli("restart", *two, "--from", "scratch")
    assert (restarted.code, restarted.out.count("starts anew as run")) == (0, 2)
    assert cli("restart", *two, "--watch").code == 2


def test_delete_tells_of_each_what_came_of_it(cli, two):
    cli("stop", *two)
    unasked = cli("delete", "999999", *two)
    assert (unasked.code, f"This removes runs {two[0]}, {two[1]} with" in unasked.err) == (5, True)
    assert cli("delete", two[0], "--yes").out.count("is deleted") == 1
    deleted = cli("delete", "999999", *two, "--yes", "--json")
    assert deleted.code == 5
    told = {str(one["id"]): one for one in deleted.document["results"]}
    assert told[two[1]]["answer"] == {"deleted": int(two[1])}
    assert {told[one]["problem"]["code"] for one in ("999999", two[0])} == {"not_found"}
    assert "There is no run 999999" in cli("delete", "999999").err, "nobody is asked"


def test_each_is_asked_once_and_may_end_by_itself_meanwhile(cli, api, two, monkeypatch):
    slots = [SlotOffer(f"cpu-{number}", "cpu", "cpu") for number in range(2)]
    facts = {"spec_version": SPEC_VERSION, "recipes": INSTALLED.versions}
    asked: list[str] = []
    ask = Client.act
    with (
        registered(api, devices=[{"kind": "cpu", "name": "cpu"}], facts=facts) as worker_id,
        closing(open_store(load_settings(home=api))) as store,
    ):
        leases = [store.leases.claim(worker_id, [slot]) for slot in slots]
        ids = [str(lease.run_id) for lease in leases if lease is not None]

        def act(client, run_id, action, **options):
            """The last that is asked finds the first done with its work."""
            answer = ask(client, run_id, action, **options)
            asked.append(str(run_id))
            if asked == ids:
                reasons = (Reason.completed, Reason.interrupted)
                for lease, reason in zip(leases, reasons, strict=True):
                    assert lease is not None
                    store.leases.finish(lease.token, Finish(reason, "It is over.", exit_code=0))
            return answer

        monkeypatch.setattr(Client, "act", act)
        stopped = cli("stop", *ids, "--wait", "20")
    assert stopped.out == f"Run {ids[0]} has succeeded.\nRun {ids[1]} has stopped.\n"
    assert (stopped.code, asked) == (0, ids)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_time_to_wait_is_that_of_the_command(cli, two, monkeypatch):
    monkeypatch.setattr(actions, "time", clock := Clock())
    cli("pause", *two)
    resumed = cli("resume", *two, "--wait", "3")
    assert resumed.out == "".join(f"Run {run_id} is queued.\n" for run_id in two)
    assert resumed.code == 0
    assert clock.now == pytest.approx(3.0)


def test_a_service_that_goes_away_while_they_wait_leaves_no_run_untold(cli, two, monkeypatch):
    def go_away(seconds: float) -> None:
        monkeypatch.setattr(Client, "run", away)

    def away(client, run_id):
        raise ServiceUnreachable("It does not answer.")

    cli("pause", *two)
    monkeypatch.setattr(actions, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=go_away))
    resumed = cli("resume", *two, "--wait", "3", "--json")
    assert resumed.code == 6
    for run_id, told in zip(two, resumed.document["results"], strict=True):
        assert (told["id"], told["exit_code"]) == (int(run_id), 6)
        assert f"The resume of run {run_id} was accepted" in told["problem"]["detail"]


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_done_is_told_when_the_service_goes_away_in_between(capsys, as_json):
    asked = []

    def act(run_id):
        asked.append(run_id)
        if run_id > 1:
            raise ServiceUnreachable("It does not answer.")
        return {"id": run_id}, [f"Run {run_id} has stopped."]

    with pytest.raises(typer.Exit) as ended:
        for_each([1, 2, 3], act, as_json=as_json)
    out, err = capsys.readouterr()
    assert (ended.value.exit_code, asked) == (6, [1, 2])
    if as_json:
        results = json.loads(out)["results"]
        assert [(one["id"], one["exit_code"]) for one in results] == [(1, 0), (2, 6), (3, 6)]
        assert results[2]["problem"]["detail"] == "It does not answer."
    else:
        assert out == "Run 1 has stopped.\n"
        assert err == "error: It does not answer.\n"


def test_what_was_done_is_told_after_ctrl_c(capsys):
    def act(run_id):
        if run_id == 2:
            raise KeyboardInterrupt
        return {"id": run_id}, []

    with pytest.raises(typer.Exit) as ended:
        for_each([1, 2, 3], act, as_json=True)
    assert ended.value.exit_code == 130
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(one["id"], one["exit_code"]) for one in results] == [(1, 0), (2, 130), (3, 130)]
    with pytest.raises(typer.Exit):
        for_each([1, 2, 3], act, as_json=False)
    said = capsys.readouterr().err
    assert "asked of run 2, so it is not known whether it was accepted" in " ".join(said.split())
    assert "error: Nothing was asked of run 3: Ctrl-C came before." in said


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_accepted_is_told_after_ctrl_c_in_between(cli, two, monkeypatch, as_json):
    ask = Client.act

    def act(client, run_id, action, **options):
        if str(run_id) == two[1]:
            raise KeyboardInterrupt
        return ask(client, run_id, action, **options)

    monkeypatch.setattr(Client, "act", act)
    words = ("pause", *two, "999999", "--wait", "60", *(["--json"] if as_json else []))
    paused = cli(*words)
    assert paused.code == 130
    if as_json:
        told = [(one["id"], one["exit_code"]) for one in paused.document["results"]]
        assert told == [(int(two[0]), 0), (int(two[1]), 130), (999999, 130)]
    else:
        assert paused.out == f"Run {two[0]} is paused.\n"
        assert f"`stoker show {two[1]}` tells" in " ".join(paused.err.split())
        assert "Nothing was asked of run 999999" in paused.err
    alone = cli("pause", two[1], *(["--json"] if as_json else []))
    assert (alone.code, alone.out) == (130, "")
    assert "it is not known whether it was accepted" in " ".join(alone.err.split())


def test_what_was_accepted_is_told_after_ctrl_c_while_it_waits(cli, two, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    cli("pause", *two)
    monkeypatch.setattr(actions, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=interrupt))
    resumed = cli("resume", *two, "999999", "--wait", "3")
    assert resumed.code == 130, "whatever was refused"
    assert resumed.out == "".join(f"Run {run_id} is queued.\n" for run_id in two)
    assert "There is no run 999999" in resumed.err
    assert cli("resume", two[0], "--wait", "3").code == 130


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_what_is_no_time_to_wait_is_a_wrong_command_line(cli, home, seconds):
    for words in (("stop", "1"), ("submit", "spec.yaml"), ("data", "register", "a", "a.h5")):
        refused = cli(*words, "--wait", seconds)
        assert (refused.code, "is no number of seconds" in refused.err) == (2, True), words
