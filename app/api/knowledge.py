"""What the guard is told of the world as it is when a request comes."""

from typing import Any

from app.api.services import Services
from app.errors import NotFound
from app.guard.facts import Facts
from app.store.facts import dataset_facts, worker_devices


def facts_for(services: Services, request: dict[str, Any]) -> Facts:
    """The facts as of now; datasets that the request names are read afresh."""
    datasets = {record.name: record for record in services.datasets.get()}
    for name in _named_datasets(request):
        try:
            datasets[name] = services.store.datasets.get(name)
        except NotFound:
            datasets.pop(name, None)
    workers = services.workers.get()
    return Facts(
        datasets={name: dataset_facts(record) for name, record in datasets.items()},
        devices=tuple(device for worker in workers for device in worker_devices(worker)),
    )


def _named_datasets(request: dict[str, Any]) -> set[str]:
    data = request.get("data")
    if not isinstance(data, dict):
        return set()
    split = data.get("split")
    named = [data.get("dataset")]
    if isinstance(split, dict):
        named += [split.get("validation"), split.get("test")]
    return {name for name in named if isinstance(name, str)}
