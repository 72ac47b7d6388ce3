"""All rules, in the order in which their findings are shown."""

from app.guard.rule import Rule
from app.guard.rules import data, devices, evaluation, parts

RULES: tuple[Rule, ...] = (*data.RULES, *parts.RULES, *evaluation.RULES, *devices.RULES)
