"""What can be asked of a run: stop, kill, pause, resume, restart, one at a time or in bulk."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.auth import Caller
from app.api.deps import IdempotencyKey, IfMatch, RunId, ServicesDep, Wait
from app.api.openapi import BODY, problems
from app.api.problems import document_of
from app.api.routers.runs import planned, require_no_wait, shown
from app.api.serializers import run_document
from app.api.strict import StrictRoute
from app.api.waiting import ordered, watching
from app.errors import (
    ActionNotAllowed,
    Conflict,
    DatasetNotReady,
    InvalidRequest,
    NotAvailableYet,
    NotFound,
    PreconditionFailed,
    SpecRejected,
    StokerError,
)
from app.lifecycle import TERMINAL, Intent, RunState
from app.service.restart import plan_restart, restart
from app.service.services import Services
from app.service.waiting import until
from app.store.records import RunFilter, RunRecord
from stoker.models.runs import (
    BulkAnswer,
    BulkBody,
    BulkResult,
    BulkVerb,
    Plan,
    QueueMove,
    RestartBody,
    Run,
    Verb,
)

router = APIRouter(tags=["actions"], route_class=StrictRoute)

BULK_LIMIT = 1000
INTENTS = {"stop": Intent.stop, "kill": Intent.kill, "pause": Intent.pause}


@router.post(
    "/runs/bulk/{action:bulk_verb}",
    operation_id="bulk",
    summary="Act on many runs",
    responses=problems(InvalidRequest, NotFound, *BODY),
)
def bulk(
    services: ServicesDep, action: Annotated[BulkVerb, Path(description="What is asked of each.")],
    body: BulkBody,
) -> BulkAnswer:  # fmt: skip
    """Every run gets its own result; a refusal of one does not touch the others."""
    ids = body.ids if body.ids is not None else _chosen(services, body)
    handled = list(dict.fromkeys(ids))[:BULK_LIMIT]
    return BulkAnswer(
        results=[_one(services, run_id, action) for run_id in handled],
        has_more=len(ids) > BULK_LIMIT,
    )


def _chosen(services: Services, body: BulkBody) -> list[int]:
    """Ids of the newest that match, with one more than are handled if there is one."""
    given = body.filter.model_dump() if body.filter is not None else {}
    given["state"] = RunState(given["state"]) if given.get("state") else None
    status = given.pop("status", None)
    given["statuses"] = () if status is None else (status,)
    return list(services.store.runs.find_ids(RunFilter(**given), BULK_LIMIT + 1))


def _one(services: Services, run_id: int, action: str) -> BulkResult:
    try:
        if action == "delete":
            services.store.runs.delete(run_id, None)
            return BulkResult(id=run_id, status=204)
        run, changed = _act(services, run_id, action, None)
    except StokerError as error:
        return BulkResult(id=run_id, status=error.status, problem=document_of(error))
    return BulkResult(id=run_id, status=202 if changed else 200, run=run_document(run))


def _act(
    services: Services, run_id: int, verb: str, version: int | None, *, lose_progress: bool = False
) -> tuple[RunRecord, bool]:
    if lose_progress and verb != "pause":
        raise InvalidRequest(f"lose_progress is for a pause; leave it out of {verb}.")
    if verb == "resume":
        return services.store.runs.resume(run_id, version)
    return services.store.runs.set_intent(
        run_id, INTENTS[verb], version, lose_progress=lose_progress
    )


@router.post(
    "/runs/{run_id:int}/restart",
    operation_id="restart_run",
    summary="A new run that goes on from this one",
    status_code=201,
    response_model=Run | Plan,
    responses={
        200: {
            "model": Run | Plan,
            "description": "The plan; or the run of an earlier request with the same key",
        },
        **problems(
            NotFound, ActionNotAllowed, Conflict, DatasetNotReady, PreconditionFailed,
            InvalidRequest, SpecRejected, NotAvailableYet, *BODY,
        ),
    },
)  # fmt: skip
async def restart_run(
    request: Request,
    services: ServicesDep,
    response: Response,
    run_id: RunId,
    version: IfMatch,
    body: RestartBody | None = None,
    dry_run: Annotated[bool, Query(description="Only say what it would become.")] = False,
    wait: Wait = None,
    key: IdempotencyKey = None,
    token: Caller = None,
) -> Run | Plan:
    """Patch the parent's request, guard it, stop an active parent, and queue the child.

    The child starts from the parent's checkpoint. The whole training state is carried when only
    epochs, steps, policy, evaluation, checkpoint, logging, loader or runtime change; other changes
    carry the weights; a changed shape needs `"from": "scratch"`. `carry` says which it is. With
    `wait`, a dataset that is still being inspected is waited for; if the client disconnects before
    it is ready, no run is made. With `dry_run` the answer is the plan, with its `carry`; nothing is
    stored, and the parent trains on.
    """
    order = body or RestartBody()
    if order.patch_from is not None:
        raise NotAvailableYet(
            "A diagnosis is not made by this version, so there is no patch to take from it. "
            "Leave patch_from out and say in `patch` what shall be different."
        )
    if dry_run:
        require_no_wait(wait)
        response.status_code = 200
        return await run_in_threadpool(
            lambda: planned(services, *plan_restart(services, run_id, order, version))
        )
    name = token.name if token else None
    run, is_new = await ordered(
        request, services, wait, lambda: restart(services, run_id, order, key, version, name)
    )
    response.status_code = 201 if is_new else 200
    return shown(run, response)


@router.post(
    "/runs/{run_id:int}/move",
    operation_id="move_in_queue",
    summary="Move a run that waits to another place in the queue",
    responses=problems(InvalidRequest, NotFound, ActionNotAllowed, PreconditionFailed, *BODY),
)
def move_in_queue(
    services: ServicesDep, response: Response, run_id: RunId, version: IfMatch, body: QueueMove
) -> Run:
    """To an end of the queue, or before or after another run that waits. Where that one has another
    priority, the run takes it over.
    """
    to, after = body.to or body.before or body.after, body.after is not None
    moved = services.store.runs.move(run_id, to or "first", version, after=after)
    return shown(moved, response)


@router.post(
    "/runs/{run_id:int}/{action:verb}",
    operation_id="act",
    summary="Stop, kill, pause or resume a run",
    status_code=202,
    responses={
        200: {"model": Run, "description": "It was so already, or is done"},
        **problems(InvalidRequest, NotFound, ActionNotAllowed, PreconditionFailed),
    },
)
async def act(
    request: Request,
    services: ServicesDep,
    response: Response,
    run_id: RunId,
    action: Annotated[Verb, Path(description="What is asked of it.")],
    version: IfMatch,
    wait: Wait = None,
    lose_progress: Annotated[
        bool, Query(description="Pause also a script that has saved nothing to go on from.")
    ] = False,
) -> Run:
    """Stop saves a checkpoint and ends the run, kill ends it at once, pause saves and lets go.

    202: accepted. 200: it was so already, or, with `wait`, is done by now. If the client
    disconnects while waiting, what was asked for stands.
    """
    run, changed = await run_in_threadpool(
        lambda: _act(services, run_id, action, version, lose_progress=lose_progress)
    )
    if wait is not None:
        async with watching(request, services.tailer, run_id) as watch:
            run = await until(
                watch,
                lambda: services.store.runs.get(run_id),
                lambda now: _is_done(now, action),
                wait,
            )
        changed = not _is_done(run, action)
    response.status_code = 202 if changed else 200
    return shown(run, response)


def _is_done(run: RunRecord, verb: str) -> bool:
    if run.state in TERMINAL:
        return True
    if verb == "resume":
        return run.state is RunState.running
    return verb == "pause" and run.state is RunState.paused
