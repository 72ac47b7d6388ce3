"""On a GPU: runs from POST /runs to their result, in every way that a step is computed there."""

from typing import Any

import pytest
import torch

from tests.e2e.service import eventually

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SPEC: dict[str, Any] = {
    "recipe": {"kind": "sequence", "hidden_size": 16, "patch": 2},
    "data": {"dataset": "waves"},
    "training": {"epochs": 60, "batch_size": 32, "log_every_steps": 10},
    "optimizer": {"lr": 0.003},
}
WAYS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "launched": {"cuda_graphs": "never"},
    "captured": {"cuda_graphs": "always"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16-mixed"},
    "fp16": {"precision": "fp16-mixed"},
    "compiled": {"compile": {"mode": "default"}},
    "compiled, launched": {"compile": {"mode": "default"}, "cuda_graphs": "never"},
    "deterministic": {"deterministic": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_learns(service, way):
    risks = ["speed.compiled_recurrence"] * ("compiled" in way)
    run_id = service.submit({**SPEC, "runtime": WAYS[way], "accept_risks": risks})
    done = service.wait_for_end(run_id)
    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert done["result"]["best"]["val_mae"] < 0.3
    (attempt,) = service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    applied = attempt["applied"]
    assert applied["device"].startswith("cuda"), applied
    assert applied["cuda_graphs"]["captured"] is ("launched" not in way), applied["cuda_graphs"]
    assert applied["compile"]["mode"] == ("default" if "compiled" in way else "none")


def test_a_stopped_run_goes_on_where_it_stood(service):
    long = {**SPEC, "training": {**SPEC["training"], "epochs": 2000}}
    run_id = service.submit(long)
    service.wait_for_step(run_id, 200)
    service.http.post(f"/runs/{run_id}/pause").raise_for_status()
    paused = service.wait_for_end(run_id)
    assert paused["state"] == "paused"
    service.http.post(f"/runs/{run_id}/resume").raise_for_status()
    service.wait_for_step(run_id, paused["progress"]["step"] + 1)
    service.http.post(f"/runs/{run_id}/stop").raise_for_status()
    assert service.wait_for_end(run_id)["state"] == "stopped"
    attempts = service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    resumed = {attempt["resumed_from_step"] for attempt in attempts}
    assert paused["progress"]["step"] in resumed


def test_the_gpu_is_measured_while_a_run_is_on_it(service):
    long = {**SPEC, "training": {**SPEC["training"], "epochs": 2000}}
    run_id = service.submit(long)
    service.wait_for_step(run_id, 200)
    measured = eventually(
        lambda: service.http.get(f"/runs/{run_id}/metrics").json()["series"].get("gpu_utilization"),
        "the utilization of its GPU is part of its metrics",
    )
    assert measured
    service.http.post(f"/runs/{run_id}/kill").raise_for_status()
    assert service.wait_for_end(run_id)["state"] == "stopped"
