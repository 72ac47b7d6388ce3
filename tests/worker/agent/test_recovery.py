"""A run out of memory, or whose loss was not finite: what its agent makes of it."""

import json
import random
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.lifecycle import CRASH_LOOP_LOSSES, FAIL, FREE_RETRY, Reason, RunState
from app.planning.ladder import Rung, Use
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.planning.rollback import Rollback
from app.spec.run import RunSpec
from worker.agent.beat_report import BeatReport
from worker.agent.classify import Evidence, Verdict, classify
from worker.agent.recovery import retry_delay_seconds, roll_back, step_down

GIB = 2**30
RUNGS = CRASH_LOOP_LOSSES + 1


def rungs(farm, run_id):
    """As each attempt was told."""
    attempts = range(1, farm.run(run_id).attempt + 1)
    specs = [farm.folder(run_id, number) / "spec.json" for number in attempts]
    return [Rung.from_json(json.loads(path.read_text())["memory_rung"]) for path in specs]


def test_a_run_comes_down_until_it_fits_without_a_retry_and_without_a_crash_loop(farm):
    script = {"fits_on": RUNGS, "data_bytes": 4 * GIB, "batch": 64}
    run_id = farm.submit(steps=5, memory=script, policy={"max_retries": 0})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt, run.retries_used) == (RunState.succeeded, RUNGS + 1, 0)
    told = rungs(farm, run_id)
    assert [rung.number for rung in told] == list(range(RUNGS + 1))
    assert [rung.data_bytes for rung in told] == [None, 2 * GIB, GIB, GIB // 2, GIB // 2]
    assert [rung.batch for rung in told] == [None, None, None, None, 32]
    events = [event.data for event in farm.store.events.list(run_id) if event.kind == "retry"]
    assert [event["memory_rung"]["number"] for event in events] == [1, 2, 3, 4]
    assert events[0]["ran_out"] == {
        "where": "device",
        "phase": "training",
        "wanted_bytes": GIB,
        "free_bytes": GIB // 2,
    }
    assert events[0]["message"] == (
        "The GPU ran out of memory while training. Rung 1 of the memory ladder: at most 2.00 GiB "
        "of data at once, read in chunks, instead of 4.00 GiB; every result stays the same."
    )


def test_a_ladder_at_its_end_says_what_was_tried(farm):
    run_id = farm.submit(steps=5, memory={"fits_on": 99, "data_bytes": 10**6, "batch": 2})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason, run.attempt) == (RunState.failed, Reason.device_oom, 2)
    assert "ran out of memory while training. It tried micro-batches of 1. The" in run.message
    assert "Make the model smaller" in run.message


def test_without_a_ladder_the_first_end_is_the_last(farm):
    script = {"fits_on": 1, "data_bytes": 4 * GIB, "batch": 64}
    run_id = farm.submit(steps=5, memory=script, policy={"on_oom": "fail"})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason, run.attempt) == (RunState.failed, Reason.device_oom, 1)
    assert "Lower training.batch_size" in run.message


UNREADABLE, CRASHED = Reason.checkpoint_error, Reason.crashed
DELAYS = [
    # reason, failures before it, seconds at most
    (UNREADABLE, 1, 2), (UNREADABLE, 3, 8), (UNREADABLE, 8, 256), (UNREADABLE, 9, 300),
    (UNREADABLE, 2000, 300), (CRASHED, 0, 1), (CRASHED, 3, 8), (CRASHED, 2000, 60),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "failures", "most"), DELAYS)
@pytest.mark.parametrize("drawn", [min, max])
def test_retries_come_later_each_time_and_never_later_than_is_said(
    monkeypatch, reason, failures, most, drawn
):
    """An unreadable disk is looked at every 5 minutes at least; what crashed, every minute."""
    monkeypatch.setattr(random, "uniform", lambda low, high: drawn(low, high))
    of_run = [SimpleNamespace(reason=UNREADABLE)] * failures if reason is UNREADABLE else []
    crashed = SimpleNamespace(reason=CRASHED)
    store: Any = SimpleNamespace(
        attempts=SimpleNamespace(list=lambda _: [crashed, *of_run, SimpleNamespace(reason=None)]),
        runs=SimpleNamespace(get=lambda _: SimpleNamespace(retries_used=failures, losses=0)),
    )
    delay = retry_delay_seconds(store, 7, Verdict(reason, ""))
    assert delay == most * (1 if drawn is max else 0.75)


@pytest.fixture
def report(tmp_path):
    """Of an attempt on a CPU that has opened its data and trains."""
    report = BeatReport(tmp_path, tmp_path / "runs/1/attempt-1")
    use = {"device": "cpu", "residency": "resident", "data_bytes": GIB, "sample_bytes": 1000,
           "parts": 2, "batch": 32, "evaluation_batch": 32, "staging_bytes": 0}  # fmt: skip
    report.take([{"kind": "memory", "t": 1.0, "seq": 3, **use}])
    report.take([{"kind": "phase", "t": 2.0, "seq": 4, "phase": "training"}])
    return report


SPEC = RunSpec.model_validate({"recipe": {"kind": "sequence"}, "data": {"dataset": "waves"}})
KILLED = classify(Evidence(returncode=-signal.SIGKILL, oom_kills=1))


def test_one_that_the_kernel_killed_takes_the_next_rung_too(report):
    outcome = step_down(KILLED, SPEC, None, report)
    assert outcome.policy is FREE_RETRY
    assert outcome.next_rung is not None
    assert outcome.next_rung.rung["data_bytes"] == GIB // 2
    assert outcome.next_rung.ran_out["phase"] == "training"
    assert outcome.message == ("The kernel killed the trainer because the host was out of memory.")


def test_a_loader_process_that_the_kernel_killed_makes_the_loader_smaller(report):
    """Its trainer says that it is gone, and the host that memory was the reason."""
    end = {"reason": "killed", "message": "A loader process (7) was killed by SIGKILL."}
    verdict = classify(Evidence(end=end, returncode=1, oom_kills=1))
    report.memory_use = Use("cpu", "batches", 0, 10**5, 2, 128, 128, 0, 4, 2, 158 * 2**20)
    outcome = step_down(verdict, SPEC, None, report)
    assert outcome.next_rung is not None
    assert outcome.next_rung.rung["prefetch_factor"] == 1
    assert outcome.next_rung.sentence == (
        "Rung 1 of the memory ladder: loader processes 1 batch ahead, not 2; every result stays "
        "the same."
    )


def test_on_the_last_rung_it_fails(report):
    rung = Rung(3, data_bytes=GIB, batch=1, changed=("this", "that"))
    report.memory_use = Use("cpu", "stream", 10**6, 1000, 2, 1, 1, 0)
    outcome = step_down(KILLED, SPEC, rung.as_json(), report)
    assert outcome.policy is FAIL
    assert outcome.next_rung is None
    assert "It tried this; that." in outcome.message


def test_what_ran_out_before_the_data_was_opened_is_no_matter_of_the_ladder(tmp_path):
    """Others hold the memory: as ever, the host's is tried again, and the GPU's is not."""
    outcome = step_down(KILLED, SPEC, None, BeatReport(tmp_path, tmp_path / "runs/1/attempt-1"))
    assert outcome.policy is None
    assert "free the memory that others hold" in outcome.message


def test_the_host_of_a_run_on_a_gpu_has_an_end_of_its_own(report):
    report.memory_use = Use("cuda", "stream", GIB, 1000, 2, 32, 32, 2**21)
    outcome = step_down(KILLED, SPEC, None, report)
    assert outcome.policy is FAIL
    assert "of its host" in outcome.message


def test_other_ends_stay_as_they_are(report):
    crash = classify(Evidence(returncode=1))
    outcome = step_down(crash, SPEC, None, report)
    assert (outcome.message, outcome.policy, outcome.next_rung) == (crash.message, None, None)


@pytest.mark.parametrize(
    ("reason", "device", "peak", "needs"),
    [
        # Of 4 GiB of data the next attempt has half.
        ("device_oom", "cuda", {"device_bytes": 7 * GIB, "host_bytes": 1},
         Requirements(device_bytes=CUDA_CONTEXT_BYTES + 5 * GIB)),
        ("host_oom", "cpu", {"device_bytes": None, "host_bytes": 7 * GIB},
         Requirements(cpu_bytes=5 * GIB)),
        ("host_oom", "cuda", {"device_bytes": 1, "host_bytes": 7 * GIB},
         Requirements(host_bytes=7 * GIB)),
        ("device_oom", "cuda", None, NOTHING_KNOWN),
    ],
    ids=str,
)  # fmt: skip
def test_what_an_attempt_had_taken_is_what_the_next_one_needs(
    tmp_path, reason, device, peak, needs
):
    """It goes to no place with less, where memory would run out sooner."""
    report = BeatReport(tmp_path, tmp_path)
    report.memory_use = Use(device, "resident", 4 * GIB, 1000, 2, 64, 64, 64 * 2**20)
    report.phase, report.progress = "training", {"peak_memory": peak}
    memory = {"wanted_bytes": GIB // 4, "free_bytes": 0}
    report.end = {"kind": "end", "reason": reason, "message": "It ran out.", "memory": memory}
    if (reason, device) == ("host_oom", "cuda"):  # of the host, pieces on the way to the GPU
        report.memory_use = Use(device, "stream", 4 * GIB, 1000, 2, 64, 64, 256 * 2**20)
    spec = RunSpec.model_validate_json(
        '{"recipe": {"kind": "sequence"}, "data": {"dataset": "waves"}}'
    )
    outcome = step_down(classify(Evidence(end=report.end)), spec, None, report)
    assert outcome.next_rung is not None
    assert outcome.needs == needs


# --- a loss that is not finite --------------------------------------------------------------

ROLLBACK = {"on_nonfinite": "rollback", "max_retries": 0}
BACK = RunSpec.model_validate(
    {"recipe": {"kind": "sequence"}, "data": {"dataset": "waves"}, "policy": ROLLBACK}
)


def rollbacks(farm, run_id):
    """As each attempt was told."""
    attempts = range(1, farm.run(run_id).attempt + 1)
    specs = [farm.folder(run_id, number) / "spec.json" for number in attempts]
    return [json.loads(path.read_text())["rollback"] for path in specs]


def test_it_goes_back_three_times_without_a_retry_and_then_it_fails(farm):
    at = {str(step): "nonfinite" for step in (8, 17, 28, 39)}
    run_id = farm.submit(steps=50, save_every=5, at=at, policy=ROLLBACK)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason, run.attempt) == (RunState.failed, Reason.nonfinite, 4)
    assert run.retries_used == 0
    assert run.message == (
        "The training loss became nan. Restart it. It was rolled back 3 times, and that is "
        "the limit."
    )
    assert rollbacks(farm, run_id) == [
        None,
        {"number": 1, "from_step": 5, "step": 8, "epoch": 0, "position": 64},
        {"number": 2, "from_step": 15, "step": 17, "epoch": 0, "position": 136},
        {"number": 3, "from_step": 25, "step": 28, "epoch": 0, "position": 224},
    ]
    events = [event.data for event in farm.store.events.list(run_id) if event.kind == "retry"]
    assert [event["rollback"]["number"] for event in events] == [1, 2, 3]
    assert events[0]["message"] == (
        "The training loss became nan. Rollback 1 of at most 3: it goes back to its checkpoint of "
        "step 5 and continues after step 8, without the data of the 3 steps between."
    )
    saved = [one.step for one in farm.store.checkpoints.list(run_id)]
    assert 35 in saved, "no good checkpoint is lost"


def test_what_was_rolled_back_goes_on_so_whatever_comes_after(farm):
    """Also an attempt that is begun for another reason; then it trains to its end."""
    at = {"8": "nonfinite", "9": "crash"}
    policy = {**ROLLBACK, "max_retries": 1}
    run_id = farm.submit(steps=20, save_every=5, at=at, policy=policy)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt) == (RunState.succeeded, 3)
    assert [told and told["step"] for told in rollbacks(farm, run_id)] == [None, 8, 8]


def test_without_the_policy_the_first_time_is_the_last(farm):
    run_id = farm.submit(steps=20, at={"8": "nonfinite"})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt) == (RunState.failed, 1)
    assert run.message == "The training loss became nan. Restart it."


@pytest.mark.parametrize(
    ("saved", "before", "told"),
    [
        (None, None, "It was not rolled back, for it had saved no checkpoint yet"),
        (8, Rollback(1, 5, 8, 0, 64), "saved no checkpoint since"),
        (5, Rollback(1, 5, 8, 0, 64), "saved no checkpoint since"),
        (15, Rollback(3, 5, 8, 0, 64), "It was rolled back 3 times"),
    ],
    ids=str,
)
def test_where_going_back_would_not_help_it_fails(tmp_path, saved, before, told):
    report = BeatReport(tmp_path, tmp_path)
    report.newest_checkpoint = saved
    report.end = {"kind": "end", "reason": "nonfinite", "message": "It is NaN.",
                  "nonfinite": {"what": "NaN.", "step": 18, "epoch": 0, "position": 9}}  # fmt: skip
    verdict = classify(Evidence(end=report.end))
    finish = roll_back(verdict, BACK, before and before.as_json(), report)
    assert (finish.policy, finish.rollback) == (None, None)
    assert finish.message.startswith("It is NaN. ")
    assert told in finish.message


def test_nan_in_the_data_of_an_evaluation_is_not_gone_back_from(report):
    report.newest_checkpoint = 5
    report.end = {"kind": "end", "reason": "nonfinite", "message": "The part holds NaN."}
    finish = roll_back(classify(Evidence(end=report.end)), BACK, None, report)
    assert (finish.message, finish.policy, finish.rollback) == ("The part holds NaN.", None, None)


def test_the_newest_checkpoint_is_what_was_saved_last_or_restored(report):
    def told(kind, step, **more):
        report.take([{"kind": kind, "t": 1.0, "step": step, **more}])
        return report.newest_checkpoint

    assert told("restored", 3, carry="weights", own=False) is None, "it begins at step 0"
    assert told("restored", 4, carry="full", own=False) == 4, "that of its parent"
    assert told("restored", 5, carry="full", own=True) == 5
    saved = {"action": "saved", "path": "checkpoints/step-9", "metrics": {}}
    assert told("checkpoint", 9, **saved) == 9
    assert told("checkpoint", 7, **saved) == 9, "a best one may come after a newer one"
