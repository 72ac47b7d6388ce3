"""What a start from a checkpoint cannot carry on exactly, each as a warning: (code, message)."""

from collections.abc import Iterator

import torch

from app.planning.schedule import LARGEST_JUMP, schedule_version
from worker.trainer.averaging import statistics_of
from worker.trainer.checkpoints.exactness import keeps_dropout_to_itself
from worker.trainer.checkpoints.restore import Start
from worker.trainer.data.order import ORDER_VERSION
from worker.trainer.trainer import Trainer


def continuity_warnings(
    trainer: Trainer, start: Start, lost: list[str]
) -> Iterator[tuple[str, str]]:
    """`lost` is what `TrainState.judge_by` could not keep."""
    if lost:
        yield (
            "monitor_changed",
            "What is monitored, or which batches are evaluated, is not what it was at the "
            f"checkpoint, so {' and '.join(lost)} cannot be compared with what comes and do not "
            "count any more.",
        )
    if trainer.log.losses.missing_bytes:
        yield (
            "losses_incomplete",
            f"losses.csv is {trainer.log.losses.missing_bytes} bytes shorter than when the "
            "checkpoint was written: some of its rows are lost. Training is not affected.",
        )
    if start.is_full:
        yield from _of_versions(trainer, start)
        yield from _of_the_device(trainer, start)
        yield from _of_the_schedule(trainer, start)
    elif start.snapshot.has_stale_statistics and _takes_statistics(trainer, start):
        yield (
            "statistics_stale",
            f"The checkpoint of step {start.snapshot.body['step']} was saved while batch norm's "
            "statistics were being updated, so those that this run begins with are not those of "
            "its averaged weights. Training brings them up to date by and by, but the first "
            "evaluations may be poor. Where that matters, begin with another checkpoint, or let "
            "the run that it is of go on first.",
        )


def _takes_statistics(trainer: Trainer, start: Start) -> bool:
    """Whether some of batch norm are among the weights that were taken."""
    wanted = trainer.spec.init_from
    prefix = wanted.prefix if wanted and start.candidate.carry == "init" else ""
    there = start.snapshot.parts["model"]
    names = (name for name, _ in statistics_of(trainer.step.model))
    return any(name.startswith(prefix) and name in there for name in names)


def _of_versions(trainer: Trainer, start: Start) -> Iterator[tuple[str, str]]:
    body, versions = start.snapshot.body, (ORDER_VERSION, schedule_version(trainer.spec.schedule))
    if (body["order_version"], body["schedule_version"]) != versions:
        yield (
            "order_changed",
            "The checkpoint is of a version of Stoker with another order of samples or "
            "another schedule: training goes on from it, but not as it would have there.",
        )


def _of_the_device(trainer: Trainer, start: Start) -> Iterator[tuple[str, str]]:
    body, precision = start.snapshot.body, trainer.step.precision
    if body["device_type"] != precision.device.type:
        yield (
            "device_changed",
            f"The checkpoint is of a training on {body['device_type']}, and this attempt is on "
            f"{precision.device.type}: it goes on, but its numbers will differ in the last bits "
            "from those of a run that was not interrupted, and so will what dropout leaves out.",
        )
    elif keeps_dropout_to_itself(trainer.step.model, precision.device):
        yield (
            "dropout_not_restored",
            "The model has a torch.nn.LSTM or GRU with dropout between its layers, and cuDNN draws "
            "that from a state that cannot be saved. Training goes on, but not bit for bit as it "
            "would have without the interruption. To resume exactly, give the model one-layer RNNs "
            "with torch.nn.Dropout between them, in the recipe's package.",
        )
    threads = torch.get_num_threads()
    if start.candidate.own and body["threads"] != threads and precision.device.type == "cpu":
        yield (
            "threads_changed",
            f"The run was trained with {body['threads']} threads, which is more than this slot's "
            f"share of the cores: it goes on with {threads}, since more would wait for each other. "
            "Sums are added up in another order, so its numbers will differ in the last bits from "
            "those of a run that was not interrupted. Set runtime.threads to keep a number.",
        )
    if start.candidate.own and body["precision"] != precision.name:
        yield (
            "precision_changed",
            f"The run was trained in {body['precision']}, which this device cannot compute in: "
            f"it goes on in {precision.name}. Set runtime.precision to one that all devices have.",
        )


def _of_the_schedule(trainer: Trainer, start: Start) -> Iterator[tuple[str, str]]:
    """Only where the schedule was stretched or cut: others rise and fall as they are meant to."""
    state, total = trainer.state, trainer.agenda.total_steps
    before, planned = state.learning_rate, start.snapshot.body["total_steps"]
    if before is None or planned == total or state.step >= total:
        return
    after = trainer.agenda.learning_rate(state)
    if max(before, after) > LARGEST_JUMP * min(before, after):
        yield (
            "learning_rate_jump",
            f"The schedule is of {total} steps now and was of {planned}, so the learning rate goes "
            f"from {before:.3g} at step {state.step} to {after:.3g} at the next. Where that is not "
            "wanted, restart with the weights alone, or use schedule.kind constant.",
        )
