"""The guard as the API shows it: rules, and what is kept without one."""

from typing import Annotated, Any, Literal

from pydantic import Field

from stoker.models.base import Answer, Page
from stoker.models.issue import Issue

Severity = Literal["error", "warning"]


class RuleExample(Answer):
    """A request that the rule finds something in, and the same with its fix."""

    request: dict[str, Any]
    """The request."""
    device: str | None = None
    """The device that it was judged for; null: no worker had one."""
    issue: Issue
    """What the rule finds in it, with the fix."""
    fixed: dict[str, Any] | None = None
    """The request after the fix; null: no change of the request mends it."""


class Rule(Answer):
    """A rule of the guard."""

    code: Annotated[str, Field(examples=["learning.never_anneals"])]
    """Never changes."""
    topic: Literal["speed", "memory", "correctness", "learning"]
    """The group that `accept_risks` may name as `topic.*`."""
    severity: Severity
    """Errors refuse a run."""
    overridable: bool
    """Whether `accept_risks` may override it."""
    summary: str
    """What holds where it finds nothing."""
    stands_on: str
    """The report, the reference or the measurement that it stands on."""
    measured_by: str | None = None
    """The arm of `python -m benchmarks claims` that shows the slowdown."""
    example: RuleExample | None = None


class ByConstruction(Answer):
    """Something wrong that no spec can say, or that no run can do."""

    what: str
    how: str
    """What makes it impossible."""
    shown_by: str
    """The test that shows it."""


class EarlyCode(Answer):
    """A code that is found before the rules, in the request itself."""

    code: str
    severity: Severity
    summary: str
    """What holds where it is not found."""


class RulesToCome(Answer):
    """An option that is refused as not available yet, and the rules that come with it."""

    option: str
    """Its place in the spec, and the values."""
    rules: list[str]


class RulePage(Page[Rule]):
    """All rules, in the order in which findings are shown."""

    before_rules: list[EarlyCode]
    by_construction: list[ByConstruction]
    to_come: list[RulesToCome]
