"""All rules, in the order in which their findings are shown."""

from app.guard.rule import Rule
from app.guard.rules import (
    compiling,
    cost,
    data,
    devices,
    evaluation,
    graphs,
    learning,
    loading,
    lost,
    memory,
    parts,
    precision,
    processes,
    restarting,
    schedules,
    values,
)

RULES: tuple[Rule, ...] = (
    *data.RULES,
    *values.RULES,
    *parts.RULES,
    *evaluation.RULES,
    *devices.RULES,
    *memory.RULES,
    *loading.RULES,
    *processes.RULES,
    *precision.RULES,
    *compiling.RULES,
    *graphs.RULES,
    *learning.RULES,
    *schedules.RULES,
    *restarting.RULES,
    *cost.RULES,
    *lost.RULES,
)
