"""Checkpoints: list, get, download, pin, unpin, delete."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api.deps import CheckpointId, Cursor, Limit, RunId, ServicesDep
from app.api.files import DOWNLOADS, FileName, download_response
from app.api.openapi import problems
from app.api.serializers import checkpoint_document
from app.api.strict import StrictRoute
from app.errors import Conflict, InvalidRequest, NotFound
from app.service.checkpoint_files import whole_files
from app.store.engine.cursor import page_of
from stoker.models.base import Page
from stoker.models.records import Checkpoint
from stoker.models.runs import Which

router = APIRouter(tags=["checkpoints"], route_class=StrictRoute)


@router.get(
    "/runs/{run_id:int}/checkpoints",
    operation_id="list_checkpoints",
    summary="Checkpoints of a run, newest first",
    responses=problems(NotFound, InvalidRequest),
)
def list_checkpoints(
    services: ServicesDep, run_id: RunId, limit: Limit = 50, after: Cursor = None
) -> Page[Checkpoint]:
    services.store.runs.get(run_id)
    records = services.store.checkpoints.list(run_id)
    page, cursor = page_of(records, lambda record: (-record.step, -record.id), limit, after)
    return Page(data=[checkpoint_document(record) for record in page], next_cursor=cursor)


@router.get(
    "/runs/{run_id:int}/checkpoints/{which:which}/download",
    operation_id="download_run_checkpoint",
    summary="Download the latest or best checkpoint of a run",
    response_class=Response,
    responses=DOWNLOADS,
)
def download_of_run(
    services: ServicesDep,
    run_id: RunId,
    which: Annotated[Which, Path(description="By its step, or by its monitor.")],
    file: FileName = None,
) -> Response:
    services.store.runs.get(run_id)
    record = services.store.checkpoints.resolve(run_id, which)
    return download_response(whole_files(services, record), file)


@router.get(
    "/checkpoints/{checkpoint_id:int}",
    operation_id="get_checkpoint",
    summary="Get a checkpoint",
    responses=problems(NotFound),
)
def get_checkpoint(services: ServicesDep, checkpoint_id: CheckpointId) -> Checkpoint:
    return checkpoint_document(services.store.checkpoints.get(checkpoint_id))


@router.get(
    "/checkpoints/{checkpoint_id:int}/download",
    operation_id="download_checkpoint",
    summary="Download a checkpoint",
    response_class=Response,
    responses=DOWNLOADS,
)
def download(services: ServicesDep, checkpoint_id: CheckpointId, file: FileName = None) -> Response:
    """A zip of the folder (stored, not compressed), or with `file` one file of it."""
    record = services.store.checkpoints.get(checkpoint_id)
    return download_response(whole_files(services, record), file)


@router.post(
    "/checkpoints/{checkpoint_id:int}/pin",
    operation_id="pin_checkpoint",
    summary="Keep a checkpoint from being removed by retention",
    responses=problems(NotFound, Conflict),
)
def pin(services: ServicesDep, checkpoint_id: CheckpointId) -> Checkpoint:
    return checkpoint_document(services.store.checkpoints.set_pinned(checkpoint_id, True))


@router.post(
    "/checkpoints/{checkpoint_id:int}/unpin",
    operation_id="unpin_checkpoint",
    summary="Let retention remove a checkpoint again",
    responses=problems(NotFound, Conflict),
)
def unpin(services: ServicesDep, checkpoint_id: CheckpointId) -> Checkpoint:
    return checkpoint_document(services.store.checkpoints.set_pinned(checkpoint_id, False))


@router.delete(
    "/checkpoints/{checkpoint_id:int}",
    operation_id="delete_checkpoint",
    summary="Have a checkpoint removed",
    status_code=202,
    responses=problems(NotFound, Conflict),
)
def delete(services: ServicesDep, checkpoint_id: CheckpointId) -> Checkpoint:
    """A worker removes the files; 409 while it is pinned or a run needs it."""
    return checkpoint_document(services.store.checkpoints.request_delete(checkpoint_id))
