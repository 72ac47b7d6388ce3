"""Makes a home as a released version leaves it, with runs in every state, and packs it.

It is run once a release, by the code of that release, and what it makes is committed:

    git worktree add ../old f408a70     # and an environment for it: make install in ../old
    cd ../old && .venv/bin/python ../stoker/tests/homes/make_home.py f408a70.tar.xz
    .venv/bin/python ../stoker/tests/homes/make_home.py recipes-3eedc65.tar.xz recipes
    .venv/bin/python ../stoker/tests/homes/make_home.py tasks-3eedc65.tar.xz tasks

The second has runs of every recipe, and the third has those of a molecule's property and of a
sequence with one input. Each spec trained to its end once, is paused in a second run, and is
`running` in a third. How these two would have ended is known, therefore.

All of it is real: API, agent, launchers and trainers of that version run and are killed at the end,
so that one run is left `running` with a holder that is dead. `RUNS` in test_old_homes.py says what
is in it. A new home is a new file beside the old ones, which are never made anew.
"""

import os
import signal
import sqlite3
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path.cwd()))  # the version that is called, not the one this file lies in

from tests.e2e.service import Service, write_waves
from tests.e2e.test_chaos import WORKLOADS
from tests.trainer.recipes import molecules

SAMPLES = 120
# A whole second: a run looks at its dataset's time, of which an archive keeps less than a disk.
WRITTEN_AT = 1_760_000_000
KEPT = ("stoker.db", "data", "artifacts")
PAUSED_AFTER = 100
# What the workloads of the chaos tests leave out, as they have it: writer, file and spec.
TASKS = {
    "regression": (
        molecules.write,
        "regression.h5",
        {
            "recipe": {
                "kind": "molecule", "task": "regression", "hidden_size": 8, "num_layers": 2,
            },
            "data": {
                "dataset": "regression", "inputs": ["molecules"], "targets": ["targets"],
                "split": {"method": "random"}, "standardize": {"inputs": False},
            },
            "training": {"batch_size": 16},
        },
    ),
    "windows": (
        write_waves,
        "windows.h5",
        {
            "recipe": {"kind": "sequence", "encoder": "lstm", "hidden_size": 8, "patch": 3},
            "data": {"dataset": "windows"},
            "training": {"batch_size": 64},
        },
    ),
}  # fmt: skip
SEED = 3  # of the training, and so of a random split in versions that have no other seed


def spec(name: str, epochs: int, **more: Any) -> dict[str, Any]:
    """A model of some hundred weights: three steps an epoch."""
    return {
        "name": name,
        "recipe": {"kind": "sequence", "hidden_size": 4, "patch": 2},
        "data": {"dataset": "waves"},
        "training": {"epochs": epochs, "batch_size": 32, "log_every_steps": 50},
        "optimizer": {"lr": 0.003},
        "evaluation": {"every_epochs": 10},
        "checkpoint": {"every_steps": 100},
        "runtime": {"threads": 1},
        "accept_risks": ["speed.*"],
        **more,
    }


def live(service: Service) -> None:
    """Runs 1 to 8: succeeded, stopped, its restart, paused, failed, running, queued twice."""
    service.start_api()
    service.start_agent()
    data = write_waves(service.home / "data" / "waves.h5", SAMPLES)
    os.utime(data, (WRITTEN_AT, WRITTEN_AT))
    assert service.register("waves", "waves.h5")["state"] == "ready"

    done = service.submit(spec("done", 40))
    assert service.wait_for_end(done)["state"] == "succeeded"

    stopped = service.submit(spec("stopped", 400))
    service.wait_for_step(stopped, 150)
    act(service, stopped, "stop")
    assert service.wait_for_end(stopped)["state"] == "stopped"
    child = service.http.post(f"/runs/{stopped}/restart", json={})
    assert child.status_code == 201, child.text
    assert service.wait_for_end(child.json()["id"])["state"] == "succeeded"

    paused = service.submit(spec("paused", 400))
    service.wait_for_step(paused, 150)
    act(service, paused, "pause")
    assert service.wait_for_end(paused)["state"] == "paused"

    failed = service.submit(spec("failed", 400, policy={"max_retries": 0}))
    service.wait_for_step(failed, 150)
    service.trainer().kill()
    assert service.wait_for_end(failed)["state"] == "failed"

    running = service.submit(spec("running", 400))
    service.wait_for_step(running, 150)
    with service.held():
        service.submit(spec("queued", 40))
        waiting = service.http.post(f"/runs/{failed}/restart", json={"patch": {"name": "waiting"}})
        assert waiting.status_code == 201, waiting.text
        for process in service.left_running():
            process.send_signal(signal.SIGKILL)


def recipe_spec(name: str, spec: dict[str, Any], state: str) -> dict[str, Any]:
    more: dict[str, Any] = {
        "name": f"{name}-{state}",
        "training": {"batch_size": 32, **spec.get("training", {})}
        | {"epochs": 45, "log_every_steps": 10, "seed": SEED},
        "checkpoint": {"every_steps": 50, "keep_last": 1},
        "runtime": {"threads": 1},
        "accept_risks": ["speed.*", "learning.*"],
    }
    if name == "board":
        more["averaging"] = {"kind": "ema", "decay": 0.99}
    return {**spec, **more}


def live_recipes(service: Service, workloads: dict[str, Any]) -> None:
    """Runs of each workload in turn, succeeded and paused, then all that are running."""
    service.start_api()
    service.start_agent()
    for name, (write_data, file, spec) in workloads.items():
        path = service.home / "data" / file
        write_data(path)
        for one in (path, *path.glob("*")):
            os.utime(one, (WRITTEN_AT, WRITTEN_AT))
        assert service.register(name, file)["state"] == "ready"
        done = service.submit(recipe_spec(name, spec, "done"))
        assert service.wait_for_end(done)["state"] == "succeeded"
        paused = service.submit(recipe_spec(name, spec, "paused"))
        service.wait_for_step(paused, PAUSED_AFTER)
        act(service, paused, "pause")
        assert service.wait_for_end(paused)["state"] == "paused"
    for name, (_, _, spec) in workloads.items():
        running = service.submit(recipe_spec(name, spec, "running"))
        service.wait_for_step(running, PAUSED_AFTER)
        for process in service.left_running():
            if "worker.trainer" in " ".join(process.cmdline()):
                process.suspend()
    for process in service.left_running():
        process.send_signal(signal.SIGKILL)


def act(service: Service, run_id: int, verb: str) -> None:
    service.http.post(f"/runs/{run_id}/{verb}").raise_for_status()


def pack(home: Path, target: Path) -> None:
    """What counts of a home, as one file; the database without a log beside it."""
    with closing(sqlite3.connect(home / "stoker.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        database.execute("PRAGMA journal_mode=DELETE").close()
        database.execute("VACUUM").close()
    for name in ("stoker.db-wal", "stoker.db-shm", "stoker.db-journal"):
        (home / name).unlink(missing_ok=True)
    with tarfile.open(target, "w:xz") as archive:
        for name in KEPT:
            archive.add(home / name, name)


def main() -> None:
    target = Path(sys.argv[1]).absolute()
    kinds: dict[str, dict[str, Any]] = {"recipes": WORKLOADS, "tasks": TASKS}
    workloads = kinds.get(" ".join(sys.argv[2:]))
    with TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        slots = str(len(workloads)) if workloads else "1"
        settings = {"STOKER_STANDBY": "0", "STOKER_BEAT_SECONDS": "0.1", "STOKER_SLOTS": slots}
        service = Service(home, **settings)
        try:
            if workloads is None:
                live(service)
            else:
                live_recipes(service, workloads)
        finally:
            service.close()
        pack(home, target)


if __name__ == "__main__":
    main()
