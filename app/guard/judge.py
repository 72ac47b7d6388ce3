"""Puts a spec before every rule, and what was found under the site's and the user's wishes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.guard.case import Case
from app.guard.facts import Facts, UnknownFact
from app.guard.fixes import patch_for
from app.guard.registry import RULES
from app.guard.rule import Finding, GuardRule, Severity
from app.guard.rules import data
from app.spec.installed import ANY_RECIPE
from app.spec.issue import Issue
from app.spec.layers import Document
from app.spec.parse import parse_spec, value_at
from app.spec.run import RunSpec
from app.suggest import SURE, closest, did_you_mean

Strictness = Literal["enforce", "warn"]
Waiver = Literal["site", "parent"]
# What they ask of the data, its name alone tells.
OF_NAMES = (
    data.dataset_not_found,
    data.dataset_invalid,
    data.dataset_not_ready,
    data.dataset_changed,
)


@dataclass(frozen=True)
class UncheckedRules:
    """A rule that could not judge, and the fact that it lacks."""

    code: str
    missing: str


@dataclass(frozen=True)
class Judgement:
    issues: list[Issue]
    unchecked: list[UncheckedRules]

    @property
    def errors(self) -> list[Issue]:
        return [issue for issue in self.issues if issue.severity == "error"]


def judge(
    case: Case,
    request: Document,
    strictness: Strictness = "enforce",
    rules: Sequence[GuardRule] = RULES,
) -> Judgement:
    """What the rules find; run at submission and again at claim.

    Fixes are patches on `request`. Errors that `accept_risks` overrides become warnings; so do
    errors of speed with strictness `warn`, and those that a restart has from its parent.
    """
    issues: list[Issue] = []
    unchecked: list[UncheckedRules] = []
    for rule in rules:
        try:
            found = list(rule.find(case))
        except UnknownFact as unknown:
            unchecked.append(UncheckedRules(rule.code, str(unknown)))
            continue
        for finding in found:
            accepted = rule.overridable and accepts(case.spec.accept_risks, rule.code)
            waiver = None if accepted else _waiver(rule, finding, case, strictness)
            issues.append(_issue(rule, finding, request, accepted, waiver))
    return Judgement([*issues, *_risk_issues(case.spec, request, rules)], unchecked)


def judge_names(request: Document, facts: Facts) -> list[Issue]:
    """What is found of the datasets that a request names, of which the rest cannot be read."""
    split = value_at(request, ("data", "split"))
    by_datasets = {"split": split} if value_at(split, ["method"]) == "datasets" else {}
    named = {"dataset": value_at(request, ("data", "dataset")), **by_datasets}
    spec, _ = parse_spec({"recipe": {"kind": ANY_RECIPE}, "data": named})
    return [] if spec is None else judge(Case(spec, facts), request, rules=OF_NAMES).issues


def accepts(accept_risks: Sequence[str], code: str) -> bool:
    """Whether the codes and groups (`speed.*`) of `accept_risks` cover a rule."""
    return code in accept_risks or f"{code.split('.')[0]}.*" in accept_risks


def _waiver(rule: GuardRule, finding: Finding, case: Case, strictness: Strictness) -> Waiver | None:
    """Who lets a slowness pass."""
    if rule.topic != "speed" or _severity(rule, finding) != "error":
        return None
    if strictness == "warn":
        return "site"
    # Less was known when the parent was accepted; to go on with it must not hang on that.
    return "parent" if _parent_has(rule, finding, case) else None


def _severity(rule: GuardRule, finding: Finding) -> Severity:
    return finding.severity or rule.severity


def _parent_has(rule: GuardRule, finding: Finding, case: Case) -> bool:
    """The same value there, found as well, and no risk that was accepted for it."""
    parent = case.parent
    if parent is None or accepts(parent.spec.accept_risks, rule.code):
        return False
    value, parents_value = (value_at(one.document, finding.loc) for one in (case, parent))
    if value != parents_value:
        return False
    try:
        return finding.loc in [parents.loc for parents in rule(parent)]
    except UnknownFact:
        return False


def _issue(
    rule: GuardRule, finding: Finding, request: Document, accepted: bool, waiver: Waiver | None
) -> Issue:
    return Issue(
        code=rule.code,
        severity="warning" if accepted or waiver else _severity(rule, finding),
        loc=list(finding.loc),
        message=finding.message,
        why=finding.why,
        fix=patch_for(request, finding.fix),
        other_fix=patch_for(request, finding.other_fix),
        overridable=rule.overridable,
        accepted=accepted,
        waived_by=waiver,
    )


def _risk_issues(spec: RunSpec, request: Document, rules: Sequence[GuardRule]) -> Iterator[Issue]:
    """accept_risks names rules that there are, and that may be overridden."""
    if not spec.accept_risks:
        return
    codes = {rule.code: rule.overridable for rule in rules}
    groups = sorted({f"{rule.topic}.*" for rule in rules if rule.overridable})
    good = [*(code for code, may_be in codes.items() if may_be), *groups]
    named = [code for code in spec.accept_risks if code in good or code not in codes]
    meant = (code if code in good else closest_code(code, good) for code in named)
    mended = list(dict.fromkeys(code for code in meant if code is not None))
    for position, code in enumerate(spec.accept_risks):
        if code in good:
            continue
        firm = code in codes
        yield Issue(
            code="correctness.risk_not_overridable" if firm else "correctness.unknown_risk",
            severity="error",
            loc=["accept_risks", position],
            message=f"accept_risks names {code!r}, which "
            + ("cannot be overridden." if firm else _unknown(code, [*codes, *groups])),
            why="What the rule finds would make the run wrong, not only slow."
            if firm
            else "A risk that does not exist cannot be accepted. `stoker rules` lists the codes; "
            f"the groups are {', '.join(groups)}.",
            fix=patch_for(request, {"/accept_risks": mended}),
        )


def _unknown(code: str, known: Sequence[str]) -> str:
    return f"is no rule's code and no group of rules.{did_you_mean(closest_code(code, known))}"


def closest_code(code: str, known: Sequence[str]) -> str | None:
    """The code that somebody may have meant, also one without its topic or with another."""
    names = {one.split(".")[-1]: one for one in known if not one.endswith(".*")}
    meant = closest(code, known, SURE)
    if meant is None:
        name = closest(code.split(".")[-1], names, SURE)
        return None if name is None else names[name]
    return meant
