"""Jobs: what a worker was asked to do, and how it ended; and imports, which are one."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.auth import Caller
from app.api.deps import ServicesDep, Wait
from app.api.openapi import BODY, problems
from app.api.serializers import job_document
from app.api.strict import StrictRoute
from app.api.waiting import watching
from app.errors import InvalidRequest, NotFound
from app.service.data_root import below_data_root
from app.service.services import Services
from app.service.waiting import until
from app.store.weights.imported_rows import WantedImport
from stoker.models.base import LARGEST_ID
from stoker.models.weights import ImportBody, Job

router = APIRouter(tags=["jobs"], route_class=StrictRoute)

JobId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Id of the job.", examples=[1])]


@router.get(
    "/jobs/{job_id:int}",
    operation_id="get_job",
    summary="Get a job of a worker",
    responses=problems(NotFound, InvalidRequest),
)
async def get_job(request: Request, services: ServicesDep, job_id: JobId, wait: Wait = None) -> Job:
    """With `wait`, its end is waited for."""
    return await when_ended(request, services, job_id, wait)


@router.post(
    "/checkpoints/import",
    operation_id="import_checkpoint",
    summary="Have weights from elsewhere read, for runs to begin with",
    status_code=202,
    responses={
        200: {"model": Job, "description": "With `wait`: done, or failed, by now"},
        **problems(InvalidRequest, *BODY),
    },
)
async def import_checkpoint(
    request: Request,
    services: ServicesDep,
    response: Response,
    body: ImportBody,
    wait: Wait = None,
    token: Caller = None,
) -> Job:
    """A worker reads the file, weights alone: nothing in it is executed. What it has read is the
    checkpoint of a run that was never trained; `init_from: {checkpoint: ID}` begins with it. If
    the client disconnects while waiting, the job stays ordered.
    """
    path = await run_in_threadpool(below_data_root, services.settings.data_root, body.path)
    wanted = WantedImport(
        **body.model_dump(exclude={"path"}), path=path, created_by=token.name if token else None
    )
    job = await run_in_threadpool(services.store.checkpoints.order_import, wanted)
    answer = await when_ended(request, services, job.id, wait)
    response.status_code = 200 if answer.finished_at is not None else 202
    response.headers["Location"] = f"/jobs/{job.id}"
    return answer


async def when_ended(
    request: Request, services: Services, job_id: int, wait_seconds: float | None
) -> Job:
    """A job once it has ended, or as it is when the time is over. NotFound."""
    async with watching(request, services.tailer) as watch:
        record = await until(
            watch,
            lambda: services.store.jobs.get(job_id),
            lambda now: now.finished_at is not None,
            wait_seconds or 0.0,
        )
    return job_document(record)
