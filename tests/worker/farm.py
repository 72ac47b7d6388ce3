"""A store, its agents as real processes with fake trainers, and questions a test asks of them."""

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress

import psutil
from sqlalchemy import text, update

from app.lifecycle import Intent, RunState
from app.planning.requirements import NOTHING_KNOWN
from app.settings import load_settings
from app.spec.run import SPEC_VERSION, RunSpec
from app.store.engine.migrate import upgrade
from app.store.records import NewRun
from app.store.store import open_store
from app.store.tables import datasets
from tests.worker.eventually import eventually

FIELDS = {
    "features": {"shape": [24, 3], "dtype": "float32"},
    "targets": {"shape": [4], "dtype": "float32"},
}


class Farm:
    """One home, with a copy of the empty database unless a URL is given. `close` ends every agent
    and checks nothing: tests ask `left_running`.
    """

    def __init__(self, home, starter, empty_database, **settings):
        self.home = home
        self.starter = starter
        self.settings = load_settings(
            home=home,
            **{"beat_seconds": 0.2, "exporter_port": 0, "stop_grace_seconds": 20.0, **settings},
        )
        self.environment = os.environ | {
            "STOKER_HOME": str(home),
            "STOKER_DATABASE_URL": self.settings.database_url,
            "STOKER_BEAT_SECONDS": str(self.settings.beat_seconds),
            "STOKER_EXPORTER_PORT": str(self.settings.exporter_port),
            "STOKER_STOP_GRACE_SECONDS": str(self.settings.stop_grace_seconds),
        }
        home.mkdir()
        if "database_url" in settings:
            upgrade(self.settings)
        else:
            shutil.copy(empty_database, home / "stoker.db")
        self.store = open_store(self.settings)
        self.agents = []
        self.store.datasets.register("waves", "waves.h5")
        found = {"fields": FIELDS, "samples": 600, "size_bytes": 10**6, "fingerprint": {"size": 1}}
        with self.store.database.write() as connection:
            connection.execute(text("DELETE FROM jobs"))  # there is no such file to inspect
            connection.execute(update(datasets).values(state="ready", **found))

    def start_agent(self, **environment):
        """Start an agent process; returns once it is registered."""
        agent = self.starter.start(
            "agent", self.environment | environment, self.home / "agents.log"
        )
        self.agents.append(agent)

        def registered():
            assert agent.poll() is None, self.log()
            return agent.pid in [w.pid for w in self.store.workers.list(alive_only=True)]

        eventually(registered, "the agent registers")
        return agent

    def submit(
        self,
        *,
        policy=None,
        checkpoint=None,
        runtime=None,
        needs=NOTHING_KNOWN,
        spec_version=SPEC_VERSION,
        priority=0,
        more=None,
        **script,
    ):
        """Queue a run whose fake trainer follows the script; its id. `more`: of its stored spec."""
        notes = json.dumps(script)
        request = {
            "notes": notes,
            "recipe": {"kind": "sequence", "residual": "none", "highway": 0},
            "data": {"dataset": "waves", "inputs": ["features"], "targets": ["targets"]},
            "policy": policy or {},
            "checkpoint": checkpoint or {},
            "runtime": runtime or {},
        }
        spec = RunSpec.model_validate_json(json.dumps(request)).model_dump(mode="json")
        new = NewRun(
            request=request,
            spec=spec | (more or {}),
            provenance={},
            issues=[],
            name="",
            notes=notes,
            labels={},
            priority=priority,
            recipe="sequence",
            mode="train",
            dataset="waves",
            device=spec["runtime"]["device"],
            gpus=1,
            max_retries=spec["policy"]["max_retries"],
            requirements=needs,
            spec_version=spec_version,
        )
        return self.store.runs.create(new)[0].id

    def run(self, run_id):
        return self.store.runs.get(run_id)

    def step(self, run_id):
        return (self.run(run_id).progress or {}).get("step") or 0

    def wait_for_step(self, run_id, step):
        def reached():
            run = self.run(run_id)
            assert run.state in (RunState.queued, RunState.running), (run, self.log())
            return self.step(run_id) >= step

        eventually(reached, f"run {run_id} reaches step {step}")

    def stop_still(self, agent):
        """SIGSTOP, but not in the middle of a transaction: SQLite's file would stay locked."""
        with self.store.database.write():
            agent.send_signal(signal.SIGSTOP)

    def wait_for_attempt(self, run_id, attempt):
        eventually(lambda: self.run(run_id).attempt >= attempt, f"attempt {attempt} begins")

    def wait_for_end(self, run_id):
        """The run once it is not queued or running any more."""

        def ended():
            run = self.run(run_id)
            return None if run.state in (RunState.queued, RunState.running) else run

        try:
            return eventually(ended, f"run {run_id} ends")
        except AssertionError as error:  # as it is now, not as it was when the wait began
            raise AssertionError(f"{error}\n{self.run(run_id)}\n{self.log()}") from None

    def want(self, run_id, intent: Intent):
        return self.store.runs.set_intent(run_id, intent)

    def log(self):
        return (self.home / "agents.log").read_text()

    def folder(self, run_id, attempt=1):
        return self.settings.artifact_root / "runs" / str(run_id) / f"attempt-{attempt}"

    def processes(self, word):
        """Live processes of this home with the word as part of their command line."""
        return [p for p in psutil.process_iter() if self._is_ours(p) and word in _command(p)]

    def trainer(self):
        return eventually(lambda: self.processes("fake_trainer.py"), "a trainer runs")[0]

    def launcher(self):
        return eventually(lambda: self.processes("worker.launch.launcher"), "a launcher runs")[0]

    def left_running(self):
        """Everything that was started for this home, the agents not included."""
        agents = {agent.pid for agent in self.agents}
        return [p for p in psutil.process_iter() if self._is_ours(p) and p.pid not in agents]

    def _is_ours(self, process):
        with suppress(psutil.Error):
            return (
                process.environ().get("STOKER_HOME") == str(self.home)
                and process.status() != psutil.STATUS_ZOMBIE
            )
        return False

    def close(self):
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
        for trainer in self.processes("fake_trainer.py"):
            with suppress(psutil.NoSuchProcess):
                trainer.kill()  # one that hangs would be waited for
        for agent in self.agents:
            try:
                agent.wait(timeout=30)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        for process in self.left_running():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.store.close()


def _command(process):
    with suppress(psutil.Error):
        # The launcher's own command line ends with the trainer that it starts.
        return " ".join(process.cmdline()).partition(" --command=")[0]
    return ""
