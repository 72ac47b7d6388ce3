"""Training in stages: a run that waits for another, and begins with its weights."""

from typing import Any

import h5py
import numpy as np
import pytest

from tests.e2e.service import Service, write_waves

SPEC: dict[str, Any] = {
    "name": "first stage",
    "recipe": {"kind": "sequence", "hidden_size": 16, "patch": 2},
    "data": {"dataset": "waves"},
    "training": {"epochs": 4, "batch_size": 32, "log_every_steps": 10},
    "optimizer": {"lr": 0.003},
    "runtime": {"threads": 1},
}
GENTLE: dict[str, Any] = {"optimizer": {"lr": 1e-4}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def events(service: Service, run_id: int, kind: str) -> list[dict[str, Any]]:
    answer = service.http.get(f"/runs/{run_id}/events").json()
    return [event for event in answer["data"] if event["kind"] == kind]


@pytest.mark.minutes
def test_a_second_stage_waits_for_the_first_and_begins_with_its_best(service: Service) -> None:
    first = service.submit(SPEC)
    wanted = {"init_from": {"run": "first stage", "prefix": "encoder."}}
    second = service.submit({**SPEC, **GENTLE, **wanted, "name": "second stage"})
    waiting = service.run(second)
    if service.run(first)["state"] in ("queued", "running"):
        assert (waiting["status"], waiting["waits_for"]) == ("waiting_for_parent", first)
    done = service.wait_for_end(second)
    assert (done["state"], done["parent_id"], done["waits_for"]) == ("succeeded", None, None)
    best = service.run(first)["result"]["best"]
    (restored,) = events(service, second, "restored")
    told = restored["data"]["init_from"]
    assert (told["step"], told["prefix"]) == (best["step"], "encoder.")
    assert told["matched"] == told["parameters"] == 4
    applied = service.http.get(f"/runs/{second}/spec").json()["applied"]
    assert applied[0]["init_from"] == told

    risks = ["learning.rate_jumps_at_restart"]
    longer = {"patch": {"training": {"epochs": 5}, "accept_risks": risks}}
    child = service.http.post(f"/runs/{second}/restart", json=longer)
    assert child.status_code == 201, child.text
    assert service.wait_for_end(child.json()["id"])["state"] == "succeeded"
    (restored,) = events(service, child.json()["id"], "restored")
    assert restored["data"]["carry"] == "full"
    assert "init_from" not in restored["data"]

    other = {"patch": {"init_from": {"which": "latest"}}}
    refused = service.http.post(f"/runs/{second}/restart", json=other)
    assert refused.status_code == 422
    (issue,) = refused.json()["issues"]
    assert (issue["code"], issue["loc"]) == ("init_from_changed", ["init_from", "which"])
    anew = service.http.post(f"/runs/{second}/restart", json={**other, "from": "scratch"})
    assert anew.status_code == 201, anew.text
    assert service.wait_for_end(anew.json()["id"])["state"] == "succeeded"
    (restored,) = events(service, anew.json()["id"], "restored")
    assert restored["data"]["carry"] == "init"


def test_a_source_that_ends_without_a_checkpoint_fails_the_run_with_what_to_do(
    service: Service,
) -> None:
    endless = {"training": {"epochs": 900, "batch_size": 32}, "checkpoint": {"keep_best": 0}}
    first = service.submit(SPEC | endless)
    service.wait_for_step(first, 5)
    second = service.submit({**SPEC, **GENTLE, "init_from": {"run": first}})
    service.http.post(f"/runs/{first}/kill").raise_for_status()
    failed = service.wait_for_end(second)
    assert (failed["state"], failed["reason"]) == ("failed", "checkpoint_unusable")
    assert f"Run {first}, whose weights this one begins with, has no" in failed["message"]
    assert f"stoker restart {second} --from scratch" in failed["message"]
    answer = service.http.post("/runs", json={**SPEC, "init_from": {"run": first}})
    assert [issue["code"] for issue in answer.json()["issues"]] == ["correctness.init_from_missing"]


def test_what_cannot_be_begun_with_is_refused(service: Service) -> None:
    done = service.submit(SPEC)
    assert service.wait_for_end(done)["state"] == "succeeded"
    checkpoints = service.http.get(f"/runs/{done}/checkpoints").json()["data"]
    gone = checkpoints[0]["id"]
    service.http.delete(f"/checkpoints/{gone}").raise_for_status()

    def refused(init_from: dict[str, Any]) -> dict[str, Any]:
        answer = service.http.post("/runs", json={**SPEC, **GENTLE, "init_from": init_from})
        assert answer.status_code == 422, answer.text
        (issue,) = answer.json()["issues"]
        return dict(issue)

    assert refused({"run": 10_000})["message"] == "There is no run 10000, or it was deleted."
    assert "no run with the name 'nobody'" in refused({"run": "nobody"})["message"]
    assert "removed" in refused({"checkpoint": gone})["message"]
    nothing = refused({"run": done, "prefix": "encode."})
    assert nothing["code"] == "correctness.init_from_matches_nothing"
    assert [op["value"] for op in nothing["fix"]] == ["encoder."]

    wider = {**SPEC, **GENTLE, "recipe": {**SPEC["recipe"], "hidden_size": 24}}
    answer = service.http.post("/runs", json={**wider, "init_from": {"run": done}})
    assert answer.status_code == 201, answer.text
    failed = service.wait_for_end(answer.json()["id"])
    assert (failed["state"], failed["reason"]) == ("failed", "carry_mismatch")
    assert "encoder.weight_ih_l0 is (64, 6) there and (96, 6) in this run" in failed["message"]


def test_a_field_of_the_dataset_splits_it(service: Service) -> None:
    path = write_waves(service.home / "data" / "parted.h5")
    part = np.random.default_rng(1).choice(3, 600, p=[0.7, 0.2, 0.1]).astype(np.uint8)
    with h5py.File(path, "a") as file:
        file["part"] = part
    found = service.register("parted", "parted.h5")
    assert found["fields"]["part"]["parts"]["validation"] == (part == 1).sum()
    split = {"method": "field", "field": "part"}
    run = service.submit({**SPEC, "data": {"dataset": "parted", "split": split}})
    assert service.wait_for_end(run)["state"] == "succeeded"
    (applied,) = service.http.get(f"/runs/{run}/spec").json()["applied"]
    sizes = [applied["data"][f"{name}_samples"] for name in ("train", "validation", "test")]
    assert sizes == np.bincount(part).tolist()
