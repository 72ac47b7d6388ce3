"""Puts a trainer together: device, data, model, optimizer, and the state to start from."""

from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from app.container import limits
from app.lifecycle import Reason
from app.planning.ladder import NO_RUNG, Rung
from app.spec.optimization import SGD, Optimizer
from app.spec.recipe import BACKBONE
from app.spec.run import RunSpec
from worker.reporting import EventLog, Pulse
from worker.trainer.agenda import Agenda
from worker.trainer.attempt import TrainerAttempt
from worker.trainer.averaging import averaged_weights
from worker.trainer.checkpoints.continuity import continuity_warnings
from worker.trainer.checkpoints.exactness import resumes_exactly
from worker.trainer.checkpoints.first_weights import InitialWeights, take_first_weights
from worker.trainer.checkpoints.format import TornCheckpoint
from worker.trainer.checkpoints.inherited import inherit
from worker.trainer.checkpoints.restore import Start, find_best, find_start
from worker.trainer.checkpoints.rollback import go_past
from worker.trainer.checkpoints.saver import CheckpointSaver
from worker.trainer.checkpoints.snapshot import carry_weights, restore
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.device import (
    attention_kernels,
    choose_precision,
    configure_torch,
    lacking_for,
    lacking_for_attention,
    open_device,
)
from worker.trainer.errors import SpecMismatch
from worker.trainer.optimizers import build_optimizer
from worker.trainer.prepared import prepared_tables
from worker.trainer.randomness import seed_everything
from worker.trainer.recipes import task_of, trained_as_another
from worker.trainer.recipes.base import (
    Statistics,
    Tables,
    Task,
    TrainingSamples,
    grouped_parameters,
    undecayed_parameters,
)
from worker.trainer.recipes.contract import left_unstandardized, model_of
from worker.trainer.recipes.fitting import training_samples
from worker.trainer.report.environment import describe_environment
from worker.trainer.report.losses import LossFile
from worker.trainer.report.memory import MemoryMeter
from worker.trainer.report.phases import PhaseClock
from worker.trainer.report.preparing import Preparing
from worker.trainer.report.report import Report
from worker.trainer.speed.activations import checkpoint_activations
from worker.trainer.speed.compiled import Compilation, CompilePlan, compile_step
from worker.trainer.speed.cuda_graph import (
    CaptureOutcome,
    NotCaptured,
    capture_step,
    launched_instead,
    refused,
    why_not,
)
from worker.trainer.speed.whole_cache import EMPTIED, whole_cache
from worker.trainer.state import TrainState, Yardstick
from worker.trainer.step import NO_TABLES, Precision, TrainingStep
from worker.trainer.stop import StopFlag
from worker.trainer.trainer import Trainer


def prepare(
    attempt: TrainerAttempt, stop: StopFlag, events: EventLog, pulse: Pulse, resources: ExitStack
) -> Trainer:
    """A trainer that stands where the attempt starts; `resources` closes what it holds.

    Raises StopRequested when a stop is asked for meanwhile.
    """
    memory = MemoryMeter(torch.device(attempt.device))
    clock, spec, preparing = PhaseClock(), attempt.spec, Preparing(pulse, stop, events)
    device = open_device(attempt.device)
    preparing.enter("restoring")
    start = find_start(attempt, events)
    preparing.piece_done()
    precision = _configured(attempt, device, start)

    preparing.enter("building")
    kind = task_of(spec.recipe.kind)
    data = _open_data(attempt, device, preparing, kind)
    resources.callback(data.close)
    agenda = Agenda(spec, data.train.plan.num_samples, data.validation is not None)
    _check_monitors(spec, agenda)
    task = kind.for_run(spec, data.fields)
    statistics = _statistics(data, task, start, preparing)
    tables = prepared_tables(task, attempt, data, preparing)
    samples = _samples(data, task, start, tables)
    step = build_step(spec, task, statistics, precision, start, tables, attempt.rung, samples)
    first = _first_weights(step, start)
    state = restore(step, start.snapshot) if start and start.is_full else TrainState()
    lost = _judged(state, spec, data)
    if start is not None and not start.candidate.own:
        _begin_run(state, agenda)
    losses = LossFile(attempt.run_dir / "losses.csv", _losses_to_keep(start))
    resources.callback(losses.close)

    log = Report(events, pulse, losses, clock, agenda, state, data, memory)
    compilation = _compile(step, spec, data, preparing, log)
    captured = _capture(step, attempt, data, preparing, log)
    versions = describe_environment(device)
    saver = CheckpointSaver(attempt, agenda, step, state, log, versions)
    resources.callback(saver.close)
    trainer = Trainer(
        attempt, agenda, data, task, step, compilation, captured, state, log, stop, saver
    )
    log.applied(_applied(trainer, first), versions)
    if start is not None:
        _started_from(trainer, start, first)
    _warn(trainer, start, lost)
    go_past(trainer)
    return trainer


def _warn(trainer: Trainer, start: Start | None, lost: list[str]) -> None:
    """Of what is not as it was asked for. `lost`: what `_judged` could not keep."""
    inexact = continuity_warnings(trainer, start, lost) if start else ()
    of_recipe = *trained_as_another(trainer.spec.recipe), *left_unstandardized(trainer.task)
    for code, message in (*trainer.data.warnings, *inexact, *of_recipe):
        trainer.log.warning(code, message)


def _open_data(
    attempt: TrainerAttempt, device: torch.device, preparing: Preparing, kind: type[Task]
) -> DataSet:
    make = partial(kind.dataset, attempt.spec)
    rung, beside = attempt.rung, attempt.beside_bytes
    return open_data(
        attempt.spec, attempt.datasets, device, preparing,
        rung=rung, beside_bytes=beside, make_dataset=make,
    )  # fmt: skip


def _statistics(data: DataSet, task: Task, start: Start | None, preparing: Preparing) -> Statistics:
    # A checkpoint brings the statistics it was trained with; reading the data again for others
    # would only take time.
    if (start and start.is_full) or not task.standardized:
        return {}
    return data.statistics(task.standardized, preparing)


def _samples(
    data: DataSet, task: Task, start: Start | None, tables: Tables
) -> TrainingSamples | None:
    """Returns the samples that the recipe fits its model on; None if it fits none, or if a
    checkpoint brings the model.
    """
    is_wanted = task.is_fitted and not (start and start.is_full)
    return training_samples(data, tables) if is_wanted else None


def _first_weights(step: TrainingStep, start: Start | None) -> InitialWeights | None:
    """What the model was begun with, where `init_from` asks for it and nothing is gone on from."""
    wanted = step.task.spec.init_from
    if start is None or start.candidate.carry != "init" or wanted is None:
        return None
    return take_first_weights(step.model, step.task, start.snapshot, wanted)


def _begin_run(state: TrainState, agenda: Agenda) -> None:
    """A restart is a new run, with its time still before it; and with new patience where its parent
    had run out of it, for nobody asks for a run that ends at once.
    """
    state.trained_seconds = 0.0
    if agenda.ending(state) is Reason.early_stopped:
        state.patience_used = 0


def _precision(wanted: str, device: torch.device, start: Start | None) -> str:
    """A resume on another device keeps what `auto` came to at first, where the device can."""
    if wanted == "auto" and start is not None and start.is_full and start.candidate.own:
        kept = str(start.snapshot.body["precision"])
        if lacking_for(kept, device) is None:
            return kept
    return choose_precision(wanted, device)


def _configured(attempt: TrainerAttempt, device: torch.device, start: Start | None) -> Precision:
    """How numbers are rounded, with PyTorch set up for it. SpecMismatch."""
    runtime = attempt.spec.runtime
    precision = _precision(runtime.precision, device, start)
    masked = attempt.spec.recipe.masks_attention
    if lacking := lacking_for_attention(runtime, precision, device, masked=masked):
        raise SpecMismatch(lacking)
    configure_torch(runtime, precision, _threads(attempt, start))
    return Precision(precision, device)


def _threads(attempt: TrainerAttempt, start: Start | None) -> int:
    """Another number of threads adds up in another order, so a resume keeps the number it had, as
    long as that is within the attempt's share of the cores: more would wait for each other.
    """
    if start is not None and start.is_full and start.candidate.own:
        return min(int(start.snapshot.body["threads"]), attempt.threads)
    return attempt.threads


def _check_monitors(spec: RunSpec, agenda: Agenda) -> None:
    """A monitored metric has to be one that evaluations give."""
    known = {"val_loss", *(f"val_{name}" for name in spec.evaluation.metrics)}
    needs_part = {"early_stopping": "drop early_stopping", "schedule": "take another schedule"}
    for where, block in spec.watching().items():
        if where in needs_part and not agenda.has_validation:
            raise SpecMismatch(
                f"{where} needs a validation part, and data.split holds none out. Set "
                f"data.split.validation_fraction above 0, or {needs_part[where]}."
            )
        if block.monitor not in known:
            raise SpecMismatch(
                f"{where}.monitor is {block.monitor}, which no evaluation gives: there are "
                f"{', '.join(sorted(known))}. Add it to evaluation.metrics, or monitor another."
            )


def _judged(state: TrainState, spec: RunSpec, data: DataSet) -> list[str]:
    """Have the best evaluation, early stopping and a plateau judged as the spec says; what of the
    book could not be kept.
    """
    most = spec.evaluation.max_batches
    by = {
        name: Yardstick(block.monitor, block.mode, most, spaced=data.is_cut)
        for name, block in spec.watching().items()
    }
    lost = state.judge_by(by["checkpoint"], by.get("early_stopping"))
    if "schedule" in by:
        lost += state.lower_by(spec.optimizer.lr, by["schedule"])
    return lost


def build_step(
    spec: RunSpec,
    task: Task,
    statistics: Statistics,
    precision: Precision,
    start: Start | None = None,
    tables: Tables = NO_TABLES,
    rung: Rung = NO_RUNG,
    samples: TrainingSamples | None = None,
) -> TrainingStep:
    """The model on its device, with new weights or those of `start`, and its optimizer. `tables`:
    what the recipe has prepared. `samples`: what the recipe fits new weights on; None: it does not.
    """
    seed_everything(spec.training.seed)
    model = model_of(task, statistics, tables)
    if samples is not None:
        with torch.no_grad():
            task.fit(model, samples)
    model.to(precision.device)
    if start is not None and start.candidate.carry == "weights":
        carry_weights(model, task, start.snapshot)
    if spec.runtime.activation_checkpointing or rung.activation_checkpointing:
        checkpoint_activations(task, model)
    groups, undecayed = grouped_parameters(task, model), undecayed_parameters(model)
    optimizer = build_optimizer(spec.optimizer, groups, _rate_factors(spec), undecayed)
    weights = {term: spec.loss_weights.get(term, 1.0) for term in spec.recipe.loss_terms}
    on_device = {name: table.to(precision.device) for name, table in tables.items()}
    limit, average = spec.training.clip_grad_norm, averaged_weights(model, spec.averaging)
    return TrainingStep(model, task, optimizer, precision, limit, weights, on_device, average)


def _rate_factors(spec: RunSpec) -> dict[str, float]:
    """Of the groups that have a learning rate of their own, what it is of that of all others."""
    wanted = spec.optimizer.backbone_lr
    return {} if wanted is None else {BACKBONE: wanted / spec.optimizer.lr}


def _compile(
    step: TrainingStep, spec: RunSpec, data: DataSet, preparing: Preparing, log: Report
) -> Compilation:
    if spec.runtime.compile.mode == "none":
        return Compilation("none")
    plan = CompilePlan.of(step, spec, data)
    log.enter("compiling", shapes=plan.shapes, earlier=plan.earlier)
    with log.clock.part("graph_build"), whole_cache() as emptied:
        if emptied:
            log.warning("compiled_anew", EMPTIED)
        done = compile_step(step, spec, data, preparing)
    plan.keep(done)
    return done


def _capture(
    step: TrainingStep, attempt: TrainerAttempt, data: DataSet, preparing: Preparing, log: Report
) -> CaptureOutcome:
    """Under cuda_graphs auto, steps are launched where they cannot be captured, and it is told;
    under always SpecMismatch.
    """
    spec = attempt.spec
    reason = why_not(step, spec, data, attempt.rung)
    if reason is None:
        log.enter("capturing")
        try:
            return capture_step(step, spec, data, preparing)
        except NotCaptured as error:
            reason = str(error)
            if spec.runtime.cuda_graphs == "auto":
                log.warning("not_captured", launched_instead(reason))
    if spec.runtime.cuda_graphs == "always":
        raise SpecMismatch(refused(reason))
    return CaptureOutcome(False, reason)


def _losses_to_keep(start: Start | None) -> int:
    if start is not None and start.is_full and start.candidate.own:
        return int(start.snapshot.body["losses_bytes"])
    return 0


def _applied(trainer: Trainer, first: InitialWeights | None) -> dict[str, Any]:
    agenda, plan, precision = trainer.agenda, trainer.data.train.plan, trainer.step.precision
    held_out, rung = trainer.data.validation or trainer.data.test, trainer.attempt.rung
    accumulated = agenda.spec.training.gradient_accumulation_steps
    mode = trainer.compilation.mode
    return {
        "device": str(precision.device),
        "precision": precision.name,
        "computes_in": trainer.spec.recipe.computes_in(precision.name, precision.device.type),
        "exact_resume": resumes_exactly(trainer.step.model, precision.device, mode),
        "compile": asdict(trainer.compilation),
        "cuda_graphs": asdict(trainer.captured),
        "activation_checkpointing": trainer.spec.runtime.activation_checkpointing
        or rung.activation_checkpointing,
        "attention": _attention(trainer.spec, precision),
        "cudnn_autotuning": precision.device.type == "cuda" and torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads(),
        "limits": limits().as_json(),
        "batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": accumulated * plan.num_micro_batches(plan.batch_size),
        "evaluation_batch_size": held_out.plan.micro_batch_size if held_out else None,
        **_applied_by_optimizer(trainer.spec.optimizer, trainer.step.optimizer),
        "memory_rung": rung.as_json() if rung.number else None,
        "init_from": first and first.as_json(),
        "steps_per_epoch": agenda.steps_per_epoch,
        "total_steps": agenda.total_steps,
        "log_every_steps": agenda.log_every_steps,
        "parameters": sum(p.numel() for p in trainer.step.model.parameters()),
        "data": trainer.data.describe(),
    }


def _applied_by_optimizer(wanted: Optimizer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = optimizer.param_groups
    decayed = [p for group in groups if group["weight_decay"] for p in group["params"]]
    return {
        "learning_rates": {
            name: wanted.lr * group["rate_factor"] for group in groups for name in group["names"]
        },
        # The same at each step, also under onecycle.
        "momentum": wanted.momentum if isinstance(wanted, SGD) else wanted.betas[0],
        "decayed_parameters": sum(p.numel() for p in decayed),
    }


def _attention(spec: RunSpec, precision: Precision) -> list[str] | None:
    """The kernels that it may be computed by; None where the recipe computes none."""
    if spec.recipe.uses_attention(spec.data) is False:
        return None
    masked = spec.recipe.masks_attention
    return attention_kernels(spec.runtime, precision.name, precision.device, masked=masked)


def _started_from(trainer: Trainer, start: Start, first: InitialWeights | None) -> None:
    body, candidate, log, state = start.snapshot.body, start.candidate, trainer.log, trainer.state
    best = state.best
    if start.is_full:
        _have_best(trainer, start)
        average = trainer.step.average
        if candidate.own and not (average and average.statistics_due):
            trainer.saver.saved = state.step, state.evaluated_step
    log.events.emit(
        "restored",
        path=str(candidate.path),
        step=int(body["step"]),
        carry=candidate.carry,
        own=candidate.own,
        **({} if first is None else {"init_from": first.as_json()}),
        passed_over=[{"path": str(one.path), "why": one.why} for one in start.passed_over],
    )
    if best and state.best != best:
        now = f"that of step {state.best.step}" if state.best else "chosen among those to come"
        log.warning(
            "best_weights_gone",
            f"The weights of the best evaluation so far (step {best.step}) are not on the disk, "
            "or not as they were written. Most likely they were removed, or the attempt before "
            "was killed while it stopped, before they were written. The best evaluation is now "
            f"{now}.",
        )


def _have_best(trainer: Trainer, start: Start) -> None:
    """Know where the best weights are. Those of another run become this run's own, beside its
    newest checkpoint; where they are damaged, the best is chosen anew.
    """
    saver, attempt, kept = trainer.saver, trainer.attempt, trainer.spec.checkpoint
    best = saver.best_folder = find_best(start, trainer.state, kept)
    if best is None or kept.keep_best == 0:
        return
    if best.resolve().is_relative_to(attempt.run_dir.resolve()):
        return
    own, beside, number = start.candidate.own, attempt.folder / "checkpoints", attempt.number
    if own:
        beside, number = start.candidate.path.parent, start.snapshot.body["attempt"]
    with trainer.log.within("checkpointing"):  # it is read, and may be copied, as a whole
        try:
            inherited = inherit(best, beside / best.name, attempt.run_id, number)
        except TornCheckpoint:
            trainer.state.best = saver.best_folder = None
        else:
            saver.keep_inherited(inherited, at_once=own)
