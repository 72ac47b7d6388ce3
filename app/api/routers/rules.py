"""What the guard looks for, and what it need not look for."""

from typing import Any

from fastapi import APIRouter

from app.api.strict import StrictRoute
from app.guard.documentation import EARLY, IMPOSSIBLE, TO_COME, describe_rules
from stoker.models.rules import ByConstruction, EarlyCode, Rule, RulePage, RulesToCome

router = APIRouter(tags=["catalogue"], route_class=StrictRoute)

EXAMPLE: dict[str, Any] = {
    "data": [
        next(rule for rule in describe_rules() if rule["code"] == "learning.monitor_upside_down")
    ],
    "next_cursor": None,
    "before_rules": [
        {"code": EARLY[0].code, "severity": EARLY[0].severity, "summary": EARLY[0].summary}
    ],
    "by_construction": [
        {"what": IMPOSSIBLE[2].what, "how": IMPOSSIBLE[2].how, "shown_by": IMPOSSIBLE[2].shown_by}
    ],
    "to_come": [{"option": TO_COME[0].option, "rules": list(TO_COME[0].rules)}],
}


@router.get(
    "/rules",
    operation_id="list_rules",
    summary="Rules of the guard, and what is kept without one",
    responses={200: {"content": {"application/json": {"example": EXAMPLE}}}},
)
def list_rules() -> RulePage:
    """Each rule with an example that it refuses, and its fix.

    Beside them: codes that are found in a request before any rule, what no spec can say by
    construction, and rules that wait for an option which is not there yet.
    """
    return RulePage(
        data=[Rule.model_validate(rule) for rule in describe_rules()],
        before_rules=[EarlyCode.model_validate(entry) for entry in EARLY],
        by_construction=[ByConstruction.model_validate(entry) for entry in IMPOSSIBLE],
        to_come=[RulesToCome.model_validate(entry) for entry in TO_COME],
    )
