"""The application: `create_app` puts it together, `serve` runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import Depends, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from app import __version__
from app.api.auth import caller
from app.api.middleware import Gate, HeadAsGet, Observed
from app.api.openapi import COMMON, DESCRIPTION, described, problems
from app.api.problems import install_handlers
from app.api.routers import (
    actions,
    catalog,
    checkpoints,
    datasets,
    documents,
    exports,
    fleet,
    health,
    jobs,
    rules,
    runs,
)
from app.api.server import run_server
from app.api.strict import refuse_unknown
from app.api.telemetry import Telemetry
from app.api.token_file import ensure_token
from app.errors import Unauthorized
from app.logs import configure_logging
from app.service.services import Services
from app.settings import Settings
from app.spec.reading import MAX_BYTES
from app.store.engine.migrate import upgrade
from app.store.store import Store, open_store

ROUTERS = (
    *(runs, actions, documents, checkpoints, exports, jobs),
    *(datasets, catalog, rules, fleet),
)


def create_app(settings: Settings, store: Store | None = None) -> FastAPI:
    """The API on a store; without one it upgrades the schema and opens its own at start.

    A given store stays open when the application ends. The lifespan must run for streams and
    waits to be told of changes.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if store is None:
            upgrade(settings)
            _furnish(app, settings, open_store(settings))
        services: Services = app.state.services
        try:
            services.start()
            yield
        finally:
            services.stop()
            if store is None:
                services.store.close()

    app = FastAPIOffline(  # its /docs needs no other host
        redoc_url=None,
        static_url="/docs/static",
        title="Stoker",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    if store is not None:
        _furnish(app, settings, store)
    install_handlers(app)
    # A request passes them from the last to the first.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BYTES)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Observed, settings=settings)
    strict = Depends(refuse_unknown)
    for module in ROUTERS:
        app.include_router(
            module.router,
            dependencies=[Depends(caller), strict],
            responses=problems(*COMMON, Unauthorized),
        )
    app.include_router(health.router, dependencies=[strict], responses=problems(*COMMON))
    app.openapi = partial(described, app)  # type: ignore[method-assign]  # as FastAPI has it
    return app


def _furnish(app: FastAPI, settings: Settings, store: Store) -> None:
    app.state.services = Services(settings, store)
    app.state.telemetry = Telemetry(store)


def serve(settings: Settings) -> None:
    """Run the API until SIGTERM or SIGINT: schema upgraded, token made, address in HOME/api.json.

    Raises StokerError when the database or the address cannot be had.
    """
    configure_logging(settings.log_level)
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    upgrade(settings)
    store = open_store(settings)
    try:
        ensure_token(settings, store)
        run_server(settings, create_app(settings, store))
    finally:
        store.close()
