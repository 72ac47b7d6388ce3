"""What came with commands: kept while a run can start again, removed once all were deleted."""

import os
from contextlib import closing

import pytest

from app.codestate import make_snapshot, remove_snapshot
from app.errors import InvalidRequest
from app.lifecycle import Intent
from app.planning.requirements import Owner, SlotOffer
from app.service.scripts import Admission, new_script_run, plan_script
from app.settings import load_settings
from app.store import open_store
from app.store.engine.migrate import upgrade
from app.store.identity import this_process
from app.store.records import Restart
from app.store.worker_records import NewWorker
from tests.repository import committed, git
from tests.worker.eventually import eventually
from worker.agent.admission import admit
from worker.agent.home_id import home_id
from worker.jobs.submissions import Submissions

SCRATCH = {"kind": "scratch", "changed": [], "starts_anew": [], "why": ""}


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("print(1)\n")
    return committed(folder)


@pytest.fixture
def settings(tmp_path):
    return load_settings(home=tmp_path / "home", beat_seconds=0.05)


@pytest.fixture
def store(settings):
    upgrade(settings)
    with closing(open_store(settings)) as store:
        yield store


def submit(settings, store, cwd, *, snapshot):
    recipe = {"kind": "script", "argv": ["/bin/true"], "cwd": str(cwd), "snapshot": snapshot}
    return admit(settings, store, {"request": {"recipe": recipe}, "environment": {"A": "b"}})


def delete(store, run):
    store.runs.set_intent(run, Intent.stop)
    store.runs.delete(run)


def restarted(settings, store, parent):
    """As a restart that waits for nobody."""
    request = store.runs.documents(parent).request
    plan = plan_script(request, settings, store.profiles, Admission(parent=request))
    order = Restart(parent, "scratch", SCRATCH)
    return store.runs.restart(order, new_script_run(plan))[0].id


def kept(settings):
    environments = {path.stem for path in settings.environments_dir.glob("*")}
    return environments | {path.name for path in settings.snapshots_dir.glob("*")}


def test_they_go_with_the_last_run_that_has_them(settings, store, project):
    copy = make_snapshot(project / "src", settings.home)
    (copy / "result.txt").write_text("written by the run")
    parent = submit(settings, store, copy, snapshot=True)
    other = submit(settings, store, project, snapshot=False)
    child = restarted(settings, store, parent)
    key = store.runs.documents(parent).spec["recipe"]["environment"]
    assert copy == settings.snapshots_dir / key / "src"
    of_other = store.runs.documents(other).spec["recipe"]["environment"]
    foreign = settings.environments_dir / f"{'f' * 32}.json"
    foreign.write_text("{}")  # of another database with the same home
    with closing(Submissions(settings, store)):
        delete(store, parent)
        delete(store, other)
        eventually(lambda: of_other not in kept(settings), "the other one's goes")
        assert key in kept(settings), "the restart may start again"
        assert (copy / "train.py").exists()
        delete(store, child)
        eventually(lambda: key not in kept(settings), "it goes")
        eventually(lambda: not (settings.environments_dir / f"{key}.json").exists(), "both do")
    assert kept(settings) == {foreign.stem}
    assert git(project, "worktree", "list").count("\n") == 0


def test_a_copy_whose_repository_has_gone_is_removed_too(settings, store, project):
    copy = make_snapshot(project, settings.home)
    project.rename(project.with_name("elsewhere"))
    remove_snapshot(copy)
    assert not copy.exists()
    remove_snapshot(copy)


def test_a_copy_that_cannot_be_removed_stays_and_is_tried_again(settings, store, project):
    copy = make_snapshot(project, settings.home)
    run = submit(settings, store, copy, snapshot=True)
    moved = settings.home / "moved"
    copy.rename(moved)
    copy.write_text("a file, which rmtree refuses")
    delete(store, run)
    with closing(Submissions(settings, store)) as submissions:
        eventually(lambda: submissions._failed, "it was tried")
        assert copy.exists()
        assert len(kept(settings)) == 1
        copy.unlink()
        eventually(lambda: not kept(settings), "it goes")


def test_nobody_submits_from_the_copy_of_another_run(settings, store, project):
    copy = make_snapshot(project, settings.home)
    run = submit(settings, store, copy, snapshot=True)
    for snapshot in (True, False):
        with pytest.raises(InvalidRequest, match="is the copy of the code of another run"):
            submit(settings, store, copy / "src", snapshot=snapshot)
    for place in (settings.snapshots_dir, settings.snapshots_dir / ".."):
        with pytest.raises(InvalidRequest, match="is the copy of the code of another run"):
            submit(settings, store, place, snapshot=True)
    assert [one.id for one in store.runs.queue().data] == [run]


def test_a_restart_belongs_to_the_home_of_its_parent(settings, store, tmp_path):
    child = restarted(settings, store, parent := submit(settings, store, tmp_path, snapshot=False))
    me = this_process()
    worker = store.workers.register(
        NewWorker("agent", me.host, me.boot_id, me.pid, me.start_time, "0.1")
    )
    user = (me.host, os.getuid())
    other = SlotOffer("cpu-0-0", "cpu", "cpu", owner=Owner(*user, "/elsewhere#0123456789abcdef"))
    assert store.leases.claim(worker, [other]) is None
    own = SlotOffer("cpu-0-0", "cpu", "cpu", owner=Owner(*user, home_id(settings.home)))
    assert store.leases.claim(worker, [own]).run_id == child
    assert store.runs.get(parent).state == "stopped"
