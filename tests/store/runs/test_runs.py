"""Runs: submit, list, change, delete."""

import math

import pytest

from app.errors import (
    ActionNotAllowed,
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from app.lifecycle import Intent, Reason, RunState
from app.store import Store
from app.store.records import (
    Beat,
    Finish,
    Idempotency,
    NewCheckpoint,
    Restart,
    RunFilter,
)
from tests.store.conftest import World, new_run


def test_a_new_run_is_queued_and_keeps_its_documents_as_they_were(world: World) -> None:
    request = {"z": 1, "a": [1.5, None, "é"], "data": {"dataset": "weather"}}
    run = world.submit(request=request, labels={"team": "sky"})
    documents = world.store.runs.documents(run.id)
    assert (run.state, run.intent, run.version, run.attempt) == ("queued", "run", 1, 0)
    assert list(documents.request.items()) == list(request.items())
    assert documents.applied == []
    assert [event.data["to"] for event in world.store.events.list(run.id)] == ["queued"]


def test_a_run_on_an_unknown_dataset_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="no dataset 'moon'"):
        world.submit(dataset="moon")


def test_pages_go_from_newest_to_oldest_without_gaps(world: World) -> None:
    ids = [world.submit().id for _ in range(7)]
    found: list[int] = []
    cursor = None
    while True:
        page = world.store.runs.list(RunFilter(), 3, cursor)
        found += [run.id for run in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == ids[::-1]


@pytest.mark.parametrize("cursor", ["x", "-1", "1e3", "9" * 30, "٣", ""])
def test_a_cursor_that_no_page_gave_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="not a cursor"):
        store.runs.list(RunFilter(), 3, cursor)


def test_filters(world: World) -> None:
    plain = world.submit()
    labelled = world.submit(labels={"team": "sky", "x": "1"}, name="50%_done", notes="Émile")
    other = world.submit(recipe="molecule", labels={"team": "sea"})
    world.store.runs.set_intent(other.id, Intent.pause)

    def ids(**wanted: object) -> list[int]:
        return list(world.store.runs.find_ids(RunFilter(**wanted), 10))  # type: ignore[arg-type]

    assert ids(label="team") == [other.id, labelled.id]
    assert ids(label="team=sky") == [labelled.id]
    assert ids(recipe="molecule") == [other.id]
    assert ids(q="50%_D") == [labelled.id]
    assert ids(q="%") == [labelled.id]
    assert ids(q="mile") == [labelled.id]
    assert ids(state=RunState.paused) == [other.id]
    assert ids(statuses=("queued",)) == [labelled.id, plain.id]
    with pytest.raises(InvalidRequest, match="no status 'dancing'"):
        ids(statuses=("dancing",))


def test_every_derived_status_is_found(world: World) -> None:
    def with_status(status: str) -> list[int]:
        return [run.id for run in world.store.runs.list(RunFilter(statuses=(status,)), 10).data]

    lease = world.running()
    child, _ = world.store.runs.restart(
        Restart(lease.run_id, "scratch", {"kind": "scratch"}, force=False), new_run()
    )
    assert with_status("waiting_for_parent") == [child.id]
    assert with_status("stopping") == [lease.run_id]
    second = world.running()
    assert with_status("starting") == [second.run_id]
    world.store.leases.beat(second.token, Beat(progress={"phase": "training"}))
    assert with_status("running") == [second.run_id]
    world.store.runs.set_intent(second.run_id, Intent.pause)
    assert with_status("pausing") == [second.run_id]
    world.store.runs.resume(second.run_id)
    world.store.leases.finish(second.token, Finish(Reason.drained, "", retry_delay_seconds=9.0))
    assert with_status("retrying") == [second.run_id]
    assert with_status("queued") == []


def test_changes_move_the_version_and_are_guarded_by_it(world: World) -> None:
    run = world.submit(labels={"a": "1"})
    changed = world.store.runs.update(
        run.id, {"name": "new", "labels": {"b": "2"}, "priority": 7}, if_version=1
    )
    assert (changed.name, changed.labels, changed.priority, changed.version) == (
        "new", {"b": "2"}, 7, 2,
    )  # fmt: skip
    assert world.store.runs.find_ids(RunFilter(label="a"), 5) == []
    assert world.store.runs.find_ids(RunFilter(label="b=2"), 5) == [run.id]
    with pytest.raises(PreconditionFailed, match="version 2"):
        world.store.runs.update(run.id, {"name": "late"}, if_version=1)
    with pytest.raises(InvalidRequest, match="state"):
        world.store.runs.update(run.id, {"state": "succeeded"})


def test_a_new_run_is_told_as_it_will_be_read(world: World) -> None:
    for labels in ({}, {"sweep": "s7"}):
        run = world.submit(name="a\x00b", notes="é", labels=labels, priority=3, gpus=0)
        assert run == world.store.runs.get(run.id)


def test_a_child_takes_the_place_of_its_parent_in_the_queue(world: World) -> None:
    first, second, third = (world.submit(name=name) for name in "abc")
    order = Restart(second.id, "scratch", {"kind": "scratch"})
    child, _ = world.store.runs.restart(order, new_run(name="b again"))
    waiting = [run.id for run in world.store.runs.queue().data]
    assert waiting == [first.id, child.id, third.id]


def test_text_that_a_database_cannot_hold_is_made_holdable(world: World) -> None:
    run = world.submit(name="a\x00b", notes="\ud800 end")
    assert (run.name, run.notes) == ("a\ufffdb", "\ufffd\ufffd\ufffd end")


class TestIdempotency:
    KEY = Idempotency("key", "hash", "POST /runs")

    def test_the_same_key_and_body_give_the_same_run(self, store: Store) -> None:
        first, created = store.runs.create(new_run(), idempotency=self.KEY)
        again, created_again = store.runs.create(new_run(), idempotency=self.KEY)
        assert (created, created_again) == (True, False)
        assert first.id == again.id

    def test_another_body_is_refused(self, store: Store) -> None:
        store.runs.create(new_run(), idempotency=self.KEY)
        with pytest.raises(InvalidRequest) as refusal:
            store.runs.create(new_run(), idempotency=Idempotency("key", "other", "POST /runs"))
        assert refusal.value.problem_code == "idempotency_key_reused"

    def test_a_refused_run_leaves_the_key_free(self, store: Store) -> None:
        with pytest.raises(InvalidRequest):
            store.runs.create(new_run(dataset="moon"), idempotency=self.KEY)
        assert store.runs.create(new_run(), idempotency=self.KEY)[1]

    def test_a_restart_is_made_once(self, world: World) -> None:
        parent = world.submit()
        order = Restart(parent.id, "scratch", {"kind": "scratch"})
        first = world.store.runs.restart(order, new_run(), idempotency=self.KEY)[0]
        again = world.store.runs.restart(order, new_run(), idempotency=self.KEY)[0]
        assert first.id == again.id
        assert world.store.runs.get(parent.id).child_ids == (first.id,)


class TestDelete:
    def test_only_what_is_over_can_be_deleted(self, world: World) -> None:
        run = world.submit()
        with pytest.raises(ActionNotAllowed) as refusal:
            world.store.runs.delete(run.id)
        assert "stop" in refusal.value.extensions["allowed_actions"]

    def test_it_is_gone_from_every_list_and_its_id_stays_taken(self, world: World) -> None:
        run = world.submit(labels={"a": "b"})
        world.store.runs.set_intent(run.id, Intent.stop)
        world.store.runs.delete(run.id)
        with pytest.raises(NotFound):
            world.store.runs.get(run.id)
        with pytest.raises(NotFound):
            world.store.runs.documents(run.id)
        assert world.store.runs.list(RunFilter(), 5).data == []
        assert world.store.runs.watch_marks([run.id]) == {}
        assert world.store.events.list(run.id) == []
        assert world.submit().id > run.id

    def test_its_artifacts_become_a_job(self, world: World) -> None:
        run = world.submit()
        world.store.runs.set_intent(run.id, Intent.stop)
        world.store.runs.delete(run.id)
        world.store.jobs.claim(world.worker)  # the inspection of the dataset
        job = world.store.jobs.claim(world.worker)
        assert job is not None
        assert (job.kind, job.payload["paths"]) == ("remove_artifacts", [f"runs/{run.id}"])

    def test_it_is_refused_while_a_child_needs_its_checkpoint(self, world: World) -> None:
        lease = world.running()
        saved = NewCheckpoint(5, 0, f"runs/{lease.run_id}/attempt-1/checkpoints/step-5", 1, {}, 0)
        world.store.leases.finish(
            lease.token, Finish(Reason.completed, "", final=Beat(checkpoints=[saved]))
        )
        child, _ = world.store.runs.restart(
            Restart(lease.run_id, "latest", {"kind": "full"}), new_run()
        )
        with pytest.raises(Conflict, match=f"Run {child.id} goes on"):
            world.store.runs.delete(lease.run_id)
        world.store.runs.set_intent(child.id, Intent.stop)
        world.store.runs.delete(lease.run_id)


class TestDeleteAll:
    def test_what_must_stay_stays_whole_and_the_others_go(self, world: World) -> None:
        lease = world.running(labels={"a": "b"})
        saved = NewCheckpoint(5, 0, f"runs/{lease.run_id}/attempt-1/checkpoints/step-5", 1, {}, 0)
        end = Finish(Reason.completed, "", final=Beat(checkpoints=[saved]))
        needed = world.store.leases.finish(lease.token, end)
        child, _ = world.store.runs.restart(
            Restart(needed.id, "latest", {"kind": "full"}), new_run()
        )
        over = [world.submit().id for _ in range(2)]
        for run_id in over:
            world.store.runs.set_intent(run_id, Intent.stop)
        events = world.store.events.list(needed.id)
        kept = world.store.runs.delete_all([needed.id, over[0], child.id, 99, over[1]])
        assert {run_id: type(error) for run_id, error in kept.items()} == {
            needed.id: Conflict,
            child.id: ActionNotAllowed,
            99: NotFound,
        }
        assert world.store.runs.find_ids(RunFilter(), 9) == [child.id, needed.id]
        assert world.store.runs.find_ids(RunFilter(label="a"), 9) == [needed.id]
        assert world.store.events.list(needed.id) == events
        assert [one.step for one in world.store.checkpoints.list(needed.id)] == [5]
        assert world.store.runs.documents(needed.id).request
        assert world.store.runs.counts_by_state() == {"queued": 1, "succeeded": 1}
        world.store.jobs.claim(world.worker)  # the inspection of the dataset
        job = world.store.jobs.claim(world.worker)
        assert job is not None
        assert job.payload["paths"] == [f"runs/{run_id}" for run_id in over]

    def test_where_none_goes_a_worker_has_nothing_to_do(self, world: World) -> None:
        run = world.submit()
        assert list(world.store.runs.delete_all([run.id])) == [run.id]
        world.store.jobs.claim(world.worker)  # the inspection of the dataset
        assert world.store.jobs.claim(world.worker) is None

    def test_what_ended_first_is_told_first(self, world: World) -> None:
        first, second, active = (world.submit().id for _ in range(3))
        for run_id in (second, first):
            world.clock.now += 10
            world.store.runs.set_intent(run_id, Intent.stop)
        assert world.store.runs.ended_before(math.inf) == [second, first]
        assert world.store.runs.ended_before(world.clock.now) == [second]
        world.store.runs.delete(second)
        assert world.store.runs.ended_before(math.inf) == [first]
        assert world.store.runs.get(active).state == "queued"


def test_counts(world: World) -> None:
    lease = world.running()
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
    ended = world.submit()
    world.store.runs.set_intent(ended.id, Intent.stop)
    world.store.runs.delete(ended.id)
    world.submit()
    assert world.store.runs.counts_by_state() == {"queued": 1, "succeeded": 1}
    assert world.store.runs.finished_counts() == {
        ("succeeded", "completed"): 1,
        ("stopped", "stop_requested"): 1,
    }


def test_positions_in_the_queue(world: World) -> None:
    late = world.submit()
    first = world.submit(priority=5)
    last = world.submit(priority=-5)
    queue = world.store.runs.queue().data
    assert [run.id for run in queue] == [first.id, late.id, last.id]
    assert [world.store.runs.next_queue_position(p) for p in (9, 5, 0, -5)] == [1, 2, 3, 4]
    world.store.runs.set_intent(late.id, Intent.pause)
    assert [world.store.runs.next_queue_position(p) for p in (9, 5, 0, -5)] == [1, 2, 2, 3]


def test_only_what_is_tried_again_is_retrying(world: World) -> None:
    def ids(status: str) -> list[int]:
        return list(world.store.runs.find_ids(RunFilter(statuses=(status,)), 9))

    lease = world.running()
    world.store.runs.set_intent(1, Intent.pause)
    world.store.leases.finish(lease.token, Finish(Reason.interrupted, ""))
    world.store.runs.resume(1)
    assert (ids("queued"), ids("retrying")) == ([1], [])
    again = world.claim()
    assert again is not None
    world.store.leases.finish(again.token, Finish(Reason.killed, ""))
    assert (ids("queued"), ids("retrying")) == ([], [1])


def test_the_memory_plan_is_kept_and_compared_with_the_peak_that_was_told(world: World) -> None:
    plan = {"host": {"planned_bytes": 300}, "device": None}
    run = world.submit(memory=plan)
    untold = world.store.runs.documents(run.id).memory
    assert untold == {"planned_bytes": 300, "measured_bytes": None, "ratio": None, "plan": plan}
    lease = world.claim()
    assert lease is not None
    peak = {"host_bytes": 200, "device_bytes": None}
    world.store.leases.beat(lease.token, Beat(progress={"phase": "training", "peak_memory": peak}))
    assert world.store.runs.documents(run.id).memory["ratio"] == 1.5
    assert world.store.runs.documents(world.submit().id).memory["plan"] is None


def test_the_config_of_a_script_is_that_of_the_newest_attempt_that_told_it(world: World):
    lease = world.running()
    assert world.store.attempts.newest_config(lease.run_id) is None
    world.store.leases.beat(lease.token, Beat(number=0, applied={"shim": True}))
    assert world.store.attempts.newest_config(lease.run_id) is None
    applied = {"shim": True, "config": {"a": [1, "é\0"]}}
    world.store.leases.beat(lease.token, Beat(number=1, applied=applied))
    assert world.store.attempts.newest_config(lease.run_id) == {"a": [1, "é\0"]}
