"""Simple baselines, scored as the model is: what a result has to be better than.

They are fitted when the training has ended, so they never delay its first step.
"""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from app import __version__
from app.planning.arithmetic import evaluation_batch
from app.spec.recipe import Mode
from worker.trainer.data.batch import Batch, Batches
from worker.trainer.data_cache import CacheEntry, Tables, facts_of
from worker.trainer.errors import NothingToScore
from worker.trainer.recipes.base import Predictor, Task
from worker.trainer.recipes.budget import Budget
from worker.trainer.recipes.fitting import training_samples
from worker.trainer.recipes.sums import Sums
from worker.trainer.state import Scores
from worker.trainer.trainer import Trainer

logger = logging.getLogger(__name__)

# Seconds of the processor that baselines may take: a share of the training's, within these bounds.
# By the clock they take the most of these at most. A stop ends them.
MOST_SHARE, LEAST_SECONDS, MOST_SECONDS = 0.02, 2.0, 20.0
# Until so much of the time is used, none is left out for its costs: first batches are slow.
TRIAL_SHARE = 0.25
# Of the scores that are kept for the next run. Raise it when a baseline's values change.
FORMAT = 1

Baseline = dict[str, Any]
"""`{name, metric, value}`."""
Parts = Mapping[str, Batches]


class StandIn(nn.Module):
    """A predictor in the place of the model, whose buffers describe the data as before."""

    def __init__(self, model: nn.Module, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor
        self._buffers_of = model.get_buffer

    def get_buffer(self, target: str) -> Tensor:
        return self._buffers_of(target)

    def forward(self, *inputs: Any) -> Any:
        return self.predictor(*inputs)


class _Measured(NamedTuple):
    scores: list[Baseline]
    too_large: list[str]
    """Names of baselines that no run of this data fits."""
    too_late: list[str]
    """Names of baselines that there was no time for."""

    def tables(self) -> Tables:
        """Returns itself as the data cache keeps it."""
        content = json.dumps([self.scores, self.too_large])
        return {"scores": torch.frombuffer(bytearray(content.encode()), dtype=torch.uint8)}

    @classmethod
    def of_tables(cls, tables: Tables) -> Self:
        scores, too_large = json.loads(tables["scores"].numpy().tobytes())
        return cls(scores, too_large, [])


class _Scored:
    """One baseline, its sums over each part, and the seconds that they took."""

    def __init__(self, name: str, model: nn.Module, task: Task, parts: Parts) -> None:
        self.name = name
        self.sums = {prefix: Sums(task) for prefix in parts}
        self.seconds = 0.0
        self._model, self._task = model, task

    def add(self, prefix: str, batch: Batch, device: torch.device) -> None:
        """Waits for the device, which takes time of the processor too."""
        began = time.process_time()
        self.sums[prefix].add(self._task.measure(self._model, batch), batch.size)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds += time.process_time() - began


def measure_baselines(trainer: Trainer) -> list[Baseline]:
    """Scores the recipe's baselines on the rows that the run was evaluated and tested on.

    Returns none if the recipe has none. A warning names those that are left out, since they are
    too large or would take more than their share of the time. An error is a warning too: it is no
    reason to lose a training.
    """
    both = {"val": trainer.data.validation, "test": trainer.data.test}
    parts = {prefix: part for prefix, part in both.items() if part is not None}
    if type(trainer.task).baselines is Task.baselines or not parts:
        return []
    try:
        measured = _kept_or_measured(trainer, parts)
    except Exception as error:
        logger.exception("baselines could not be measured")
        trainer.log.warning(
            "baselines_left_out",
            f"Simple baselines could not be measured ({type(error).__name__}: {error}), so nothing "
            "says whether the model is better than a mean. The training is not affected. Report "
            "this to whoever wrote the recipe.",
        )
        return []
    _warn_of_left_out(trainer, measured)
    return measured.scores


def best_of(baselines: list[Baseline], modes: Mapping[str, Mode | None]) -> dict[str, Baseline]:
    """By metric of the run, the best baseline. `modes`: whether less or more is better, by the name
    without its part. Less is better of a name without a mode; where the mode is None, none is best.
    """
    best: dict[str, Baseline] = {}
    for one in baselines:
        metric = one["metric"]
        if modes.get(_plain(metric), "min") is None:
            continue
        sign = -1 if _more_is_better(metric, modes) else 1
        if metric not in best or sign * one["value"] < sign * best[metric]["value"]:
            best[metric] = one
    return best


def no_better(
    result: Scores, best: Mapping[str, Baseline], modes: Mapping[str, Mode | None]
) -> str:
    """Returns a sentence if a score is no better than the best baseline's; else an empty one."""
    for metric, one in best.items():
        if metric not in result:
            continue
        sign = -1 if _more_is_better(metric, modes) else 1
        if not sign * result[metric] < sign * one["value"]:
            return (
                f" That is no better than a simple baseline ({one['name']}), which has a "
                f"{metric} of {one['value']:.6g}; the model has {result[metric]:.6g}."
            )
    return ""


def _more_is_better(metric: str, modes: Mapping[str, Mode | None]) -> bool:
    return modes.get(_plain(metric)) == "max"


def _plain(metric: str) -> str:
    """The name without its part of the data."""
    return metric.partition("_")[2]


def _warn_of_left_out(trainer: Trainer, measured: _Measured) -> None:
    reasons = []
    if measured.too_late:
        reasons.append(
            f"There was no time for: {', '.join(measured.too_late)}. Baselines may take "
            f"{MOST_SHARE:.0%} of the training's time, at least {LEAST_SECONDS:g} and at most "
            f"{MOST_SECONDS:g} seconds of the processor, and end early at a stop. Limit "
            "evaluation.max_batches to have them."
        )
    if measured.too_large:
        reasons.append(
            f"Too large to be fitted in seconds: {', '.join(measured.too_large)}. Name fewer "
            "features or targets to have them."
        )
    if reasons:
        sentence = " ".join(("The result is not compared with all simple baselines.", *reasons))
        trainer.log.warning("baselines_left_out", sentence)


def _kept_or_measured(trainer: Trainer, parts: Parts) -> _Measured:
    """Scores of a run before, of the same data and settings, are used again."""
    cache = trainer.attempt.data_cache
    if cache is None:
        return _measured(trainer, parts)
    with CacheEntry(cache, _facts(trainer, parts), _log_only) as entry:
        entry.take()  # If another trainer measures the same, waiting takes as long as measuring.
        if (kept := entry.read()) is not None:
            return _Measured.of_tables(kept)
        measured = _measured(trainer, parts)
        if not measured.too_late:
            entry.write(measured.tables())
    return measured


def _log_only(code: str, message: str) -> None:
    """Baselines take seconds, so a user need not do anything about a cache that fails."""
    logger.warning("%s: %s", code, message)


def _facts(trainer: Trainer, parts: Parts) -> dict[str, Any]:
    """All that the scores follow from."""
    spec, task, data = trainer.spec, trainer.task, trainer.data
    evaluation = spec.evaluation
    return {
        **facts_of(task, trainer.attempt, data),
        "format": FORMAT,
        "content": "baselines",
        "stoker": __version__,
        "parameters": dict(task.baseline_facts()),
        "standardize": spec.data.standardize.model_dump(mode="json"),
        "past": [data.past_of_target(), dict(data.past_features())],
        "metrics": list(evaluation.metrics),
        "max_batches": evaluation.max_batches,
        "batch_size": evaluation_batch(evaluation, spec.training),
        "weights": [spec.loss_weights, spec.pos_weight, spec.class_weights],
        "parts": {prefix: part.plan.num_samples for prefix, part in parts.items()},
    }


def _measured(trainer: Trainer, parts: Parts) -> _Measured:
    share = MOST_SHARE * trainer.trained_seconds()
    seconds = min(max(LEAST_SECONDS, share), MOST_SECONDS)
    budget = Budget(seconds, MOST_SECONDS, lambda: trainer.stop.requested)
    each = [
        _Scored(name, one, trainer.task, parts) for name, one in _fitted(trainer, budget).items()
    ]
    complete = _score(trainer, each, parts, budget)
    scores = [
        {"name": one.name, "metric": f"{prefix}_{metric}", "value": value}
        for prefix in parts
        for one in complete
        for metric, value in _scores(trainer, one.sums[prefix]).items()
    ]
    incomplete = [one.name for one in each if one not in complete]
    return _Measured(scores, budget.too_large, incomplete + budget.too_late)


def _fitted(trainer: Trainer, budget: Budget) -> dict[str, nn.Module]:
    model, task = trainer.step.model, trainer.task
    tables = {name: one.cpu() for name, one in trainer.step.tables.items()}
    samples = training_samples(trainer.data, tables, budget)
    with torch.no_grad():
        predictors = task.baselines(samples, model)
    device = trainer.step.device
    return {name: StandIn(model, one).to(device).eval() for name, one in predictors.items()}


def _score(trainer: Trainer, each: list[_Scored], parts: Parts, budget: Budget) -> list[_Scored]:
    """Reads each part once, as an evaluation of the model does. Returns the baselines that were
    scored on all of it; the cheapest ones if time is short.
    """
    log, step = trainer.log, trainer.step
    total = sum(part.plan.epoch_micro_batches for part in parts.values())
    began, done = time.process_time(), 0
    active = each if budget.seconds_left() > 0 else []
    with torch.inference_mode(), log.within("evaluating", total), log.clock.part("eval"):
        for prefix, part in parts.items():
            with closing(part.iterate(0)) as batches:
                for batch in batches if active else ():
                    batch = step.with_tables(batch)
                    for one in active:
                        one.add(prefix, batch, step.device)
                    log.visited_batch()
                    done += 1
                    reading = time.process_time() - began - sum(one.seconds for one in each)
                    active = _affordable(active, budget, reading / done, done, total - done)
                    if not active:
                        break
    return active


def _affordable(
    active: list[_Scored], budget: Budget, reading: float, done: int, ahead: int
) -> list[_Scored]:
    """Returns the cheapest baselines that the time is enough for, in their order. `reading`:
    seconds a batch, of which `done` are scored and `ahead` are left.
    """
    left = budget.seconds_left()
    if left > (1 - TRIAL_SHARE) * budget.seconds:
        return active
    kept, cost = set[str](), reading
    for one in sorted(active, key=lambda one: one.seconds):
        cost += one.seconds / done
        if cost * ahead > left:
            break
        kept.add(one.name)
    return [one for one in active if one.name in kept]


def _scores(trainer: Trainer, sums: Sums) -> Scores:
    """The run's metrics, or the loss where it has none. Waits for the device."""
    try:
        scores = sums.scores()
    except NothingToScore:
        return Scores()  # the run's own evaluation has said why
    wanted = trainer.spec.evaluation.metrics or ("loss",)
    return Scores({name: scores[name] for name in wanted})
