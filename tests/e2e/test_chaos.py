"""kill -9 of each part in mid-run: nothing is lost, nothing is left, and the result is the same."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import feather

from tests.e2e.service import eventually
from tests.e2e.test_a_run import SPEC
from tests.trainer.recipes import molecules, panels
from tests.trainer.recipes.test_board import PLAY, positions
from worker.trainer.tools.panel.panel_cut import PanelCut, write_panel
from worker.trainer.tools.timeframes import Bars, Cut, align, timeframes_of, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG = {**SPEC, "training": {**SPEC["training"], "epochs": 80}, "checkpoint": {"every_steps": 100}}


@pytest.fixture(scope="module")
def calm(service):
    """A run that nothing happens to."""
    run_id = service.submit(LONG)
    assert service.wait_for_end(run_id)["state"] == "succeeded"
    return run_id


def final_weights(service, run_id):
    answer = service.http.get(
        f"/runs/{run_id}/checkpoints/latest/download", params={"file": "model.safetensors"}
    )
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.minutes
def test_kill_9_of_every_part_changes_nothing_in_the_result(service, calm):
    run_id = service.submit({**LONG, "policy": {"max_retries": 10}})
    service.wait_for_step(run_id, 150)
    service.trainer().send_signal(signal.SIGKILL)
    eventually(lambda: service.run(run_id)["attempt"] == 2, "the trainer's death is retried")

    service.wait_for_step(run_id, 350)
    service.launcher().send_signal(signal.SIGKILL)
    eventually(lambda: service.run(run_id)["attempt"] == 3, "the launcher's death is retried")

    service.wait_for_step(run_id, 550)
    api, agent = service.processes[:2]
    api.kill()
    api.wait()
    logged = len(service.losses(run_id))
    eventually(lambda: len(service.losses(run_id)) > logged, "it trains on without an API")
    with service.held():
        service.start_api()
    assert service.run(run_id)["attempt"] == 3, "an API's death is not felt by training"

    service.wait_for_step(run_id, 750)
    agent.kill()
    agent.wait()
    service.start_agent()
    done = service.wait_for_end(run_id)
    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert done["attempt"] == 4
    assert service.losses(run_id) == service.losses(calm)
    assert final_weights(service, run_id) == final_weights(service, calm)


@pytest.mark.minutes
def test_the_death_of_a_loader_process_is_retried_and_none_outlives_its_trainer(service, calm):
    loader = {"kind": "dataloader", "num_workers": 1, "persistent_workers": True}
    data = {**LONG["data"], "loader": loader}
    run_id = service.submit({**LONG, "data": data, "accept_risks": ["speed.*"]})

    service.wait_for_step(run_id, 150)
    reading = service.loader_processes()
    reading[0].kill()
    eventually(lambda: service.run(run_id)["attempt"] == 2, "the process's death is retried")
    attempts = service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    assert [one["reason"] for one in attempts if one["reason"]] == ["killed"]
    assert "A loader process (" in str(attempts)

    service.wait_for_step(run_id, 350)
    reading += service.loader_processes()
    assert len(reading) >= 2
    service.trainer().kill()
    eventually(lambda: service.run(run_id)["attempt"] == 3, "the trainer's death is retried")
    done = service.wait_for_end(run_id)
    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert service.losses(run_id) == service.losses(calm)
    assert final_weights(service, run_id) == final_weights(service, calm)
    eventually(lambda: not service.loader_processes(), "no loader process is left")
    assert not any(one.is_running() for one in reading)


SHORT = {**SPEC, "training": {**SPEC["training"], "epochs": 10}}


@pytest.mark.parametrize("step", [30, 150])
def test_a_stop_that_arrives_as_the_trainer_exits_tells_what_the_trainer_did(service, step):
    """The trainer stands still when the stop arrives, in its midst or after its last step, where it
    may have its evaluation, its checkpoint or nothing left to do.
    """
    run_id = service.submit(SHORT)
    trainer = service.trainer()
    eventually(lambda: last_step(service, run_id) >= step, "the run is there")
    with suppress(psutil.NoSuchProcess):
        trainer.suspend()
    service.http.post(f"/runs/{run_id}/stop")
    with suppress(psutil.NoSuchProcess):
        trainer.resume()
    ended = service.wait_for_end(run_id)
    (end,) = [one for one in told(service, run_id) if one["kind"] == "end"]
    expected = {
        "completed": ("succeeded", "completed"),
        "interrupted": ("stopped", "stop_requested"),
    }
    assert (ended["state"], ended["reason"]) == expected[end["reason"]]
    assert ended["result"]["last"]["step"] == end["step"] >= step


def told(service, run_id):
    """What the first attempt's trainer has told so far."""
    path = service.home / "artifacts" / "runs" / str(run_id) / "attempt-1" / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_step(service, run_id):
    return max((one.get("step") or 0 for one in told(service, run_id)), default=0)


def write_board(folder: Path) -> None:
    """The toy game of the recipe's own tests, in two Feather files of packed bits."""
    made = positions(640)
    packed = {
        name: pa.array([row.tobytes() for row in made[name]], pa.binary(made[name].shape[1]))
        for name in ("planes", "legal")
    }
    table = pa.table({**packed, "move": pa.array(made["move"]), "value": pa.array(made["value"])})
    folder.mkdir()
    feather.write_feather(table.slice(0, 400), folder / "0.feather")
    feather.write_feather(table.slice(400), folder / "1.feather")


def write_timeframes(path: Path) -> None:
    """A walk of 900 minutes as bars of one and of five, kept as series."""
    walk = np.cumsum(np.random.default_rng(5).normal(size=(900, 3)), 0)
    cut = Cut(timeframes_of("M1:12,M5:6"), 4)
    made = align([(Bars(60 * np.arange(900), walk), walk[:, 0])], ["last"] * 3, cut)
    write(path, made, cut, ["one", "two", "three"])


def write_dates(path: Path) -> None:
    """The two groups of the recipe's own tests."""
    write_panel(path, panels.made_panel(), PanelCut(panels.WINDOW, (1, 3), "own"))


WORKLOADS: dict[str, tuple[Callable[[Path], object], str, dict[str, Any]]] = {
    "board": (
        write_board,
        "board",
        {**PLAY, "data": {**PLAY["data"], "dataset": "board", "split": {"method": "random"}}},
    ),
    "timeframes": (
        write_timeframes,
        "bars.h5",
        {
            "recipe": {"kind": "sequence", "hidden_size": 8, "patch": 3},
            "data": {"dataset": "timeframes", "inputs": ["m1", "m5"]},
        },
    ),
    "panel": (
        write_dates,
        "panel.h5",
        {
            "recipe": panels.SPEC["recipe"],
            "data": {**panels.SPEC["data"], "dataset": "panel"},
            "training": {"batch_size": 4},
        },
    ),
    "molecules": (
        molecules.write,
        "molecules.h5",
        {
            "recipe": {"kind": "molecule", "task": "masked", "hidden_size": 16, "num_layers": 2},
            "data": {
                "dataset": "molecules",
                "inputs": ["molecules"],
                "split": {"method": "random"},
                **molecules.TASKS["masked"],
            },
            "training": {"batch_size": 8},
        },
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("name", WORKLOADS)
def test_kill_9_of_trainer_and_agent_changes_nothing_in_the_result_of(service, name):
    write_data, file, spec = WORKLOADS[name]
    write_data(service.home / "data" / file)
    assert service.register(name, file)["state"] == "ready"
    more = {
        "training": {"epochs": 45, "batch_size": 32, "log_every_steps": 10}
        | spec.get("training", {}),
        "checkpoint": {"every_steps": 100},
        "runtime": {"threads": 1},
        "accept_risks": ["speed.*", "learning.*"],
    }
    calm = service.submit({**spec, **more})
    ended = service.wait_for_end(calm)
    assert ended["state"] == "succeeded", ended
    run_id = service.submit({**spec, **more, "policy": {"max_retries": 10}})

    service.wait_for_step(run_id, 150)
    service.trainer().send_signal(signal.SIGKILL)
    eventually(lambda: service.run(run_id)["attempt"] == 2, "the trainer's death is retried")

    service.wait_for_step(run_id, 350)
    agent = service.processes[-1]
    agent.kill()
    agent.wait()
    service.start_agent()
    done = service.wait_for_end(run_id)
    assert (done["state"], done["attempt"]) == ("succeeded", 3), done
    assert done["result"] == ended["result"]
    assert service.losses(run_id) == service.losses(calm)
    assert final_weights(service, run_id) == final_weights(service, calm)


@pytest.mark.minutes
def test_two_agents_share_one_database_and_never_a_run(service):
    service.start_agent()  # this file's last test on this service
    short = {**SPEC, "training": {**SPEC["training"], "epochs": 20}}
    runs = [service.submit({**short, "name": f"run {i}"}) for i in range(4)]
    eventually(
        lambda: sum(service.run(run_id)["state"] == "running" for run_id in runs) == 2,
        "both agents train",
    )
    ends = [service.wait_for_end(run_id) for run_id in runs]
    assert [end["state"] for end in ends] == ["succeeded"] * 4
    assert [end["attempt"] for end in ends] == [1] * 4
    assert len({end["worker"] for end in ends}) == 2
    losses = {service.losses(run_id) for run_id in runs}
    assert len(losses) == 1, "the same spec gives the same losses on either agent"


@pytest.mark.minutes
def test_a_drained_agent_hands_its_run_on_and_leaves_nothing_running(own_service):
    service = own_service
    run_id = service.submit(LONG)
    service.wait_for_step(run_id, 300)
    agent = service.processes[1]
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=60) == 0
    waiting = service.run(run_id)
    assert (waiting["state"], waiting["reason"]) == ("queued", "drained")
    left = [p for p in service.left_running() if p.pid != service.processes[0].pid]
    assert left == []
    service.start_agent()
    resumed = service.wait_for_step(run_id, waiting["progress"]["step"] + 1)
    assert resumed["attempt"] == 2
    service.http.post(f"/runs/{run_id}/stop", params={"wait": 60})
