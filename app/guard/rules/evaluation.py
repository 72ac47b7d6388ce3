"""Rules about evaluation: what is monitored is computed, at some time, and the right way round."""

from collections.abc import Iterator

from app.guard.facts import Facts
from app.guard.rule import Finding, rule
from app.spec.run import RunSpec


@rule(
    "correctness.never_evaluated",
    overridable=False,
    stands_on="Early stopping compares validation scores.",
)
def never_evaluated(spec: RunSpec, _: Facts) -> Iterator[Finding]:
    """What early stopping watches is computed at some time."""
    never = spec.evaluation.every_epochs is None and spec.evaluation.every_steps is None
    if never and spec.early_stopping is not None:
        yield Finding(
            ("evaluation",),
            "Early stopping watches a validation metric, but nothing is ever evaluated.",
            "The run would never end early.",
            {"/evaluation/every_epochs": 1},
        )


def _watched(spec: RunSpec) -> Iterator[tuple[str, str, str]]:
    """(Block, monitor, mode) of whatever compares scores."""
    yield "checkpoint", spec.checkpoint.monitor, spec.checkpoint.mode
    if spec.early_stopping is not None:
        yield "early_stopping", spec.early_stopping.monitor, spec.early_stopping.mode


@rule(
    "correctness.unknown_monitor",
    overridable=False,
    stands_on="A monitor that nobody computes never improves.",
)
def unknown_monitor(spec: RunSpec, _: Facts) -> Iterator[Finding]:
    """A monitored metric is one that the evaluation computes."""
    computed = ["val_loss", *(f"val_{name}" for name in spec.evaluation.metrics)]
    for block, monitor, _mode in _watched(spec):
        if monitor not in computed:
            yield Finding(
                (block, "monitor"),
                f"Nobody computes {monitor!r}; the evaluation gives {', '.join(computed)}.",
                "Nothing would ever be best.",
                {f"/{block}/monitor": "val_loss"},
            )


@rule(
    "learning.monitor_upside_down",
    stands_on="Every score there is falls as the model gets better: losses and errors.",
)
def monitor_upside_down(spec: RunSpec, _: Facts) -> Iterator[Finding]:
    """The mode of a monitor says what is better: less, for every loss and error."""
    for block, monitor, mode in _watched(spec):
        if mode == "max":
            yield Finding(
                (block, "mode"),
                f"{block}.mode is max, and {monitor} is an error: less of it is better.",
                "The worst checkpoint would be kept as the best.",
                {f"/{block}/mode": "min"},
            )


RULES = (never_evaluated, unknown_monitor, monitor_upside_down)
