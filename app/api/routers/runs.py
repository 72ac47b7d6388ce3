"""Runs: create, plan, list, get, change, delete."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.auth import Caller
from app.api.bodies import read_document
from app.api.deps import (
    Cursor,
    IdempotencyKey,
    IfMatch,
    Limit,
    Moment,
    QueryText,
    RunId,
    ServicesDep,
    Wait,
)
from app.api.openapi import BODY, RUN_BODY, problems
from app.api.serializers import run_document
from app.api.strict import StrictRoute
from app.api.waiting import ordered, watching
from app.errors import (
    ActionNotAllowed,
    Conflict,
    DatasetNotReady,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    SpecRejected,
)
from app.guard import plan as guard
from app.lifecycle import RunState
from app.service.probe import plan_with_probe
from app.service.script_profile import took_before
from app.service.services import Services
from app.service.submit import plan_request, require_object, submit
from app.spec.script import SCRIPT
from app.spec.stored import read_stored_script
from app.store.records import RunFilter, RunRecord
from app.store.runs.runs import DIFF_CHARACTERS
from stoker.models.base import LARGEST_ID, Page
from stoker.models.runs import (
    Carry,
    Code,
    CommandProfile,
    Plan,
    RanCode,
    Run,
    RunChanges,
    StateName,
    Status,
    Unchecked,
)

router = APIRouter(tags=["runs"], route_class=StrictRoute)


@router.post(
    "/runs",
    operation_id="create_run",
    summary="Create a run, or plan one",
    status_code=201,
    response_model=Run | Plan,
    openapi_extra={"requestBody": RUN_BODY},
    responses={
        200: {"model": Run | Plan, "description": "The plan; or the run of an earlier request"},
        **problems(SpecRejected, InvalidRequest, DatasetNotReady, Conflict, *BODY),
    },
)  # fmt: skip
async def create_run(
    request: Request,
    services: ServicesDep,
    response: Response,
    document: Annotated[Any, Depends(read_document)],
    dry_run: Annotated[bool, Query(description="Only say what it would become.")] = False,
    probe: Annotated[
        bool, Query(description="With dry_run: have a worker measure one real step for it.")
    ] = False,
    wait: Wait = None,
    key: IdempotencyKey = None,
    token: Caller = None,
) -> Run | Plan:
    """Resolve the spec, put it before the guard, and queue it.

    The body is a run spec as JSON or YAML 1.2. With `dry_run` the answer is the plan with issues
    of any severity, and nothing is stored; a body that is no spec, such as one with a field that
    there is not, gets 422 and its issues as without it. With `wait`, a dataset that is still being
    inspected is waited for; if the client disconnects before it is ready, no run is made. With
    `dry_run` and `probe` the worker whose device the run would get makes one real step, and the
    memory plan stands on what that took; `wait` bounds it, 270 seconds by default, and a client
    that disconnects withdraws it.
    """
    order = require_object(document)
    if probe and not dry_run:
        raise InvalidRequest("A probe measures for a plan: add dry_run=true, or leave out probe.")
    if dry_run:
        response.status_code = 200
        if probe:
            async with watching(request, services.tailer) as watch:
                measured = await plan_with_probe(services, watch, order, wait)
            return await run_in_threadpool(planned, services, measured)
        require_no_wait(wait)
        return await run_in_threadpool(lambda: planned(services, plan_request(services, order)))
    name = token.name if token else None
    run, is_new = await ordered(request, services, wait, lambda: submit(services, order, key, name))
    response.status_code = 201 if is_new else 200
    return shown(run, response)


def require_no_wait(wait: float | None) -> None:
    """InvalidRequest for a wait that a dry run would ignore."""
    if wait is not None:
        raise InvalidRequest("A dry run waits for nothing: leave out wait, or dry_run.")


def planned(services: Services, plan: guard.RunPlan, carry: dict[str, Any] | None = None) -> Plan:
    """The plan as the answer; `carry`: of a restart."""
    spec = plan.spec if plan.spec is not None else plan.require_ok()
    return Plan(
        accepted=not plan.errors,
        spec=spec,
        provenance=plan.provenance,
        issues=plan.issues,
        unchecked=[Unchecked(code=u.code, missing=u.missing) for u in plan.unchecked],
        memory=plan.memory,
        queue_position=services.store.runs.next_queue_position(spec["priority"]),
        estimate=plan.estimate,
        profile=None if plan.profile is None else CommandProfile(**plan.profile),
        computes_in=plan.computes_in,
        carry=None if carry is None else Carry(**carry),
    )


def shown(run: RunRecord, response: Response) -> Run:
    """The run as the answer, with its ETag."""
    response.headers["ETag"] = f'"{run.version}"'
    if response.status_code == 201:
        response.headers["Location"] = f"/runs/{run.id}"
    return run_document(run)


def about_script(services: Services, run: RunRecord) -> dict[str, Any]:
    """What the answer for one script has beside what lists have."""
    if run.recipe != SCRIPT:
        return {}
    spec, code = services.store.runs.script(run.id)
    took = took_before(services.store.profiles, read_stored_script(spec), code, run.id)
    return {
        "code": None if code is None else _code(services, run, code),
        "config": services.store.attempts.newest_config(run.id),
        "profile": None if took is None else CommandProfile(**took.as_json()),
    }


def _code(services: Services, run: RunRecord, submitted: dict[str, Any]) -> Code:
    """The submitted code, and the code that the newest attempt ran if that is different."""
    names = ("git_sha", "dirty", "diff", "diff_bytes", "argv", "untracked")
    changed = services.store.events.newest(run.id, "code_changed")
    ran = None
    if changed is not None and changed.attempt == run.attempt:
        diff = changed.data.get("diff")
        ran = RanCode(
            attempt=run.attempt,
            git_sha=changed.data.get("git_sha"),
            diff=None if diff is None else diff[:DIFF_CHARACTERS],
            message=str(changed.data.get("message")),
        )
    return Code(**{name: submitted[name] for name in names}, ran=ran)


@router.get(
    "/runs",
    operation_id="list_runs",
    summary="List runs, newest first",
)
def list_runs(
    services: ServicesDep,
    limit: Limit = 50,
    after: Cursor = None,
    state: Annotated[StateName | None, Query(description="Only in this state.")] = None,
    status: Annotated[
        list[Status] | None, Query(description="Only with one of these; may come several times.")
    ] = None,
    recipe: Annotated[QueryText | None, Query(description="Only of this recipe.")] = None,
    dataset: Annotated[QueryText | None, Query(description="Only on this dataset.")] = None,
    label: Annotated[QueryText | None, Query(description="`key=value`, or `key`.")] = None,
    q: Annotated[QueryText | None, Query(description="Part of the name or notes.")] = None,
    parent_id: Annotated[
        int | None, Query(ge=1, le=LARGEST_ID, description="Only restarts of this run.")
    ] = None,
    created_after: Annotated[Moment | None, Query(description="At this time or later.")] = None,
    created_before: Annotated[Moment | None, Query(description="Before this time.")] = None,
    created_by: Annotated[QueryText | None, Query(description="Name of the token.")] = None,
) -> Page[Run]:
    """A page looks at 10,000 runs at most, so that it takes as long in any history: it may hold
    fewer than asked for, also none, and still have a `next_cursor`. Only null says that it is the
    last.
    """
    chosen = RunFilter(
        state=RunState(state) if state else None,
        statuses=tuple(status or ()),
        recipe=recipe,
        dataset=dataset,
        label=label,
        q=q,
        parent_id=parent_id,
        created_after=_unix(created_after),
        created_before=_unix(created_before),
        created_by=created_by,
    )
    page = services.store.runs.list(chosen, limit, after)
    return Page(data=[run_document(run) for run in page.data], next_cursor=page.next_cursor)


def _unix(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


@router.get("/runs/{run_id:int}", operation_id="get_run", summary="Get a run",
            responses=problems(NotFound))  # fmt: skip
def get_run(services: ServicesDep, response: Response, run_id: RunId) -> Run:
    run = services.store.runs.get(run_id)
    return shown(run, response).model_copy(update=about_script(services, run))


@router.patch(
    "/runs/{run_id:int}",
    operation_id="change_run",
    summary="Change name, notes, labels or priority",
    responses=problems(InvalidRequest, NotFound, PreconditionFailed, *BODY),
)
def change_run(
    services: ServicesDep, response: Response, run_id: RunId, body: RunChanges, version: IfMatch
) -> Run:
    changes = body.model_dump(exclude_unset=True)
    return shown(services.store.runs.update(run_id, changes, version), response)


@router.delete(
    "/runs/{run_id:int}",
    operation_id="delete_run",
    summary="Delete a run that is over, with its artifacts",
    status_code=204,
    responses=problems(InvalidRequest, NotFound, Conflict, ActionNotAllowed, PreconditionFailed),
)
def delete_run(services: ServicesDep, run_id: RunId, version: IfMatch) -> None:
    """The row goes at once, the artifacts when a worker gets to it."""
    services.store.runs.delete(run_id, version)
