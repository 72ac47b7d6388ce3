"""The naive forecast, that all stays as it was last: what a result has to be better than."""

import torch

from worker.trainer.data.batch import Batches
from worker.trainer.state import Scores
from worker.trainer.trainer import Trainer

# What is measured of it, as far as the run measures it too; of all of them less is better.
MEASURES = ("mae", "mse", "rmse")


def naive_scores(trainer: Trainer) -> Scores:
    """Of the validation and the test part, by the names of the run's own; empty where the data does
    not know its target's past, or when stopped.
    """
    data, found = trainer.data, Scores()
    past = data.past_of_target()
    if past is None:
        return found
    for name, part in (("val", data.validation), ("test", data.test)):
        if part is not None:
            scores = _scores(trainer, part, past)
            found |= {f"{name}_{measure}": score for measure, score in scores.items()}
    return found


def _scores(trainer: Trainer, part: Batches, past: tuple[str, int]) -> Scores:
    """Over the samples that `worker.trainer.evaluate.measure` looks at."""
    (name, feature), target = past, trainer.spec.data.targets[0]
    log, plan = trainer.log, part.plan
    count = plan.epoch_micro_batches
    sums = torch.zeros(2, dtype=torch.float64, device=trainer.step.precision.device)
    with torch.no_grad(), log.within("evaluating", count), log.clock.part("eval"):
        for batch in part.iterate(0):
            if trainer.stop.requested:
                return {}
            last = batch.arrays[name][:, -1, feature].double()
            error = last[:, None] - batch.arrays[target].double().reshape(batch.size, -1)
            sums += batch.size * torch.stack([error.abs().mean(), error.square().mean()])
            log.visited_batch()
        mae, mse = (sums / plan.usable_samples).tolist()
    measured = {"mae": mae, "mse": mse, "rmse": mse**0.5}
    return {one: measured[one] for one in MEASURES if one in trainer.spec.evaluation.metrics}


def no_better(result: Scores, naive: Scores) -> str:
    """A sentence where a score is no better than the naive one; else empty."""
    for name, score in naive.items():
        if name in result and not result[name] < score:
            return (
                f" That is no better than the naive forecast, which repeats the last value: {name} "
                f"{result[name]:.6g}, and {score:.6g} of the naive one."
            )
    return ""
