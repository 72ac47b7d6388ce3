"""Datasets, jobs, workers and tokens."""

from dataclasses import replace
from typing import Any, Literal

import pytest

from app.errors import Conflict, LeaseLost, NotFound
from app.lifecycle import Intent, Reason
from app.store.checkpoints import mark_removing
from app.store.jobs import PROBE_LOST, RETRY_SECONDS, add_job
from app.store.records import (
    Beat,
    CheckpointRecord,
    Finish,
    Inspection,
    NewCheckpoint,
    Restart,
)
from app.store.worker_records import JobKind, JobRecord, WorkerState
from tests.store.conftest import World, new_run

READY = Inspection(
    state="ready",
    fields={"features": {"shape": [360, 15], "dtype": "float32"}},
    samples=4020,
    size_bytes=99,
    fingerprint={"sha256": "…"},
)


def job_of(world: World) -> JobRecord:
    job = world.store.jobs.claim(world.worker)
    assert job is not None
    return job


class TestDatasets:
    def test_registering_queues_one_inspection(self, world: World) -> None:
        record, created = world.store.datasets.register("weather", "weather.h5")
        assert (record.state, created) == ("inspecting", False)
        job = job_of(world)
        assert (job.kind, job.payload) == (
            "inspect_dataset",
            {"name": "weather", "path": "weather.h5"},
        )
        assert world.store.jobs.claim(world.worker) is None

    def test_a_finding_makes_it_ready_and_registering_again_inspects_again(
        self, world: World
    ) -> None:
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        found = world.store.datasets.get("weather")
        assert (found.state, found.samples, found.fields) == ("ready", 4020, READY.fields)
        again, _ = world.store.datasets.register("weather", "weather.h5")
        assert (again.state, again.fields) == ("inspecting", None)
        assert job_of(world).payload["name"] == "weather"

    @pytest.mark.parametrize("path", ["weather.h5", "newer.h5"])
    def test_a_finding_from_before_it_was_registered_again_is_left_out(
        self, world: World, path: str
    ) -> None:
        before = job_of(world)
        world.store.datasets.register("weather", path)
        world.store.jobs.finish(before.id, world.worker, inspection=READY)
        assert world.store.datasets.get("weather").state == "inspecting"
        after = job_of(world)
        assert after.payload["path"] == path
        world.store.jobs.finish(after.id, world.worker, inspection=READY)
        assert world.store.datasets.get("weather").state == "ready"

    def test_a_finding_of_who_lost_the_job_is_left_out(self, world: World) -> None:
        job = job_of(world)
        world.store.workers.set_state(world.worker, "gone")
        with pytest.raises(LeaseLost):
            world.store.jobs.finish(job.id, world.worker, inspection=READY)
        assert world.store.datasets.get("weather").state == "inspecting"

    @pytest.mark.parametrize("intent", [Intent.run, Intent.pause])
    def test_another_file_under_the_name_is_refused_while_a_run_uses_it(
        self, world: World, intent: Intent
    ) -> None:
        names = ("spring", "autumn")
        for name in names:
            world.store.datasets.register(name, f"{name}.h5")
        split = {"method": "datasets", "validation": names[0], "test": names[1]}
        run = world.submit(spec={"data": {"dataset": "weather", "split": split}})
        if intent is not Intent.run:
            world.store.runs.set_intent(run.id, intent)
        for name in ("weather", *names):
            with pytest.raises(Conflict, match=rf"{name}\.h5, and run {run.id}"):
                world.store.datasets.register(name, "other.h5")
        world.store.runs.set_intent(run.id, Intent.stop)
        assert world.store.datasets.register("autumn", "other.h5")[0].path == "other.h5"

    def test_a_run_keeps_to_the_data_of_its_first_attempt(self, world: World) -> None:
        world.store.datasets.register("spring", "spring.h5")
        for digest in ("weather", "spring"):
            found = replace(READY, fingerprint={"sha256": digest})
            world.store.jobs.finish(job_of(world).id, world.worker, inspection=found)
        split = {"method": "datasets", "validation": "spring"}
        first = world.running(spec={"data": {"dataset": "weather", "split": split}})
        for name in ("weather", "spring"):
            world.store.datasets.register(name, f"{name}.h5")
            changed = replace(READY, fingerprint={"sha256": "changed"})
            world.store.jobs.finish(job_of(world).id, world.worker, inspection=changed)
        world.store.leases.finish(first.token, Finish(Reason.killed, ""))
        second, other = world.claim(), world.running()
        assert second is not None
        assert second.datasets["weather"].fingerprint == {"sha256": "weather"}
        assert second.datasets["spring"].fingerprint == {"sha256": "spring"}
        assert other.datasets["weather"].fingerprint == {"sha256": "changed"}

    def test_a_file_that_is_another_one_since_a_run_trained_is_known(self, world: World) -> None:
        def found(name: str, **fingerprint: Any) -> None:
            world.store.datasets.register(name, f"{name}.h5")
            inspection = replace(READY, fingerprint=fingerprint)
            world.store.jobs.finish(job_of(world).id, world.worker, inspection=inspection)

        def others_since(run_id: int) -> set[str]:
            return set(world.store.datasets.others_since(run_id))

        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        for name in ("weather", "spring"):
            found(name, size=1, sha256=name, mtime_ns=1)
        split = {"method": "datasets", "validation": "spring"}
        lease = world.running(spec={"data": {"dataset": "weather", "split": split}})
        world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
        found("weather", size=1, sha256="weather", mtime_ns=2)
        assert others_since(lease.run_id) == set()
        found("spring", size=1, sha256="another", mtime_ns=2)
        assert others_since(lease.run_id) == {"spring"}
        found("weather", size=2, sha256="weather", mtime_ns=2)
        assert others_since(lease.run_id) == {"spring", "weather"}

    @pytest.mark.parametrize(("kind", "expected"), [("full", {"weather"}), ("weights", set())])
    def test_one_that_never_trained_goes_by_what_it_was_to_carry_on(
        self, world: World, kind: str, expected: set[str]
    ) -> None:
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        lease = world.running()
        world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
        order = Restart(lease.run_id, "latest", {"kind": kind}, force=True)
        child = world.store.runs.restart(order, new_run())[0]
        changed = replace(READY, fingerprint={"size": 2, "sha256": "another"})
        world.store.datasets.register("weather", "weather.h5")
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=changed)
        assert world.store.datasets.others_since(child.id) == expected

    def test_a_file_that_changes_while_a_restart_waits_lowers_what_it_carries(
        self, world: World
    ) -> None:
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        lease = world.running()
        path = f"runs/{lease.run_id}/attempt-1/checkpoints/step-1"
        saved = NewCheckpoint(1, 0, path, 100, {}, world.clock.now)
        world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
        carry = {"kind": "full", "starts_anew": [], "changed": ["/training/epochs"]}
        order = Restart(lease.run_id, "latest", carry, force=False)
        child = world.store.runs.restart(order, new_run())[0]
        world.store.leases.finish(lease.token, Finish(Reason.interrupted, ""))
        changed = replace(READY, fingerprint={"size": 2, "sha256": "another"})
        world.store.datasets.register("weather", "weather.h5")
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=changed)
        begun = world.claim()
        assert begun is not None
        assert begun.run_id == child.id
        assert [point.carry for point in begun.restore_points] == ["weights"]
        told = world.store.runs.get(child.id).carry
        assert told is not None
        assert (told["kind"], told["changed"]) == ("weights", ["/training/epochs", "/data/dataset"])
        assert "optimizer state" in told["starts_anew"]

    def test_one_that_a_split_reads_is_not_forgotten_and_its_finding_is_dropped(
        self, world: World
    ) -> None:
        for name in ("spring", "autumn"):
            world.store.datasets.register(name, f"{name}.h5")
        split = {"method": "datasets", "validation": "spring"}
        run = world.submit(spec={"data": {"dataset": "weather", "split": split}})
        with pytest.raises(Conflict, match=f"Run {run.id} reads the dataset 'spring'"):
            world.store.datasets.forget("spring")
        jobs = [job_of(world) for _ in range(3)]
        world.store.datasets.forget("autumn")
        world.store.jobs.finish(jobs[-1].id, world.worker, inspection=READY)
        with pytest.raises(NotFound, match="'autumn'"):
            world.store.datasets.get("autumn")

    def test_pages_and_absence(self, world: World) -> None:
        world.store.datasets.register("b", "b.h5")
        first = world.store.datasets.list(1)
        second = world.store.datasets.list(1, first.next_cursor)
        assert [d.name for d in first.data + second.data] == ["b", "weather"]
        assert second.next_cursor is None
        with pytest.raises(NotFound, match="'moon'"):
            world.store.datasets.get("moon")


class TestJobs:
    def test_a_job_belongs_to_who_claimed_it(self, world: World) -> None:
        job = job_of(world)
        other = world.register_worker("other")
        with pytest.raises(LeaseLost):
            world.store.jobs.finish(job.id, other)
        assert world.store.jobs.finish(job.id, world.worker).state == "done"
        with pytest.raises(LeaseLost):
            world.store.jobs.finish(job.id, world.worker, error="late")

    def test_a_lost_workers_jobs_are_tried_again_but_not_for_ever(self, world: World) -> None:
        for _ in range(3):
            job = job_of(world)
            assert job.state == "running"
            worker = world.store.workers.get(world.worker)
            assert world.store.workers.declare_lost(worker.id, worker.beat)
            world.worker = world.register_worker()
        job = world.store.jobs.get(job.id)
        assert (job.state, job.attempts) == ("failed", 3)
        dataset = world.store.datasets.get("weather")
        assert (dataset.state, dataset.message) == ("invalid", job.error)

    def test_a_removed_checkpoint_is_forgotten_when_its_files_are_gone(self, world: World) -> None:
        checkpoint = self.checkpoint(world)
        world.store.checkpoints.request_delete(checkpoint.id)
        job = job_of(world)
        assert job.payload["paths"] == [checkpoint.path]
        with pytest.raises(NotFound):
            world.store.checkpoints.resolve(checkpoint.run_id, "latest")
        world.store.jobs.finish(job.id, world.worker)
        assert world.store.checkpoints.list(checkpoint.run_id) == []

    def test_a_removal_that_fails_is_tried_again_then_given_up(self, world: World) -> None:
        checkpoint = self.checkpoint(world)
        for _ in range(2):  # the person may ask again
            world.store.checkpoints.request_delete(checkpoint.id)
            for state in ("queued", "queued", "failed"):
                assert world.store.checkpoints.get(checkpoint.id).state == "removing"
                job = job_of(world)
                ended = world.store.jobs.finish(job.id, world.worker, error="")
                assert (ended.state, ended.error) == (state, "")
                assert world.store.jobs.claim(world.worker) is None, "not at once"
                world.clock.now += RETRY_SECONDS * 6 * 6
            assert world.store.checkpoints.get(checkpoint.id).state == "saved"
            assert world.store.jobs.claim(world.worker) is None

    def test_a_removal_that_nobody_does_any_more_is_asked_for_again(self, world: World) -> None:
        checkpoint = self.checkpoint(world)
        with world.database.write() as connection:
            mark_removing(connection, checkpoint.run_id, [checkpoint.path])
        for _ in range(2):
            assert world.store.checkpoints.request_delete(checkpoint.id).state == "removing"
        assert job_of(world).payload["checkpoint_id"] == checkpoint.id
        assert world.store.jobs.claim(world.worker) is None

    def test_what_needs_the_artifacts_waits_for_them(self, world: World) -> None:
        job_of(world)  # of the dataset
        kinds: tuple[JobKind, ...] = ("remove_artifacts", "reconcile_checkpoints")
        for kind in kinds:
            with world.database.write() as connection:
                job_id = add_job(connection, kind, {"run_id": 1}, now=0.0)
            assert world.store.jobs.claim(world.worker, artifacts=False) is None
            assert job_of(world).id == job_id

    def test_a_probe_is_for_one_worker_and_its_result_is_kept(self, world: World) -> None:
        other = world.register_worker("other")
        job_id = world.store.jobs.order_probe(world.worker, {"device": "cpu"})
        assert (job := world.store.jobs.claim(other)) is not None
        assert job.kind == "inspect_dataset"
        assert world.store.jobs.claim(other) is None, "what is another's keeps nobody waiting"
        assert job_of(world).id == job_id
        world.store.jobs.finish(job_id, world.worker, result={"host_bytes": 1})
        ended = world.store.jobs.get(job_id)
        assert (ended.state, ended.result) == ("done", {"host_bytes": 1})

    @pytest.mark.parametrize("began", [False, True])
    def test_a_probe_ends_with_its_worker(self, world: World, began: bool) -> None:
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        job_id = world.store.jobs.order_probe(world.worker, {})
        if began:
            assert job_of(world).id == job_id
        worker = world.store.workers.get(world.worker)
        assert world.store.workers.declare_lost(worker.id, worker.beat)
        job = world.store.jobs.get(job_id)
        assert (job.state, job.error) == ("failed", PROBE_LOST)
        assert world.store.datasets.get("weather").state == "ready"
        with pytest.raises(Conflict, match="can claim nothing"):
            world.store.jobs.order_probe(world.worker, {})

    def test_only_a_probe_that_has_not_begun_is_withdrawn(self, world: World) -> None:
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        first, second = (world.store.jobs.order_probe(world.worker, {}) for _ in range(2))
        assert job_of(world).id == first
        for job_id in (first, second):
            world.store.jobs.withdraw(job_id)
        assert world.store.jobs.get(first).state == "running"
        assert world.store.jobs.get(second).state == "failed"
        assert world.store.jobs.claim(world.worker) is None

    def checkpoint(self, world: World) -> CheckpointRecord:
        """A saved one; the queue of jobs is empty then."""
        world.store.jobs.finish(job_of(world).id, world.worker, inspection=READY)
        lease = world.running()
        saved = NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 0.0)
        world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
        return world.store.checkpoints.resolve(lease.run_id, "latest")


class TestWorkers:
    def test_the_life_of_a_worker(self, world: World) -> None:
        world.clock.now += 3
        slots = [{"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}]
        world.store.workers.beat(world.worker, "alive", slots, [{"kind": "cpu"}], {"cores": 2})
        worker = world.store.workers.get(world.worker)
        assert (worker.slots, worker.facts, worker.beat) == (slots, {"cores": 2}, 1)
        assert worker.seen_at == world.clock.now
        world.store.workers.set_state(world.worker, "draining")
        assert [w.id for w in world.store.workers.list(alive_only=True)] == [world.worker]
        world.store.workers.set_state(world.worker, "gone")
        assert world.store.workers.list(alive_only=True) == []
        assert [w.state for w in world.store.workers.list()] == ["gone"]
        with pytest.raises(NotFound):
            world.store.workers.get(99)

    @pytest.mark.parametrize("state", ["alive", "draining"])
    def test_one_that_beats_again_was_not_dead(
        self, world: World, state: Literal["alive", "draining"]
    ) -> None:
        world.store.workers.set_state(world.worker, state)
        assert world.store.workers.declare_lost(world.worker, 0)
        assert not world.store.workers.declare_lost(world.worker, 0)
        world.store.workers.beat(world.worker, state, [], [], {})
        assert world.store.workers.get(world.worker).state == state

    @pytest.mark.parametrize("state", ["draining", "gone", "lost", "forgotten"])
    def test_one_that_is_not_alive_claims_nothing(
        self, world: World, state: WorkerState | Literal["forgotten"]
    ) -> None:
        run = world.submit()
        if state == "forgotten":
            world.worker = 99
        else:
            world.store.workers.set_state(world.worker, state)
        for claim in (world.claim, lambda: world.store.jobs.claim(world.worker)):
            with pytest.raises(Conflict, match="can claim nothing"):
                claim()
        assert world.store.runs.get(run.id) == run
        assert world.store.jobs.get(1).state == "queued"

    def test_one_that_ends_in_order_hands_its_jobs_back(self, world: World) -> None:
        job = job_of(world)
        world.store.workers.set_state(world.worker, "gone")
        assert world.store.jobs.get(job.id).state == "queued"


class TestTokens:
    def test_a_token_opens_until_it_is_revoked(self, world: World) -> None:
        record, secret = world.store.tokens.create("laptop")
        assert world.store.tokens.verify(secret) == record
        assert world.store.tokens.verify(secret + "x") is None
        assert world.store.tokens.verify("\ud800") is None
        revoked = world.store.tokens.revoke(record.id)
        assert revoked.revoked_at == world.clock.now
        assert world.store.tokens.verify(secret) is None
        world.clock.now += 1
        assert world.store.tokens.revoke(record.id) == revoked
        with pytest.raises(NotFound):
            world.store.tokens.revoke(99)

    def test_the_database_does_not_hold_the_secret(self, world: World) -> None:
        _, secret = world.store.tokens.create("laptop")
        with world.store.database.read() as connection:
            rows = connection.exec_driver_sql("SELECT * FROM tokens").all()
        assert secret not in str(rows)
        assert secret.removeprefix("stoker_") not in str(rows)
