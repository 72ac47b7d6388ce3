"""Measurements through a real agent: what is measured, what is refused, and what ends them."""

import json
import os
import signal

import pytest

from app.spec.run import RunSpec
from tests.worker.agent.test_gpus import FAKE_HOST
from tests.worker.eventually import eventually
from tests.worker.farm import FIELDS

PROBE = "worker.trainer.tools.probe"


def start_with_gpu(farm):
    paths = [FAKE_HOST, *filter(None, [os.environ.get("PYTHONPATH")])]
    farm.start_agent(PYTHONPATH=os.pathsep.join(paths), FAKE_NVML=json.dumps({"gpus": [{}]}))


def order(farm, device="cpu", name="cpu", **training):
    """Have a step measured; the job's id."""
    recipe = {"kind": "sequence", "patch": 4, "residual": "none", "highway": 0}
    request = {"recipe": recipe, "data": {"dataset": "waves"}, "training": training}
    spec = RunSpec.model_validate_json(json.dumps(request)).model_dump(mode="json")
    (worker,) = farm.store.workers.list(alive_only=True)
    payload = {"spec": spec, "fields": FIELDS, "device": device, "name": name, "batch_size": 8,
               "evaluation_batch_size": 8}  # fmt: skip
    return farm.store.jobs.order_probe(worker.id, payload)


def ended(farm, job_id):
    def over():
        job = farm.store.jobs.get(job_id)
        return job if job.state in ("done", "failed") else None

    return eventually(over, f"the job ends\n{farm.log()}")


def test_a_step_is_measured_on_a_cpu_beside_a_run(farm):
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 1)
    job = ended(farm, order(farm))
    assert (job.state, job.error) == ("done", None)
    assert job.result["device"] == "cpu"
    assert [batch for batch, _ in job.result["training"]] == [1, 8]
    assert farm.run(run_id).state == "running"


def test_a_child_ends_with_its_agent(make_farm):
    farm = make_farm()
    agent = farm.start_agent()
    order(farm)
    (child,) = eventually(lambda: farm.processes(PROBE), "a probe runs")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    child.wait(timeout=10)


def test_a_step_that_takes_too_long_is_ended(make_farm):
    farm = make_farm()
    farm.start_agent(PROBE_SECONDS="0")
    job = ended(farm, order(farm))
    assert (job.state, job.result) == ("failed", None)
    assert "did not end within 0 seconds" in job.error


def test_nothing_is_measured_beside_a_run_on_its_gpu(make_farm):
    farm = make_farm()
    start_with_gpu(farm)
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 1)
    job = ended(farm, order(farm, "cuda", "Fake H200"))
    assert job.state == "failed"
    assert job.error.startswith(f"GPU 0 trains run {run_id}. A measurement beside others")


@pytest.mark.parametrize("name", ["Fake H200", "Other GPU"])
def test_a_gpu_that_cannot_be_used_is_told_and_given_back(make_farm, name):
    farm = make_farm()
    start_with_gpu(farm)
    job = ended(farm, order(farm, "cuda", name))
    assert job.state == "failed"
    told = (
        "PyTorch" if name == "Fake H200" else "no longer has Other GPU"
    )  # there is none behind it
    assert told in job.error
    farm.wait_for_end(farm.submit(steps=3))
