"""Runs whose checkpoints are unreadable, damaged or gone, as real agents deal with them."""

import shutil

from app.lifecycle import Intent, Reason, RunState
from tests.worker.eventually import eventually

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


def test_a_run_that_ended_unwatched_is_compared_with_its_disk_once(farm):
    """Its agent is killed; its trainer saves as it should, and nobody is left to tell of that."""
    run_id = farm.submit(**SLOWLY, checkpoint={"keep_last": 9})
    farm.wait_for_step(run_id, 12)
    (agent,) = farm.agents
    launcher = farm.launcher()
    farm.want(run_id, Intent.stop)
    agent.kill()
    agent.wait()
    launcher.wait(30)
    folders = (farm.folder(run_id) / "checkpoints").glob("step-*")
    on_disk = {int(path.name.partition("-")[2]) for path in folders}
    assert max(on_disk) > max(states(farm, run_id), default=0)
    farm.start_agent()
    assert farm.wait_for_end(run_id).state is RunState.stopped
    eventually(lambda: states(farm, run_id).keys() == on_disk, "its checkpoints are told")
    assert farm.store.checkpoints.resolve(run_id, "latest").step == max(on_disk)
