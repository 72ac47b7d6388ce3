"""Who trains and who waits: workers and the queue."""

from fastapi import APIRouter

from app.api.deps import Limit, ServicesDep
from app.api.models.base import Page
from app.api.models.records import Worker
from app.api.models.runs import Run
from app.api.openapi import problems
from app.api.serializers import run_document, worker_document
from app.api.strict import StrictRoute
from app.errors import InvalidRequest

router = APIRouter(tags=["fleet"], route_class=StrictRoute)


@router.get("/workers", operation_id="list_workers", summary="Workers, their devices and slots")
def list_workers(services: ServicesDep) -> Page[Worker]:
    records = services.store.workers.list(alive_only=False)
    return Page(data=[worker_document(record) for record in records])


@router.get(
    "/queue",
    operation_id="get_queue",
    summary="Runs that wait, in the order in which they will be claimed",
    responses=problems(InvalidRequest),
)
def get_queue(services: ServicesDep, limit: Limit = 500) -> Page[Run]:
    return Page(data=[run_document(run) for run in services.store.runs.queue(limit)])
