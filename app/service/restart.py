"""From a run and what shall be different to its child: the plan of a restart, and the restart."""

from typing import Any

from app.errors import Conflict, InvalidRequest, NotFound, SpecRejected, Unavailable
from app.guard.inheritance import inherited
from app.guard.patching import apply_json_patch, apply_merge_patch
from app.guard.plan import RunPlan
from app.planning.carry import (
    INIT_FROM,
    CarryPlan,
    carry_between,
    differences_between,
    from_scratch,
)
from app.service.checkpoint_files import whole_files
from app.service.facts import Parent
from app.service.services import Services
from app.service.submit import Made, idempotency_of, made_before, new_run_of, plan_request
from app.spec.imported import is_imported
from app.spec.issue import Issue
from app.spec.layers import leaves
from app.spec.reading import checked
from app.spec.script import is_script
from app.store.records import NewRun, Restart, StoredDocuments
from stoker.models.runs import RestartBody

Document = dict[str, Any]

# Checkpoints that an answer lists, the newest.
MOST_NAMED = 10


def restart(
    services: Services,
    parent_id: int,
    body: RestartBody,
    key: str | None,
    if_version: int | None,
    created_by: str | None,
) -> Made:
    """Guard the patched request and store the child, with the parent's stop; (run, is new)."""
    scope = f"runs/{parent_id}/restart"
    with services.in_flight.only_one(scope, key):
        idempotency = idempotency_of(key, scope, body.model_dump(mode="json", by_alias=True))
        made = made_before(services, idempotency)
        if made is not None:
            return made, False
        plan, parent = _plan(services, parent_id, body)
        order, new = _order(parent, plan, body, created_by)
        return services.store.runs.restart(
            order, new, idempotency=idempotency, if_version=if_version
        )


def plan_restart(
    services: Services, parent_id: int, body: RestartBody, if_version: int | None
) -> tuple[RunPlan, Document | None]:
    """What a restart would become, and what it would carry; nothing is stored, nobody stopped.

    Raises what `restart` would, but for what the guard finds: that is in the plan, without a carry
    where it would be refused.
    """
    plan, parent = _plan(services, parent_id, body)
    if plan.errors:
        return plan, None
    order, new = _order(parent, plan, body)
    return plan, services.store.runs.try_restart(order, new, if_version).carry


def _plan(services: Services, parent_id: int, body: RestartBody) -> tuple[RunPlan, Parent]:
    """The plan of the patched request as the world is now, and what is known of the parent."""
    documents = services.store.runs.documents(parent_id)
    if is_imported(documents.spec):
        raise InvalidRequest(
            f"Run {parent_id} holds imported weights, and was never trained: there is nothing to "
            "restart. A new run begins with them by `init_from: {run: "
            f"{parent_id}}}`.",
            code="nothing_to_restart",
        )
    _require_whole(services, parent_id, body.from_)
    name = services.store.runs.get(parent_id).name  # it may have been edited since
    request = _patched(_under_its_name(name, documents), body)
    taken = None
    if not is_script(documents.spec):
        catalog, named = services.catalog.get(), _named_pointers(body)
        taken = inherited(request, documents.spec, documents.provenance, catalog, named)
    parent = Parent(
        parent_id,
        {**documents.spec, "name": name},
        documents.provenance,
        body.from_,
        taken,
        services.store.datasets.others_since(parent_id),
        documents.shape,
        documents.request,
        documents.code,
    )
    return plan_request(services, request, parent), parent


def _under_its_name(name: str, documents: StoredDocuments) -> Document:
    """The request of the run, with the name that it has by now where that was edited since."""
    if name == documents.spec.get("name"):
        return documents.request
    return {**documents.request, "name": name}


def _require_whole(services: Services, parent_id: int, from_: str | int) -> None:
    """InvalidRequest where the checkpoint that was named is damaged or gone, with what is left."""
    if isinstance(from_, str):
        return
    try:
        whole_files(services, services.store.checkpoints.get(from_))
    except Unavailable:
        return  # the child waits for its artifacts, too
    except Conflict:
        why = f"is damaged: {services.store.checkpoints.get(from_).damage}"
    except NotFound:
        why = "is not there, or not any more"
    else:
        return
    saved = [one for one in services.store.checkpoints.list(parent_id) if one.state == "saved"]
    left = [f"step {one.step} (checkpoint {one.id})" for one in saved if one.id != from_]
    told = (
        f"To go on from: {', '.join(left[:MOST_NAMED])}."
        if left
        else f"Run {parent_id} has no other; `stoker restart {parent_id} --from scratch` begins "
        "anew."
    )
    raise InvalidRequest(f"Checkpoint {from_} {why}. {told}", code="no_such_checkpoint")


def _order(
    parent: Parent, plan: RunPlan, body: RestartBody, created_by: str | None = None
) -> tuple[Restart, NewRun]:
    new = new_run_of(plan, created_by)
    carry = _carry(parent, new, body).as_json()
    return Restart(parent_id=parent.run_id, from_=body.from_, carry=carry, force=body.force), new


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


def _named_pointers(body: RestartBody) -> list[str]:
    """Returns the JSON Pointers that the patch names, also those that it takes to the default."""
    if body.patch_ops is not None:
        return [operation.path for operation in body.patch_ops]
    return [pointer for pointer, value in leaves(body.patch or {}) if value != {}]


def _carry(parent: Parent, child: NewRun, body: RestartBody) -> CarryPlan:
    """What the child is expected to take over; SpecRejected when the parent's weights cannot fit.

    Which checkpoint that is, is settled when the child is claimed; the trainer compares it with the
    model, whatever is expected here.
    """
    if is_script(parent.spec) and is_script(child.spec) and body.from_ != "scratch":
        why = "The script goes on from what it has saved itself."
        return CarryPlan("full", (), (), why, differences_between(parent.spec, child.spec))
    shapes = parent.shape, child.shape
    carry = carry_between(parent.spec, child.spec, parent.other_data, shapes)
    if body.from_ == "scratch":
        return from_scratch((), "A start from scratch was asked for.", carry.differences)
    if carry.kind != "scratch":
        return carry
    begins = carry.decided[0].startswith(INIT_FROM)
    fit = "" if begins else " The parent's weights do not fit."
    issue = Issue(
        code="init_from_changed" if begins else "shape_changed",
        severity="error",
        loc=list(carry.decided[0].strip("/").split("/")),
        message=f'This needs scratch. {carry.why}{fit} Restart with "from": "scratch", or leave it '
        "as it was.",
        why="A restart goes on with its parent's weights, and begins with no others."
        if begins
        else "A checkpoint holds tensors of the parent's shapes.",
    )
    raise SpecRejected(issue.message, [issue.model_dump(mode="json")])
