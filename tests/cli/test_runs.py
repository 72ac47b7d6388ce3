"""Commands about runs against a real API: what is printed, and how bad input ends."""

import json
from typing import Any

import pytest

from app.cli.specs.planview import carry_lines
from app.settings import load_settings
from app.store import open_store
from app.store.checkpoint_rows import add_checkpoints
from app.store.records import NewCheckpoint
from stoker import Client, Problem
from tests.cli.conftest import SPEC


def test_submit_says_what_to_do_next(cli, api, spec_file):
    answer = cli("submit", str(spec_file))
    assert answer.code == 0
    assert "(waves) is queued" in answer.out
    assert "stoker watch" in answer.out


def test_set_changes_the_spec(cli, api, spec_file):
    answer = cli(
        "submit", str(spec_file), "--set", "training.epochs=8", "--set", "name=other", "--json"
    )
    with Client() as client:
        spec = client.spec(answer.document["id"])["spec"]
    assert spec["training"]["epochs"] == 8
    assert spec["name"] == "other"


@pytest.mark.parametrize("name", ["lr 3e-4, again", "3e-4", "null", "7"])
def test_a_name_distinguishes_runs_of_one_file(cli, api, spec_file, name):
    answer = cli("submit", str(spec_file), "--name", name, "--set", "name=other", "--json")
    assert answer.document["name"] == name


def test_a_spec_on_standard_input(cli, api):
    answer = cli("submit", "-", "--json", text=json.dumps(SPEC))
    assert answer.document["state"] == "queued"


def test_a_refused_spec_shows_every_issue_with_its_fix(cli, api, spec_file):
    answer = cli("submit", str(spec_file), "--set", "grad_accum=2", "--set", "recipe.patch=0")
    assert answer.code == 5
    assert answer.out == ""
    assert "unknown_field" in answer.err
    assert "fix: --set 'training.gradient_accumulation_steps=2'\n" in answer.err
    assert answer.err.count("There is no field grad_accum") == 1
    assert "recipe.patch" in answer.err
    assert "Traceback" not in answer.err


def test_with_json_an_error_is_a_document_too(cli, api, run_id, spec_file):
    refused = cli("submit", str(spec_file), "--set", "training.epoch=3", "--json")
    assert (refused.code, refused.out) == (5, "")
    told = json.loads(refused.err)
    assert (told["code"], told["exit_code"]) == ("spec_rejected", 5)
    assert {issue["code"] for issue in told["issues"]} == {"unknown_field"}
    assert told["issues"][0]["fix"]

    kept = json.loads(cli("delete", str(run_id), "--yes", "--json").err)
    assert (kept["code"], kept["exit_code"]) == ("action_not_allowed", 5)
    assert "stop" in kept["allowed_actions"]

    in_a_group = cli("data", "forget", "nothing", "--json")
    assert json.loads(in_a_group.err)["exit_code"] == in_a_group.code == 5

    ours = json.loads(cli("run", "--json", "--", "no_such_program").err)
    assert (ours["code"], ours["exit_code"]) == ("refused", 5)
    assert "no_such_program" in ours["detail"]


def test_a_fix_that_is_shown_can_be_used(cli, api, spec_file):
    answer = cli("submit", str(spec_file), "--set", "learning_rate=0.01")
    assert "fix: --set 'optimizer.lr=0.01'\n" in answer.err
    assert cli("plan", str(spec_file), "--set", "optimizer.lr=0.01").code == 0
    for epochs in (5, 3):  # the file has that field as well, with 3
        answer = cli("submit", str(spec_file), "--set", f"training.epoch={epochs}")
        assert f"fix: --set 'training.epochs={epochs}'\n" in answer.err
    planned = cli("plan", str(spec_file), "--set", "checkpoint.every_n_steps=0")
    said = "Did you mean checkpoint.every_steps? With that, checkpoint.every_steps = 0: it should"
    assert said in planned.out
    assert "fix:" not in planned.out


def test_what_is_known_of_the_data_is_told_with_what_cannot_be_read(cli, api, spec_file):
    for name in ("miss", "miss.h5"):  # the first is no HDF5 file
        (api / "data" / name).touch()
    wrong = ("--set", "training.epochs=-3", "--set", "optimizer.lr=1e6", "--set", "recipe.kind=seq")
    answer = cli("submit", str(spec_file), *wrong, "--set", "data.dataset=miss")
    assert "There is no dataset 'miss', but the file miss.h5 lies in DATA_ROOT." in answer.err
    assert "`stoker data register miss miss.h5` makes it one." in answer.err
    for field in ("training.epochs", "optimizer.lr", "recipe.kind"):
        assert f" at {field}: " in answer.err
        assert f"\n    {field}: " in answer.err, "a description is no why"
    typo = cli("plan", str(spec_file), "--set", "data.dataset=wavs", "--set", "training.epochs=0")
    assert "There is no dataset 'wavs'. Did you mean waves?" in typo.out
    assert "fix: --set 'data.dataset=waves'" in typo.out


def test_inspect_takes_the_name_of_a_dataset(cli, api):
    assert cli("data", "inspect", "waves", "--json").document["fields"]
    assert "nor a dataset of that name" in cli("data", "inspect", "wavs").err


def test_a_plan_creates_nothing(cli, api, spec_file):
    def newest() -> list[int]:
        return [run["id"] for run in cli("ls", "--json").document["data"]]

    before = newest()
    answer = cli("plan", str(spec_file), "--set", "training.batch_size=32")
    assert answer.code == 0
    assert "would be accepted" in answer.out
    assert "training.batch_size" in answer.out
    assert newest() == before


def test_a_plan_that_would_be_refused_says_so(cli, api, spec_file):
    answer = cli("plan", str(spec_file), "--set", "data.inputs=[nothing]")
    assert answer.code == 5
    assert answer.out.startswith("This would be refused.\n  error ")
    assert cli("plan", str(spec_file), "--set", "data.inputs=[nothing]", "--json").document[
        "issues"
    ]


def test_a_plan_of_what_cannot_be_parsed_looks_the_same(cli, api, spec_file):
    answer = cli("plan", str(spec_file), "--set", "max_epochs=8")
    assert (answer.code, answer.err) == (5, "")
    assert answer.out.startswith("This would be refused.\n  error unknown_field at max_epochs")
    as_json = cli("plan", str(spec_file), "--set", "max_epochs=8", "--json").document
    assert [issue["code"] for issue in as_json["issues"]] == ["unknown_field"]


def test_ls_and_show(cli, api, run_id):
    assert str(run_id) in cli("ls").out
    assert cli("ls", "--json", "-n", "1").document["data"][0]["id"] == run_id
    shown = cli("show", str(run_id))
    assert f"Run {run_id} (waves) is queued." in shown.out
    assert cli("show", str(run_id), "--json").document["id"] == run_id


def test_edit_shows_labels_as_they_are_given(cli, api, run_id):
    changed = cli("edit", str(run_id), "--label", "sweep=lr", "--label", "team=a", "--name", "b")
    assert changed.out == f"Run {run_id} now has the name 'b', labels sweep=lr, team=a.\n"
    bare = cli("edit", str(run_id), "--label", "sweep=", "--label", "team=")
    assert bare.out == f"Run {run_id} now has the labels (none).\n"


def test_a_run_that_is_not_there(cli, api):
    for command in ("show", "watch", "logs", "metrics", "checkpoints", "download", "stop"):
        answer = cli(command, "999999")
        assert (answer.code, answer.out) == (5, ""), command
        assert "999999" in answer.err, command


def test_what_is_no_id_is_a_sentence(cli, api):
    for command in ("show", "watch", "logs", "stop"):
        answer = cli(command, "abc")
        assert answer.code == 2
        assert "'abc' is not a run's id" in " ".join(answer.err.replace("│", " ").split())


@pytest.mark.parametrize("arguments", [("show", "seven"), ("show", "0"), ("show",), ("nothing",)])
def test_a_wrong_command_line_is_a_usage_error(cli, api, arguments):
    assert cli(*arguments).code == 2


def test_a_metric_without_its_option_is_told_with_it(cli, api, run_id):
    said = " ".join(cli("metrics", str(run_id), "val_mae").err.replace("│", " ").split())
    assert f"stoker metrics {run_id} --name val_mae" in said
    assert cli("metrics", str(run_id)).code == 0


def test_a_second_run_is_no_metric(cli, api, run_id):
    answer = cli("metrics", str(run_id), "21")
    assert answer.code == 2
    said = " ".join(answer.err.replace("│", " ").split())
    assert f"it takes one run: stoker metrics {run_id}, then stoker metrics 21" in said


def test_a_log_without_output_says_so(cli, api, run_id):
    answer = cli("logs", str(run_id))
    assert (answer.out, answer.err) == ("", "No output yet.\n")
    assert cli("logs", str(run_id), "--json").err == ""


def test_pause_resume_stop(cli, api, run_id):
    assert cli("pause", str(run_id)).out == f"Run {run_id} is paused.\n"
    assert cli("watch", str(run_id)).code == 4
    assert cli("resume", str(run_id), "--json").document["state"] == "queued"
    assert cli("stop", str(run_id), "--wait", "5").out == f"Run {run_id} has stopped.\n"
    assert cli("watch", str(run_id)).code == 3


def test_an_action_that_is_not_allowed_says_which_are(cli, api, run_id):
    cli("kill", str(run_id))
    answer = cli("pause", str(run_id))
    assert answer.code == 5
    assert answer.err == (
        f"error: Run {run_id} has stopped; there is nothing to pause. "
        f"Possible now: `stoker restart {run_id}` or `stoker delete {run_id}`.\n"
    )


def test_what_is_done_already_is_said_and_is_no_error(cli, api, run_id):
    assert cli("pause", str(run_id)).out == f"Run {run_id} is paused.\n"
    assert cli("pause", str(run_id)).out == f"Run {run_id} is already paused.\n"
    assert cli("stop", str(run_id)).out == f"Run {run_id} has stopped.\n"
    again = cli("stop", str(run_id))
    assert (again.code, again.out) == (0, f"Run {run_id} has already stopped.\n")


def test_delete_asks_and_wants_an_ended_run(cli, api, run_id):
    active = cli("delete", str(run_id), "--yes")
    assert active.code == 5
    assert "only one that has ended" in active.err
    cli("stop", str(run_id))
    unasked = cli("delete", str(run_id))
    assert unasked.code == 5
    assert "--yes" in unasked.err
    assert cli("show", str(run_id)).code == 0
    assert cli("delete", str(run_id), "--yes", "--json").document == {"deleted": run_id}
    assert cli("show", str(run_id)).code == 5


def test_another_shape_needs_a_restart_from_scratch(cli, api, run_id):
    cli("stop", str(run_id))
    refused = cli("restart", str(run_id), "--set", "recipe.hidden_size=16")
    assert refused.code == 5
    assert '"from"' not in refused.err
    again = f"stoker restart {run_id} --set recipe.hidden_size=16 --from scratch"
    leave = "leave recipe.hidden_size as it was"
    assert refused.err.splitlines()[1:] == [f"  fix: {leave}, or train anew: {again}"]
    assert refused.err == cli("restart", str(run_id), *again.split()[3:5], "--dry-run").err
    options = ("--set", "recipe.hidden_size=16", "--from", "scratch")
    assert cli("restart", str(run_id), *options).code == 0


def test_a_restart_from_what_is_not_there_says_from_where_it_could_be(cli, api, run_id):
    cli("stop", str(run_id))
    for source in ("best", "99999"):
        refused = cli("restart", str(run_id), "--from", source, "--set", "notes=a b")
        again = f"stoker restart {run_id} --set 'notes=a b'"
        assert refused.code == 5
        assert refused.err.splitlines()[-1] == f"  fix: {again}, or {again} --from scratch"
    document = cli("restart", str(run_id), "--from", "best", "--json")
    assert json.loads(document.err)["code"] == "no_such_checkpoint"


def test_a_finished_run_is_told_each_way_to_train_on(monkeypatch, cli, api, run_id):
    lower = {"op": "add", "path": "/optimizer", "value": {"lr": 1e-4}}
    issue: dict[str, Any] = {
        "severity": "error",
        "code": "correctness.nothing_left",
        "loc": ["training", "epochs"],
    }
    issue |= {"message": "The checkpoint is at step 5.", "why": "", "fix": [lower]}

    def refuse(*_, **__):
        raise Problem(422, {"title": "The spec was rejected", "issues": [issue]})

    monkeypatch.setattr(Client, "restart", refuse)
    refused = cli("restart", str(run_id), "--set", "notes=x")
    assert refused.code == 5
    assert refused.err.splitlines()[-2:] == [
        "    fix: --set 'optimizer.lr=0.0001'",
        f"  or train anew: stoker restart {run_id} --set notes=x --from scratch",
    ]


def test_restart_with_changes(cli, api, run_id):
    cli("stop", str(run_id))
    answer = cli(
        "restart", str(run_id), "--from", "scratch", "--set", "optimizer.lr=0.01", "--json"
    )
    child = answer.document
    assert child["parent_id"] == run_id
    with Client() as client:
        assert client.spec(child["id"])["spec"]["optimizer"]["lr"] == 0.01
    assert f"restarted as  {child['id']}" in cli("show", str(run_id)).out


def test_show_and_ls_tell_how_a_restart_differs(cli, api, run_id):
    cli("edit", str(run_id), "--name", "renamed")
    cli("stop", str(run_id))
    begin = ("restart", str(run_id), "--from", "scratch", "--json")
    changes = ("--set", "optimizer.lr=0.01", "--set", "training.batch_size=8")
    child = cli(*begin, *changes).document
    assert child["carry"]["changed"] == ["/optimizer/lr", "/training/batch_size"]
    said = f"restart of {run_id}; optimizer.lr 0.001 → 0.01, training.batch_size 128 → 8"
    assert said in " ".join(cli("show", str(child["id"])).out.split())
    header, first, *_ = cli("ls").out.splitlines()
    assert header.rstrip().endswith("restart of")
    assert first.rstrip().endswith(f"{run_id}: optimizer.lr=0.01, training.batch_size=8")
    same = cli(*begin).document
    assert (same["carry"]["changed"], same["differences"]) == ([], [])
    assert f"{run_id}, with the same spec" in cli("show", str(same["id"])).out
    assert cli("show", str(run_id), "--json").document["differences"] is None


def test_restart_explains_what_is_carried(cli, api, run_id):
    cli("stop", str(run_id))
    whole = cli("restart", str(run_id), "--from", "scratch")
    assert "starts from scratch" in whole.out
    answer = cli("restart", str(run_id), "--set", "optimizer.lr=0.01", "--dry-run")
    assert "Nothing is saved that it could go on from" in answer.out, answer.err
    assert "These differ" not in answer.out
    _save(api, run_id, step=1)
    answer = cli("restart", str(run_id), "--set", "optimizer.lr=0.01", "--dry-run")
    assert "  It continues with the weights alone from step 1.\n" in answer.out, answer.err
    assert "  These differ from its parent's: optimizer.lr.\n" in answer.out


def test_a_start_from_scratch_on_other_data_says_so():
    carry = {"kind": "scratch", "changed": ["/data/dataset"]}
    said = "  Its data is not its parent's: data.dataset, or the file behind it, differs."
    assert carry_lines(carry, "scratch", {}) == ["  It starts from scratch.", said]


def _save(home, run_id, step):
    """A checkpoint of a run, as a worker would have stored it."""
    store = open_store(load_settings(home=home))
    with store.database.write() as connection:
        path = f"runs/{run_id}/attempt-1/checkpoints/step-{step}"
        add_checkpoints(connection, run_id, 1, [NewCheckpoint(step, 1, path, 1, {}, 0.0)])
    store.close()


def test_a_restart_shows_what_the_guard_warns_of(cli, api, run_id):
    change = ("--from", "scratch")
    planned = cli("restart", str(run_id), *change, "--dry-run")
    assert planned.code == 0, planned.err
    assert "This would be accepted." in planned.out
    assert "warning learning.small_part" in planned.out
    assert "It starts from scratch." in planned.out
    assert cli("ls", "--json").document["data"][0]["id"] == run_id
    done = cli("restart", str(run_id), *change)
    assert "warning learning.small_part" in done.out


def test_a_dry_run_of_a_restart_that_would_be_refused(cli, api, run_id):
    answer = cli(
        "restart", str(run_id), "--set", "recipe.patch=7", "--from", "scratch", "--dry-run"
    )
    assert answer.code == 5
    assert "This would be refused." in answer.out
    assert cli("restart", str(run_id), "--dry-run", "--watch").code == 2


@pytest.mark.parametrize("source", ["newest", "-1", "0", "1.5"])
def test_restart_from_what_is_no_checkpoint(cli, api, run_id, source):
    answer = cli("restart", str(run_id), "--from", source)
    assert answer.code == 2
    assert "Traceback" not in answer.err


def test_the_queue_is_in_the_order_of_claims(cli, api, spec_file):
    ids = [
        cli("submit", str(spec_file), "--set", f"priority={priority}", "--json").document["id"]
        for priority in (900, 901)
    ]
    waiting = [run["id"] for run in cli("queue", "--json").document["data"]]
    assert waiting[:2] == ids[::-1]
    assert "901" in cli("queue").out


def test_a_token_that_is_wrong_is_a_sentence(cli, api, monkeypatch):
    monkeypatch.setenv("STOKER_TOKEN", "wrong")
    answer = cli("ls")
    assert answer.code == 5
    assert "stoker token create" in answer.err
    assert "STOKER_TOKEN" in answer.err


@pytest.mark.parametrize("url", ["foo", "ftp://box", "http://", "http://box:many", "http://[::"])
def test_what_is_no_address_is_a_bad_setting(cli, home, monkeypatch, url):
    monkeypatch.setenv("STOKER_URL", url)
    answer = cli("ls")
    assert answer.code == 5
    assert f"STOKER_URL={url} is not the address" in answer.err


def test_no_service_is_a_sentence_with_what_to_do(cli, home):
    answer = cli("ls")
    assert answer.code == 6
    assert "stoker up" in answer.err


def test_a_wrong_setting_is_a_sentence(cli, home, monkeypatch):
    monkeypatch.setenv("STOKER_PORT", "many")
    answer = cli("ls")
    assert answer.code == 5
    assert answer.err == "error: STOKER_PORT: 'many' should be a whole number.\n"


@pytest.mark.parametrize(
    ("given", "advised"),
    [
        ({}, {"--checkpoints", "--resume"}),
        ({"checkpoints": ["out/*.pt"]}, {"--resume"}),
        ({"resume": ["--resume", "{checkpoint}"]}, {"--checkpoints"}),
        ({"checkpoints": ["out/*.pt"], "resume": ["{checkpoint}"]}, set()),
    ],
)
def test_a_restart_from_nothing_advises_only_what_was_not_given(given, advised):
    carry: dict[str, Any] = {"kind": "full", "step": None, "waits_for_parent": False, "changed": []}
    (line,) = carry_lines(carry, "latest", {"kind": "script", **given})
    told = line.partition("For the next time")[2]
    assert {word for word in ("--checkpoints", "--resume") if word in told} == advised
    assert ("No whole save matched --checkpoints (out/*.pt)" in line) is (len(given) == 2)
