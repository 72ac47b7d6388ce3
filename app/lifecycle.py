"""The life of a run: who may move its state, and what each reason leads to."""

from dataclasses import dataclass
from typing import Literal

# The words are the API's too, and so lie where users import them; here is what they lead to.
from stoker.states import Intent as Intent
from stoker.states import Reason as Reason
from stoker.states import RunState as RunState


@dataclass(frozen=True)
class ReasonPolicy:
    """What an attempt's end leads to. `free` retries use up no budget and are no crash loop."""

    outcome: Literal["succeed", "retry", "fail"]
    free: bool = False


SUCCEED, RETRY, FREE_RETRY, FAIL = (
    ReasonPolicy("succeed"),
    ReasonPolicy("retry"),
    ReasonPolicy("retry", free=True),
    ReasonPolicy("fail"),
)

# Only reasons an attempt can end with; `*_requested` and `crash_loop` are chosen by `finish`.
# A checkpoint that could not be read may be whole, and a disk that comes back is not worth a retry
# of the budget: `checkpoint_error` waits. One that was read and is damaged stays so.
# Out of memory the ladder knows better: the next rung is a free retry, for each makes something
# smaller, so that there are few; and where none is left another attempt would end the same.
REASON_POLICY: dict[Reason, ReasonPolicy] = {
    Reason.completed: SUCCEED,
    Reason.early_stopped: SUCCEED,
    Reason.max_duration: SUCCEED,
    Reason.interrupted: FREE_RETRY,
    Reason.drained: FREE_RETRY,
    Reason.preempted: FREE_RETRY,
    Reason.slot_busy: FREE_RETRY,
    Reason.checkpoint_error: FREE_RETRY,
    Reason.worker_lost: RETRY,
    Reason.killed: RETRY,
    Reason.crashed: RETRY,
    Reason.hang: RETRY,
    Reason.gpu_fault: RETRY,
    Reason.host_oom: RETRY,
    Reason.checkpoint_write_error: RETRY,
    Reason.device_oom: FAIL,
    Reason.nonfinite: FAIL,
    Reason.data_error: FAIL,
    Reason.dataset_changed: FAIL,
    Reason.checkpoint_unusable: FAIL,
    Reason.carry_mismatch: FAIL,
    Reason.disk_full: FAIL,
    Reason.spec_error: FAIL,
    Reason.trainer_error: FAIL,
}

REQUESTED: dict[Intent, Reason] = {
    Intent.pause: Reason.pause_requested,
    Intent.stop: Reason.stop_requested,
    Intent.kill: Reason.kill_requested,
}

TERMINAL = frozenset({RunState.succeeded, RunState.failed, RunState.stopped})

# A lease holds for so many beat intervals after the last beat that was stored. Past that the holder
# trains no more, and an observer that saw no beat in so many reads may declare it lost.
LEASE_BEATS = 15

# An attempt that ends without a new checkpoint is a loss; this many in a row are a crash loop.
CRASH_LOOP_LOSSES = 3


@dataclass(frozen=True)
class Transition:
    source: RunState
    target: RunState
    by: Literal["agent", "API", "observer"]
    when: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition(RunState.queued, RunState.running, "agent", "claim"),
    Transition(RunState.queued, RunState.paused, "API", "pause, nobody holds a lease"),
    Transition(RunState.queued, RunState.stopped, "API", "stop, nobody holds a lease"),
    Transition(RunState.running, RunState.succeeded, "agent", "the spec is done"),
    Transition(RunState.running, RunState.stopped, "agent", "exit while intent is stop or kill"),
    Transition(RunState.running, RunState.paused, "agent", "exit while intent is pause"),
    Transition(RunState.running, RunState.queued, "agent", "retryable exit, budget left"),
    Transition(RunState.running, RunState.failed, "agent", "exit not retryable, or budget spent"),
    Transition(RunState.running, RunState.queued, "observer", "worker lost, budget left"),
    Transition(RunState.running, RunState.stopped, "observer", "worker lost while stopping"),
    Transition(RunState.running, RunState.paused, "observer", "worker lost while pausing"),
    Transition(RunState.running, RunState.failed, "observer", "worker lost, budget spent"),
    Transition(RunState.paused, RunState.queued, "API", "resume"),
    Transition(RunState.paused, RunState.stopped, "API", "stop"),
)


def finish_target(
    reason: Reason,
    intent: Intent,
    *,
    retries_used: int,
    max_retries: int,
    losses: int,
    policy: ReasonPolicy | None = None,
) -> tuple[RunState, Reason]:
    """The state and reason of a run whose attempt ended with `reason` while `intent` held.

    `losses` counts the attempts in a row, this one included, that saved no progress. `policy`
    takes the place of the reason's own. The store evaluates the same choice inside its UPDATE, so
    that an intent that arrives late is not lost.
    """
    policy = policy or REASON_POLICY[reason]
    if policy.outcome == "succeed":
        return RunState.succeeded, reason
    if intent in (Intent.stop, Intent.kill):
        return RunState.stopped, REQUESTED[intent]
    if policy.outcome == "fail":
        return RunState.failed, reason
    if intent is Intent.pause:
        return RunState.paused, Reason.pause_requested
    if policy.free:
        return RunState.queued, reason
    if losses >= CRASH_LOOP_LOSSES:
        return RunState.failed, Reason.crash_loop
    if retries_used < max_retries:
        return RunState.queued, reason
    return RunState.failed, reason


def allowed_actions(state: RunState, intent: Intent) -> list[str]:
    """The verbs that a run accepts now, in the order a person would think of them."""
    if state in TERMINAL:
        return ["restart", "delete"]
    if state is RunState.paused:
        return ["resume", "stop", "kill", "restart"]
    verbs = {
        Intent.run: ["pause", "stop", "kill", "restart"],
        Intent.pause: ["resume", "stop", "kill", "restart"],
        Intent.stop: ["kill", "restart"],
        Intent.kill: ["restart"],
    }
    return verbs[intent]


def derive_status(
    state: RunState,
    intent: Intent,
    *,
    phase: str | None,
    waits_for_parent: bool,
    waits_for_memory: bool,
    retrying: bool,
) -> str:
    """The word shown to people: the state, or what is under way towards the next one."""
    if state is RunState.running:
        under_way = {Intent.pause: "pausing", Intent.stop: "stopping", Intent.kill: "killing"}
        if intent is not Intent.run:
            return under_way[intent]
        return "starting" if phase in (None, "starting") else "running"
    if state is RunState.queued:
        if waits_for_parent:
            return "waiting_for_parent"
        if waits_for_memory:
            return "waiting_for_memory"
        return "retrying" if retrying else "queued"
    return state.value
