"""Simple baselines, scored as the model is: what a result has to be better than.

They are fitted when the training has ended, so they never delay its first step.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from app.spec.recipe import Mode
from worker.trainer.data.batch import Batches
from worker.trainer.errors import NothingToScore
from worker.trainer.recipes.base import Predictor, Task
from worker.trainer.recipes.fitting import training_samples
from worker.trainer.recipes.sums import Sums
from worker.trainer.state import Scores
from worker.trainer.trainer import Trainer

logger = logging.getLogger(__name__)

# Processor time that baselines may take: a share of the training's seconds, within these bounds. A
# stop waits for them, so they end within its time of grace.
MOST_SHARE, LEAST_SECONDS, MOST_SECONDS = 0.02, 2.0, 20.0

Baseline = dict[str, Any]
"""`{name, metric, value}`."""


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


class _OutOfTime(Exception):
    """The baselines took as long as they may."""


class _Clock:
    def __init__(self, seconds: float) -> None:
        self._end = time.process_time() + seconds

    def check(self) -> None:
        if time.process_time() > self._end:
            raise _OutOfTime


def measure_baselines(trainer: Trainer) -> list[Baseline]:
    """Scores the recipe's baselines on the rows that the run was evaluated and tested on.

    Returns none if the recipe has none, or, with a warning, if they would take more than their
    share of the time, or fail: that is no reason to lose a training.
    """
    share = MOST_SHARE * trainer.trained_seconds()
    clock = _Clock(min(max(LEAST_SECONDS, share), MOST_SECONDS))
    parts = {"val": trainer.data.validation, "test": trainer.data.test}
    scored: list[Baseline] = []
    try:
        has_some = type(trainer.task).baselines is not Task.baselines
        stand_ins = _fitted(trainer) if has_some and any(parts.values()) else {}
        clock.check()
        for prefix, part in parts.items():
            if part is not None and stand_ins:
                scored += _scored(trainer, stand_ins, part, prefix, clock)
    except _OutOfTime:
        trainer.log.warning(
            "baselines_left_out",
            "Simple baselines were left out, since they would take more than 2 % of the training's "
            "time, or 20 seconds. So nothing says whether the model is better than a mean. Limit "
            "evaluation.max_batches to have them.",
        )
        return []
    except Exception as error:
        logger.exception("baselines could not be measured")
        trainer.log.warning(
            "baselines_left_out",
            f"Simple baselines could not be measured ({type(error).__name__}: {error}), so nothing "
            "says whether the model is better than a mean. The training is not affected. Report "
            "this to whoever wrote the recipe.",
        )
        return []
    return scored


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


def _fitted(trainer: Trainer) -> dict[str, nn.Module]:
    model, task = trainer.step.model, trainer.task
    tables = {name: one.cpu() for name, one in trainer.step.tables.items()}
    samples = training_samples(trainer.data, tables)
    with torch.no_grad():
        predictors = task.baselines(samples, model)
    device = trainer.step.device
    return {name: StandIn(model, one).to(device).eval() for name, one in predictors.items()}


def _scored(
    trainer: Trainer,
    stand_ins: Mapping[str, nn.Module],
    part: Batches,
    prefix: str,
    clock: _Clock,
) -> list[Baseline]:
    """The same rows and the same `measure` as an evaluation of the model."""
    task, log = trainer.task, trainer.log
    sums = {name: Sums(task) for name in stand_ins}
    phase = log.within("evaluating", part.plan.epoch_micro_batches)
    with torch.inference_mode(), phase, log.clock.part("eval"):
        for batch in part.iterate(0):
            batch = trainer.step.with_tables(batch)
            for name, stand_in in stand_ins.items():
                sums[name].add(task.measure(stand_in, batch), batch.size)
            log.visited_batch()
            clock.check()
    return [
        {"name": name, "metric": f"{prefix}_{metric}", "value": value}
        for name, each in sums.items()
        for metric, value in _scores(trainer, each).items()
    ]


def _scores(trainer: Trainer, sums: Sums) -> Scores:
    """The run's metrics, or the loss where it has none. Waits for the device."""
    try:
        scores = sums.scores()
    except NothingToScore:
        return Scores()  # the run's own evaluation has said why
    wanted = trainer.spec.evaluation.metrics or ("loss",)
    return Scores({name: scores[name] for name in wanted})
