"""Scripts on several GPUs through the real service.

The agent sees the GPUs of a fake driver; torch computes by gloo on the CPU.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.service import eventually
from tests.e2e.shell import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TRAIN = """
import os, sys, time
import stoker
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run, start = stoker.init(), 0
if run.resume_from is not None:
    state = torch.load(run.resume_from / "model.pt")
    model.module.load_state_dict(state["model"])
    start = state["step"]
visible = os.environ["CUDA_VISIBLE_DEVICES"]
print(f"rank {rank} of {dist.get_world_size()} on {visible} goes on from {start}", flush=True)
for step in range(start + 1, int(sys.argv[1]) + 1):
    loss = (model(torch.full((8, 4), float(rank))) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item()}, step=step)
    stopping = run.should_stop()
    if step == 5 or stopping:
        with run.checkpoint(step) as folder:
            if rank == 0:
                torch.save({"model": model.module.state_dict(), "step": step}, folder / "model.pt")
            (folder / f"rank-{rank}").write_text(str(step))
    if stopping:
        print(f"rank {rank} stops at {step}", flush=True)
        break
    time.sleep(0.02)
else:
    run.finish()
dist.destroy_process_group()
"""
ENDLESS = 10**6
HOLD = "import time; print('it holds', flush=True); time.sleep(600)"


class GpuHost(Shell):
    """A machine with three GPUs, as its driver tells."""

    def __init__(self, root: Path) -> None:
        driver = str(ROOT / "tests" / "worker" / "fake_nvml")
        gpus = json.dumps({"gpus": [{}, {}, {}]})
        super().__init__(root, PYTHONPATH=driver, FAKE_NVML=gpus, STOKER_STANDBY="0")
        (self.project / "train.py").write_text(TRAIN)

    def run(self, *words: str, steps: int = ENDLESS) -> int:
        return self.typed("--gpus", "2", *words, "--", sys.executable, "train.py", str(steps))

    def typed(self, *words: str) -> int:
        return int(json.loads(self.stoker("run", "--json", *words))["id"])

    def hold(self, gpus: int) -> int:
        """A run that has so many GPUs until it is ended, once it runs."""
        words = ("--gpus", str(gpus), "--launch", "none", "--", sys.executable, "-c", HOLD)
        run_id = self.typed(*words)
        self.until_log_has(run_id, "it holds")
        return run_id

    def slots(self) -> list[int | None]:
        """Which run is on each GPU, as the worker that lives tells it."""
        rows = self.service.http.get("/workers").json()["data"]
        (worker,) = [one for one in rows if one["state"] == "alive"]
        return [slot["run_id"] for slot in worker["slots"] if slot["device"] != "cpu"]

    def post(self, run_id: int, verb: str) -> dict[str, Any]:
        answer = self.service.http.post(f"/runs/{run_id}/{verb}", params={"wait": 60})
        document: dict[str, Any] = answer.json()
        return document

    def ranks(self, run_id: int) -> list[psutil.Process]:
        """Processes of the run, its launchers among them."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                home = str(self.service.home)
                if environment.get("STOKER_RUN_DIR", "").startswith(
                    f"{home}/artifacts/runs/{run_id}/"
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def until_it_trains(self, run_id: int, past: int = 5) -> None:
        self.service.wait_for_step(run_id, past)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    host = GpuHost(tmp_path_factory.mktemp("gpus"))
    yield host
    host.service.close()


@pytest.fixture(autouse=True)
def free_slots(host: GpuHost) -> Iterator[None]:
    """A test that fails leaves no run behind that those after it would wait for."""
    yield
    host.end_all()
    eventually(lambda: host.slots() == [None] * 3, "all slots are free")


@pytest.mark.minutes
def test_two_ranks_train_stop_together_and_go_on_at_the_saved_step(host: GpuHost) -> None:
    run_id = host.run()
    host.until_it_trains(run_id)
    assert host.slots() == [run_id, run_id, None]
    running = host.service.run(run_id)
    assert running["devices"] == ["cuda:0", "cuda:1"]
    assert len(host.ranks(run_id)) >= 3, "a launcher and two ranks"
    busy = eventually(lambda: host.curve(run_id, "gpu_utilization"), "their load is a curve")
    assert set(busy.values()) == {0.87}
    stopped = host.post(run_id, "stop")
    assert (stopped["state"], stopped["result"]["exit_code"]) == ("stopped", 1), "as torchrun ends"
    assert host.ranks(run_id) == []
    eventually(lambda: host.slots() == [None] * 3, "both slots are free")
    log = host.log(run_id)
    newest = max(one["step"] for one in host.checkpoints(run_id))
    for rank in (0, 1):
        assert f"rank {rank} of 2 on GPU-0,GPU-1 goes on from 0" in log
        assert f"rank {rank} stops at {newest}" in log
    child = json.loads(host.stoker("restart", str(run_id), "--json"))["id"]
    host.until_it_trains(child, newest + 1)
    for rank in (0, 1):
        assert f"rank {rank} of 2 on GPU-0,GPU-1 goes on from {newest}\n" in host.log(child)


def test_of_two_on_three_gpus_one_waits_and_is_not_overtaken(host: GpuHost) -> None:
    first = host.hold(2)
    second = host.typed("--gpus", "2", "--launch", "none", "--", sys.executable, "-c", "print('2')")
    single = host.typed("--gpus", "1", "--", sys.executable, "-c", "print('single')")
    waiting = host.service.run(second)
    assert (waiting["state"], waiting["status"]) == ("queued", "queued")
    assert "of the 3 of worker" in waiting["message"]
    assert f"kept for run {second}" in host.service.run(single)["message"]
    light = host.typed("--gpus", "1", "--priority", "1", "--", sys.executable, "-c", "print('1')")
    assert host.service.wait_for_end(light)["state"] == "succeeded", "it was ahead in the queue"
    assert host.service.run(single)["state"] == "queued"
    killed = host.post(first, "kill")
    assert (killed["state"], killed["reason"]) == ("stopped", "kill_requested")
    assert host.ranks(first) == []
    assert host.service.wait_for_end(second)["state"] == "succeeded"
    assert host.service.wait_for_end(single)["state"] == "succeeded"
    at = [host.service.run(run_id)["started_at"] for run_id in (second, single)]
    assert at == sorted(at)


def test_a_rank_that_fails_ends_all_of_them(host: GpuHost) -> None:
    (host.project / "fails.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(3)\ntime.sleep(600)\n"
    )
    run_id = host.typed("--gpus", "2", "--", sys.executable, "fails.py")
    ended = host.service.wait_for_end(run_id)
    assert (ended["state"], ended["reason"]) == ("failed", "crashed")
    assert host.ranks(run_id) == []


def test_a_script_without_a_gpu_leaves_them_to_others(host: GpuHost) -> None:
    without = host.typed("--gpus", "0", "--", sys.executable, "-c", "import time; time.sleep(600)")
    assert host.service.http.get(f"/runs/{without}").json()["state"] in ("queued", "running")
    run_id = host.hold(3)
    assert host.slots() == [run_id] * 3
    assert host.service.run(without)["devices"] == ["cpu"]


@pytest.mark.minutes
def test_an_agent_that_is_killed_leaves_no_slot_and_no_rank_behind(host: GpuHost) -> None:
    run_id = host.run()  # no option says how it resumes: it saves by `stoker`
    eventually(lambda: host.checkpoints(run_id), "it has saved, so it can resume")
    before = {process.pid for process in host.ranks(run_id)}
    os.kill(host.agent.pid, signal.SIGKILL)
    host.agent.wait()
    host.agent = host.service.start_agent()
    eventually(lambda: host.service.run(run_id)["attempt"] == 2, "it is tried again")
    eventually(lambda: host.slots() == [run_id, run_id, None], "both slots are held again")
    host.until_log_has(run_id, "rank 1 of 2 on GPU-0,GPU-1 goes on from")
    eventually(lambda: len(host.ranks(run_id)) >= 3, "both ranks are there")
    assert before.isdisjoint(process.pid for process in host.ranks(run_id))
    eventually(lambda: attempts(host, run_id)[-1]["resumed_from_step"], "it says from where")
    assert [one["devices"] for one in attempts(host, run_id)] == [["cuda:0", "cuda:1"]] * 2


def attempts(host: GpuHost, run_id: int) -> list[dict[str, Any]]:
    """The oldest first."""
    rows = host.service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    return sorted(rows, key=lambda row: row["number"])


def test_what_cannot_be_is_refused_where_it_is_typed(host: GpuHost) -> None:
    shell = ("--", "bash", "-c", "echo sees $CUDA_VISIBLE_DEVICES")
    refused = host.stoker("run", "--gpus", "2", *shell, code=5)
    assert "cannot be started as one process a GPU" in refused
    assert "--launch none" in refused
    many = host.stoker("run", "--gpus", "4", "--", sys.executable, "train.py", "1", code=5)
    assert "It asks for 4 GPUs, but the largest worker has 3." in many
    run_id = host.typed("--gpus", "3", "--launch", "none", *shell)
    assert host.service.wait_for_end(run_id)["state"] == "succeeded"
    assert "sees GPU-0,GPU-1,GPU-2" in host.log(run_id)
