"""Leases: who gets a run, what a beat writes, and what a fence keeps out."""

import pytest

from app.errors import LeaseLost
from app.lifecycle import Intent, Reason, RunState
from app.planning.requirements import SlotOffer
from app.store.records import (
    Beat,
    Finish,
    MetricPoint,
    NewCheckpoint,
    NewEvent,
    RunFilter,
)
from tests.store.conftest import CPU, World, new_run
from tests.store.engine.test_plans import statements

GPU = SlotOffer("gpu-7", "cuda", "cuda:0")


class TestClaim:
    def test_by_priority_then_by_age(self, world: World) -> None:
        old, new, urgent = world.submit(), world.submit(), world.submit(priority=1)
        leases = [world.claim() for _ in range(4)]
        assert [lease and lease.run_id for lease in leases] == [urgent.id, old.id, new.id, None]

    def test_a_run_of_a_gpu_leaves_cpu_slots_alone(self, world: World) -> None:
        world.submit(device="cuda")
        behind = world.submit(device="cpu")
        first = world.claim(CPU)
        assert first is not None
        assert first.run_id == behind.id
        assert world.claim(CPU) is None
        second = world.claim(CPU, GPU)
        assert second is not None
        assert second.slots == (GPU.name,)

    @pytest.mark.parametrize(("device", "slot"), [("auto", GPU), ("cpu", CPU), ("cuda", GPU)])
    def test_of_several_slots_the_fitting_one(
        self, world: World, device: str, slot: SlotOffer
    ) -> None:
        world.submit(device=device)
        lease = world.claim(CPU, GPU)
        assert lease is not None
        assert lease.slots == (slot.name,)
        assert world.store.runs.get(lease.run_id).devices == [slot.device_id]

    def test_a_cpu_run_may_use_a_gpu_slot(self, world: World) -> None:
        world.submit(device="cpu")
        assert world.claim(GPU) is not None

    def test_without_a_slot_nothing(self, world: World) -> None:
        world.submit()
        assert world.store.leases.claim(world.worker, []) is None

    def test_the_lease_tells_what_the_agent_needs(self, world: World) -> None:
        world.store.datasets.register("holdout", "holdout.h5")
        split = {"method": "datasets", "validation": "holdout", "test": None}
        spec = {"data": {"dataset": "weather", "split": split}}
        lease = world.running(spec=spec, max_retries=7)
        assert (lease.attempt, lease.spec, lease.max_retries) == (1, spec, 7)
        assert lease.datasets["weather"].path == "weather.h5"
        assert lease.datasets["holdout"].path == "holdout.h5"
        run = world.store.runs.get(lease.run_id)
        assert (run.state, run.worker, run.attempt) == ("running", "agent", 1)
        assert run.started_at == world.clock.now

    def test_a_second_attempt_begins_with_nothing_of_the_first(self, world: World) -> None:
        """But for when the run started, and how far it had come."""
        lease = world.running()
        begun = world.clock.now
        told = Beat(
            progress={"phase": "training", "step": 7, "samples_per_second": 3.0},
            result={"last": {"step": 7}},
        )
        crashed = Finish(Reason.crashed, "boom", final=told, retry_delay_seconds=5.0)
        waiting = world.store.leases.finish(lease.token, crashed)
        assert waiting.result == {"last": {"step": 7}}
        assert (waiting.reason, waiting.message) == (Reason.crashed, "boom")
        world.clock.now += 60
        assert world.claim() is not None
        run = world.store.runs.get(lease.run_id)
        assert (run.state, run.attempt, run.started_at) == ("running", 2, begun)
        assert (run.result, run.reason, run.message, run.retry_at) == (None, None, None, None)
        assert run.finished_at is None
        progress = {"phase": "starting", "step": 7, "samples_per_second": None}
        assert run.progress == progress
        first, second = world.store.attempts.list(run.id)
        assert (first.started_at, second.started_at) == (begun, world.clock.now)

    def test_a_run_has_not_started_before_it_is_claimed(self, world: World) -> None:
        run = world.submit()
        assert (run.started_at, run.result, run.attempt) == (None, None, 0)


class TestBeat:
    def test_it_writes_everything_at_once(self, world: World) -> None:
        lease = world.running()
        version = world.store.runs.get(lease.run_id).version
        intent = world.store.leases.beat(
            lease.token,
            Beat(
                progress={"phase": "training", "step": 3, "loss": float("nan")},
                events=[NewEvent("phase", 5.0, {"phase": "training"})],
                metric_points=[MetricPoint("train_loss", 3, 5.0, 0.25)],
                log_text="step 3\n",
                checkpoints=[NewCheckpoint(3, 1, "runs/1/attempt-1/checkpoints/step-3", 9, {}, 6)],
                applied={"precision": "fp32"},
                environment={"torch": "2"},
                devices=["cpu"],
                resumed_from_step=2,
                result={"last": {}},
            ),
        )
        assert intent is Intent.run
        run = world.store.runs.get(lease.run_id)
        assert run.progress == {"phase": "training", "step": 3, "loss": None}
        assert (run.environment, run.result, run.version) == ({"torch": "2"}, {"last": {}}, version)
        assert world.store.events.list(run.id)[-1].data == {"phase": "training"}
        assert world.store.metrics.series(run.id) == {"train_loss": [(3, 5.0, 0.25)]}
        assert world.store.logs.read(run.id).text == "step 3\n"
        assert [c.step for c in world.store.checkpoints.list(run.id)] == [3]
        (attempt,) = world.store.attempts.list(run.id)
        assert (attempt.applied, attempt.resumed_from_step) == ({"precision": "fp32"}, 2)
        assert world.store.runs.documents(run.id).applied == [{"precision": "fp32"}]

    def test_much_that_is_new_takes_no_more_statements_than_little(self, world: World) -> None:
        """So that a busy worker holds the writer's lock as briefly as an idle one."""
        lease = world.running()

        def sent(first: int, count: int) -> int:
            numbers = range(first, first + count)
            beat = Beat(
                progress={"phase": "training", "step": first + count},
                events=[NewEvent("warning", 5.0 + i, {"i": i}) for i in numbers],
                metric_points=[MetricPoint("train_loss", i, 5.0 + i, 0.25) for i in numbers],
                log_text="".join(f"step {i}\n" for i in numbers),
                checkpoints=[
                    NewCheckpoint(i, 1, f"runs/1/attempt-1/checkpoints/step-{i}", 9, {}, 6)
                    for i in numbers
                ],
            )
            with statements(world) as found:
                world.store.leases.beat(lease.token, beat)
            return len(found)

        sent(0, 1)  # the first of a series makes it
        assert sent(1, 100) == sent(101, 1)
        assert len(world.store.metrics.series(lease.run_id)["train_loss"]) == 102

    def test_an_empty_one_moves_only_the_counters(self, world: World) -> None:
        lease = world.running()
        before = world.store.runs.get(lease.run_id)
        mark = world.store.runs.watch_marks([lease.run_id])
        (seen,) = world.store.leases.holders()
        world.store.leases.beat(lease.token, Beat())
        assert world.store.leases.holders()[0].beat == seen.beat + 1
        assert world.store.runs.get(lease.run_id) == before
        assert world.store.runs.watch_marks([lease.run_id]) == mark

    @pytest.mark.parametrize(
        "beat",
        [
            Beat(progress={"phase": "training"}),
            Beat(log_text="x"),
            Beat(events=[NewEvent("warning", 1.0, {})]),
        ],
    )
    def test_news_moves_the_mark_that_followers_watch(self, world: World, beat: Beat) -> None:
        lease = world.running()
        mark = world.store.runs.watch_marks([lease.run_id])
        world.clock.now += 1
        world.store.leases.beat(lease.token, beat)
        assert world.store.runs.watch_marks([lease.run_id]) != mark

    def test_one_that_is_sent_again_is_stored_once(self, world: World) -> None:
        lease = world.running()
        beat = Beat(lease.beats, events=[NewEvent("warning", 1.0, {})], log_text="once\n")
        for _ in range(2):
            assert world.store.leases.beat(lease.token, beat) is Intent.run
        finish = Finish(Reason.interrupted, "", final=beat)  # sent with the end once more
        world.store.leases.finish(lease.token, finish)
        kinds = [event.kind for event in world.store.events.list(lease.run_id)]
        assert kinds.count("warning") == 1
        assert world.store.logs.read(lease.run_id).text == "once\n"
        again = world.claim()
        assert again is not None
        world.store.leases.beat(again.token, Beat(again.beats, log_text="twice\n"))
        assert world.store.logs.read(lease.run_id).text == "twice\n"

    def test_it_returns_what_the_user_wants_by_now(self, world: World) -> None:
        lease = world.running()
        world.store.runs.set_intent(lease.run_id, Intent.stop)
        assert world.store.leases.beat(lease.token, Beat()) is Intent.stop

    def test_a_repeated_beat_does_not_double_points_and_checkpoints(self, world: World) -> None:
        lease = world.running()
        beat = Beat(
            metric_points=[MetricPoint("val_loss", 1, 1.0, 2.0)],
            checkpoints=[NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 1.0)],
        )
        for _ in range(2):
            world.store.leases.beat(lease.token, beat)
        assert len(world.store.checkpoints.list(lease.run_id)) == 1
        assert world.store.metrics.series(lease.run_id) == {"val_loss": [(1, 1.0, 2.0)]}


class TestFence:
    def test_after_declare_lost_the_old_holder_can_write_nothing(self, world: World) -> None:
        lease = world.running()
        (holder,) = world.store.leases.holders()
        assert world.store.leases.declare_lost(holder.token, holder.beat)
        with pytest.raises(LeaseLost):
            world.store.leases.beat(lease.token, Beat(log_text="late"))
        late = Finish(Reason.completed, "", final=Beat(log_text="late"))
        with pytest.raises(LeaseLost):
            world.store.leases.finish(lease.token, late)
        run = world.store.runs.get(lease.run_id)
        assert (run.state, run.reason) == (RunState.queued, Reason.worker_lost)
        assert run.retry_at == world.clock.now + 5
        assert world.store.logs.read(run.id, 1).text == ""

    def test_the_next_holder_is_not_touched_by_the_one_before(self, world: World) -> None:
        old = world.running()
        (holder,) = world.store.leases.holders()
        world.store.leases.declare_lost(holder.token, holder.beat)
        world.clock.now += 5
        new = world.claim()
        assert new is not None
        with pytest.raises(LeaseLost):
            world.store.leases.finish(old.token, Finish(Reason.completed, ""))
        assert world.store.leases.beat(new.token, Beat()) is Intent.run

    def test_a_holder_that_has_beaten_meanwhile_is_not_lost(self, world: World) -> None:
        lease = world.running()
        (holder,) = world.store.leases.holders()
        world.store.leases.beat(lease.token, Beat())
        assert not world.store.leases.declare_lost(holder.token, holder.beat)
        assert world.store.runs.get(lease.run_id).state == "running"

    def test_finishing_twice_is_refused(self, world: World) -> None:
        lease = world.running()
        world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
        with pytest.raises(LeaseLost):
            world.store.leases.finish(lease.token, Finish(Reason.crashed, ""))
        assert world.store.runs.get(lease.run_id).state == "succeeded"


def test_finish_writes_the_last_beat_and_closes_the_attempt(world: World) -> None:
    lease = world.running()
    final = Beat(result={"best": {"val_loss": 1}}, log_text="bye\n")
    world.clock.now += 60
    run = world.store.leases.finish(
        lease.token, Finish(Reason.completed, "done", exit_code=0, final=final)
    )
    assert (run.state, run.reason, run.message) == ("succeeded", "completed", "done")
    assert (run.result, run.finished_at) == ({"best": {"val_loss": 1}}, world.clock.now)
    assert world.store.logs.read(run.id).text == "bye\n"
    (attempt,) = world.store.attempts.list(run.id)
    assert (attempt.state, attempt.reason, attempt.exit_code) == ("succeeded", "completed", 0)
    assert attempt.finished_at == world.clock.now
    assert world.store.leases.holders() == []


def test_a_stop_that_arrives_before_the_end_is_recorded_decides(world: World) -> None:
    """The agent has read intent run and means to retry; the stop comes in between."""
    lease = world.running()
    assert world.store.leases.beat(lease.token, Beat()) is Intent.run
    world.store.runs.set_intent(lease.run_id, Intent.stop)
    run = world.store.leases.finish(lease.token, Finish(Reason.killed, "out of luck"))
    assert (run.state, run.reason) == (RunState.stopped, Reason.stop_requested)


def test_a_run_that_nobody_may_claim_stays(world: World) -> None:
    paused, stopped = world.submit(), world.submit()
    world.store.runs.set_intent(paused.id, Intent.pause)
    world.store.runs.set_intent(stopped.id, Intent.kill)
    assert world.claim() is None
    world.store.runs.resume(paused.id)
    lease = world.claim()
    assert lease is not None
    assert lease.run_id == paused.id
    assert world.store.runs.list(RunFilter(state=RunState.running), 5).data[0].id == paused.id


def test_a_retry_is_told_and_keeps_what_was_reached(world: World) -> None:
    lease = world.running()
    progress = {"phase": "training", "step": 40, "iterations_per_second": 9.0, "eta_seconds": 5.0}
    world.store.leases.beat(lease.token, Beat(progress=progress))
    crashed = Finish(Reason.crashed, "The trainer ended.", retry_delay_seconds=2.0)
    run = world.store.leases.finish(lease.token, crashed)
    events = world.store.events.list(run.id, 0, 100)
    assert [event.kind for event in events[-2:]] == ["state", "retry"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].data == {
        "reason": "crashed",
        "message": "The trainer ended.",
        "delay_seconds": 2.0,
        "retries_used": 1,
        "max_retries": new_run().max_retries,
    }

    world.clock.now += 3
    assert world.claim() is not None
    again = world.store.runs.get(run.id)
    assert again.progress == {
        "phase": "starting",
        "step": 40,
        "iterations_per_second": None,
        "eta_seconds": None,
    }
