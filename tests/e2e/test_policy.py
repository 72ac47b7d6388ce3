"""What a run's policy promises, through the real service: a rollback, and a slot given back."""

import h5py
import pytest

from tests.e2e.service import eventually, write_waves
from tests.e2e.test_a_run import SPEC
from tests.e2e.test_chaos import final_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def events(service, run_id, kind):
    answer = service.http.get(f"/runs/{run_id}/events", params={"limit": 500})
    return [event["data"] for event in answer.json()["data"] if event["kind"] == kind]


@pytest.mark.minutes
def test_a_run_goes_past_a_batch_whose_loss_is_infinite(service):
    with h5py.File(write_waves(service.home / "data" / "burst.h5"), "r+") as file:
        file["targets"][100] = 1e30  # finite, and its square is not
    assert service.register("burst", "burst.h5")["state"] == "ready"
    spec = {
        **SPEC,
        "recipe": {**SPEC["recipe"], "loss": "mse"},
        "data": {**SPEC["data"], "dataset": "burst", "standardize": {"targets": False}},
        "training": {**SPEC["training"], "epochs": 1, "batch_size": 8, "log_every_steps": 5},
        "checkpoint": {"every_steps": 5},
        "accept_risks": ["learning.*", "speed.*"],
    }
    failed = service.wait_for_end(service.submit(spec))
    assert (failed["state"], failed["reason"]) == ("failed", "nonfinite"), failed
    run_id = service.submit({**spec, "policy": {"on_nonfinite": "rollback", "max_retries": 0}})
    done = service.wait_for_end(run_id)
    assert (done["state"], done["reason"], done["attempt"]) == ("succeeded", "completed", 2), done
    (retry,), (told,) = events(service, run_id, "retry"), events(service, run_id, "rollback")
    assert retry["reason"] == "nonfinite"
    assert "Rollback 1 of at most 3" in retry["change"]
    assert told["from_step"] < told["step"] <= told["from_step"] + 10
    assert f", of which {told['steps']} were left out" in done["message"]


@pytest.mark.minutes
def test_a_run_that_was_preempted_ends_as_one_that_was_not(service):
    long = {**SPEC, "training": {**SPEC["training"], "epochs": 40}}
    calm = service.submit(long)
    assert service.wait_for_end(calm)["state"] == "succeeded"
    low = service.submit({**long, "policy": {"preemptible": True}})
    service.wait_for_step(low, 50)
    with service.held():
        high = service.submit({**SPEC, "priority": 5})
        told = eventually(lambda: service.run(high)["message"], "it says for what it waits")
    assert told == f"Run {low}, of a lower priority, is giving up its slot for it."
    assert service.wait_for_end(high)["state"] == "succeeded"
    done = service.wait_for_end(low)
    assert done["state"] == "succeeded", done
    attempts = service.http.get(f"/runs/{low}/attempts").json()["data"]
    assert [one["reason"] for one in attempts] == ["preempted", "completed"]
    assert service.losses(low) == service.losses(calm)
    assert final_weights(service, low) == final_weights(service, calm)
