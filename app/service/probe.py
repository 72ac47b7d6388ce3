"""A plan with a measurement: one real step of the spec, made by the worker that would train it."""

from typing import Any

import anyio
from anyio.to_thread import run_sync

from app.errors import Conflict, InvalidRequest, SpecRejected, Unavailable
from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts, UnknownFact
from app.guard.memory.memory_plan import probe_order
from app.guard.plan import RunPlan
from app.guard.resolve import Resolved
from app.service.facts import facts_for
from app.service.inventory import worker_devices
from app.service.services import Services
from app.service.submit import plan_request, plan_under, require_ready
from app.service.tailer import Watch
from app.service.waiting import until
from app.spec.run import RunSpec
from app.spec.script import is_script
from app.store.worker_records import JobRecord, WorkerRecord

Document = dict[str, Any]
# What a worker gives a probe (240 s), and the jobs before it some time.
PROBE_WAIT_SECONDS = 270.0


async def plan_with_probe(
    services: Services, watch: Watch, request: Document, wait_seconds: float | None
) -> RunPlan:
    """The plan, judged by what one step took. What else is wrong with the spec comes first.

    SpecRejected, DatasetNotReady; Conflict when nobody measures, or not within the time.
    """
    if is_script(request):
        raise InvalidRequest("A script is run as it is: there is no step of it to measure first.")
    wait = PROBE_WAIT_SECONDS if wait_seconds is None else wait_seconds
    facts, resolved = await run_sync(facts_for, services, request)
    spec = await run_sync(_plannable, services, request, facts, resolved)
    worker, order = await run_sync(_order_for, services, spec, facts)
    with anyio.CancelScope(shield=True):  # a client that leaves meanwhile: its job is known here
        job_id = await run_sync(services.store.jobs.order_probe, worker.id, order)
    try:
        job = await until(watch, lambda: services.store.jobs.get(job_id), _has_ended, wait)
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(services.store.jobs.withdraw, job_id)
    if not _has_ended(job) and watch.is_over:
        raise Unavailable("The service ends, and nothing was measured. Ask again when it is back.")
    if not _has_ended(job):
        raise Conflict(
            f"Worker {worker.name} had not measured a step within {wait:g} seconds; it may be busy "
            "with other jobs. Ask again with a longer wait, or plan without probe.",
            code="probe_unfinished",
        )
    if job.result is None:
        raise Conflict(f"Nothing was measured on {worker.name}: {job.error}", code="probe_failed")
    # What was measured is a part of the profile now, by which every plan like it is made.
    return await run_sync(plan_request, services, request)


def _plannable(services: Services, request: Document, facts: Facts, resolved: Resolved) -> RunSpec:
    """The spec, once nothing but its memory is left to be judged."""
    plan = plan_under(services, request, facts, resolved)
    first = [issue for issue in plan.errors if not issue.code.startswith("memory.")]
    require_ready(first)
    if first or resolved.spec is None:
        told = "; ".join(issue.message for issue in first[:3])
        issues = [issue.model_dump(mode="json") for issue in first]
        raise SpecRejected(f"Nothing was measured, for this comes first: {told}", issues)
    if not facts.devices:
        raise _nobody("no worker is alive that could make a step")
    return resolved.spec


def _order_for(services: Services, spec: RunSpec, facts: Facts) -> tuple[WorkerRecord, Document]:
    """Who measures, and what; the measurement would be for nothing where there is no plan of it."""
    case = Case(spec, facts)
    try:
        worker = _worker_for(services, case.device)
        _ = case.memory
        return worker, probe_order(case.workload, case.device)
    except UnknownFact as unknown:
        raise _nobody(f"nobody knows {unknown}") from None


def _worker_for(services: Services, wanted: DeviceFacts) -> WorkerRecord:
    """One that has the device which the run would get, and PyTorch for it."""
    having = [
        worker
        for worker in services.workers.get()
        if _identity(wanted) in map(_identity, worker_devices(worker))
    ]
    taking = [worker for worker in having if worker.state == "alive"]
    if not taking:
        why = "the worker that has it drains" if having else "no worker that is alive has it"
        raise _nobody(f"a step is measured on {_device(wanted)}, and {why}")
    # A worker that does not tell its versions is asked; its child says what is missing.
    able = [worker for worker in taking if "torch" in worker.facts.get("versions", ["torch"])]
    if not able:
        raise _nobody(
            f"worker {taking[0].name} has no PyTorch. Install Stoker's worker extra there, and "
            "start it again"
        )
    return able[0]


def _identity(device: DeviceFacts) -> tuple[object, ...]:
    """What stays the same from one beat to the next."""
    return device.kind, device.name, device.total_memory_bytes, device.host.memory_bytes


def _device(device: DeviceFacts) -> str:
    return "the CPU" if device.kind == "cpu" else device.name


def _nobody(why: str) -> Conflict:
    return Conflict(
        f"Nothing was measured: {why}. `stoker workers` shows who is there; without probe "
        "the plan says what like runs took, or that nobody knows.",
        code="probe_unavailable",
    )


def _has_ended(job: JobRecord) -> bool:
    return job.state in ("done", "failed")
