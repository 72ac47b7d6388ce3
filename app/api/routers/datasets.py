"""Datasets: register, list, get. A worker looks into the file."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.deps import Cursor, Limit, ServicesDep, Wait
from app.api.openapi import BODY, problems
from app.api.serializers import dataset_document
from app.api.strict import StrictRoute
from app.api.waiting import watching
from app.errors import Conflict, InvalidRequest, NotFound
from app.service.data_root import below_data_root
from app.service.services import Services
from app.service.waiting import until
from stoker.models.base import Page
from stoker.models.records import Dataset, DatasetBody

router = APIRouter(tags=["datasets"], route_class=StrictRoute)

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Its name.")]


@router.post(
    "/datasets",
    operation_id="register_dataset",
    summary="Register a file under DATA_ROOT and have it inspected",
    status_code=202,
    responses={
        200: {"model": Dataset, "description": "With `wait`: inspected by now"},
        **problems(InvalidRequest, NotFound, Conflict, *BODY),
    },
)
async def register(
    request: Request,
    services: ServicesDep,
    response: Response,
    body: DatasetBody,
    wait: Wait = None,
) -> Dataset:
    """Registering a name again looks into the file again. The state becomes ready or invalid. If
    the client disconnects while waiting, the dataset stays registered.
    """
    path = await run_in_threadpool(below_data_root, services.settings.data_root, body.path)
    record, _ = await run_in_threadpool(services.store.datasets.register, body.name, path)
    dataset = dataset_document(record)
    if wait is not None:
        dataset = await _when_inspected(request, services, record.name, wait)
    response.status_code = 200 if dataset.state != "inspecting" else 202
    response.headers["Location"] = f"/datasets/{record.name}"
    return dataset


async def _when_inspected(
    request: Request, services: Services, name: str, wait_seconds: float
) -> Dataset:
    async with watching(request, services.tailer) as watch:
        record = await until(
            watch,
            lambda: services.store.datasets.get(name),
            lambda now: now.state != "inspecting",
            wait_seconds,
        )
    return dataset_document(record)


@router.get(
    "/datasets",
    operation_id="list_datasets",
    summary="List datasets",
)
def list_datasets(services: ServicesDep, limit: Limit = 50, after: Cursor = None) -> Page[Dataset]:
    page = services.store.datasets.list(limit, after)
    return Page(data=[dataset_document(r) for r in page.data], next_cursor=page.next_cursor)


@router.get(
    "/datasets/{name}",
    operation_id="get_dataset",
    summary="Get a dataset",
    responses=problems(NotFound, InvalidRequest),
)
async def get_dataset(
    request: Request, services: ServicesDep, name: Name, wait: Wait = None
) -> Dataset:
    """With `wait`, an inspection that is under way is waited for."""
    return await _when_inspected(request, services, name, wait or 0.0)


@router.delete(
    "/datasets/{name}",
    operation_id="forget_dataset",
    summary="Forget a dataset that no run refers to",
    status_code=204,
    responses=problems(NotFound, Conflict),
)
def forget_dataset(services: ServicesDep, name: Name) -> None:
    """The entry goes; the file stays as it is."""
    services.store.datasets.forget(name)
