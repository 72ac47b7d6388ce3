"""POST /runs, lists, changes and deletion, as a client sees them."""

import time
from contextlib import closing
from typing import Any

import pytest

from app.api.main import create_app
from app.lifecycle import Reason
from app.store.engine.database import BUSY_TIMEOUT_SECONDS
from app.store.engine.sqlite import driver
from app.store.store import open_store
from tests.api.support import SPEC, Api, spec_with

YAML_SPEC = b"""
name: from-yaml
recipe: {kind: sequence, hidden_size: 8}
data: {dataset: weather}
optimizer: {lr: 1e-3}
"""


def test_a_posted_run_is_queued_and_shown_as_the_contract_says(api, player):
    answer = api.post("/runs", json={**SPEC, "name": "first", "labels": {"team": "weather"}})
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/runs/{run['id']}"
    assert answer.headers["etag"] == f'"{run["version"]}"'
    assert run["created_at"].endswith("Z")
    assert run.keys() >= {
        "id", "name", "notes", "labels", "priority", "recipe", "mode", "state", "intent", "status",
        "reason", "message", "version", "parent_id", "child_ids", "attempt", "worker", "devices",
        "environment", "created_at", "started_at", "finished_at", "progress", "result",
        "diagnosis", "links",
    }  # fmt: skip
    shown = {key: run[key] for key in ("name", "labels", "recipe", "state", "intent", "status")}
    assert shown == {
        "name": "first",
        "labels": {"team": "weather"},
        "recipe": "sequence",
        "state": "queued",
        "intent": "run",
        "status": "queued",
    }
    assert api.get(f"/runs/{run['id']}").json() == run
    assert all(api.get(path).status_code == 200 for path in run["links"].values())


def test_yaml_is_taken_too(api, player):
    answer = api.post("/runs", content=YAML_SPEC, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 201
    assert answer.json()["name"] == "from-yaml"
    documents = api.get(f"/runs/{answer.json()['id']}/spec").json()
    assert documents["spec"]["optimizer"]["lr"] == 0.001
    assert documents["provenance"]["/optimizer/lr"] == {"value": 0.001, "source": "request"}
    assert documents["applied"] == []


def test_a_dry_run_stores_nothing_and_reports_issues_of_any_severity(api, player):
    plan = api.post("/runs", params={"dry_run": "true"}, json=SPEC)
    assert plan.status_code == 200
    assert plan.json().keys() == {
        "accepted", "spec", "provenance", "issues", "unchecked", "memory", "queue_position",
        "estimate",
        "carry", "computes_in", "profile",
    }  # fmt: skip
    assert plan.json()["spec"]["training"]["epochs"] == 1
    assert plan.json()["accepted"] is True
    wrong = api.post("/runs", params={"dry_run": "true"}, json=spec_with("recipe", patch=5))
    assert wrong.json()["accepted"] is False
    assert wrong.status_code == 200
    assert [issue["code"] for issue in wrong.json()["issues"]] == [
        "correctness.recipe_does_not_fit"
    ]
    assert api.get("/runs").json() == {"data": [], "next_cursor": None}


def test_a_dry_run_waits_for_nothing(api, player):
    answer = api.post("/runs", params={"dry_run": "true", "wait": 1}, json=SPEC)
    assert answer.problem("invalid_request") == 422
    assert "wait" in answer.json()["detail"]


def test_a_dry_run_counts_the_runs_before_it(api, player):
    for priority in (0, 5):
        api.post("/runs", json={**SPEC, "priority": priority})
    positions = [
        api.post("/runs", params={"dry_run": "true"}, json={**SPEC, "priority": p}).json()[
            "queue_position"
        ]
        for p in (-1, 1, 9)
    ]
    assert positions == [3, 2, 1]


def test_an_unknown_field_is_refused_with_a_fix(api, player):
    answer = api.post("/runs", json=spec_with("training", sead=3))
    assert answer.problem("spec_rejected") == 422
    (issue,) = answer.json()["issues"]
    assert (issue["code"], issue["loc"]) == ("unknown_field", ["training", "sead"])
    assert "training.seed" in issue["message"]
    assert issue["fix"]


@pytest.mark.parametrize(
    "changed",
    [
        {"data": {"dataset": "nowhere"}},
        {"training": {"epochs": 10**400}},
        {"recipe": {"kind": "crystal"}},
        {"mode": "probe"},
        {"labels": ["a"]},
        {"name": None},
    ],
    ids=str,
)
def test_a_wrong_spec_is_refused_with_the_place(api, player, changed):
    answer = api.post("/runs", json={**SPEC, **changed})
    assert answer.problem("spec_rejected") == 422
    (first, *_) = answer.json()["issues"]
    assert first["loc"][0] == next(iter(changed))
    assert first["message"]


@pytest.mark.parametrize("body", ["[]", '"run"', "1", "null", "true"])
def test_what_is_not_an_object_is_no_run(api, body):
    answer = api.post("/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.problem("invalid_request") == 422


def test_a_dataset_that_is_being_inspected_is_a_conflict_until_it_is_ready(api, player, store):
    store.datasets.register("late", "late.h5")
    late = {**SPEC, "data": {"dataset": "late"}}
    answer = api.post("/runs", json=late)
    assert answer.problem("dataset_not_ready") == 409
    assert "?wait" in answer.json()["detail"]
    waiting = api.start("POST", "/runs", json=late, params={"wait": 30})
    player.inspect("late")
    assert waiting.result(30).status_code == 201


def test_an_invalid_dataset_is_a_conflict_with_its_problems(api, player, store):
    store.datasets.register("broken", "broken.h5")
    player.inspect("broken", state="invalid", problems=["The file is cut off."])
    answer = api.post("/runs", json={**SPEC, "data": {"dataset": "broken"}}, params={"wait": 30})
    assert answer.problem("dataset_not_ready") == 409
    assert "cut off" in answer.json()["detail"]


def test_a_repeated_request_with_the_same_key_gives_the_same_run(api, player):
    headers = {"Idempotency-Key": "abc"}
    first = api.post("/runs", json=SPEC, headers=headers)
    again = api.post("/runs", json=dict(reversed(SPEC.items())), headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = api.post("/runs", json={**SPEC, "name": "other"}, headers=headers)
    assert other.problem("idempotency_key_reused") == 422
    assert len(api.get("/runs").json()["data"]) == 1


def test_a_repeated_request_is_answered_whatever_the_guard_would_say_now(api, player, store):
    headers = {"Idempotency-Key": "abc"}
    first = api.post("/runs", json=SPEC, headers=headers)
    store.datasets.register("weather", "weather.h5")  # is being inspected again
    assert api.post("/runs", json=SPEC).status_code == 409
    again = api.post("/runs", json=SPEC, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


def test_a_key_in_flight_is_a_conflict(api, player):
    with api.services.in_flight.only_one("runs", "abc"):
        answer = api.post("/runs", json=SPEC, headers={"Idempotency-Key": "abc"})
    assert answer.problem("idempotency_in_flight") == 409
    assert api.post("/runs", json=SPEC, headers={"Idempotency-Key": "abc"}).status_code == 201


def test_lists_page_by_cursor_newest_first_and_filter(api, player):
    ids = [api.post("/runs", json={**SPEC, "name": f"run-{n}"}).json()["id"] for n in range(5)]
    seen, cursor = [], None
    while True:
        params = {"limit": 2, **({"after": cursor} if cursor else {})}
        page = api.get("/runs", params=params).json()
        seen += [run["id"] for run in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    api.post(f"/runs/{ids[0]}/stop")
    only = {"state": "stopped", "status": "stopped", "q": "run-0", "recipe": "sequence"}
    assert [run["id"] for run in api.get("/runs", params=only).json()["data"]] == [ids[0]]


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 10**6}, {"limit": "x"}, {"status": "x"},
        {"parent_id": 0}, {"parent_id": 2**70}, {"q": "a\0b"}, {"after": "no cursor"},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_filter_is_refused(api, params):
    answer = api.get("/runs", params=params)
    assert answer.status_code == 422
    assert answer.problem(answer.json()["code"]) == 422


def test_name_notes_labels_and_priority_change_but_not_the_spec(api, player):
    run = api.post("/runs", json=SPEC).json()
    changes = {"name": "new", "notes": "n", "labels": {"a": "b"}, "priority": 7}
    answer = api.patch(f"/runs/{run['id']}", json=changes)
    assert answer.status_code == 200
    assert {key: answer.json()[key] for key in changes} == changes
    assert answer.json()["version"] > run["version"]
    wrong: list[Any] = [{"training": {"epochs": 2}}, {}, {"priority": 10**6}, {"name": None}, []]
    for body in wrong:
        assert api.patch(f"/runs/{run['id']}", json=body).problem("invalid_request") == 422


def test_if_match_guards_a_change(api, player):
    run = api.post("/runs", json=SPEC).json()
    path, etag = f"/runs/{run['id']}", f'"{run["version"]}"'
    assert api.patch(path, json={"name": "a"}, headers={"If-Match": etag}).status_code == 200
    late = api.patch(path, json={"name": "b"}, headers={"If-Match": etag})
    assert late.problem("precondition_failed") == 412
    assert api.post(f"{path}/stop", headers={"If-Match": etag}).status_code == 412
    assert api.delete(path, headers={"If-Match": etag}).status_code in (409, 412)
    assert api.get(path).json()["name"] == "a"
    assert api.patch(path, json={"name": "b"}, headers={"If-Match": "3"}).status_code == 422


def test_a_run_that_is_over_can_be_deleted_and_its_id_is_not_used_again(api, player):
    run_id = api.post("/runs", json=SPEC).json()["id"]
    refusal = api.delete(f"/runs/{run_id}")
    assert refusal.problem("action_not_allowed") == 409
    assert "stop" in refusal.json()["allowed_actions"]
    player.finish(player.claim(), Reason.completed)
    assert api.delete(f"/runs/{run_id}").status_code == 204
    assert api.get(f"/runs/{run_id}").problem("not_found") == 404
    assert api.post("/runs", json=SPEC).json()["id"] > run_id


@pytest.mark.parametrize("tail", ["", "/spec", "/events", "/logs", "/metrics", "/attempts"])
def test_what_is_not_there_is_a_404(api, tail):
    for run_id in ("1", "0", "-1", "x", "9" * 30, "1.5"):
        assert api.get(f"/runs/{run_id}{tail}").problem("not_found") == 404


def test_a_killed_run_tells_what_was_known_of_it(api, player):
    run_id = api.post("/runs", json=SPEC).json()["id"]
    lease = player.claim()
    best = {"step": 4, "epoch": 0, "val_loss": 0.5}
    player.progress(lease, step=6, steps=7, epoch=0, best=best)
    api.post(f"/runs/{run_id}/kill")
    assert api.get(f"/runs/{run_id}").json()["result"] is None, "it is not over"
    player.finish(lease, Reason.killed)
    run = api.get(f"/runs/{run_id}").json()
    assert (run["state"], run["reason"]) == ("stopped", "kill_requested")
    last = {"step": 6, "epoch": 0}
    assert run["result"] == {
        "last": last, "best": best, "test": None, "naive": None, "baselines": None,
        "caveats": [],
    }  # fmt: skip


def test_a_run_that_never_began_has_no_result(api, player):
    run_id = api.post("/runs", json=SPEC).json()["id"]
    assert api.post(f"/runs/{run_id}/kill").json()["result"] is None


def test_a_change_under_a_lock_of_the_database_is_refused_in_ten_seconds(api, settings, player):
    """It waits once, for the patience of the store; here a shorter one."""
    assert BUSY_TIMEOUT_SECONDS <= 10
    api.post("/runs", json=SPEC)
    with (
        closing(open_store(settings, busy_seconds=1.0)) as store,
        Api(create_app(settings, store), api.token) as hasty,
        closing(driver.connect(str(settings.home / "stoker.db"))) as other,
    ):
        hasty.app.openapi_schema = api.app.openapi_schema
        assert hasty.patch("/runs/1", json={"priority": 1}).status_code == 200
        other.execute("BEGIN IMMEDIATE").close()
        begun = time.monotonic()
        assert hasty.patch("/runs/1", json={"priority": 2}).problem("unavailable") == 503
        assert time.monotonic() - begun < 2.0
        other.rollback()
    assert api.get("/runs/1").json()["priority"] == 1
