"""`stoker plan --fix`: the fixes of the guard applied round by round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jsonpointer import JsonPointer

from app.errors import InvalidRequest
from app.guard.patching import apply_json_patch

Document = dict[str, Any]
Planner = Callable[[Document], Document]

MOST_ROUNDS = 8
# Their fixes write down what a preset brings, for which there is no reason once it is another one.
PINS = ("learning.preset_batch_size", "learning.preset_setting")


@dataclass
class Mended:
    """A request with all fixes that there were, and the plan of what it became."""

    request: Document
    plan: Document
    rounds: int = 0
    issues: list[Document] = field(default_factory=list)
    """Those whose fixes were applied, in turn."""

    @property
    def is_accepted(self) -> bool:
        """Whether it would be accepted as it is now."""
        return not any(issue["severity"] == "error" for issue in self.plan["issues"])


def mend(request: Document, planned: Planner, *, warnings: bool = False) -> Mended:
    """Apply the fixes of every error, and those of what comes then; risks accepted are left.

    So is what is only warned of, for it may be what was meant; `warnings`: mended too, after the
    errors, since what their fixes make of the request may need another number.
    """
    mended = Mended(request, planned(request))
    _apply_rounds(mended, planned, {"error"})
    if warnings:
        _apply_rounds(mended, planned, {"error", "warning"})
    return mended


def _apply_rounds(mended: Mended, planned: Planner, severities: set[str]) -> None:
    for _ in range(MOST_ROUNDS):
        found = [issue for issue in mended.plan["issues"] if issue["severity"] in severities]
        changed, applied = _apply_fixes(mended.request, found)
        if changed == mended.request:
            break
        mended.request, mended.plan = changed, planned(changed)
        mended.rounds += 1
        mended.issues += applied


def _apply_fixes(request: Document, issues: list[Document]) -> tuple[Document, list[Document]]:
    """The request with the fixes that do not touch the same place; others wait for a next round."""
    touched: list[str] = []
    applied = []
    for issue in sorted(issues, key=lambda issue: issue["code"] in PINS):
        paths = [op["path"] for op in issue["fix"]]
        if not paths or issue["accepted"] or any(_meets(path, touched) for path in paths):
            continue
        if issue["code"] in PINS and "/preset" in touched:
            continue
        try:
            patched = apply_json_patch(request, issue["fix"])
        except InvalidRequest:
            continue  # another fix of this round took away what it changes
        _keep_places(patched, request, issue["fix"])
        request = patched
        touched += paths
        applied.append(issue)
    return request, applied


def _keep_places(patched: Document, request: Document, fix: list[Document]) -> None:
    """Have a key that got another name stand where it stood; a patch adds it behind the others."""
    if [op["op"] for op in fix] != ["remove", "add"]:
        return
    removed, added = (JsonPointer(op["path"]) for op in fix)
    (old, name), (new, renamed) = removed.to_last(request), added.to_last(patched)
    if removed.parts[:-1] != added.parts[:-1] or not isinstance(old, dict) or renamed in old:
        return
    values = dict(new)
    new.clear()
    new |= {key: values[key] for key in (renamed if key == name else key for key in old)}


def _meets(path: str, touched: list[str]) -> bool:
    """Whether a place lies in one that was touched, or holds it."""
    return any(
        f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
        for other in touched
    )
