"""The words for where a run is, what is wanted of it, and why; and what weights are exported as."""

from enum import StrEnum
from typing import Literal

ExportFormat = Literal["safetensors", "onnx", "int8"]


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
    """Why a run is in its state, or why an attempt ended. docs/reference/reasons.md lists them."""

    completed = "completed"
    """The spec is done: all epochs or steps, or the script ended with 0."""
    early_stopped = "early_stopped"
    """`early_stopping` saw no better value for long enough."""
    max_duration = "max_duration"
    """`policy.max_duration_seconds` has passed; the run was saved and ended."""
    stop_requested = "stop_requested"
    """Somebody stopped it."""
    kill_requested = "kill_requested"
    """Somebody killed it."""
    pause_requested = "pause_requested"
    """Somebody paused it."""
    interrupted = "interrupted"
    """The attempt was ended from outside, such as by a stop or while the database was away."""
    drained = "drained"
    """The worker was shut down; the run was saved first."""
    preempted = "preempted"
    """A run of higher priority needed the slot, and this one allows it (`policy.preemptible`). It
    was saved first, and goes on from there.
    """
    slot_busy = "slot_busy"
    """The slot was still held by another process."""
    worker_lost = "worker_lost"
    """The worker stopped reporting: its process or its host died."""
    killed = "killed"
    """Something other than Stoker killed the process, or it did not stop in the grace time."""
    crashed = "crashed"
    """The trainer or script ended with an error; the last line of its log is in the message."""
    hang = "hang"
    """No progress for `policy.hang_timeout_seconds`. A trainer's stacks end its log."""
    gpu_fault = "gpu_fault"
    """The GPU or its driver failed."""
    host_oom = "host_oom"
    """The host ran out of memory."""
    device_oom = "device_oom"
    """The GPU ran out of memory and nothing is left to make smaller."""
    nonfinite = "nonfinite"
    """The loss or the weights became NaN or infinite. With `policy.on_nonfinite: rollback` the run
    goes back to a checkpoint first, and fails where that does not help.
    """
    data_error = "data_error"
    """The data could not be read, or is not what the spec says."""
    dataset_changed = "dataset_changed"
    """The file is not the one that the run began with."""
    checkpoint_error = "checkpoint_error"
    """A checkpoint could not be read, most often because the disk is away."""
    checkpoint_write_error = "checkpoint_write_error"
    """A checkpoint could not be written."""
    checkpoint_unusable = "checkpoint_unusable"
    """No checkpoint is whole: each was read, and is damaged."""
    carry_mismatch = "carry_mismatch"
    """The weights to go on from do not fit the model."""
    disk_full = "disk_full"
    """The disk is full."""
    spec_error = "spec_error"
    """The spec, or a script as submitted, cannot run; only the worker could find out."""
    trainer_error = "trainer_error"
    """An error in the trainer or the recipe; the log has the traceback."""
    crash_loop = "crash_loop"
    """Three attempts in a row ended before a new checkpoint."""
