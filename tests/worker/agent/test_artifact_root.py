"""An artifact root that is away, or of another: agents wait, and nothing that was saved is lost."""

import json
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli.db.backup import back_up, put_back
from app.lifecycle import Intent, Reason, RunState
from app.store.artifact_root import MARKER, ArtifactRoot
from app.store.engine.restored import read_replaced, take_over
from app.store.store import open_store
from tests.worker.eventually import eventually
from worker.agent.errand import WatchedRoot
from worker.jobs.job_work import JobEnd, reconciliation, removal
from worker.start.preparation import NotHere
from worker.start.starting import locks_are_free, look_back

SLOW = {"steps": 4000, "pace": 0.01, "save_every": 20}


class Disk:
    """What a mount does: the artifacts go, and an empty folder is seen in their place."""

    def __init__(self, farm):
        self.root = farm.settings.artifact_root
        self.aside = self.root.with_name("unmounted")

    def unmount(self):
        self.root.rename(self.aside)
        self.root.mkdir()

    def mount(self):
        assert list(self.root.iterdir()) == [], "nothing was made in the place of the disk"
        self.root.rmdir()
        self.aside.rename(self.root)


def worker_of(farm):
    return farm.store.workers.list(alive_only=True)[0]


def says_away(farm):
    return worker_of(farm).facts["artifacts_away"]


def beats(farm, count):
    """Let an agent beat so often."""
    before = worker_of(farm).beat
    eventually(lambda: worker_of(farm).beat >= before + count, "the agent beats")


def checkpoints(farm, run_id):
    return {(row.id, row.path, row.state) for row in farm.store.checkpoints.list(run_id)}


def warnings(farm, run_id):
    events = farm.store.events.list(run_id, limit=500)
    return [event.data["code"] for event in events if event.kind == "warning"]


def test_a_disk_that_goes_while_a_run_trains_costs_nothing(farm):
    run_id = farm.submit(**SLOW | {"steps": 300})
    disk = Disk(farm)
    eventually(lambda: checkpoints(farm, run_id), "something is saved")
    trainer = farm.trainer()
    disk.unmount()
    other = farm.submit(steps=3)
    eventually(lambda: says_away(farm), "the worker says so")
    eventually(lambda: not trainer.is_running(), "the trainer, which cannot write, ends")
    saved = checkpoints(farm, run_id)
    beats(farm, 10)
    slot = worker_of(farm).slots[0]
    assert "may not be mounted" in slot["waiting"]
    assert farm.run(run_id).state is RunState.running, "how it ended cannot be known yet"
    assert farm.run(other).attempt == 0
    assert checkpoints(farm, run_id) >= saved
    disk.mount()
    assert farm.wait_for_end(run_id).state is RunState.succeeded, farm.log()
    assert farm.wait_for_end(other).state is RunState.succeeded
    first, second = farm.store.attempts.list(run_id)
    assert first.reason is Reason.checkpoint_error
    assert "artifact root was away" in first.message
    assert farm.run(run_id).retries_used == 0
    assert second.resumed_from_step > 0
    assert says_away(farm) is None
    assert not warnings(farm, run_id)


def test_a_trainer_that_cannot_be_seen_is_not_taken_for_hung(make_farm):
    farm = make_farm()
    farm.start_agent(STARTUP_SECONDS="5")
    run_id = farm.submit(**SLOW, policy={"hang_timeout_seconds": 5})
    disk = Disk(farm)
    farm.wait_for_step(run_id, 10)
    trainer = farm.trainer()
    trainer.suspend()
    disk.unmount()
    eventually(lambda: says_away(farm), "the worker says so")
    beats(farm, 65)  # longer than it may stand still
    assert trainer.is_running()
    disk.mount()
    trainer.resume()
    step = farm.step(run_id)
    farm.wait_for_step(run_id, step + 50)
    assert farm.run(run_id).attempt == 1


def test_who_wants_a_run_ended_does_not_wait_for_the_disk(farm):
    run_id = farm.submit(**SLOW)
    disk = Disk(farm)
    farm.wait_for_step(run_id, 10)
    disk.unmount()
    eventually(lambda: "how run" in str(worker_of(farm).slots[0]["waiting"]).lower(), "it waits")
    unseen = disk.aside / "runs" / str(run_id) / "attempt-1" / "checkpoints" / "step-3999"
    unseen.mkdir(parents=True)  # saved as the disk went: nobody could read that it was
    manifest = {"run_id": run_id, "attempt": 1, "step": 3999}
    (unseen / "manifest.json").write_text(json.dumps(manifest))
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    disk.mount()
    told = lambda: max((row.step for row in farm.store.checkpoints.list(run_id)), default=0)  # noqa: E731
    eventually(lambda: told() == 3999, "it is told when the disk is back")


@pytest.mark.parametrize("emptied", [True, False])
def test_an_agent_that_finds_no_disk_waits_for_it(make_farm, emptied):
    farm = make_farm()
    agent = farm.start_agent()
    run_id = farm.submit(**SLOW | {"steps": 300})
    disk = Disk(farm)
    eventually(lambda: checkpoints(farm, run_id), "something is saved")
    agent.terminate()
    agent.wait()
    saved = checkpoints(farm, run_id)
    disk.unmount()
    if not emptied:
        disk.root.rmdir()
    again = farm.start_agent()
    beats(farm, 10)
    assert says_away(farm)
    run = farm.run(run_id)
    assert (run.state, run.attempt) == (RunState.queued, 1)
    assert checkpoints(farm, run_id) == saved
    assert disk.root.exists() == emptied, "no folder is made where a disk belongs"
    if not emptied:
        disk.root.mkdir()
    disk.mount()
    assert farm.wait_for_end(run_id).state is RunState.succeeded, farm.log()
    assert farm.store.attempts.list(run_id)[1].resumed_from_step > 0
    assert again.poll() is None


def test_a_home_from_before_markers_goes_on(make_farm):
    farm = make_farm()
    agent = farm.start_agent()
    run_id = farm.submit(steps=10)
    farm.wait_for_end(run_id)
    agent.terminate()
    agent.wait()
    marker = farm.settings.artifact_root / MARKER
    marker.unlink()
    saved = checkpoints(farm, run_id)
    farm.start_agent()
    assert farm.wait_for_end(farm.submit(steps=3)).state is RunState.succeeded
    assert marker.exists()
    assert checkpoints(farm, run_id) == saved


def test_a_disk_that_goes_right_after_a_claim_makes_nothing_gone(make_farm):
    farm = make_farm()
    agent = farm.start_agent()
    run_id = farm.submit(**SLOW)
    eventually(lambda: checkpoints(farm, run_id), "something is saved")
    agent.terminate()
    agent.wait()
    artifacts = ArtifactRoot(farm.store.database, farm.settings.artifact_root)
    assert artifacts.look() is None
    watched = WatchedRoot(artifacts)
    shop: Any = SimpleNamespace(settings=farm.settings, store=farm.store, artifacts=watched)
    lease: Any = SimpleNamespace(run_id=run_id, attempt=2)
    assert look_back(shop, lease).reconciled.damaged == []
    Disk(farm).unmount()
    no_slot: Any = None
    with pytest.raises(NotHere, match="went away"):
        locks_are_free(shop, lease, no_slot)
    assert list(farm.settings.artifact_root.iterdir()) == []
    farm.folder(run_id).parent.mkdir(parents=True)  # all that is there looks like an empty folder
    with pytest.raises(NotHere, match="went away"):
        look_back(shop, lease)


def child(work):
    return subprocess.run(work.command, input=work.given, capture_output=True, check=False)


def test_what_was_not_found_on_a_disk_that_is_away_is_not_removed(make_farm):
    farm = make_farm()
    artifacts = ArtifactRoot(farm.store.database, farm.settings.artifact_root)
    artifacts.look()
    job: Any = SimpleNamespace(payload={"paths": ["runs/1"]}, id=1)
    work = removal(job, WatchedRoot(artifacts))
    (farm.settings.artifact_root / "runs" / "1").mkdir(parents=True)
    assert child(work).returncode == 0
    assert not (farm.settings.artifact_root / "runs" / "1").exists()
    Disk(farm).unmount()
    away = child(work)
    assert (away.returncode, away.stdout) == (1, b"")
    assert "is away" in str(work.outcome(JobEnd(away.stderr, 1, False)).error)


@pytest.mark.parametrize("path", [".", "runs/..", "../elsewhere", "/etc"])
def test_nothing_is_removed_but_what_lies_below_the_root(make_farm, path):
    farm = make_farm()
    artifacts = ArtifactRoot(farm.store.database, farm.settings.artifact_root)
    artifacts.look()
    (farm.settings.artifact_root / "runs").mkdir()
    job: Any = SimpleNamespace(payload={"paths": [path]}, id=1)
    found = child(removal(job, WatchedRoot(artifacts)))
    assert found.returncode == 1
    assert b"Nothing is known to be removed" in found.stderr
    assert (farm.settings.artifact_root / "runs").exists()


def test_nothing_is_damaged_since_its_disk_is_away(make_farm):
    farm = make_farm()
    artifacts = ArtifactRoot(farm.store.database, farm.settings.artifact_root)
    artifacts.look()
    job: Any = SimpleNamespace(payload={"run_id": 1, "attempt": 1}, id=1)
    work = reconciliation(job, WatchedRoot(artifacts), farm.store)
    found = child(work)
    assert json.loads(found.stdout) == {"adopted": [], "damaged": [], "gone": [], "unsent": []}
    assert work.outcome(JobEnd(found.stdout, 0, False)).result is not None
    Disk(farm).unmount()
    away = child(work)
    assert (away.returncode, away.stdout) == (1, b"")
    assert b"artifact root" in away.stderr


def test_artifacts_are_removed_when_the_disk_is_back(farm):
    run_id = farm.submit(steps=10)
    farm.wait_for_end(run_id)
    folder = farm.folder(run_id).parent
    disk = Disk(farm)
    disk.unmount()
    farm.store.runs.delete(run_id)
    eventually(lambda: says_away(farm), "the worker says so")
    beats(farm, 5)
    with farm.store.database.read() as connection:
        tried = connection.exec_driver_sql("SELECT attempts FROM jobs").scalars().all()
    assert tried == [0]
    disk.mount()
    assert folder.exists()
    eventually(lambda: not folder.exists(), "the artifacts are removed")


class Home:
    """A farm whose database is backed up and put back."""

    def __init__(self, farm, tmp_path):
        self.farm = farm
        self.file = tmp_path / "backup"

    def end_agent(self):
        self.farm.agents[-1].terminate()
        self.farm.agents[-1].wait()

    def back_up(self):
        back_up(self.farm.settings, self.file)

    def put_back(self, *, hand_on):
        self.end_agent()
        self.farm.store.close()
        replaced = read_replaced(self.farm.settings)
        put_back(self.farm.settings, self.file)
        if hand_on:
            take_over(self.farm.settings, replaced)
        self.farm.store = open_store(self.farm.settings)


@pytest.fixture
def home(farm, tmp_path):
    return Home(farm, tmp_path)


def test_a_restored_database_gives_no_id_again(farm, home):
    first = farm.submit(steps=10)
    farm.wait_for_end(first)
    home.back_up()
    lost = farm.submit(steps=10)
    farm.wait_for_end(lost)
    shutil.rmtree(farm.folder(lost).parent)  # so that only the replaced database knows of it
    home.put_back(hand_on=True)
    assert farm.submit(steps=10) == lost + 1
    farm.start_agent()
    new = farm.wait_for_end(lost + 1)
    assert (new.state, new.attempt) == (RunState.succeeded, 1)
    assert farm.store.attempts.list(new.id)[0].resumed_from_step is None
    assert says_away(farm) is None
    assert checkpoints(farm, first)


def test_a_new_run_never_takes_another_runs_artifacts_for_its_own(farm, home):
    """A database that was put back by hand, under which an id came again."""
    home.back_up()
    lost = farm.submit(steps=10)
    farm.wait_for_end(lost)
    home.put_back(hand_on=False)
    run_id = farm.submit(steps=10)
    assert run_id == lost
    farm.start_agent()
    assert farm.wait_for_end(run_id).state is RunState.succeeded
    attempt = farm.store.attempts.list(run_id)[0]
    assert (attempt.number, attempt.resumed_from_step) == (1, None)
    assert warnings(farm, run_id) == ["other_artifacts_there"]
    (aside,) = farm.folder(run_id).parent.parent.glob("*-moved-aside-*")
    assert list(aside.glob("attempt-1/checkpoints/step-10/manifest.json"))


def test_a_run_that_had_gone_on_since_the_backup_takes_up_what_is_on_disk(farm, home):
    run_id = farm.submit(**SLOW)
    farm.wait_for_step(run_id, 30)
    home.back_up()
    home.end_agent()
    farm.start_agent()
    farm.wait_for_attempt(run_id, 2)
    farm.wait_for_step(run_id, 100)
    home.put_back(hand_on=True)
    newest = max(int(path.name[5:]) for path in farm.folder(run_id, 2).glob("checkpoints/step-*"))
    with farm.store.database.write() as connection:  # it need not wait for the number to be free
        connection.exec_driver_sql("UPDATE runs SET retry_at = NULL")
    farm.start_agent()
    eventually(lambda: farm.run(run_id).attempt == 2, "it is claimed again")
    eventually(lambda: farm.run(run_id).state is RunState.queued, "attempt 2 is passed over")
    with farm.store.database.write() as connection:
        connection.exec_driver_sql("UPDATE runs SET retry_at = NULL")
    farm.wait_for_attempt(run_id, 3)
    third = lambda: farm.store.attempts.list(run_id)[-1]  # noqa: E731
    eventually(lambda: third().resumed_from_step is not None, "it goes on")
    assert third().resumed_from_step == newest
    assert farm.run(run_id).retries_used <= 1, "but for the worker that was lost with the backup"
