"""Jobs through a real agent: datasets inspected, artifacts removed, nothing outside the roots."""

import errno
import io
import os
import resource
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import psutil
import pytest
from sqlalchemy import update

from app.lifecycle import Intent, Reason, RunState
from app.store.artifact_root import ArtifactRoot
from app.store.jobs import MAX_ATTEMPTS, add_job
from app.store.tables import jobs
from tests.worker.eventually import eventually
from worker.agent.errand import WatchedRoot
from worker.jobs import reconcile
from worker.jobs.job_work import JobEnd, JobOutcome, Work, reconciliation, removal
from worker.jobs.jobs import _start


def inspected(farm, name, path):
    """Register and wait for the result."""
    farm.store.datasets.register(name, path)

    def result():
        record = farm.store.datasets.get(name)
        return None if record.state == "inspecting" else record

    return eventually(result, f"{name} is inspected\n{farm.log()}")


@pytest.fixture
def data_root(farm):
    farm.settings.data_root.mkdir(parents=True, exist_ok=True)
    return farm.settings.data_root


def test_a_dataset_is_inspected(farm, data_root):
    with h5py.File(data_root / "good.h5", "w") as file:
        file["features"] = np.zeros((10, 24, 3), "float32")
        file["targets"] = np.zeros((10, 4), "float32")
    record = inspected(farm, "good", "good.h5")
    assert (record.state, record.samples) == ("ready", 10)
    assert record.fields["features"]["shape"] == [24, 3]
    assert record.fingerprint is not None


def test_a_file_that_is_no_dataset_is_refused_with_a_sentence(farm, data_root):
    (data_root / "bad.h5").write_bytes(b"no HDF5 at all" * 100)
    record = inspected(farm, "bad", "bad.h5")
    assert record.state == "invalid"
    assert "bad.h5" in record.message
    assert "Traceback" not in str(record.problems)


def test_a_link_out_of_the_data_root_is_not_followed(farm, data_root, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["features"] = np.zeros((10, 2))
    (data_root / "link.h5").symlink_to(tmp_path / "secret.h5")
    record = inspected(farm, "link", "link.h5")
    assert record.state == "invalid"
    assert "leads out of" in record.message


def test_a_link_to_itself_ends_no_worker(farm, data_root):
    (data_root / "loop.h5").symlink_to("loop.h5")
    record = inspected(farm, "loop", "loop.h5")
    assert record.state == "invalid"
    assert "loop.h5" in record.message
    assert "Traceback" not in farm.log()
    assert farm.agents[0].poll() is None


def test_a_run_whose_dataset_became_a_link_to_itself_fails_with_a_sentence(farm, data_root):
    (data_root / "waves.h5").symlink_to("waves.h5")
    run = farm.wait_for_end(farm.submit(steps=3))
    assert (run.state, run.reason) == (RunState.failed, Reason.data_error)
    assert "waves" in run.message
    assert farm.agents[0].poll() is None


def test_a_job_that_nobody_foresaw_fails_by_itself_and_is_told(farm):
    with farm.store.database.write(ring=True) as connection:
        job_id = add_job(connection, "inspect_dataset", {"name": "without a path"}, now=0.0)
    state, error = ended(farm, job_id)
    assert state == "failed"
    assert "KeyError" in error
    assert "a job fails here" in farm.log()
    assert "Traceback" in farm.log()
    assert farm.wait_for_end(farm.submit(steps=3)).state is RunState.succeeded


def ended(farm, job_id):
    job = eventually(
        lambda: j if (j := farm.store.jobs.get(job_id)).state in ("done", "failed") else None,
        "the job ends",
    )
    return job.state, job.error


def test_a_child_that_cannot_be_watched_is_ended_and_gives_back_what_was_held():
    closed: list[bool] = []
    job: Any = None
    work = Work(
        ["sleep", "600"],
        600.0,
        lambda _: JobOutcome(job),
        os.environ,
        limits={10**6: 0},  # no such limit: it fails when the child has begun
        close=lambda: closed.append(True),
    )
    before = set(psutil.Process().children()), psutil.Process().num_fds()
    with pytest.raises(ValueError, match="resource"):
        _start(job, work, 0.0)
    assert closed == [True]
    assert (set(psutil.Process().children()), psutil.Process().num_fds()) == before


def test_a_child_keeps_a_limit_that_is_lower_than_its_own():
    """Under `ulimit`, raising it would fail, and a sound dataset would be called invalid."""
    job: Any = None
    soft_and_hard = resource.getrlimit(resource.RLIMIT_CORE)
    work = Work(
        ["sleep", "600"],
        600.0,
        lambda _: JobOutcome(job),
        os.environ,
        limits={resource.RLIMIT_CORE: 4096},
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        child = _start(job, work, 0.0)
    finally:
        with suppress(ValueError):  # nobody but root may raise it again
            resource.setrlimit(resource.RLIMIT_CORE, soft_and_hard)
    assert resource.prlimit(child.process.pid, resource.RLIMIT_CORE) == (0, 0)
    child.close()


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (JobEnd(b"", -9, True), "took longer than"),
        (JobEnd(b"half a line", -9, True), "took longer than"),
        (JobEnd(b"", -9, False), "died (exit code -9)"),
        (JobEnd(b"It is locked.", 1, False), "It is locked."),
    ],
)
def test_work_on_artifacts_that_fails_says_why(make_farm, end, told):
    farm = make_farm()
    artifacts = WatchedRoot(ArtifactRoot(farm.store.database, farm.settings.artifact_root))
    artifacts.look()
    job: Any = SimpleNamespace(payload={"paths": ["runs/1"], "run_id": 1}, id=1)
    for work in (removal(job, artifacts), reconciliation(job, artifacts, farm.store)):
        error = str(work.outcome(end).error)
        assert told in error
        assert error.endswith(".")
    if end.too_slow:
        assert "look at it" in error
        assert "tried again" in error


def test_a_lock_that_the_disk_refuses_is_named(make_farm, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # of a descriptor: it has no name

    farm = make_farm()
    root = farm.settings.artifact_root
    artifacts = WatchedRoot(ArtifactRoot(farm.store.database, root))
    artifacts.look()
    (root / "runs" / "1").mkdir(parents=True)
    monkeypatch.setattr("fcntl.flock", refuse)  # as some file systems of a network do
    monkeypatch.setattr("sys.stdin", io.StringIO('{"checkpoints": [], "attempts": []}'))
    assert reconcile.main(root, artifacts.database_id, 1) == 1
    assert f"{root}/runs/1/lock cannot be opened (No locks available)" in capsys.readouterr().err


def test_a_deleted_runs_folder_goes_too(farm):
    run_id = farm.submit(steps=10**6)
    farm.wait_for_step(run_id, 6)
    farm.want(run_id, Intent.stop)
    farm.wait_for_end(run_id)
    folder = farm.folder(run_id)
    assert folder.exists()
    farm.store.runs.delete(run_id)
    eventually(lambda: not folder.exists(), "the artifacts are removed")


@pytest.mark.parametrize("path", ["../precious", "link/precious", ".", ""])
def test_nothing_outside_the_artifact_root_is_removed(farm, path):
    root = farm.settings.artifact_root
    precious = root.parent / "precious"
    precious.mkdir()
    (root / "link").symlink_to(root.parent)
    payload = {"run_id": 1, "paths": [path], "checkpoint_id": None}
    with farm.store.database.write() as connection:
        job_id = add_job(connection, "remove_artifacts", payload, now=0.0)
        # At its last try: the ones before would each wait for the next.
        last = update(jobs).where(jobs.c.id == job_id).values(attempts=MAX_ATTEMPTS - 1)
        connection.execute(last)
    state, error = ended(farm, job_id)
    assert state == "failed"
    assert error
    assert precious.exists()
    assert root.exists()
