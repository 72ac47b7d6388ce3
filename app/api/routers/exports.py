"""Exports: have one made, list, get, download, delete."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.deps import CheckpointId, Cursor, Limit, RunId, ServicesDep, Wait
from app.api.files import DOWNLOADS, FileName, download_response
from app.api.openapi import BODY, problems
from app.api.routers.jobs import when_ended
from app.api.serializers import export_document
from app.api.strict import StrictRoute
from app.errors import Conflict, InvalidRequest, NotFound
from app.service.checkpoint_files import export_files
from app.service.exporting import order_export
from stoker.models.base import LARGEST_ID, Page
from stoker.models.weights import Export, ExportBody, Job

router = APIRouter(tags=["exports"], route_class=StrictRoute)

ExportId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Id of the export.", examples=[1])]


@router.post(
    "/checkpoints/{checkpoint_id:int}/export",
    operation_id="export_checkpoint",
    summary="Have a checkpoint exported for use elsewhere",
    status_code=202,
    responses={
        200: {"model": Job, "description": "With `wait`: done, or failed, by now"},
        **problems(InvalidRequest, NotFound, Conflict, *BODY),
    },
)
async def export_checkpoint(
    request: Request,
    services: ServicesDep,
    response: Response,
    checkpoint_id: CheckpointId,
    body: ExportBody,
    wait: Wait = None,
) -> Job:
    """A worker that has the artifacts makes it; the job says which export it became, or why there
    is none. What is asked for twice is made once. If the client disconnects while waiting, the job
    stays ordered.
    """
    job = await run_in_threadpool(order_export, services, checkpoint_id, body.format)
    answer = await when_ended(request, services, job.id, wait)
    response.status_code = 200 if answer.finished_at is not None else 202
    response.headers["Location"] = f"/jobs/{job.id}"
    return answer


@router.get(
    "/runs/{run_id:int}/exports",
    operation_id="list_exports",
    summary="Exports of a run, newest first",
    responses=problems(NotFound, InvalidRequest),
)
def list_exports(
    services: ServicesDep, run_id: RunId, limit: Limit = 50, after: Cursor = None
) -> Page[Export]:
    services.store.runs.get(run_id)
    page = services.store.exports.list(run_id, limit, after)
    return Page(data=[export_document(r) for r in page.data], next_cursor=page.next_cursor)


@router.get(
    "/exports/{export_id:int}",
    operation_id="get_export",
    summary="Get an export",
    responses=problems(NotFound),
)
def get_export(services: ServicesDep, export_id: ExportId) -> Export:
    return export_document(services.store.exports.get(export_id))


@router.get(
    "/exports/{export_id:int}/download",
    operation_id="download_export",
    summary="Download an export",
    response_class=Response,
    responses=DOWNLOADS,
)
def download_export(services: ServicesDep, export_id: ExportId, file: FileName = None) -> Response:
    """A zip of the folder (stored, not compressed), or with `file` one file of it."""
    record = services.store.exports.get(export_id)
    return download_response(export_files(services, record), file)


@router.delete(
    "/exports/{export_id:int}",
    operation_id="delete_export",
    summary="Have an export removed",
    status_code=202,
    responses=problems(NotFound, Conflict),
)
def delete_export(services: ServicesDep, export_id: ExportId) -> Export:
    """A worker removes the files; the checkpoint stays."""
    return export_document(services.store.exports.request_delete(export_id))
