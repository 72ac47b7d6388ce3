"""What a rule is: one small pure function with a code that never changes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.guard.case import Case, Loc

Severity = Literal["error", "warning"]
# Less than this in a whole run is no loss, whatever share it is: short runs may look and save.
LEAST_LOSS_SECONDS = 60.0


@dataclass(frozen=True)
class Finding:
    """What a rule found in one place of a spec."""

    loc: Loc
    message: str
    """What is wrong, in one sentence."""
    why: str
    """Why it matters, with the number behind it."""
    fix: Mapping[str, Any] = field(default_factory=dict)
    """The values that mend it, by JSON Pointer into the spec; empty: no change of it would."""
    other_fix: Mapping[str, Any] = field(default_factory=dict)
    """Another way to mend it, by JSON Pointer into the spec, or `/from` of a restart."""
    severity: Severity | None = None
    """None: the rule's. A warning where a rule of errors has estimated and not measured."""


Find = Callable[[Case], Iterator[Finding]]


@dataclass(frozen=True)
class GuardRule:
    """One rule. An error says what cannot be, or a loss beyond the rule's bound that was measured
    or exactly computed, with its number; everything else is a warning with its number.

    Called with a case, it gives what it finds. It raises UnknownFact where it would need a fact
    that nobody has said.
    """

    code: str
    """Topic and name: speed, memory, correctness or learning, a dot, and what is found."""
    severity: Severity
    overridable: bool
    """Whether `accept_risks` may override it."""
    stands_on: str
    """The report, the reference or the measurement that it stands on."""
    find: Find
    measured_by: str | None = None
    """For a rule that claims a slowdown: the arm of the benchmark that shows it."""

    @property
    def summary(self) -> str:
        """What holds where the rule finds nothing, in one sentence."""
        return (self.find.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")

    @property
    def topic(self) -> str:
        return self.code.split(".")[0]

    def __call__(self, case: Case) -> Iterator[Finding]:
        return self.find(case)


def rule(
    code: str,
    *,
    stands_on: str,
    severity: Severity = "error",
    overridable: bool = True,
    measured_by: str | None = None,
) -> Callable[[Find], GuardRule]:
    """Make a rule of a function; its docstring's first sentence says what should hold."""

    def made(find: Find) -> GuardRule:
        return GuardRule(code, severity, overridable, stands_on, find, measured_by)

    return made
