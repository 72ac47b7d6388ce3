"""From a posted request to a plan and a row."""

import json
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from app.errors import DatasetNotReady, InvalidRequest
from app.guard.facts import Facts
from app.guard.plan import Plan, make_plan
from app.guard.resolve import Resolved
from app.service.facts import Moment, Parent, facts_for
from app.service.services import Made, Services
from app.spec.issue import Issue
from app.store.records import Idempotency, NewRun, RunRecord

Document = dict[str, Any]
READINESS = {"correctness.dataset_not_ready", "correctness.dataset_invalid"}


def require_object(document: Any) -> Document:
    """The body as a run request; InvalidRequest when it is something else."""
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"A run is a JSON object with at least recipe and data, not {_kind(document)}."
        )
    return document


def plan_request(
    services: Services,
    request: Document,
    parent: Parent | None = None,
    moment: Moment | None = None,
) -> Plan:
    """The plan of a request as the world is now; `parent`: of a restart; `moment`: see there."""
    return plan_under(services, request, *facts_for(services, request, parent, moment))


def plan_under(services: Services, request: Document, facts: Facts, resolved: Resolved) -> Plan:
    """The plan of a request under facts that are known already."""
    return make_plan(
        request, facts, services.catalog.get(), services.settings.guard, resolved=resolved
    )


async def when_ready(
    services: Services, wait_seconds: float, submit: Callable[[], Awaitable[Made]]
) -> Made:
    """What `submit` gives, tried again for so long while a dataset is still being inspected."""
    deadline = time.monotonic() + wait_seconds
    with services.tailer.watch() as commits:
        while True:
            try:
                return await submit()
            except DatasetNotReady as error:
                codes = {issue["code"] for issue in error.extensions["issues"]}
                if codes != {"correctness.dataset_not_ready"} or services.tailer.draining:
                    raise
                if not await commits.moved(deadline - time.monotonic()):
                    raise


def made_before(services: Services, idempotency: Idempotency | None) -> RunRecord | None:
    """What an earlier request with this key made."""
    # Asked before the guard: the world may have changed since, and the run is there all the same.
    return services.store.runs.made_by(idempotency) if idempotency is not None else None


def idempotency_of(key: str | None, scope: str, document: Any) -> Idempotency | None:
    """The key with the hash of what it was sent with; None without a key."""
    if key is None:
        return None
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return Idempotency(key=key, body_hash=sha256(canonical.encode()).hexdigest(), scope=scope)


def new_run_of(plan: Plan) -> NewRun:
    """The run as it is stored; DatasetNotReady, SpecRejected."""
    require_ready(plan.errors)
    spec = plan.require_ok()
    return NewRun(
        request=plan.request,
        spec=spec,
        provenance=plan.provenance,
        issues=[issue.model_dump(mode="json") for issue in plan.issues],
        memory=plan.memory,
        name=spec["name"],
        notes=spec["notes"],
        labels=spec["labels"],
        priority=spec["priority"],
        recipe=spec["recipe"]["kind"],
        mode=spec["mode"],
        dataset=spec["data"]["dataset"],
        device=plan.device,
        requirements=plan.requirements,
        shape=plan.shape,
        gpus=spec["runtime"]["gpus"],
        max_retries=spec["policy"]["max_retries"],
    )


def require_ready(errors: list[Issue]) -> None:
    """DatasetNotReady when nothing is wrong but that: then to wait, or to mend data, helps."""
    if errors and all(issue.code in READINESS for issue in errors):
        detail = " ".join(f"{issue.message} {issue.why}" for issue in errors)
        raise DatasetNotReady(detail, issues=[issue.model_dump(mode="json") for issue in errors])


def _kind(document: Any) -> str:
    names = {list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(document), "a number")
