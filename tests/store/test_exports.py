"""Exports, ordered once and known until they are removed; and runs of imported weights."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from app.errors import Conflict, NotFound
from app.lifecycle import Reason, RunState
from app.store.jobs import add_job
from app.store.records import Beat, Finish, Lease, NewCheckpoint, RunFilter
from app.store.weights.export_rows import hold_run
from app.store.weights.imported_rows import WantedImport, imported_path
from app.store.worker_records import JobRecord
from tests.store.engine.test_concurrency import until_one_waits

from .conftest import World

MADE = {"bytes": 7, "facts": {"versions": {"torch": "2.13"}}}


def saved(world: World, lease: Lease, step: int = 1) -> int:
    path = f"runs/{lease.run_id}/attempt-1/checkpoints/step-{step}"
    new = NewCheckpoint(step, 0, path, 1, {"val_loss": 1.0}, 0.0)
    world.store.leases.beat(lease.token, Beat(checkpoints=[new]))
    return world.store.checkpoints.resolve(lease.run_id, "latest").id


def claimed(world: World, kind: str) -> JobRecord:
    """The next job of this kind; those before it are done."""
    while (job := world.store.jobs.claim(world.worker)) is not None:
        if job.kind == kind:
            return job
        world.store.jobs.finish(job.id, world.worker)
    raise AssertionError(f"there is no job {kind}")


def exported(world: World, checkpoint: int) -> int:
    world.store.exports.order(checkpoint, "onnx")
    job = claimed(world, "export_checkpoint")
    world.store.jobs.finish(job.id, world.worker, result=MADE)
    result = world.store.jobs.get(job.id).result
    assert result is not None
    return int(result["export_id"])


def test_what_is_asked_for_twice_is_one_job_and_one_export(world: World) -> None:
    checkpoint = saved(world, world.running())
    job = world.store.exports.order(checkpoint, "onnx")
    assert world.store.exports.order(checkpoint, "onnx").id == job.id
    export = exported(world, checkpoint)
    assert exported(world, checkpoint) == export
    (record,) = world.store.exports.list(1, 50).data
    assert (record.id, record.checkpoint_id, record.step) == (export, checkpoint, 1)
    assert record.path == f"runs/1/exports/checkpoint-{checkpoint}-onnx"
    assert record.facts == MADE["facts"]
    again = world.store.exports.order(checkpoint, "onnx").id
    assert again != job.id
    assert world.store.exports.order(checkpoint, "int8").id != again


def test_it_is_for_a_worker_that_has_the_artifacts(world: World) -> None:
    world.store.exports.order(saved(world, world.running()), "onnx")
    while (job := world.store.jobs.claim(world.worker, artifacts=False)) is not None:
        assert job.kind != "export_checkpoint"
        world.store.jobs.finish(job.id, world.worker)
    assert claimed(world, "export_checkpoint").payload["format"] == "onnx"


def test_what_is_short_goes_before_exports_and_imports(world: World) -> None:
    checkpoint = saved(world, world.running())
    while (job := world.store.jobs.claim(world.worker)) is not None:
        world.store.jobs.finish(job.id, world.worker)
    world.store.checkpoints.order_import(WANTED)
    world.store.exports.order(checkpoint, "onnx")
    world.store.datasets.register("later", "later.h5")
    world.store.jobs.order_probe(world.worker, {})
    kinds = []
    while (job := world.store.jobs.claim(world.worker)) is not None:
        kinds.append(job.kind)
    assert kinds == ["inspect_dataset", "probe_step", "import_checkpoint", "export_checkpoint"]


def test_retention_leaves_a_checkpoint_alone_while_it_is_exported(world: World) -> None:
    lease = world.running()
    checkpoint = saved(world, lease)
    path = world.store.checkpoints.get(checkpoint).path
    world.store.exports.order(checkpoint, "onnx")
    job = claimed(world, "export_checkpoint")
    assert world.store.checkpoints.get(checkpoint).pinned
    assert world.store.checkpoints.begin_removal(lease.token, [path]) == []
    with pytest.raises(Conflict, match="being exported"):
        world.store.checkpoints.request_delete(checkpoint)
    world.store.jobs.finish(job.id, world.worker, error="It failed.")
    assert not world.store.checkpoints.get(checkpoint).pinned
    assert world.store.checkpoints.begin_removal(lease.token, [path]) == [path]
    with pytest.raises(NotFound, match="was removed"):
        world.store.exports.order(checkpoint, "onnx")


def test_one_that_fails_is_not_tried_again_and_leaves_no_export(world: World) -> None:
    checkpoint = saved(world, world.running())
    world.store.exports.order(checkpoint, "onnx")
    job = claimed(world, "export_checkpoint")
    world.store.jobs.finish(job.id, world.worker, error="This worker has no onnx.")
    ended = world.store.jobs.get(job.id)
    assert (ended.state, ended.error) == ("failed", "This worker has no onnx.")
    assert world.store.exports.list(1, 50).data == []


def test_an_export_outlives_its_checkpoint_and_goes_when_it_is_removed(world: World) -> None:
    lease = world.running()
    checkpoint = saved(world, lease)
    export = exported(world, checkpoint)
    world.store.checkpoints.request_delete(checkpoint)
    job = claimed(world, "remove_artifacts")
    world.store.jobs.finish(job.id, world.worker)
    assert world.store.exports.get(export).state == "saved"

    assert world.store.exports.request_delete(export).state == "removing"
    world.store.exports.request_delete(export)
    job = claimed(world, "remove_artifacts")
    assert job.payload["paths"] == [world.store.exports.get(export).path]
    world.store.jobs.finish(job.id, world.worker)
    with pytest.raises(NotFound, match="stoker exports RUN"):
        world.store.exports.get(export)
    assert world.store.jobs.claim(world.worker) is None


def test_a_removal_that_is_given_up_leaves_it_as_it_was(world: World) -> None:
    checkpoint = saved(world, world.running())
    export = exported(world, checkpoint)
    world.store.exports.request_delete(export)
    with pytest.raises(Conflict, match="is being removed"):
        world.store.exports.order(checkpoint, "onnx")
    while world.store.exports.get(export).state == "removing":
        job = claimed(world, "remove_artifacts")
        world.store.jobs.finish(job.id, world.worker, error="The disk hangs.")
        world.clock.now += 1000
    assert world.store.exports.get(export).state == "saved"


def test_what_was_ordered_again_is_not_removed_until_that_is_made(world: World) -> None:
    checkpoint = saved(world, world.running())
    export = exported(world, checkpoint)
    order = world.store.exports.order(checkpoint, "onnx")
    with pytest.raises(Conflict, match=rf"a worker is about to make it \(job {order.id}\)"):
        world.store.exports.request_delete(export)
    job = claimed(world, "export_checkpoint")
    with pytest.raises(Conflict, match="Remove it when that job has ended"):
        world.store.exports.request_delete(export)
    world.store.exports.order(checkpoint, "int8")  # another keeps nobody from it
    world.store.jobs.finish(job.id, world.worker, result=MADE)
    assert world.store.exports.get(export).state == "saved"
    assert world.store.exports.request_delete(export).state == "removing"


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_removal_waits_for_an_order_that_is_under_way(world: World) -> None:
    checkpoint = saved(world, world.running())
    export = exported(world, checkpoint)
    payload = {"run_id": 1, "checkpoint_id": checkpoint, "step": 1, "format": "onnx"}
    with ThreadPoolExecutor(1) as other:
        with world.store.database.write() as connection:
            assert hold_run(connection, 1)
            add_job(connection, "export_checkpoint", payload, world.clock())
            removal = other.submit(world.store.exports.request_delete, export)
            until_one_waits(world, removal)
        with pytest.raises(Conflict, match="about to make it"):
            removal.result()


def test_with_its_run_it_is_gone_also_when_it_is_done_too_late(world: World) -> None:
    lease = world.running()
    checkpoint = saved(world, lease)
    exported(world, checkpoint)
    world.store.exports.order(checkpoint, "int8")
    job = claimed(world, "export_checkpoint")
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
    world.store.runs.delete(lease.run_id)
    assert world.store.exports.list(lease.run_id, 50).data == []
    whole = claimed(world, "remove_artifacts")
    assert whole.payload["paths"] == [f"runs/{lease.run_id}"]
    world.store.jobs.finish(whole.id, world.worker)
    world.store.jobs.finish(job.id, world.worker, result=MADE)
    ended = world.store.jobs.get(job.id)
    assert (ended.state, ended.result) == ("failed", None)
    assert ended.error == "Run 1 was deleted meanwhile, so nothing is kept of its export."
    late = claimed(world, "remove_artifacts")
    assert late.payload["paths"] == [f"runs/{lease.run_id}/exports/checkpoint-{checkpoint}-int8"]
    assert world.store.exports.list(lease.run_id, 50).data == []


WANTED = WantedImport("resnet.pt", "resnet", "from a paper", {"team": "a"}, None, {}, "ada")


def read(run_id: int) -> dict[str, object]:
    checkpoint = {"step": 0, "epoch": 0, "bytes": 7, "metrics": {}, "created_at": 1.0}
    checkpoint["path"] = imported_path(run_id)
    return {"checkpoint": checkpoint, "left": ["epoch"], "message": "It has 4 tensors."}


def test_imported_weights_become_a_run_once_they_are_read(world: World) -> None:
    before = world.submit()
    world.store.checkpoints.order_import(WANTED)
    after = world.submit()
    job = claimed(world, "import_checkpoint")
    run_id = job.payload["run_id"]
    assert before.id < run_id < after.id, "its id is nobody else's"
    with pytest.raises(NotFound):
        world.store.runs.get(run_id)
    world.store.jobs.finish(job.id, world.worker, result=read(run_id))
    run = world.store.runs.get(run_id)
    assert (run.state, run.reason, run.recipe) == (RunState.succeeded, "completed", "imported")
    assert (run.name, run.notes, run.labels) == ("resnet", "from a paper", {"team": "a"})
    assert (run.created_by, run.worker) == ("ada", "agent")
    assert run.message == "Imported from resnet.pt. It has 4 tensors."
    (checkpoint,) = world.store.checkpoints.list(run_id)
    assert checkpoint.is_latest
    result = world.store.jobs.get(job.id).result
    assert result == {"run_id": run_id, "checkpoint_id": checkpoint.id, "left": ["epoch"]}
    assert [one.id for one in world.store.runs.list(RunFilter(label="team=a"), 5).data] == [run_id]
    assert len(world.store.attempts.list(run_id)) == 1
    lease = world.claim()
    assert lease is not None
    assert lease.run_id == before.id, "it is never trained"
    world.store.runs.delete(run_id)
    assert claimed(world, "remove_artifacts").payload["paths"] == [f"runs/{run_id}"]


def test_an_import_that_fails_leaves_no_run_and_no_files(world: World) -> None:
    world.store.checkpoints.order_import(WANTED)
    job = claimed(world, "import_checkpoint")
    world.store.jobs.finish(job.id, world.worker, error="resnet.pt is damaged.")
    assert world.store.runs.list(RunFilter(), 5).data == []
    assert world.store.jobs.get(job.id).error == "resnet.pt is damaged."
    run_id = job.payload["run_id"]
    assert claimed(world, "remove_artifacts").payload["paths"] == [f"runs/{run_id}"]
    assert world.submit().id > run_id
