"""Liveness, readiness, and the metrics of the API; no token is asked for."""

from fastapi import APIRouter, Request, Response

from app.api.auth import IsTrusted
from app.api.deps import ServicesDep
from app.api.strict import StrictRoute
from app.errors import StokerError, Unavailable
from stoker.models.records import Health, Readiness

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz", operation_id="get_health", summary="Whether the process answers")
async def get_health() -> Health:
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="get_readiness",
    summary="Whether runs can be stored and trained",
)
def get_readiness(services: ServicesDep, is_trusted: IsTrusted) -> Readiness:
    """503 when database, migrations, workers or their artifacts are not well.

    `checks` say what it is, to whoever sends a token: they tell what a stranger need not know.
    """
    checks = {"database": "ok", "migrations": "ok", "workers": "ok", "artifacts": "ok"}
    alive = 0
    try:
        services.store.ping()
        if not services.store.schema_is_current():
            checks["migrations"] = "the schema is not current; run `stoker db upgrade`"
        workers = services.store.workers.list(alive_only=True)
        alive = len(workers)
        if alive == 0:
            checks["workers"] = "none is alive, so runs will wait; start one with `stoker worker`"
        away = [worker.facts.get("artifacts_away") for worker in workers]
        if away and all(away):
            checks["artifacts"] = str(away[0])
    except StokerError as error:
        checks["database"] = error.detail
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not ready
        checks["database"] = f"it cannot be read ({type(error).__name__}); run `stoker db check`"
    if not (services.tailer.is_alive and services.observer.is_alive):
        checks["threads"] = "a thread that watches the database has ended; restart the API"
    wrong = [f"{name}: {text}" for name, text in checks.items() if text != "ok"]
    if wrong and not is_trusted:
        raise Unavailable(
            "Something that runs need is not well. Ask with a token, and `checks` say what.",
            code="not_ready",
        )
    if wrong:
        raise Unavailable("; ".join(wrong), code="not_ready", checks=checks, workers_alive=alive)
    if not is_trusted:
        return Readiness(status="ready", checks=None, workers_alive=None)
    return Readiness(status="ready", checks=checks, workers_alive=alive)


@router.get(
    "/metrics",
    operation_id="get_service_metrics",
    summary="Prometheus metrics of the API",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_service_metrics(request: Request) -> Response:
    """Runs by state and outcome, queue waits, request durations; workers have their own port.

    While the database is away `stoker_database_up` is 0, and what it would tell is absent.
    """
    return Response(
        request.app.state.telemetry.exposition(), media_type="text/plain; version=0.0.4"
    )
