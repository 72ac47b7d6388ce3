"""The words for where a run is, what is wanted of it, and why."""

from enum import StrEnum


class RunState(StrEnum):
    queued = "queued"
    running = "running"
    paused = "paused"
    succeeded = "succeeded"
    failed = "failed"
    stopped = "stopped"


class Intent(StrEnum):
    """What the user wants of a run. It only escalates, in this order; resume withdraws a pause."""

    run = "run"
    pause = "pause"
    stop = "stop"
    kill = "kill"


class Reason(StrEnum):
    """Why a run is in its state, or why an attempt ended."""

    completed = "completed"
    early_stopped = "early_stopped"
    max_duration = "max_duration"
    stop_requested = "stop_requested"
    kill_requested = "kill_requested"
    pause_requested = "pause_requested"
    interrupted = "interrupted"
    drained = "drained"
    preempted = "preempted"
    slot_busy = "slot_busy"
    worker_lost = "worker_lost"
    killed = "killed"
    crashed = "crashed"
    hang = "hang"
    gpu_fault = "gpu_fault"
    host_oom = "host_oom"
    device_oom = "device_oom"
    nonfinite = "nonfinite"
    data_error = "data_error"
    dataset_changed = "dataset_changed"
    checkpoint_error = "checkpoint_error"
    checkpoint_write_error = "checkpoint_write_error"
    checkpoint_unusable = "checkpoint_unusable"
    carry_mismatch = "carry_mismatch"
    disk_full = "disk_full"
    spec_error = "spec_error"
    trainer_error = "trainer_error"
    crash_loop = "crash_loop"
