"""From a posted request to a plan and a row."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from app.errors import DatasetNotReady, InvalidRequest
from app.guard.facts import Facts
from app.guard.plan import RunPlan, make_plan
from app.guard.resolve import Resolved
from app.service.facts import Parent, facts_for
from app.service.scripts import OVER_HTTP, Admission, among, new_script_run, plan_script
from app.service.services import Services
from app.service.tailer import Watch
from app.service.waiting import until
from app.spec.issue import Issue
from app.spec.script import is_script
from app.store.records import Idempotency, NewRun, RunRecord

Document = dict[str, Any]
READINESS = {f"correctness.dataset_{how}" for how in ("not_ready", "invalid", "changed")}


def require_object(document: Any) -> Document:
    """The body as a run request; InvalidRequest when it is something else."""
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"A run is a JSON object with at least recipe and data, not {_kind(document)}."
        )
    return document


def plan_request(services: Services, request: Document, parent: Parent | None = None) -> RunPlan:
    """The plan of a request as the world is now; `parent`: of a restart."""
    if is_script(request):
        admission = OVER_HTTP if parent is None else Admission(None, parent.request, parent.code)
        admission = among(admission, services.store.workers.list(alive_only=True))
        return plan_script(request, services.settings, services.store.profiles, admission)
    return plan_under(services, request, *facts_for(services, request, parent))


def plan_under(services: Services, request: Document, facts: Facts, resolved: Resolved) -> RunPlan:
    """The plan of a request under facts that are known already."""
    return make_plan(
        request, facts, services.catalog.get(), services.settings.guard, resolved=resolved
    )


Made = tuple[RunRecord, bool]
"""A run, and whether it is new."""


def submit(services: Services, request: Document, key: str | None, created_by: str | None) -> Made:
    """Guard the request and queue the run; with an idempotency key, at most once."""
    with services.in_flight.only_one("runs", key):
        idempotency = idempotency_of(key, "runs", request)
        made = made_before(services, idempotency)
        if made is not None:
            return made, False
        new = new_run_of(plan_request(services, request), created_by)
        return services.store.runs.create(new, idempotency=idempotency)


async def when_ready(
    services: Services, watch: Watch, wait_seconds: float, order: Callable[[], Made]
) -> Made:
    """What `order` makes, tried again for so long while a dataset is still being inspected.

    It plans, which takes a while: only where something has become of a dataset since.
    """
    refused: DatasetNotReady | None = None
    mark: tuple[Any, ...] | None = None

    def attempt() -> Made | DatasetNotReady:
        nonlocal refused, mark
        before, mark = mark, services.store.datasets.mark()
        if refused is not None and mark == before:
            return refused
        try:
            return order()
        except DatasetNotReady as error:
            refused = error
            return error

    made = await until(watch, attempt, _is_settled, wait_seconds)
    if isinstance(made, DatasetNotReady):
        raise made
    return made


def _is_settled(made: Made | DatasetNotReady) -> bool:
    """Whether to wait would change nothing."""
    if not isinstance(made, DatasetNotReady):
        return True
    codes = {issue["code"] for issue in made.extensions["issues"]}
    return codes != {"correctness.dataset_not_ready"}


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


def new_run_of(plan: RunPlan, created_by: str | None = None) -> NewRun:
    """The run as it is stored; DatasetNotReady, SpecRejected. `created_by`: the token's name."""
    if is_script(plan.request):
        return new_script_run(plan, created_by)
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
        recipe_version=spec["recipe"]["version"],
        mode=spec["mode"],
        dataset=spec["data"]["dataset"],
        device=plan.device,
        requirements=plan.requirements,
        shape=plan.shape,
        gpus=spec["runtime"]["gpus"],
        max_retries=spec["policy"]["max_retries"],
        created_by=created_by,
    )


def require_ready(errors: list[Issue]) -> None:
    """DatasetNotReady when nothing is wrong but that: then to wait, or to mend data, helps."""
    if errors and all(issue.code in READINESS for issue in errors):
        detail = " ".join(f"{issue.message} {issue.why}" for issue in errors)
        raise DatasetNotReady(detail, issues=[issue.model_dump(mode="json") for issue in errors])


def _kind(document: Any) -> str:
    names = {list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(document), "a number")
