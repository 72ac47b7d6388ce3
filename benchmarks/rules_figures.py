"""How long all rules together take for one spec: the examples of the rules, and heavy specs."""

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.guard.case import Case
from app.guard.documentation import examples
from app.guard.facts import (
    DatasetFacts,
    DeviceFacts,
    Facts,
    FieldFacts,
    HostFacts,
    UnknownFact,
)
from app.guard.presets.catalog import load_catalog
from app.guard.registry import RULES
from app.guard.resolve import resolve
from app.guard.rule import GuardRule
from app.planning.pace import Pace
from app.spec.layers import Document, merge_patch
from app.spec.run import RunSpec
from benchmarks.figures import Figure

ROUNDS = 20
COMMAND = "python -m benchmarks rules"
MILLISECONDS = 0.5
GIB = 2**30
REQUEST = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}
CATALOG = load_catalog(Path("/nonexistent"))


def _world(samples: int, available_bytes: int) -> Facts:
    """Windows of 360 steps of 15 values on the CPU of a host; every fact is known."""
    shapes = {"features": (360, 15), "targets": (36,)}
    fields = {
        name: FieldFacts(
            shape, "float32", "contiguous", nonfinite=0, mean=0.5, std=1.0, sorted=False
        )
        for name, shape in shapes.items()
    }
    data = DatasetFacts(
        "weather", "ready", samples, fields, size_bytes=samples * 21_744, window_steps={},
        network=False, read_bytes_per_second=2e9,
    )  # fmt: skip
    host = HostFacts(24 * GIB, available_bytes, 2, 1, 100 * GIB)
    history = Pace((1,), 20.0, checkpoint_seconds=0.05, evaluation_seconds=0.001)
    return Facts(
        {"weather": data}, (DeviceFacts("cpu", "cpu", host=host),), history, history_looked_for=True
    )


USUAL = _world(4020, 20 * GIB)
# What takes the rules of memory longest: a batch that cannot be halved, a model that never fits.
HEAVY = {
    "a prime batch that does not fit": (
        {"recipe": {"hidden_size": 512, "patch": 1}, "training": {"batch_size": 509}},
        _world(4020, 2 * GIB),
    ),
    "a model of 32 layers of 16,384 at a batch of 65,536": (
        {"recipe": {"hidden_size": 16_384, "num_layers": 32}, "training": {"batch_size": 65_536}},
        _world(2_000_000, 20 * GIB),
    ),
}


def measure() -> list[Figure]:
    """Milliseconds: the median over the examples, the slowest of them, and each heavy spec."""
    timed = {code: judged_in(one["request"], USUAL) for code, one in examples().items()}
    slowest = max(timed, key=lambda code: timed[code])
    figures = [
        _figure(
            "all rules over one spec, median of the examples", statistics.median(timed.values())
        ),
        # Where memory is too small, a rule also searches for what fits, which takes as long again.
        _figure(f"all rules over one spec, slowest example ({slowest})", timed[slowest], None),
    ]
    for name, (change, facts) in HEAVY.items():
        request = merge_patch(REQUEST, change)
        figures.append(_figure(f"all rules over {name}", judged_in(request, facts), None))
        code, alone = slowest_rule(request, facts)
        figures.append(_figure(f"{code} over {name}", alone, None))
    return figures


def _figure(name: str, value: float, bound: float | None = MILLISECONDS) -> Figure:
    return Figure(name, value, "ms", bound, ROUNDS, COMMAND)


def judged_in(request: Document, facts: Facts) -> float:
    """Milliseconds of all rules over a spec that is resolved already; the median of the rounds."""
    spec = _spec(request, facts)
    return statistics.median(_taken(RULES, spec, facts) for _ in range(ROUNDS))


def slowest_rule(request: Document, facts: Facts) -> tuple[str, float]:
    """The code of the rule that takes longest over a spec, and its milliseconds."""
    spec = _spec(request, facts)
    alone = {
        rule.code: statistics.median(_taken([rule], spec, facts) for _ in range(ROUNDS))
        for rule in RULES
    }
    return max(alone.items(), key=lambda timed: timed[1])


def _taken(rules: Sequence[GuardRule], spec: RunSpec, facts: Facts) -> float:
    start = time.perf_counter()
    case = Case(spec, facts)
    for rule in rules:
        with suppress(UnknownFact):
            list(rule(case))
    return 1000 * (time.perf_counter() - start)


def _spec(request: Document, facts: Facts) -> RunSpec:
    resolved = resolve(request, CATALOG, facts)
    if resolved.spec is None:
        raise RuntimeError(f"a spec of the benchmark is refused: {resolved.issues}")
    return resolved.spec
