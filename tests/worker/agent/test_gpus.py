"""An agent on a host with GPUs, as a fake driver shows them."""

import json
import os
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from app.lifecycle import Intent, RunState
from app.planning.requirements import Requirements
from app.spec.run import SPEC_VERSION
from tests.worker.eventually import eventually

# A driver, and the metadata of a torch with CUDA, which this project's tests do without.
GIB = 2**30
FAKE_HOST = str(Path(__file__).parents[1] / "fake_nvml")


def start(farm, *gpus, **environment):
    farm.start_agent(PYTHONPATH=FAKE_HOST, FAKE_NVML=json.dumps({"gpus": gpus}), **environment)
    (worker,) = farm.store.workers.list(alive_only=True)
    return worker


def test_a_run_gets_one_gpu_and_sees_no_other(make_farm):
    farm = make_farm()
    worker = start(farm, {}, {})
    assert [slot["device"] for slot in worker.slots] == ["cuda:0", "cuda:1", "cpu"]
    assert [device["name"] for device in worker.devices] == ["Fake H200", "Fake H200"]
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 1)
    assert farm.run(run_id).devices == ["cuda:0"]
    assert farm.trainer().environ()["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert json.loads((farm.folder(run_id) / "spec.json").read_text())["device"] == "cuda:0"

    def runs_of_each() -> list[float]:
        with urllib.request.urlopen(worker.facts["metrics_url"], timeout=30) as answer:
            families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
        return [sample.value for sample in families["stoker_gpu_runs"].samples]

    eventually(lambda: runs_of_each() == [1, 0], "the beat after the start has published it")
    curve = eventually(
        lambda: farm.store.metrics.series(run_id, ["gpu_utilization"]).get("gpu_utilization"),
        "utilization is a curve",
    )
    assert curve[0][2] == 0.87


def test_an_agent_keeps_to_the_gpus_that_it_was_started_with(make_farm):
    farm = make_farm()
    worker = start(farm, {}, {}, CUDA_VISIBLE_DEVICES="1")
    assert [slot["device"] for slot in worker.slots] == ["cuda:1", "cpu"]
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 1)
    assert farm.trainer().environ()["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_an_agent_that_is_shown_no_gpu_trains_on_the_cpu_and_says_so_once(make_farm):
    farm = make_farm()
    worker = start(farm, {}, CUDA_VISIBLE_DEVICES="")
    assert [slot["device"] for slot in worker.slots] == ["cpu"]
    run_id = farm.submit(steps=3)
    eventually(lambda: farm.run(run_id).state is RunState.succeeded, "the run succeeds")
    assert farm.log().count("names none of this host's GPUs") == 1


def test_other_peoples_work_is_waited_for_and_shown(make_farm):
    farm = make_farm()
    start(farm, {"pids": [os.getpid()], "held": 30 * 2**30})
    run_id = farm.submit(steps=3)

    def waiting():
        (worker,) = farm.store.workers.list(alive_only=True)
        return worker.slots[0]["waiting"]

    sentence = eventually(waiting, "the slot says why it waits")
    assert "30.0 GiB" in sentence, "with the process's name, where it can be told from here"
    assert farm.run(run_id).state is RunState.queued


def test_a_gpu_is_shared_with_other_peoples_work_where_the_owner_says_so(make_farm):
    farm = make_farm()
    start(farm, {"pids": [os.getpid()], "held": 30 * 2**30}, STOKER_SHARE_GPUS="true")
    assert farm.wait_for_end(farm.submit(steps=3)).state is RunState.succeeded


def test_a_host_whose_torch_has_no_cuda_trains_on_the_cpu_and_says_so(make_farm, tmp_path):
    farm = make_farm()
    (tmp_path / "pynvml.py").symlink_to(f"{FAKE_HOST}/pynvml.py")
    metadata = tmp_path / "torch-2.13.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    farm.start_agent(PYTHONPATH=str(tmp_path), FAKE_NVML=json.dumps({"gpus": [{}]}))
    (worker,) = farm.store.workers.list(alive_only=True)
    assert [slot["device"] for slot in worker.slots] == ["cpu"]
    assert "cannot use this host's GPUs" in farm.log()


def test_a_driver_that_answers_late_is_waited_for(make_farm, tmp_path):
    farm = make_farm()
    ready = tmp_path / "ready"
    nvml = json.dumps({"gpus": [{}], "until": str(ready)})
    farm.start_agent(PYTHONPATH=FAKE_HOST, FAKE_NVML=nvml, FAKE_DRIVER=str(tmp_path))

    def slot():
        (worker,) = farm.store.workers.list(alive_only=True)
        return worker.slots[0]

    run_id = farm.submit(steps=10**6)
    assert "NVML has not answered" in eventually(lambda: slot()["waiting"], "the slot waits")
    assert farm.run(run_id).state is RunState.queued
    ready.touch()
    eventually(lambda: slot()["device"] == "cuda:0", "the slot is the GPU's")
    farm.wait_for_step(run_id, 1)
    assert farm.run(run_id).devices == ["cuda:0"]
    assert "GPUs have come up" in farm.log()


def test_a_gpu_that_is_lost_takes_no_other_with_it(make_farm, tmp_path):
    farm = make_farm()
    lost = tmp_path / "lost"
    start(farm, {"lost": str(lost)}, {})
    lost.touch()

    def waiting():
        (worker,) = farm.store.workers.list(alive_only=True)
        return worker.slots[0]["waiting"]

    eventually(waiting, "the slot of the lost GPU waits")
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 1)
    assert farm.run(run_id).devices == ["cuda:1"]


def test_a_cpu_run_on_a_gpu_slot_carries_no_numbers_of_the_gpu(make_farm):
    farm = make_farm()
    worker = start(farm, {}, STOKER_SLOTS="1")
    run_id = farm.submit(runtime={"device": "cpu"}, steps=10**6)
    farm.wait_for_step(run_id, 3)
    eventually(lambda: farm.run(run_id).devices == ["cpu"], "its device is told")
    with urllib.request.urlopen(worker.facts["metrics_url"], timeout=30) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    assert [sample.value for sample in families["stoker_gpu_runs"].samples] == [0]
    assert farm.store.metrics.series(run_id, ["gpu_utilization"]).get("gpu_utilization") is None


def test_of_two_idle_cards_a_run_goes_to_the_one_that_fits_and_others_wait(make_farm):
    """It was tried on the small one again and again, while the large one was idle."""
    farm = make_farm()
    start(farm, {"total": 8 * GIB, "used": 0}, {"total": 24 * GIB, "used": 0})
    needs = Requirements(device_bytes=20 * GIB)
    first = farm.submit(runtime={"device": "cuda"}, needs=needs, steps=10_000)
    farm.wait_for_step(first, 2)
    second = farm.submit(runtime={"device": "cuda"}, needs=needs, steps=10)
    third = farm.submit(runtime={"device": "cuda"}, steps=1_000)
    assert farm.wait_for_end(third).devices == ["cuda:0"]
    assert farm.run(first).devices == ["cuda:1"]
    assert farm.run(second).attempt == 0

    def waits():
        waiting = farm.run(second).waiting
        return waiting is not None and waiting.for_memory and "8.00 GiB free" in waiting.why

    eventually(waits, "the run says what it waits for")
    farm.want(first, Intent.stop)
    assert farm.wait_for_end(second).devices == ["cuda:1"]


def test_an_older_worker_leaves_a_newer_spec_to_a_newer_worker(make_farm):
    """Two versions of Stoker side by side: the older one takes what it understands."""
    farm = make_farm()
    farm.start_agent(SPEC_VERSION=str(SPEC_VERSION))
    newer = farm.submit(spec_version=SPEC_VERSION + 1, steps=10)
    known = farm.submit(steps=10)
    assert farm.wait_for_end(known).state is RunState.succeeded
    run = farm.run(newer)
    assert (run.state, run.attempt) == (RunState.queued, 0)
    waiting = eventually(lambda: farm.run(newer).waiting, "the run says why it waits")
    assert "upgrade Stoker there" in waiting.why
    farm.start_agent(SPEC_VERSION=str(SPEC_VERSION + 1))
    done = farm.wait_for_end(newer)
    assert (done.state, done.attempt) == (RunState.succeeded, 1)
    assert done.worker.endswith("-1")


def test_a_field_that_is_not_known_here_is_passed_over(make_farm):
    """A newer Stoker of the same spec version has written it."""
    farm = make_farm()
    farm.start_agent()
    run_id = farm.submit(more={"colour": "red"}, steps=10)
    assert farm.wait_for_end(run_id).state is RunState.succeeded
