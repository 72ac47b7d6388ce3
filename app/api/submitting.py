"""From a posted request to a plan and a row: new runs and restarts take the same way."""

import json
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from starlette.concurrency import run_in_threadpool

from app.api.bounds import checked
from app.api.knowledge import Parent, facts_for
from app.api.models.runs import RestartBody
from app.api.services import Services
from app.errors import DatasetNotReady, InvalidRequest, SpecRejected
from app.guard.carry import STARTS_ANEW, Carry, carry_between
from app.guard.facts import Facts
from app.guard.inheritance import inherited
from app.guard.patching import apply_json_patch, apply_merge_patch
from app.guard.plan import Plan, make_plan
from app.guard.resolve import Resolved
from app.spec.issue import Issue
from app.store.records import Idempotency, NewRun, Restart, RunRecord

Document = dict[str, Any]
READINESS = {"correctness.dataset_not_ready", "correctness.dataset_invalid"}


def require_object(document: Any) -> Document:
    """The body as a run request; InvalidRequest when it is something else."""
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"A run is a JSON object with at least recipe and data, not {_kind(document)}."
        )
    return document


def plan_request(services: Services, request: Document, parent: Parent | None = None) -> Plan:
    """The plan of a request as the world is now; `parent`: of a restart."""
    return plan_under(services, request, *facts_for(services, request, parent))


def plan_under(services: Services, request: Document, facts: Facts, resolved: Resolved) -> Plan:
    """The plan of a request under facts that are known already."""
    return make_plan(
        request, facts, services.catalog.get(), services.settings.guard, resolved=resolved
    )


def create(
    services: Services, request: Document, idempotency: Idempotency | None
) -> tuple[RunRecord, bool]:
    """Guard the request and store the run; (run, whether it is new)."""
    made = _made_before(services, idempotency)
    if made is not None:
        return made, False
    new = _new_run(plan_request(services, request))
    return services.store.runs.create(new, idempotency=idempotency)


def restart(
    services: Services,
    parent_id: int,
    body: RestartBody,
    idempotency: Idempotency | None,
    if_version: int | None,
) -> tuple[RunRecord, bool]:
    """Guard the patched request and store the child, with the parent's stop; (run, is new)."""
    made = _made_before(services, idempotency)
    if made is not None:
        return made, False
    documents = services.store.runs.documents(parent_id)
    request = _patched(documents.request, body)
    taken = None
    if not _names_preset(body):
        taken = inherited(request, documents.spec, documents.provenance, services.catalog.get())
    parent = Parent(parent_id, documents.spec, body.from_, taken)
    new = _new_run(plan_request(services, request, parent))
    carry = _carry(documents.spec, new.spec, body)
    order = Restart(parent_id=parent_id, from_=body.from_, carry=carry.as_json(), force=body.force)
    return services.store.runs.restart(order, new, idempotency=idempotency, if_version=if_version)


async def when_ready(
    services: Services, wait_seconds: float | None, submit: Callable[[], tuple[RunRecord, bool]]
) -> tuple[RunRecord, bool]:
    """What `submit` gives, tried again for so long while a dataset is still being inspected."""
    deadline = time.monotonic() + (wait_seconds or 0.0)
    with services.tailer.watch() as commits:
        while True:
            try:
                return await run_in_threadpool(submit)
            except DatasetNotReady as error:
                codes = {issue["code"] for issue in error.extensions["issues"]}
                if codes != {"correctness.dataset_not_ready"} or services.tailer.draining:
                    raise
                if not await commits.moved(deadline - time.monotonic()):
                    raise


def _made_before(services: Services, idempotency: Idempotency | None) -> RunRecord | None:
    # Asked before the guard: the world may have changed since, and the run is there all the same.
    return services.store.runs.made_by(idempotency) if idempotency is not None else None


def idempotency_of(key: str | None, scope: str, document: Any) -> Idempotency | None:
    """The key with the hash of what it was sent with; None without a key."""
    if key is None:
        return None
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return Idempotency(key=key, body_hash=sha256(canonical.encode()).hexdigest(), scope=scope)


def _new_run(plan: Plan) -> NewRun:
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
        device=spec["runtime"]["device"],
        gpus=spec["runtime"]["gpus"],
        max_retries=spec["policy"]["max_retries"],
    )


def require_ready(errors: list[Issue]) -> None:
    """DatasetNotReady when nothing is wrong but that: then to wait, or to mend data, helps."""
    if errors and all(issue.code in READINESS for issue in errors):
        detail = " ".join(f"{issue.message} {issue.why}" for issue in errors)
        raise DatasetNotReady(detail, issues=[issue.model_dump(mode="json") for issue in errors])


def _patched(request: Document, body: RestartBody) -> Document:
    if body.patch_ops is not None:
        operations = [op.model_dump(by_alias=True, exclude_unset=True) for op in body.patch_ops]
        patched = apply_json_patch(request, operations)
    else:
        patched = apply_merge_patch(request, body.patch or {})
    try:
        return checked(patched)
    except ValueError as error:
        raise InvalidRequest(f"The patched request cannot be taken: {error}.") from None


def _names_preset(body: RestartBody) -> bool:
    """Whether the patch has a word on the preset, be it the parent's own."""
    paths = [operation.path for operation in body.patch_ops or ()]
    return "preset" in (body.patch or {}) or "/preset" in paths or "" in paths


def _carry(parent: Document, child: Document, body: RestartBody) -> Carry:
    """What the child takes over; SpecRejected when the parent's weights cannot fit it."""
    carry = carry_between(parent, child)
    if body.from_ == "scratch":
        return Carry("scratch", ("weights", *STARTS_ANEW), carry.changed)
    if carry.kind != "scratch":
        return carry
    changed = ", ".join(pointer.strip("/").replace("/", ".") for pointer in carry.changed)
    issue = Issue(
        code="shape_changed",
        severity="error",
        loc=list(carry.changed[0].strip("/").split("/")),
        message=f"The change of {changed} gives the model another shape, so the parent's weights "
        'do not fit. Restart with "from": "scratch", or leave it as it was.',
        why="A checkpoint holds tensors of the parent's shapes.",
    )
    raise SpecRejected(issue.message, [issue.model_dump(mode="json")])


def _kind(document: Any) -> str:
    names = {list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(document), "a number")
