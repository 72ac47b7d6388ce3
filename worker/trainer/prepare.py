"""Puts a trainer together: device, data, model, optimizer, and the state to start from."""

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch

from app.container import limits
from app.lifecycle import Reason
from app.planning.number_formats import number_formats
from app.spec.run import RunSpec
from worker.trainer.agenda import Agenda
from worker.trainer.attempt import Attempt
from worker.trainer.build import (
    choose_precision,
    configure_torch,
    lacking_for,
    open_device,
)
from worker.trainer.checkpoint_writer import CheckpointWriter
from worker.trainer.compilation import Compilation, compile_step
from worker.trainer.continuity import breaks
from worker.trainer.data.loader import DataSet, open_data
from worker.trainer.environment import describe_environment
from worker.trainer.errors import SpecMismatch
from worker.trainer.eventlog import EventLog, LossFile
from worker.trainer.exactness import resumes_exactly
from worker.trainer.memory import MemoryMeter
from worker.trainer.optimizers import build_optimizer
from worker.trainer.phases import PhaseClock
from worker.trainer.preparing import Preparing
from worker.trainer.pulse import Pulse
from worker.trainer.randomness import seed_everything
from worker.trainer.recipes import TASKS, Task
from worker.trainer.recipes.base import Statistics
from worker.trainer.recording import (
    NotRecorded,
    Recording,
    launched_instead,
    record_step,
    refused,
    why_not,
)
from worker.trainer.report import Report
from worker.trainer.snapshot import carry_weights, restore
from worker.trainer.start import Start, find_best, find_start
from worker.trainer.state import TrainState, Yardstick
from worker.trainer.step import Precision, TrainingStep
from worker.trainer.stop import StopFlag
from worker.trainer.trainer import Trainer
from worker.trainer.whole_cache import EMPTIED, whole_cache


def prepare(
    attempt: Attempt, stop: StopFlag, events: EventLog, pulse: Pulse, resources: ExitStack
) -> Trainer:
    """A trainer that stands where the attempt starts; `resources` closes what it holds.

    Raises StopRequested when a stop is asked for meanwhile.
    """
    memory = MemoryMeter(torch.device(attempt.device))
    clock, spec, preparing = PhaseClock(), attempt.spec, Preparing(pulse, stop, events)
    device = open_device(attempt.device)
    _enter("restoring", events, pulse)
    start = find_start(attempt, events)
    preparing.piece_done()
    precision = _precision(spec.runtime.precision, device, start)
    configure_torch(spec.runtime, precision, _threads(attempt, start))

    _enter("building", events, pulse)
    rung, beside = attempt.rung, attempt.beside_bytes
    data = open_data(spec, attempt.datasets, device, preparing, rung=rung, beside_bytes=beside)
    resources.callback(data.close)
    agenda = Agenda(spec, data.train.plan.num_samples, data.validation is not None)
    _check_monitors(spec, agenda)
    task = TASKS[spec.recipe.kind].for_run(spec, data.fields)
    statistics = _statistics(data, task, start, preparing)
    step = build_step(spec, task, statistics, Precision(precision, device), start)
    state = restore(step, start.snapshot) if start and start.is_full else TrainState()
    lost = state.judge_by(*_yardsticks(spec))
    if start is not None and not start.candidate.own:
        _begin_run(state, agenda)
    losses = LossFile(attempt.run_dir / "losses.csv", _losses_to_keep(start))
    resources.callback(losses.close)

    log = Report(events, pulse, losses, clock, agenda, state, data, memory)
    fast = _compile(step, spec, data, preparing, log), _record(step, attempt, data, preparing, log)
    versions = describe_environment(device)
    writer = CheckpointWriter()
    resources.callback(writer.close)
    trainer = Trainer(attempt, agenda, data, task, step, *fast, state, log, stop, writer, versions)
    log.applied(_applied(trainer), versions)
    for code, message in data.warnings:
        log.warning(code, message)
    if start is not None:
        _started_from(trainer, start)
        for code, message in breaks(trainer, start, lost):
            log.warning(code, message)
    return trainer


def _statistics(data: DataSet, task: Task, start: Start | None, preparing: Preparing) -> Statistics:
    # A checkpoint brings the statistics it was trained with; reading the data again for others
    # would only take time.
    if (start and start.is_full) or not task.standardized:
        return {}
    return data.statistics(task.standardized, preparing)


def _begin_run(state: TrainState, agenda: Agenda) -> None:
    """A restart is a new run, with its time still before it; and with new patience where its parent
    had run out of it, for nobody asks for a run that ends at once.
    """
    state.trained_seconds = 0.0
    if agenda.ending(state) is Reason.early_stopped:
        state.patience_used = 0


def _enter(phase: str, events: EventLog, pulse: Pulse) -> None:
    pulse.enter(phase)
    events.emit("phase", phase=phase)


def _precision(wanted: str, device: torch.device, start: Start | None) -> str:
    """A resume on another device keeps what `auto` came to at first, where the device can."""
    if wanted == "auto" and start is not None and start.is_full and start.candidate.own:
        kept = str(start.snapshot.body["precision"])
        if lacking_for(kept, device) is None:
            return kept
    return choose_precision(wanted, device)


def _threads(attempt: Attempt, start: Start | None) -> int:
    """Another number of threads adds up in another order, so a resume keeps the number it had, as
    long as that is within the attempt's share of the cores: more would wait for each other.
    """
    if start is not None and start.is_full and start.candidate.own:
        return min(int(start.snapshot.body["threads"]), attempt.threads)
    return attempt.threads


def _check_monitors(spec: RunSpec, agenda: Agenda) -> None:
    """A monitored metric has to be one that evaluations give."""
    known = {"val_loss", *(f"val_{name}" for name in spec.evaluation.metrics)}
    monitors = {"checkpoint.monitor": spec.checkpoint.monitor}
    if spec.early_stopping is not None:
        monitors["early_stopping.monitor"] = spec.early_stopping.monitor
        if not agenda.has_validation:
            raise SpecMismatch(
                "early_stopping needs a validation part, and data.split holds none out. Set "
                "data.split.validation_fraction above 0, or drop early_stopping."
            )
    for where, monitor in monitors.items():
        if monitor not in known:
            raise SpecMismatch(
                f"{where} is {monitor}, which no evaluation gives: there are "
                f"{', '.join(sorted(known))}. Add it to evaluation.metrics, or monitor another."
            )


def _yardsticks(spec: RunSpec) -> tuple[Yardstick, Yardstick | None]:
    """Of the best evaluation, and of early stopping."""
    kept, stopping, limit = spec.checkpoint, spec.early_stopping, spec.evaluation.max_batches
    patience = Yardstick(stopping.monitor, stopping.mode, limit) if stopping else None
    return Yardstick(kept.monitor, kept.mode, limit), patience


def build_step(
    spec: RunSpec,
    task: Task,
    statistics: Statistics,
    precision: Precision,
    start: Start | None = None,
) -> TrainingStep:
    """The model on its device, with new weights or those of `start`, and its optimizer."""
    seed_everything(spec.training.seed)
    model = task.build_model(statistics).to(precision.device)
    if start is not None and not start.is_full:
        carry_weights(model, task, start.snapshot)
    optimizer = build_optimizer(spec.optimizer, model.parameters())
    return TrainingStep(model, task, optimizer, precision, spec.training.clip_grad_norm)


def _compile(
    step: TrainingStep, spec: RunSpec, data: DataSet, preparing: Preparing, log: Report
) -> Compilation:
    if spec.runtime.compile.mode == "none":
        return Compilation("none")
    log.enter("compiling")
    with log.clock.part("graph_build"), whole_cache() as emptied:
        if emptied:
            log.warning("compiled_anew", EMPTIED)
        return compile_step(step, spec, data, preparing)


def _record(
    step: TrainingStep, attempt: Attempt, data: DataSet, preparing: Preparing, log: Report
) -> Recording:
    """Under cuda_graphs auto, steps are launched where they cannot be recorded, and it is told;
    under always SpecMismatch.
    """
    spec = attempt.spec
    reason = why_not(step, spec, data, attempt.rung)
    if reason is None:
        log.enter("recording")
        try:
            return record_step(step, spec, data, preparing)
        except NotRecorded as error:
            reason = str(error)
            if spec.runtime.cuda_graphs == "auto":
                log.warning("not_recorded", launched_instead(reason))
    if spec.runtime.cuda_graphs == "always":
        raise SpecMismatch(refused(reason))
    return Recording(False, reason)


def _losses_to_keep(start: Start | None) -> int:
    if start is not None and start.is_full and start.candidate.own:
        return int(start.snapshot.body["losses_bytes"])
    return 0


def _applied(trainer: Trainer) -> dict[str, Any]:
    agenda, plan, precision = trainer.agenda, trainer.data.train.plan, trainer.step.precision
    held_out, rung = trainer.data.validation or trainer.data.test, trainer.attempt.rung
    accumulated = agenda.spec.training.gradient_accumulation_steps
    mode = trainer.compilation.mode
    return {
        "device": str(precision.device),
        "precision": precision.name,
        "computes_in": number_formats(trainer.spec.recipe, precision.name, precision.device.type),
        "exact_resume": resumes_exactly(trainer.step.model, precision.device, mode),
        "compile": asdict(trainer.compilation),
        "cuda_graphs": asdict(trainer.recording),
        "threads": torch.get_num_threads(),
        "limits": limits().as_json(),
        "batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": accumulated * plan.num_micro_batches(plan.batch_size),
        "evaluation_batch_size": held_out.plan.micro_batch_size if held_out else None,
        "memory_rung": rung.as_json() if rung.number else None,
        "steps_per_epoch": agenda.steps_per_epoch,
        "total_steps": agenda.total_steps,
        "log_every_steps": agenda.log_every_steps,
        "parameters": sum(p.numel() for p in trainer.step.model.parameters()),
        "data": trainer.data.describe(),
    }


def _started_from(trainer: Trainer, start: Start) -> None:
    body, candidate, log, state = start.snapshot.body, start.candidate, trainer.log, trainer.state
    best = state.best
    if start.is_full:
        trainer.best_folder = find_best(start, state, trainer.spec.checkpoint)
        if candidate.own:
            trainer.saved = state.step, state.evaluated_step
    log.events.emit(
        "restored",
        path=str(candidate.path),
        step=int(body["step"]),
        carry=candidate.carry,
        own=candidate.own,
        passed_over=[{"path": str(one.path), "why": one.why} for one in start.passed_over],
    )
    if best and state.best != best:
        now = f"that of step {state.best.step}" if state.best else "chosen among those to come"
        log.warning(
            "best_weights_gone",
            f"The weights of the best evaluation so far (step {best.step}) are not on the disk, "
            "most likely because the attempt before was killed while it stopped, before they were "
            f"written. The best evaluation is now {now}.",
        )
