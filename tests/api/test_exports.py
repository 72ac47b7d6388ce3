"""Exports over HTTP: the job, what it became, and who is refused; somebody plays the worker."""

from typing import Any

import pytest

from tests.api.support import SPEC, whole_checkpoint

MADE = {
    "bytes": 7000,
    "facts": {
        "inputs": [{"name": "features", "dtype": "float32", "shape": ["batch", 24, 3]}],
        "measured": [
            {
                "model": "pytorch",
                "scores": {"loss": 0.5},
                "seconds_per_batch": 0.01,
                "max_difference": None,
                "bytes": None,
            }
        ],
        "versions": {"torch": "2.13.0"},
    },
}


@pytest.fixture
def checkpoint(api, player) -> int:
    api.post("/runs", json=SPEC)
    player.checkpoint(player.claim(), 10)
    found: int = api.get("/runs/1/checkpoints").json()["data"][0]["id"]
    return found


def claimed(store: Any, player: Any) -> Any:
    job = store.jobs.claim(player.worker_id)
    assert job is not None
    return job


def test_the_job_says_which_export_it_became(api, store, player, checkpoint, settings):
    answer = api.post(f"/checkpoints/{checkpoint}/export", json={"format": "onnx"})
    assert answer.status_code == 202
    job = answer.json()
    assert (job["state"], job["result"], job["error"]) == ("queued", None, None)
    assert answer.headers["Location"] == job["links"]["self"] == f"/jobs/{job['id']}"
    waiting = api.start("GET", job["links"]["self"], params={"wait": 30})
    store.jobs.finish(claimed(store, player).id, player.worker_id, result=MADE)
    done = waiting.result(60).json()
    assert (done["state"], done["result"]) == ("done", {"export_id": 1})
    export = api.get(done["links"]["export"]).json()
    assert (export["run_id"], export["step"], export["format"]) == (1, 10, "onnx")
    assert export["facts"]["measured"][0]["scores"] == {"loss": 0.5}
    assert api.get("/runs/1/exports").json()["data"] == [export]
    gone = api.get(export["links"]["download"])
    assert gone.problem("not_found") == 404
    assert "The files of export 1 are gone" in gone.json()["detail"]


def test_a_failure_is_told_with_the_job(api, store, player, checkpoint):
    answer = api.start(
        "POST", f"/checkpoints/{checkpoint}/export", params={"wait": 30}, json={"format": "int8"}
    )
    while (job := store.jobs.claim(player.worker_id)) is None:
        pass
    store.jobs.finish(job.id, player.worker_id, error="This model has GRU layers.")
    done = answer.result(60)
    assert done.status_code == 200
    assert (done.json()["state"], done.json()["error"]) == ("failed", "This model has GRU layers.")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/checkpoints/99/export", {"format": "onnx"}, "not_found"),
        ("/checkpoints/1/export", {"format": "pickle"}, "invalid_request"),
        ("/checkpoints/1/export", {}, "invalid_request"),
    ],
)
def test_what_cannot_be_exported_is_refused(api, checkpoint, path, body, code):
    api.post(path, json=body).problem(code)


def test_jobs_and_exports_that_are_not_there(api):
    for path in ("/jobs/9", "/exports/9", "/exports/9/download", "/runs/9/exports"):
        assert api.get(path).problem("not_found") == 404


def test_a_damaged_checkpoint_is_refused_and_noted(api, player, checkpoint, settings):
    path = api.get(f"/checkpoints/{checkpoint}").json()["path"]
    (settings.artifact_root / path / "model.safetensors").write_bytes(b"cut")
    answer = api.post(f"/checkpoints/{checkpoint}/export", json={"format": "onnx"})
    assert answer.problem("checkpoint_damaged") == 409
    assert api.get(f"/checkpoints/{checkpoint}").json()["state"] == "damaged"


def test_what_is_being_made_again_is_not_removed(api, store, player, checkpoint):
    ordering = f"/checkpoints/{checkpoint}/export"
    api.post(ordering, json={"format": "onnx"})
    store.jobs.finish(claimed(store, player).id, player.worker_id, result=MADE)
    api.post(ordering, json={"format": "onnx"})
    job = claimed(store, player)
    assert api.delete("/exports/1").problem("export_being_made") == 409
    told = api.get("/openapi.json").json()["paths"]["/exports/{export_id}"]["delete"]["responses"]
    assert "409" in told
    store.jobs.finish(job.id, player.worker_id, result=MADE)
    assert api.delete("/exports/1").json()["state"] == "removing"


def test_an_export_is_downloaded_whole_or_not_at_all(api, store, player, checkpoint, settings):
    api.post(f"/checkpoints/{checkpoint}/export", json={"format": "safetensors"})
    store.jobs.finish(claimed(store, player).id, player.worker_id, result=MADE)
    folder = settings.artifact_root / api.get("/exports/1").json()["path"]
    folder.mkdir(parents=True)
    for name, content in whole_checkpoint().items():
        (folder / name).write_bytes(content)
    answer = api.get("/exports/1/download", params={"file": "model.safetensors"})
    assert answer.content == whole_checkpoint()["model.safetensors"]
    (folder / "model.safetensors").write_bytes(b"cut")
    answer = api.get("/exports/1/download")
    assert answer.problem("export_damaged") == 409
    assert "DELETE /exports/1" in answer.json()["detail"]
