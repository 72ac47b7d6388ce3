"""Stop, kill, pause, resume, restart, and the same in bulk."""

import re

import pytest

from app.guard.patching import apply_json_patch
from app.lifecycle import Intent, Reason
from tests.api.support import FIELDS, SPEC, spec_with


@pytest.fixture
def run_id(api, player):
    return api.post("/runs", json=SPEC).json()["id"]


def test_a_queued_run_stops_at_once(api, run_id):
    answer = api.post(f"/runs/{run_id}/stop", params={"wait": 5})
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["reason"]) == ("stopped", "stop_requested")


def test_a_running_run_accepts_and_then_says_it_is_so_already(api, run_id, player):
    player.claim()
    first, again = (api.post(f"/runs/{run_id}/stop") for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.headers["etag"] == f'"{first.json()["version"]}"'
    assert (again.json()["status"], again.json()["intent"]) == ("stopping", "stop")
    assert api.post(f"/runs/{run_id}/kill").json()["status"] == "killing"


def test_what_is_illegal_says_what_is_possible(api, run_id, player):
    player.claim()
    api.post(f"/runs/{run_id}/stop")
    refusal = api.post(f"/runs/{run_id}/pause")
    assert refusal.problem("action_not_allowed") == 409
    assert refusal.json()["allowed_actions"] == ["kill", "restart"]
    assert api.post(f"/runs/{run_id}/resume").problem("action_not_allowed") == 409


def test_wait_answers_when_it_is_done(api, run_id, player):
    lease = player.claim()
    waiting = api.start("POST", f"/runs/{run_id}/stop", params={"wait": 30})
    while player.store.runs.get(run_id).intent is not Intent.stop:
        assert not waiting.done()
    player.finish(lease)
    answer = waiting.result(30)
    assert (answer.status_code, answer.json()["state"]) == (200, "stopped")


def test_wait_that_is_over_answers_what_is_so_far(api, run_id, player):
    player.claim()
    answer = api.post(f"/runs/{run_id}/stop", params={"wait": 0.2})
    assert (answer.status_code, answer.json()["status"]) == (202, "stopping")
    for wait in ("-1", "x", "1e9", "nan"):
        assert api.post(f"/runs/{run_id}/stop", params={"wait": wait}).status_code == 422


def test_pause_and_resume(api, run_id, player):
    lease = player.claim()
    assert api.post(f"/runs/{run_id}/pause").json()["status"] == "pausing"
    player.finish(lease)
    assert api.get(f"/runs/{run_id}").json()["state"] == "paused"
    resumed = api.post(f"/runs/{run_id}/resume")
    assert resumed.status_code == 202
    assert resumed.json()["state"] == "queued"
    waiting = api.start("POST", f"/runs/{run_id}/resume", params={"wait": 30})
    player.claim()
    assert waiting.result(30).json()["state"] == "running"


@pytest.mark.parametrize("verb", ["halt", "start", "Stop", ""])
def test_a_verb_that_is_none_is_not_found(api, run_id, verb):
    assert api.post(f"/runs/{run_id}/{verb}").problem("not_found") == 404


def test_a_restart_waits_for_a_dataset_that_is_being_inspected(api, run_id, player, store):
    store.datasets.register("weather", "weather.h5")
    refusal = api.post(f"/runs/{run_id}/restart")
    assert refusal.problem("dataset_not_ready") == 409
    assert "?wait" in refusal.json()["detail"]
    waiting = api.start("POST", f"/runs/{run_id}/restart", params={"wait": 30})
    player.inspect("weather")
    assert waiting.result(30).status_code == 201


LONGER = {
    "kind": "full", "starts_anew": [], "changed": ["/training/epochs"],
    "step": 1, "waits_for_parent": True, "why": "The model and what it trains with are the same.",
}  # fmt: skip


def test_restart_with_longer_training_carries_everything(api, run_id, player):
    lease = player.claim()
    player.checkpoint(lease, 1)
    answer = api.post(f"/runs/{run_id}/restart", json={"patch": {"training": {"epochs": 3}}})
    assert answer.status_code == 201
    child = answer.json()
    assert (child["parent_id"], child["status"]) == (run_id, "waiting_for_parent")
    assert child["carry"] == LONGER
    player.finish(lease)
    started = api.get(f"/runs/{child['id']}").json()
    assert started["carry"] == {**LONGER, "waits_for_parent": False}
    parent = api.get(f"/runs/{run_id}").json()
    assert (parent["status"], parent["child_ids"]) == ("stopped", [child["id"]])
    spec = api.get(f"/runs/{child['id']}/spec").json()["spec"]
    assert spec["training"]["epochs"] == 3


def test_a_dry_run_of_a_restart_says_what_it_would_become_and_stops_nobody(api, run_id, player):
    player.checkpoint(player.claim(), 1)
    before = api.get(f"/runs/{run_id}").json()

    def planned(**body):
        return api.post(f"/runs/{run_id}/restart", params={"dry_run": True}, json=body)

    answer = planned(patch={"training": {"epochs": 3}})
    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["accepted"], plan["spec"]["training"]["epochs"]) == (True, 3)
    assert plan["carry"] == LONGER
    refused = planned(patch={"data": {"dataset": "no-such"}}).json()
    assert (refused["accepted"], refused["carry"]) == (False, None)
    assert [issue["code"] for issue in refused["issues"]] == ["correctness.dataset_not_found"]
    assert planned(**{"from": 12345}).problem("no_such_checkpoint") == 422
    assert planned(patch={"recipe": {"hidden_size": 16}}).problem("spec_rejected") == 422
    assert planned(patch={"training": {"max_epochs": 3}}).problem("spec_rejected") == 422
    stale = api.post(
        f"/runs/{run_id}/restart", params={"dry_run": True}, headers={"If-Match": '"999"'}
    )
    assert stale.problem("precondition_failed") == 412
    waiting = api.post(f"/runs/{run_id}/restart", params={"dry_run": True, "wait": 1})
    assert waiting.problem("invalid_request") == 422
    assert api.get(f"/runs/{run_id}").json() == before
    assert [run["id"] for run in api.get("/runs").json()["data"]] == [run_id]


def test_restart_with_another_optimizer_carries_weights_and_says_what_starts_anew(api, run_id):
    patch = {"patch": {"optimizer": {"lr": 0.01}}, "force": True}
    child = api.post(f"/runs/{run_id}/restart", json=patch).json()
    assert child["carry"]["kind"] == "weights"
    assert "optimizer state" in child["carry"]["starts_anew"]


def test_what_was_learned_on_another_file_is_not_carried_on_as_if_it_were_the_same(
    api, run_id, player
):
    """Its best score, its schedule and its order of samples are of the data that it had."""

    def carried():
        return api.post(f"/runs/{run_id}/restart", params={"dry_run": True}).json()["carry"]

    player.checkpoint(player.claim(), 1)
    player.inspect("weather")  # copied back: the time of the file alone is another one
    assert carried()["kind"] == "full"
    player.inspect("weather", content="another")
    assert (carried()["kind"], carried()["changed"]) == ("weights", ["/data/dataset"])
    longer = {"patch": {"training": {"epochs": 3}}}
    child = api.post(f"/runs/{run_id}/restart", json=longer).json()
    assert child["carry"]["kind"] == "weights"
    assert child["carry"]["changed"] == ["/data/dataset", "/training/epochs"]
    file, epochs = child["differences"]
    assert file == {"pointer": "/data/dataset", "before": "weather", "after": "weather"}
    assert epochs == {"pointer": "/training/epochs", "before": 1, "after": 3}


def test_a_file_with_other_arrays_under_the_same_name_needs_scratch(api, run_id, player):
    """It was said to carry the weights, which do not fit."""
    player.checkpoint(player.claim(), 1)
    wider = {**FIELDS, "features": {"shape": [24, 5], "dtype": "float32"}}
    player.inspect("weather", content="another", fields=wider)
    refusal = api.post(f"/runs/{run_id}/restart")
    assert refusal.problem("spec_rejected") == 422
    (issue,) = refusal.json()["issues"]
    assert issue["code"] == "shape_changed"
    assert "needs scratch" in issue["message"]
    assert "features has 5 values a row, not 3" in issue["message"]
    child = api.post(f"/runs/{run_id}/restart", json={"from": "scratch"})
    assert child.json()["carry"]["kind"] == "scratch"


def test_the_restart_of_what_saved_nothing_says_so(api, run_id, player):
    player.finish(player.claim())
    child = api.post(f"/runs/{run_id}/restart").json()
    assert (child["carry"]["kind"], child["carry"]["step"]) == ("full", None)


def test_restart_with_another_shape_needs_scratch(api, run_id):
    patch = {"patch": {"recipe": {"hidden_size": 16}}}
    refusal = api.post(f"/runs/{run_id}/restart", json=patch)
    assert refusal.problem("spec_rejected") == 422
    (issue,) = refusal.json()["issues"]
    assert issue["loc"] == ["recipe", "hidden_size"]
    assert "scratch" in issue["message"]
    assert api.get(f"/runs/{run_id}").json()["state"] == "queued"
    child = api.post(f"/runs/{run_id}/restart", json={**patch, "from": "scratch"})
    assert child.status_code == 201
    assert child.json()["carry"]["kind"] == "scratch"


def test_restart_takes_a_json_patch_and_null_means_default(api, player):
    run_id = api.post("/runs", json=spec_with("training", batch_size=64)).json()["id"]
    merged = api.post(f"/runs/{run_id}/restart", json={"patch": {"training": None}}).json()
    assert "training" not in api.get(f"/runs/{merged['id']}/spec").json()["request"]
    ops = [{"op": "replace", "path": "/training/epochs", "value": 7}]
    child = api.post(f"/runs/{run_id}/restart", json={"patch_ops": ops}).json()
    assert api.get(f"/runs/{child['id']}/spec").json()["request"]["training"]["epochs"] == 7


def test_a_restart_has_the_name_that_the_run_was_given_since(api, run_id):
    api.patch(f"/runs/{run_id}", json={"name": "slower"}).raise_for_status()
    patches: list[dict[str, object]] = [{}, {"training": {"epochs": 3}}, {"name": "slowest"}]
    children = [api.post(f"/runs/{run_id}/restart", json={"patch": p}).json() for p in patches]
    assert [child["name"] for child in children] == ["slower", "slower", "slowest"]
    again = api.post(f"/runs/{children[0]['id']}/restart").json()
    assert again["name"] == "slower"


def test_a_patch_that_does_not_apply_is_said_in_a_sentence(api, player):
    run_id = api.post("/runs", json={**SPEC, "notes": "n" * 9000}).json()["id"]
    ops = [{"op": "add", "path": "/x/-/y", "value": 1}]
    refusal = api.post(f"/runs/{run_id}/restart", json={"patch_ops": ops})
    assert refusal.problem("invalid_request") == 422
    assert "'x'" in refusal.json()["detail"]
    assert len(refusal.json()["detail"]) < 500


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"from": 0}, "invalid_request"),
        ({"from": True}, "invalid_request"),
        ({"patch": {}, "patch_ops": []}, "invalid_request"),
        ({"patch": []}, "invalid_request"),
        ({"force": "yes"}, "invalid_request"),
        ({"patch_ops": [{"op": "replace", "path": "/no/such", "value": 1}]}, "invalid_request"),
        ({"patch_ops": [{"op": "add", "path": "no slash", "value": 1}]}, "invalid_request"),
        ({"patch_ops": [{"op": "move", "path": "/a"}]}, "invalid_request"),
        ({"patch_ops": [{"op": "replace", "path": "", "value": 1}]}, "invalid_request"),
        ({"patch": {"training": {"max_epochs": 3}}}, "spec_rejected"),
        ({"patch": {"data": None}}, "spec_rejected"),
        ([], "invalid_request"),
    ],
    ids=str,
)
def test_a_wrong_restart_changes_nothing(api, run_id, body, code):
    assert api.post(f"/runs/{run_id}/restart", json=body).problem(code) == 422
    run = api.get(f"/runs/{run_id}").json()
    assert (run["state"], run["child_ids"]) == ("queued", [])


def test_restarting_by_a_diagnosis_is_declared_and_not_available_yet(api, run_id):
    answer = api.post(f"/runs/{run_id}/restart", json={"patch_from": "diagnosis"})
    assert answer.problem("not_available_yet") == 422
    assert "patch_from" in answer.json()["detail"]
    assert api.get(f"/runs/{run_id}").json()["child_ids"] == []
    wrong = api.post(f"/runs/{run_id}/restart", json={"patch_from": "guess"})
    assert wrong.problem("invalid_request") == 422


def copies(count):
    """A JSON Patch that doubles what lies in /labels with every operation."""
    grown = [{"op": "add", "path": "/labels", "value": {"a": "x" * 50}}]
    return grown + [{"op": "copy", "from": "/labels", "path": f"/labels/{i}"} for i in range(count)]


@pytest.mark.parametrize(
    "order",
    [
        {"patch_ops": [{"op": "test", "path": "/training/epochs", "value": 1}] * 101},
        {"patch_ops": copies(50)},
        {"patch_ops": [{"op": "add", "path": "/notes", "value": "x" * 90_000}]
         + [{"op": "copy", "from": "/notes", "path": f"/data/{i}"} for i in range(20)]},
    ],
    ids=["operations", "values", "bytes"],
)  # fmt: skip
def test_a_patch_that_grows_the_request_too_much_is_refused(api, run_id, order):
    answer = api.post(f"/runs/{run_id}/restart", json=order)
    assert answer.problem("invalid_request") == 422
    assert re.search("at most 100 |over 10,000 |more than ", answer.json()["detail"])


def test_a_repeated_restart_with_the_same_key_gives_the_same_child(api, run_id):
    headers = {"Idempotency-Key": "again"}
    first, again = (api.post(f"/runs/{run_id}/restart", headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


def test_restart_heeds_if_match(api, run_id):
    answer = api.post(f"/runs/{run_id}/restart", headers={"If-Match": '"999"'})
    assert answer.problem("precondition_failed") == 412
    assert api.get(f"/runs/{run_id}").json()["child_ids"] == []


def test_bulk_gives_each_run_its_result(api, run_id, player):
    other = api.post("/runs", json=SPEC).json()["id"]
    answer = api.post("/runs/bulk/stop", json={"ids": [run_id, 999, run_id]})
    assert [(r["id"], r["status"]) for r in answer.json()["results"]] == [(run_id, 202), (999, 404)]
    assert answer.json()["results"][1]["problem"]["code"] == "not_found"
    answer = api.post("/runs/bulk/pause", json={"filter": {"state": "queued"}})
    assert [r["id"] for r in answer.json()["results"]] == [other]
    answer = api.post("/runs/bulk/delete", json={"filter": {"status": "stopped"}})
    assert [r["status"] for r in answer.json()["results"]] == [204]


def test_bulk_by_filter_says_when_more_matched(api, player, monkeypatch):
    monkeypatch.setattr("app.api.routers.actions.BULK_LIMIT", 2)
    ids = [api.post("/runs", json=SPEC).json()["id"] for _ in range(3)]
    queued = {"filter": {"state": "queued"}}
    first, second = (api.post("/runs/bulk/stop", json=queued).json() for _ in range(2))
    assert [r["id"] for r in first["results"]] == [ids[2], ids[1]]
    assert [r["id"] for r in second["results"]] == [ids[0]]
    assert (first["has_more"], second["has_more"]) == (True, False)


@pytest.mark.parametrize("body", [{"all": True}, {"all": True, "filter": {}}], ids=str)
def test_bulk_takes_all_runs_only_when_that_is_said(api, run_id, body):
    for empty in ({}, {"state": None}, {"q": ""}):
        answer = api.post("/runs/bulk/stop", json={"filter": empty})
        assert answer.problem("invalid_request") == 422
        assert '"all": true' in answer.json()["detail"]
    answer = api.post("/runs/bulk/stop", json=body)
    assert [(r["id"], r["status"]) for r in answer.json()["results"]] == [(run_id, 202)]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"ids": [1], "filter": {}}, {"ids": ["1"]}, {"ids": 1},
        {"filter": {"q": "x" * 60_000}}, {"filter": {"label": "x" * 201}},
        {"all": False}, {"all": True, "ids": [1]}, {"all": True, "filter": {"state": "queued"}},
    ],
    ids=lambda body: str(body)[:60],
)  # fmt: skip
def test_a_wrong_selection_is_refused(api, body):
    assert api.post("/runs/bulk/stop", json=body).problem("invalid_request") == 422


def test_a_finished_run_can_only_be_restarted_or_deleted(api, run_id, player):
    player.finish(player.claim(), Reason.completed)
    for verb in ("stop", "pause", "kill", "resume"):
        refusal = api.post(f"/runs/{run_id}/{verb}")
        assert refusal.problem("action_not_allowed") == 409
        assert refusal.json()["allowed_actions"] == ["restart", "delete"]
    assert api.post(f"/runs/{run_id}/restart").status_code == 201


DRAWN = {"method": "random", "validation_fraction": 0.25}
CODE = "learning.weights_saw_held_out"


@pytest.fixture
def drawn(api, player):
    """A run with a random split that has saved a checkpoint and is over."""
    run_id = api.post("/runs", json=spec_with("data", split=DRAWN)).json()["id"]
    lease = player.claim()
    player.checkpoint(lease, 1)
    player.finish(lease, Reason.completed)
    return run_id


def test_a_restart_with_another_seed_keeps_the_held_out_samples(api, drawn):
    child = api.post(f"/runs/{drawn}/restart", json={"patch": {"training": {"seed": 1}}})
    assert child.status_code == 201, child.text
    assert child.json()["carry"]["kind"] == "weights"
    spec = api.get(f"/runs/{child.json()['id']}/spec").json()["spec"]
    assert spec["data"]["split"]["seed"] == 0


def test_weights_that_saw_the_held_out_samples_are_refused_with_two_fixes(api, drawn):
    """Each fix, sent back as it was given, makes the restart possible."""
    patch = {"data": {"split": {"seed": 1}}}
    refusal = api.post(f"/runs/{drawn}/restart", json={"patch": patch})
    assert refusal.problem("spec_rejected") == 422
    (issue,) = [one for one in refusal.json()["issues"] if one["severity"] == "error"]
    assert issue["code"] == CODE
    assert "75%" in issue["message"]
    by_patch = api.post(f"/runs/{drawn}/restart", json={"patch_ops": issue["fix"]})
    assert by_patch.status_code == 201, by_patch.text
    body = apply_json_patch({"patch": patch}, issue["other_fix"])
    anew = api.post(f"/runs/{drawn}/restart", json=body)
    assert anew.status_code == 201, anew.text
    assert anew.json()["result"] is None


def test_a_risk_that_makes_scores_look_better_is_repeated_in_the_result(api, player, drawn):
    patch = {"data": {"split": {"seed": 1}}, "accept_risks": [CODE]}
    child = api.post(f"/runs/{drawn}/restart", json={"patch": patch}).json()
    assert child["accepted_risks"] == [CODE]
    lease = player.claim()
    player.progress(lease, step=8, epoch=1, loss=0.5)
    player.finish(lease, Reason.completed)
    (caveat,) = api.get(f"/runs/{child['id']}").json()["result"]["caveats"]
    assert CODE in caveat
    assert api.get(f"/runs/{drawn}").json()["accepted_risks"] == []


def test_the_weights_of_all_ancestors_count(api, player, drawn):
    """A restart from scratch ends the line, and init_from begins one."""
    other = {"data": {"split": {"seed": 1}}}
    anew = api.post(f"/runs/{drawn}/restart", json={"patch": other, "from": "scratch"}).json()
    lease = player.claim()
    player.checkpoint(lease, 1)
    player.finish(lease, Reason.completed)
    again = api.post(f"/runs/{anew['id']}/restart", json={"patch": {"training": {"epochs": 2}}})
    assert again.status_code == 201, again.text
    spec = {**spec_with("data", split=DRAWN), "init_from": {"run": anew["id"]}}
    refusal = api.post("/runs", json=spec)
    assert refusal.problem("spec_rejected") == 422
    (issue,) = [one for one in refusal.json()["issues"] if one["severity"] == "error"]
    assert f"run {anew['id']} trained" in issue["message"]
    begun = api.post("/runs", json=apply_json_patch(spec, issue["fix"]))
    assert begun.status_code == 201, begun.text
    plain = api.post("/runs", json=apply_json_patch(spec, issue["other_fix"]))
    assert plain.status_code == 201, plain.text
