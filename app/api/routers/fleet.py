"""Who trains and who waits: workers and the queue."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.api.deps import Cursor, Limit, ServicesDep
from app.api.serializers import run_document, worker_document
from app.api.strict import StrictRoute
from stoker.models.base import Page
from stoker.models.records import Worker
from stoker.models.runs import Run

router = APIRouter(tags=["fleet"], route_class=StrictRoute)


@router.get(
    "/workers",
    operation_id="list_workers",
    summary="Workers, their devices and slots, newest first",
)
def list_workers(
    services: ServicesDep,
    limit: Limit = 50,
    after: Cursor = None,
    all_: Annotated[
        bool, Query(alias="all", description="Also those that have ended or were lost.")
    ] = False,
) -> Page[Worker]:
    """Those that live, draining ones too; with `all` every one that there ever was."""
    page = services.store.workers.page(not all_, limit, after)
    return Page(data=[worker_document(one) for one in page.data], next_cursor=page.next_cursor)


@router.get(
    "/queue",
    operation_id="get_queue",
    summary="Runs that wait, in the order in which they will be claimed",
)
def get_queue(services: ServicesDep, limit: Limit = 50, after: Cursor = None) -> Page[Run]:
    page = services.store.runs.queue(limit, after)
    return Page(data=[run_document(run) for run in page.data], next_cursor=page.next_cursor)
