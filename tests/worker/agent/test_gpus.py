"""An agent on a host with GPUs, as a fake driver shows them."""

import json
import os
import signal
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from app.cli.host.supervise import WORKER_MARGIN_SECONDS
from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.lifecycle import Intent, Reason, RunState
from app.planning.requirements import Requirements
from app.planning.residency import Need, memory_for_data, settle_residency
from app.settings import load_settings
from app.spec.data import ChunkedLoader
from app.spec.run import SPEC_VERSION
from app.store.tables import datasets
from tests.worker.eventually import eventually
from tests.worker.farm import FIELDS
from worker.agent.devices import RELEASE_SECONDS, Devices, HeldGpus

# A driver, and the metadata of a torch with CUDA, which this project's tests do without.
GIB = 2**30
NOBODY = 2**22 + 1  # above the highest pid of Linux
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


def test_a_divided_gpu_takes_no_run_while_another_does(make_farm):
    farm = make_farm()
    start(farm, {"mig": 1}, {})
    run = farm.wait_for_end(farm.submit(steps=3))
    assert run.state is RunState.succeeded

    def waiting() -> dict[str, str | None]:
        (worker,) = farm.store.workers.list(alive_only=True)
        return {slot["name"]: slot["waiting"] for slot in worker.slots}

    assert "is divided by MIG" in (waiting()["gpu-GPU-0"] or "")
    eventually(lambda: waiting()["gpu-GPU-1"] is None, "the driver lists no process any more")


class Listed:
    """Processes that the driver lists on a GPU; it forgets one later than the kernel does."""

    def __init__(self, folder):
        self.path = str(folder / "pids")
        self.write()

    def write(self, *pids):
        new = Path(f"{self.path}.new")
        new.write_text(json.dumps(pids))
        new.replace(self.path)


@pytest.fixture
def listed(tmp_path):
    return Listed(tmp_path)


def test_a_run_has_stopped_once_the_driver_lists_none_of_its_processes(make_farm, listed):
    farm = make_farm()
    start(farm, {"pids": listed.path}, STOKER_SLOTS="1")
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 1)
    trainer = farm.trainer().pid
    listed.write(trainer)
    farm.want(run_id, Intent.kill)
    held = f"lists processes on cuda:0 that came since the run began ({trainer})"

    def waits():
        (worker,) = farm.store.workers.list(alive_only=True)
        return held in (worker.slots[0]["waiting"] or "")

    eventually(waits, "the slot says what it waits for")
    assert not psutil.pid_exists(trainer)
    assert farm.run(run_id).state is RunState.running
    listed.write()
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert "warning" not in [event.kind for event in farm.store.events.list(run_id)]


def test_after_a_second_signal_the_end_is_told_once_the_gpu_is_free(make_farm, listed):
    farm = make_farm()
    start(farm, {"pids": listed.path}, STOKER_SLOTS="1")
    run_id = farm.submit(steps=10**6, on_stop="ignore")
    farm.wait_for_step(run_id, 1)
    listed.write(farm.trainer().pid)
    (agent,) = farm.agents
    agent.send_signal(signal.SIGTERM)

    def worker():
        return farm.store.workers.list(alive_only=False)[0]

    eventually(lambda: worker().state == "draining", "the agent drains")
    agent.send_signal(signal.SIGINT)
    eventually(lambda: "driver lists processes" in (worker().slots[0]["waiting"] or ""), "it waits")
    listed.write()
    assert agent.wait(timeout=60) == 0
    assert farm.run(run_id).reason is Reason.drained
    assert farm.left_running() == []


def test_in_a_container_that_shares_its_gpus_others_hold_no_run_up(fake_nvml, listed, monkeypatch):
    """Who came since a run began cannot be told from it there."""
    monkeypatch.setattr("worker.telemetry.gpus.HOST_PID_NAMESPACE", 1)
    fake_nvml(gpus=[{"pids": listed.path}])
    settings = load_settings(beat_seconds=0.05, share_gpus=True)
    with closing(Devices(settings, agent=0)) as devices:
        gpus = HeldGpus(devices, ["0"])
        listed.write(NOBODY)

        def sees():
            devices.telemetry.read(time.monotonic())
            return gpus.samples()[0].processes

        eventually(sees, "somebody has come")
        assert gpus.why_held(time.monotonic()) is None
        assert gpus.free_since is None
        assert gpus.take_warnings() == []


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_gpu_is_known_to_be_free_only_where_the_driver_listed_the_run(
    fake_nvml, listed, is_listed
):
    """Where it lists no processes at all, none listed means nothing."""
    fake_nvml(gpus=[{"pids": listed.path}])
    with closing(Devices(load_settings(beat_seconds=0.05), agent=0)) as devices:
        gpus = HeldGpus(devices, ["0"])
        if is_listed:
            listed.write(NOBODY)

            def sees():
                devices.telemetry.read(time.monotonic())
                return gpus.samples()[0].processes

            eventually(sees, "it is seen while it trains")
            listed.write()
        ended = time.monotonic()

        def is_free():
            devices.telemetry.read(time.monotonic())
            return gpus.why_held(ended) is None

        eventually(is_free, "the driver lists none")
        assert gpus.free_since == (ended if is_listed else None)


def test_a_worker_under_stoker_up_may_wait_for_its_gpus_and_still_report():
    assert WORKER_MARGIN_SECONDS >= RELEASE_SECONDS + 20.0


@pytest.mark.parametrize("share", [False, True])
def test_a_driver_that_never_forgets_a_process_holds_no_run_forever(
    fake_nvml, listed, monkeypatch, share
):
    """And what of others is there from the beginning is not waited for."""
    here = Path("/proc/self/ns/pid").stat().st_ino
    monkeypatch.setattr("worker.telemetry.gpus.HOST_PID_NAMESPACE", here)
    fake_nvml(gpus=[{"pids": listed.path}])
    listed.write(NOBODY - 1)
    settings = load_settings(beat_seconds=0.05, share_gpus=share)
    with closing(Devices(settings, agent=0)) as devices:
        gpus = HeldGpus(devices, ["0"])
        listed.write(NOBODY - 1, NOBODY)
        now = time.monotonic()

        def why():
            devices.telemetry.read(time.monotonic())
            return gpus.why_held(now)

        assert "does not say yet" in (gpus.why_held(now) or "")
        eventually(lambda: f"({NOBODY})" in (why() or ""), "what is left is told")
        assert gpus.why_held(now + RELEASE_SECONDS) is None
        (warning,) = gpus.take_warnings()
        assert f"({NOBODY})" in warning.data["message"]
        assert ("The slot takes no run" in warning.data["message"]) != share
        assert gpus.why_held(now + RELEASE_SECONDS + 1.0) is None
        assert gpus.take_warnings() == [], "it is said once"


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


def test_what_the_first_of_two_like_runs_took_lets_the_second_stay_on_the_card(make_farm, listed):
    """The reference's windows, 51,779 of 360 × 167 and 12.45 GB, on a card with 15.4 GiB free:
    nobody has measured a run like the first one, for which half of the card is left free of data.
    """
    farm = make_farm(beat_seconds=3.0)  # between the two no sample comes by itself
    fields = {**FIELDS, "features": {"shape": [360, 167], "dtype": "float32"}}
    table = {"fields": fields, "samples": 51_779, "size_bytes": 12_450_000_000}
    with farm.store.database.write() as connection:
        connection.execute(update(datasets).values(**table))
    start(farm, {"total": 16 * GIB, "used": int(0.6 * GIB), "pids": listed.path})
    free = int(15.4 * GIB) - CUDA_CONTEXT_BYTES
    need = Need(360 * 167 * 4 + 4 * 4, 1, 41_424, (10_355,))

    def trained(**script):
        """How the trainer of a run that took so much keeps its data."""
        run_id = farm.submit(steps=100, **script)
        farm.wait_for_step(run_id, 1)
        listed.write(NOBODY)

        def waits():
            (worker,) = farm.store.workers.list(alive_only=True)
            return "driver lists processes" in (worker.slots[0]["waiting"] or "")

        eventually(waits, "the driver has yet to give its memory back")
        listed.write()
        assert farm.wait_for_end(run_id).state is RunState.succeeded
        beside = json.loads((farm.folder(run_id) / "spec.json").read_text())["memory_beside_data"]
        memory = memory_for_data(free, beside, on_gpu=True)
        return settle_residency(ChunkedLoader(), need, memory).kind

    streams = {"data_bytes": 5 * GIB, "batch": 128}
    assert trained(memory=streams, peak_bytes=6 * GIB) == "stream"
    assert trained() == "resident"


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
