"""Runs whose checkpoints are unreadable, damaged or gone, as real agents deal with them."""

import json
import os
import shutil

from sqlalchemy import select, update

from app.lifecycle import Intent, Reason, RunState
from app.store.tables import jobs, metric_points
from stoker.manifest import manifest_bytes
from tests.worker.eventually import eventually
from worker.launch.locks import take_lock

SLOWLY = {"steps": 10**6, "save_every": 5, "pace": 0.02}


def crash_once(farm, at=20):
    """A run that has saved at 5, 10, 15 and whose trainer then fails; its id once that is told."""
    run_id = farm.submit(**SLOWLY, at={str(at): "kill"}, checkpoint={"keep_last": 9})
    farm.wait_for_attempt(run_id, 2)
    farm.wait_for_step(run_id, at + 1)
    return run_id


def states(farm, run_id):
    return {row.step: row.state for row in farm.store.checkpoints.list(run_id)}


def test_checkpoints_that_cannot_be_read_are_waited_for(farm):
    run_id = crash_once(farm)
    folder = farm.folder(run_id, attempt=2) / "checkpoints"
    away = folder.with_name("away")
    farm.want(run_id, Intent.pause)
    assert farm.wait_for_end(run_id).state is RunState.paused
    saved = states(farm, run_id)
    folder.rename(away)
    folder.symlink_to(folder)  # reading it fails with ELOOP, whoever asks
    farm.store.runs.resume(run_id)

    def waits():
        run = farm.run(run_id)
        return run.state is RunState.queued and run.reason is Reason.checkpoint_error and run

    run = eventually(waits, "the run is tried again later")
    assert run.retries_used == 0, "an unreadable disk costs none"
    assert "could not be read" in run.message
    assert states(farm, run_id) == saved
    folder.unlink()
    away.rename(folder)
    farm.wait_for_step(run_id, max(saved) + 1)
    *_, last = farm.store.attempts.list(run_id)
    assert last.resumed_from_step == max(saved)


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(farm):
    run_id = crash_once(farm)
    farm.want(run_id, Intent.pause)
    farm.wait_for_end(run_id)
    for attempt in (1, 2):
        shutil.rmtree(farm.folder(run_id, attempt) / "checkpoints")
    farm.store.runs.resume(run_id)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.failed, Reason.checkpoint_unusable)
    assert "checkpoints, and none can be used any more: they are gone" in run.message
    assert f"stoker restart {run_id} --from scratch" in run.message
    rows = farm.store.checkpoints.list(run_id)
    assert {row.state for row in rows} == {"damaged"}
    assert {row.damage for row in rows} == {"its folder is gone"}
    assert not any(row.is_latest or row.is_best for row in rows)


def test_of_one_checkpoint_that_is_gone_is_said_so(farm):
    run_id = farm.submit(**SLOWLY | {"save_every": 10**6})
    farm.wait_for_step(run_id, 2)
    farm.want(run_id, Intent.pause)
    farm.wait_for_end(run_id)
    shutil.rmtree(farm.folder(run_id) / "checkpoints")
    farm.store.runs.resume(run_id)
    told = f"Run {run_id} has saved 1 checkpoint, which cannot be used any more: it is gone or"
    assert farm.wait_for_end(run_id).message.startswith(told)


def test_a_newest_manifest_that_says_nonsense_is_passed_over(farm):
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 9})
    farm.wait_for_step(run_id, 12)
    farm.want(run_id, Intent.pause)
    farm.wait_for_end(run_id)
    newest = max(states(farm, run_id))
    checkpoints = farm.folder(run_id) / "checkpoints"
    resign(checkpoints / f"step-{newest}", epoch="x")
    shutil.copytree(checkpoints / "step-5", checkpoints / f"step-{10**19}")
    resign(checkpoints / f"step-{10**19}", step=10**19)
    farm.store.runs.resume(run_id)
    farm.wait_for_step(run_id, newest + 1)
    run = farm.run(run_id)
    assert (run.attempt, run.retries_used) == (2, 0)
    assert farm.store.attempts.list(run_id)[-1].resumed_from_step < newest
    listed = farm.store.checkpoints.list(run_id)
    damaged = {row.path.rpartition("/")[2] for row in listed if row.state == "damaged"}
    assert damaged == {f"step-{newest}", f"step-{10**19}"}


def resign(folder, **facts):
    """A manifest that says something else, under a checksum that is right."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    (folder / "manifest.json").write_bytes(manifest_bytes({**manifest, **facts}))


def on_disk(farm, run_id):
    folders = farm.folder(run_id).parent.glob("attempt-*/checkpoints/step-*")
    return {int(path.name.partition("-")[2]) for path in folders}


def is_told(farm, run_id):
    """Whether rows and folders are the same, and no removal is open."""
    told = states(farm, run_id)
    return told.keys() == on_disk(farm, run_id) and set(told.values()) <= {"saved"}


def lose_the_agent(farm, run_id):
    """Its agent is killed; its trainer saves as it should, and nobody is left to tell of that."""
    farm.wait_for_step(run_id, 12)
    launcher = farm.launcher()
    farm.agents[-1].kill()
    farm.agents[-1].wait()
    launcher.wait(30)
    assert not is_told(farm, run_id)


def test_a_run_that_ended_unwatched_is_compared_with_its_disk_once(farm):
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 9})
    lose_the_agent(farm, run_id)
    farm.want(run_id, Intent.stop)
    farm.start_agent()
    assert farm.wait_for_end(run_id).state is RunState.stopped
    eventually(lambda: is_told(farm, run_id), "its checkpoints are told")
    newest = max(on_disk(farm, run_id))
    assert farm.store.checkpoints.resolve(run_id, "latest").step == newest


def test_a_run_that_was_lost_and_then_stopped_in_the_queue_is_too(farm):
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 9})
    lose_the_agent(farm, run_id)
    (holder,) = farm.store.leases.holders()
    assert farm.store.leases.declare_lost(holder.token, holder.beat)
    assert farm.want(run_id, Intent.stop)[0].state is RunState.stopped
    farm.start_agent()
    eventually(lambda: is_told(farm, run_id), "its checkpoints are told")


def test_a_run_that_is_stopped_while_it_is_prepared_is_too(farm):
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 9})
    lose_the_agent(farm, run_id)
    somebody = take_lock(farm.folder(run_id).parent / "lock")
    assert somebody is not None
    farm.start_agent()
    farm.wait_for_attempt(run_id, 2)
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert not farm.folder(run_id, attempt=2).exists()
    os.close(somebody)
    eventually(lambda: is_told(farm, run_id), "its checkpoints are told")


def job_of(farm, kind="reconcile_checkpoints"):
    with farm.store.database.read() as connection:
        query = select(jobs.c.id).where(jobs.c.kind == kind)
        job_id = connection.execute(query).scalar()
    return None if job_id is None else farm.store.jobs.get(job_id)


def try_again_now(farm):
    with farm.store.database.write(ring=True) as connection:
        connection.execute(update(jobs).values(retry_at=None))


def test_a_removal_that_the_end_did_not_wait_for_is_made_good(farm):
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 1})
    farm.wait_for_step(run_id, 12)
    trainer = farm.trainer()
    trainer.suspend()
    manifests = farm.folder(run_id).glob("checkpoints/step-*/manifest.json")
    manifest = max(manifests, key=lambda path: path.stat().st_mtime_ns)
    step = int(manifest.parent.name.partition("-")[2])
    aside = manifest.with_name("aside")
    manifest.rename(aside)
    manifest.mkdir()  # so that it can be neither removed nor read
    trainer.resume()
    eventually(lambda: states(farm, run_id).get(step) == "removing", "its removal begins")
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    job = eventually(lambda: (job := job_of(farm)) and job.error and job, "it cannot be looked at")
    assert job.state == "queued"
    assert f"step-{step}/manifest.json could not be read" in job.error
    assert states(farm, run_id)[step] == "removing"
    manifest.rmdir()
    aside.rename(manifest)
    try_again_now(farm)
    eventually(lambda: is_told(farm, run_id), "it is removed, and forgotten")
    assert step not in on_disk(farm, run_id)


def test_a_run_whose_trainer_lives_on_holds_up_no_other_job(farm):
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 9})
    lose_the_agent(farm, run_id)
    somebody = take_lock(farm.folder(run_id).parent / "lock")
    assert somebody is not None
    (holder,) = farm.store.leases.holders()
    assert farm.store.leases.declare_lost(holder.token, holder.beat)
    farm.want(run_id, Intent.stop)
    farm.store.datasets.register("other", "other.h5")
    farm.start_agent()
    found = lambda: farm.store.datasets.get("other").state == "invalid"  # noqa: E731
    eventually(found, "another job is done meanwhile")
    job = job_of(farm)
    assert job.state == "queued"
    assert "processes of the run are still alive" in job.error
    os.close(somebody)
    try_again_now(farm)
    eventually(lambda: is_told(farm, run_id), "its checkpoints are told")


def written(farm, run_id, attempt):
    """Returns the log that an attempt wrote into its folder, and the steps of its curve."""
    folder = farm.folder(run_id, attempt)
    lines = (folder / "events.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines if '"metrics"' in line]
    return (folder / "trainer.log").read_text(), {one["step"] for one in metrics}


def stored(farm, run_id, attempt):
    """Returns both as the store has them. Points of an evaluation are not thinned."""
    log = farm.store.logs.read(run_id, attempt, limit_bytes=2**23).text
    with farm.store.database.read() as connection:
        of_attempt = metric_points.c.run_id == run_id, metric_points.c.attempt == attempt
        steps = select(metric_points.c.step).where(*of_attempt, metric_points.c.name == "val_loss")
        return log, set(connection.execute(steps).scalars())


def test_the_next_attempt_stores_what_a_killed_agent_had_not_sent(farm):
    """Several times over one run, so that kills fall between the beats and into them."""
    run_id = farm.submit(**SLOWLY, prints=2)
    for attempt in (1, 2, 3):
        farm.wait_for_attempt(run_id, attempt)
        farm.wait_for_step(run_id, farm.step(run_id) + 7)
        launcher = farm.launcher()
        farm.agents[-1].kill()
        farm.agents[-1].wait()
        launcher.wait(30)
        farm.start_agent()
    farm.wait_for_attempt(run_id, 4)
    farm.wait_for_step(run_id, farm.step(run_id) + 1)
    for attempt in (1, 2, 3):
        assert stored(farm, run_id, attempt) == written(farm, run_id, attempt)
    events = [event for event in farm.store.events.list(run_id) if event.attempt == 1]
    stations = [event.data["phase"] for event in events if event.kind == "phase"]
    assert stations == ["starting", "training"], "events that were sent are not sent again"


def test_what_a_killed_agent_had_not_sent_of_a_run_that_is_over_is_stored(farm):
    run_id = farm.submit(**SLOWLY, prints=2)
    lose_the_agent(farm, run_id)
    farm.want(run_id, Intent.stop)
    farm.start_agent()
    run = farm.wait_for_end(run_id)
    told = written(farm, run_id, 1)
    eventually(lambda: stored(farm, run_id, 1) == told, "its log and curve are whole")
    with farm.store.database.read() as connection:
        results = connection.execute(select(jobs.c.result)).scalars().all()
    assert not any("unsent" in (result or {}) for result in results), "it is stored once"
    assert farm.run(run_id) == run, "neither its state nor its result has changed"
