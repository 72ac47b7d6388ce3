"""Trainers with too little memory: their runs come down the ladder, and end as they would have."""

import csv
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch

from tests.e2e.service import Service
from tests.e2e.test_chaos import final_weights

LIMITED_AGENT = str(Path(__file__).parent / "limited_agent.py")
WINDOW, FEATURES, HORIZON = 64, 64, 4  # 16 KiB a sample
# 188 MiB of data, of which no attempt may have half; and 9 MiB, for a model with large activations.
WIDE, SMALL = 12_000, 600
SPEC: dict[str, Any] = {
    "runtime": {"threads": 1},
    "training": {"epochs": 1, "batch_size": 64, "log_every_steps": 5},
    "accept_risks": ["speed.*", "memory.*", "learning.*"],
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One whose trainers may take what the label memory_mib says, above their imports."""
    service = Service(tmp_path_factory.mktemp("service") / "home", STOKER_STANDBY="0")
    try:
        service.start_api()
        service.start_agent(LIMITED_AGENT)
        for name, samples in (("wide", WIDE), ("small", SMALL)):
            write_noise(service.home / "data" / f"{name}.h5", samples)
            assert service.register(name, f"{name}.h5")["state"] == "ready"
        yield service
    finally:
        service.close()


def write_noise(path: Path, samples: int) -> None:
    random = np.random.Generator(np.random.Philox(7))
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        features = random.standard_normal((samples, WINDOW, FEATURES), dtype=np.float32)
        file["features"] = features
        file["targets"] = features[:, -1, :HORIZON] + 0.5


def train(service: Service, spec: dict[str, Any], memory_mib: int | None = None) -> dict[str, Any]:
    labels = {} if memory_mib is None else {"memory_mib": str(memory_mib)}
    return service.wait_for_end(service.submit({**SPEC, **spec, "labels": labels}))


def steps_down(service: Service, run: dict[str, Any]) -> list[dict[str, Any]]:
    """What the events of the run's retries say."""
    answer = service.http.get(f"/runs/{run['id']}/events", params={"limit": 500})
    events = [event["data"] for event in answer.json()["data"] if event["kind"] == "retry"]
    assert {event["reason"] for event in events} == {"host_oom"}
    return events


def losses(service: Service, run: dict[str, Any]) -> list[tuple[str, str, str, float]]:
    rows = csv.DictReader(service.losses(run["id"]).decode().splitlines())
    return [(row["step"], row["epoch"], row["split"], float(row["loss"])) for row in rows]


@pytest.mark.minutes
def test_data_that_does_not_fit_comes_in_ever_smaller_chunks_and_nothing_changes(service):
    spec = {
        "recipe": {"kind": "sequence", "hidden_size": 16, "patch": 8, "dropout": 0.1},
        "data": {"dataset": "wide"},
        "training": {**SPEC["training"], "max_steps": 60},
    }
    straight, limited = train(service, spec), train(service, spec, memory_mib=140)
    assert (limited["state"], limited["reason"]) == ("succeeded", "completed"), limited
    steps = steps_down(service, limited)
    assert len(steps) >= 2
    ran_out = steps[0]["ran_out"]
    assert (ran_out["where"], ran_out["phase"]) == ("host", "building")
    assert ran_out["wanted_bytes"] > ran_out["free_bytes"] > 0
    taken = [step["memory_rung"] for step in steps]
    assert {(rung["batch"], rung["evaluation_batch"]) for rung in taken} == {(None, None)}
    assert limited["attempt"] == len(taken) + 1
    assert service.losses(limited["id"]) == service.losses(straight["id"])
    assert final_weights(service, limited["id"]) == final_weights(service, straight["id"])
    applied = service.http.get(f"/runs/{limited['id']}/spec").json()["applied"]
    assert applied[-1]["memory_rung"] == taken[-1]
    assert applied[-1]["data"]["residency"] == "stream"


@pytest.mark.minutes
def test_a_batch_that_does_not_fit_is_computed_in_micro_batches_of_the_same_steps(service):
    spec = {
        "recipe": {"kind": "sequence", "hidden_size": 128, "patch": 1},
        "data": {"dataset": "small"},
        "training": {"epochs": 2, "batch_size": 128, "log_every_steps": 1},
        "checkpoint": {"every_steps": 2},
        "policy": {"max_retries": 0},
    }
    straight, limited = train(service, spec), train(service, spec, memory_mib=90)
    assert (limited["state"], limited["reason"]) == ("succeeded", "completed"), limited
    assert steps_down(service, limited)[-1]["memory_rung"]["batch"] < 128
    told, expected = losses(service, limited), losses(service, straight)
    assert [row[:3] for row in told] == [row[:3] for row in expected]
    assert [row[3] for row in told] == pytest.approx([row[3] for row in expected], rel=1e-4)
    weights = [
        safetensors.torch.load(final_weights(service, run["id"])) for run in (limited, straight)
    ]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.minutes
def test_a_model_that_does_not_fit_fails_with_what_was_wanted_and_what_to_do(service):
    spec = {
        "recipe": {"kind": "sequence", "hidden_size": 2048, "patch": 8},
        "data": {"dataset": "small"},
    }
    run = train(service, spec, memory_mib=80)
    assert (run["state"], run["reason"]) == ("failed", "host_oom")
    assert "The host ran out of memory while" in run["message"]
    assert "The memory ladder ends here" in run["message"]
    assert "Make the model smaller" in run["message"]
