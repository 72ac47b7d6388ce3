"""What the guard is told of the world: datasets, devices and hosts, from the store's records."""

from typing import Any

from app.api.services import Services
from app.errors import NotFound
from app.guard.facts import DatasetFacts, DeviceFacts, Facts, FieldFacts
from app.store.records import DatasetRecord, WorkerRecord


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
        devices=tuple(fact for worker in workers for fact in _device_facts(worker)),
        host_memory_bytes=_largest(workers, "host_memory_bytes"),
        cores=_largest(workers, "cores"),
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


def dataset_facts(record: DatasetRecord) -> DatasetFacts:
    """A dataset as the rules see it."""
    return DatasetFacts(
        name=record.name,
        state=record.state,
        samples=record.samples,
        fields={
            name: FieldFacts(tuple(field["shape"]), field["dtype"])
            for name, field in (record.fields or {}).items()
        },
        size_bytes=record.size_bytes,
        problems=tuple(_sentence(problem) for problem in record.problems),
    )


def _sentence(problem: Any) -> str:
    return str(problem.get("message", problem)) if isinstance(problem, dict) else str(problem)


def _device_facts(worker: WorkerRecord) -> list[DeviceFacts]:
    """The GPUs of a worker, or its CPU where it has none."""
    return [
        DeviceFacts(
            kind=device.get("kind", "cpu"),
            name=str(device.get("name", "")),
            total_memory_bytes=device.get("total_memory_bytes"),
            free_memory_bytes=device.get("free_memory_bytes"),
            bf16=device.get("bf16"),
        )
        for device in worker.devices
    ]


def _largest(workers: list[WorkerRecord], name: str) -> int | None:
    """The largest of a fact over all workers; None while no worker has said it."""
    said = [int(worker.facts[name]) for worker in workers if worker.facts.get(name)]
    return max(said, default=None)
