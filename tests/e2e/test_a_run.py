"""One run from POST /runs to its result, with a stop and a restart on the way."""

import csv
import io
import zipfile
from typing import Any

import pytest

from tests.e2e.service import eventually, write_waves

SPEC: dict[str, Any] = {
    "name": "waves",
    "recipe": {"kind": "sequence", "hidden_size": 16, "patch": 2},
    "data": {"dataset": "waves"},
    "training": {"epochs": 90, "batch_size": 32, "log_every_steps": 10},
    "optimizer": {"lr": 0.003},
    "checkpoint": {"every_steps": 200},
    "runtime": {"threads": 1},
    # So frequent only because the tests end the runs; each run is history for those after it.
    "accept_risks": ["speed.frequent_checkpoints"],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_submit_progress_stop_restart_succeed(service):
    run_id = service.submit(SPEC)
    seen = service.wait_for_step(run_id, 100)
    assert seen["state"] == "running"
    assert seen["progress"]["steps"] == 90 * 15

    answer = service.http.post(f"/runs/{run_id}/stop", params={"wait": 60})
    assert answer.status_code in (200, 202)
    stopped = service.wait_for_end(run_id)
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stop_requested")
    stopped_at = stopped["progress"]["step"]
    assert 100 <= stopped_at < 1350
    latest = service.http.get(f"/runs/{run_id}/checkpoints").json()["data"]
    assert max(checkpoint["step"] for checkpoint in latest) == stopped_at

    answer = service.http.post(f"/runs/{run_id}/restart", json={})
    assert answer.status_code == 201, answer.text
    child = answer.json()
    assert child["parent_id"] == run_id
    assert child["carry"]["kind"] == "full"
    done = service.wait_for_end(child["id"])
    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert done["result"]["last"]["step"] == 1350
    assert done["result"]["best"]["val_mae"] < 0.25

    attempts = service.http.get(f"/runs/{child['id']}/attempts").json()["data"]
    assert [attempt["resumed_from_step"] for attempt in attempts] == [stopped_at]
    rows = list(csv.DictReader(io.StringIO(service.losses(child["id"]).decode())))
    # Not >: an evaluation that the stop cut short is repeated at the very same step.
    assert int(rows[0]["step"]) >= stopped_at
    assert int(rows[-1]["step"]) == 1350
    assert service.run(run_id)["child_ids"] == [child["id"]]

    plan = service.http.post("/runs", params={"dry_run": "true"}, json=SPEC).json()["memory"]
    assert (plan["unknown"], plan["measured"]["runs"]) == ([], [child["id"], run_id])
    assert plan["host"]["planned_bytes"] > plan["host"]["least_bytes"] > 0

    series = service.http.get(f"/runs/{child['id']}/metrics").json()["series"]
    assert {"train_loss", "val_loss", "val_mae", "lr"} <= series.keys()
    kinds = [kind for kind, _ in _stream(service, child["id"])]
    assert {"state", "phase", "applied", "epoch", "checkpoint"} <= set(kinds)
    assert kinds.index("end") == len(kinds) - 1


def test_pause_frees_the_device_and_resume_goes_on(service):
    run_id = service.submit(SPEC)
    service.wait_for_step(run_id, 50)
    service.http.post(f"/runs/{run_id}/pause").raise_for_status()
    paused = service.wait_for_end(run_id)
    assert paused["state"] == "paused"
    eventually(
        lambda: all(slot["run_id"] is None for slot in _slots(service)), "the slot is free again"
    )

    service.http.post(f"/runs/{run_id}/resume").raise_for_status()
    service.wait_for_step(run_id, paused["progress"]["step"] + 1)
    service.http.post(f"/runs/{run_id}/kill").raise_for_status()
    killed = service.wait_for_end(run_id)
    assert (killed["state"], killed["reason"]) == ("stopped", "kill_requested")
    assert killed["attempt"] == 2


def test_a_restart_keeps_the_best_checkpoint_when_its_parent_is_deleted(service):
    """Of val_loss the highest is the best here, which is the first."""
    spec = {
        **SPEC,
        "training": {"epochs": 4, "batch_size": 32},
        "schedule": {"kind": "constant"},
        "checkpoint": {"every_steps": None, "mode": "max"},
        "accept_risks": [
            *SPEC["accept_risks"],
            "learning.monitor_upside_down",
            "learning.rate_jumps_at_restart",
        ],
    }
    parent = service.submit(spec)
    best = service.wait_for_end(parent)["result"]["best"]
    whole = service.http.get(f"/runs/{parent}/checkpoints/best/download").content

    answer = service.http.post(
        f"/runs/{parent}/restart", json={"patch": {"training": {"epochs": 6}}}
    )
    assert answer.json()["carry"]["kind"] == "full", answer.text
    child = answer.json()["id"]
    assert service.wait_for_end(child)["result"]["best"] == best
    service.http.delete(f"/runs/{parent}").raise_for_status()
    where = service.home / "artifacts" / "runs" / str(parent)
    eventually(lambda: not where.exists(), "the parent's folder is removed")

    listed = service.http.get(f"/runs/{child}/checkpoints").json()["data"]
    (kept,) = [one for one in listed if one["is_best"]]
    assert (kept["step"], kept["is_latest"]) == (best["step"], False)
    assert kept["metrics"]["val_loss"] == best["val_loss"]
    got = service.http.get(f"/runs/{child}/checkpoints/best/download").content
    assert _weights(got) == _weights(whole)
    again = service.http.post(f"/runs/{child}/restart", json={"from": "best"})
    assert again.status_code == 201, again.text
    done = service.wait_for_end(again.json()["id"])
    (attempt,) = service.http.get(f"/runs/{done['id']}/attempts").json()["data"]
    assert attempt["resumed_from_step"] == best["step"]


def test_a_dataset_that_changed_after_registration_is_refused_with_a_sentence(service):
    path = write_waves(service.home / "data" / "cut.h5")
    assert service.register("cut", "cut.h5")["state"] == "ready"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused = service.http.post("/runs", json={**SPEC, "data": {"dataset": "cut"}})
    assert refused.status_code == 409
    (issue,) = refused.json()["issues"]
    assert issue["code"] == "correctness.dataset_changed"
    assert "register" in refused.json()["detail"]


def _slots(service):
    workers = service.http.get("/workers").json()["data"]
    return [slot for worker in workers if worker["state"] == "alive" for slot in worker["slots"]]


def _stream(service, run_id):
    """(event, data) of the run's event stream, replayed from its beginning to its end."""
    headers = {"Accept": "text/event-stream"}
    with service.http.stream("GET", f"/runs/{run_id}/events", headers=headers) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith(("event:", "data:"))]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [(kind.removeprefix("event: "), data.removeprefix("data: ")) for kind, data in pairs]


def _weights(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        (name,) = [n for n in files.namelist() if n.endswith("model.safetensors")]
        return files.read(name)
