"""A plan with a measurement: asked for, waited for, refused; somebody plays the worker."""

import time
from typing import Any

import pytest
from sqlalchemy import func, select

from app.lifecycle import RunState
from app.planning.imports import IMPORTS, build_of
from app.store.tables import jobs
from tests.api.support import SPEC, spec_with
from tests.worker.eventually import eventually
from worker.telemetry.host import host_now, host_setup

PROBE = {"dry_run": "true", "probe": "true"}
MIB = 2**20
RESULT = {
    "device": "cpu",
    "training": [[16, 300 * MIB], [128, 700 * MIB]],
    "accumulating": 701 * MIB,
    "evaluation": [128, 200 * MIB],
    "host_bytes": 701 * MIB,
    "reserved_bytes": None,
}


@pytest.fixture
def tell(store, player, settings):
    """Have the player's worker tell what an agent tells of its host, and more."""
    settings.artifact_root.mkdir(exist_ok=True)

    def call(state: Any = "alive", available: int = 2**33, **facts: Any) -> None:
        known = {**host_setup(), **host_now(settings.artifact_root), **facts}
        known["host_memory_bytes"] = known["available_memory_bytes"] = available
        store.workers.beat(
            player.worker_id,
            state,
            slots=[{"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}],
            devices=[{"kind": "cpu", "name": "cpu"}],
            facts=known,
        )

    call()
    return call


def job_of(store, player):
    """The probe's job, once it is there."""
    end = time.monotonic() + 30
    while (job := store.jobs.claim(player.worker_id)) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return job


def measured(api, store, player, request=SPEC, **end: Any):
    """The answer, when the worker ends the job so."""
    answer = api.start("POST", "/runs", params=PROBE, json=request)
    job = job_of(store, player)
    assert job.kind == "probe_step"
    store.jobs.finish(job.id, player.worker_id, **end)
    return answer.result(60)


def test_the_plan_stands_on_what_the_worker_measured(api, store, player, tell):
    answer = api.start("POST", "/runs", params=PROBE, json=SPEC)
    job = job_of(store, player)
    assert job.payload["spec"]["recipe"]["hidden_size"] == 8
    assert job.payload["fields"]["features"] == {
        "shape": [24, 3],
        "dtype": "float32",
        "ragged": False,
        "rows": None,
        "target_feature": None,
    }
    sizes = job.payload["batch_size"], job.payload["evaluation_batch_size"]
    assert (job.payload["device"], *sizes) == ("cpu", 128, 128)
    store.jobs.finish(job.id, player.worker_id, result=RESULT)
    plan = answer.result(60).json()
    found = plan["memory"]["measured"]
    assert (found["worker"], found["runs"]) == ("player", [])
    assert found["batch_sizes"] == [16, 128]
    assert plan["memory"]["unknown"] == []
    assert plan["memory"]["host"]["phases"]["training"] > 700 * MIB
    assert api.get("/runs").json()["data"] == []


def test_the_rules_judge_by_it_and_their_fixes_are_reckoned_with_it(api, store, player, tell):
    imports = IMPORTS[build_of(host_setup()["versions"]["torch"])]
    tell(available=640 * MIB + imports.trainer)
    unmeasured = api.post("/runs", params={"dry_run": "true"}, json=SPEC).json()
    assert unmeasured["issues"] == []
    plan = measured(api, store, player, result=RESULT).json()
    (issue,) = plan["issues"]
    assert issue["code"] == "memory.over_budget"
    values = {op["path"]: op["value"] for op in issue["fix"]}
    assert values == {"/training/batch_size": 32, "/training/gradient_accumulation_steps": 4}
    again = api.post("/runs", params={"dry_run": "true"}, json=SPEC).json()
    assert [one["code"] for one in again["issues"]] == ["memory.over_budget"]  # it is kept


def test_a_step_that_ran_out_of_memory_is_a_finding(api, store, player, tell):
    result = {"device": "cpu", "error": "It ran out.", "out_of_memory": ["training", 128],
              "least_bytes": 2**30}  # fmt: skip
    plan = measured(api, store, player, result=result).json()
    (issue,) = plan["issues"]
    assert issue["code"] == "memory.over_budget"
    assert "A probe on player made a step with a batch of 128 and ran out" in issue["message"]
    assert plan["memory"]["measured"]["ran_out_of_memory"] is True


def test_what_hindered_the_worker_is_said(api, store, player, tell):
    answer = measured(api, store, player, error="GPU 0 trains run 7.")
    assert answer.problem("probe_failed") == 409
    assert answer.json()["detail"] == "Nothing was measured on player: GPU 0 trains run 7."


def test_for_a_client_that_hung_up_nothing_is_measured(api, store, player, tell):
    def queued():
        query = select(func.count()).select_from(jobs).where(jobs.c.state == "queued")
        with store.database.read() as connection:
            return connection.execute(query).scalar_one()

    answer = api.start("POST", "/runs", params=PROBE, json=SPEC)
    eventually(lambda: queued() == 1, "a probe is ordered")
    assert answer.cancel()
    eventually(lambda: queued() == 0, "it is withdrawn")


def test_a_probe_without_a_dry_run_is_refused(api, player):
    answer = api.post("/runs", params={"probe": "true"}, json=SPEC)
    assert answer.problem("invalid_request") == 422
    assert "dry_run=true" in answer.json()["detail"]


def test_what_else_is_wrong_comes_first(api, store, player, tell):
    answer = api.post("/runs", params=PROBE, json=spec_with("recipe", patch=5))
    assert answer.problem("spec_rejected") == 422
    assert answer.json()["detail"].startswith("Nothing was measured, for this comes first: ")
    assert [issue["code"] for issue in answer.json()["issues"]] == [
        "correctness.recipe_does_not_fit"
    ]
    unknown = api.post("/runs", params=PROBE, json={**SPEC, "colour": "red"})
    assert unknown.problem("spec_rejected") == 422
    assert store.jobs.claim(player.worker_id) is None


def test_a_dataset_that_is_not_ready_is_not_waited_for(api, store, player, tell):
    store.datasets.register("weather", "weather.h5")
    answer = api.post("/runs", params=PROBE, json=SPEC)
    assert answer.problem("dataset_not_ready") == 409


def test_the_time_over_withdraws_what_has_not_begun(api, store, player, tell):
    answer = api.post("/runs", params={**PROBE, "wait": 0.2}, json=SPEC)
    assert answer.problem("probe_unfinished") == 409
    assert "within 0.2 seconds" in answer.json()["detail"]
    assert store.jobs.claim(player.worker_id) is None


@pytest.mark.parametrize(
    ("state", "facts", "said"),
    [
        ("draining", {}, "the worker that has it drains"),
        ("alive", {"versions": {"stoker": "1"}}, "worker player has no PyTorch"),
    ],
)
def test_a_worker_that_cannot_measure_is_named(api, player, tell, state, facts, said):
    tell(state, **facts)
    answer = api.post("/runs", params=PROBE, json=SPEC)
    assert answer.problem("probe_unavailable") == 409
    assert said in answer.json()["detail"]


def test_without_a_worker_nothing_is_measured(api, store, player):
    store.workers.set_state(player.worker_id, "gone")
    answer = api.post("/runs", params=PROBE, json=SPEC)
    assert answer.problem("probe_unavailable") == 409
    assert "no worker is alive" in answer.json()["detail"]


def test_a_worker_that_is_lost_meanwhile_is_said(api, store, player, tell):
    answer = api.start("POST", "/runs", params=PROBE, json=SPEC)
    job_of(store, player)
    store.workers.set_state(player.worker_id, "gone")
    assert answer.result(60).problem("probe_failed") == 409
    assert api.get("/runs", params={"state": RunState.queued.value}).json()["data"] == []
