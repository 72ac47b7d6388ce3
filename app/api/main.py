"""The application: `create_app` puts it together, `serve` runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app import __version__
from app.api import problems
from app.api.gate import Gate
from app.api.openapi import DescribedApp
from app.api.routers import (
    actions,
    catalog,
    checkpoints,
    datasets,
    documents,
    fleet,
    health,
    rules,
    runs,
)
from app.api.server import run_server
from app.api.token_file import ensure_token
from app.logs import configure_logging
from app.service.services import Services
from app.settings import Settings
from app.store.migrate import upgrade
from app.store.store import Store, open_store

ROUTERS = (runs, actions, documents, checkpoints, datasets, catalog, rules, fleet, health)


def create_app(settings: Settings, store: Store | None = None) -> FastAPI:
    """The API on a store; without one it upgrades the schema and opens its own at start.

    A given store stays open when the application ends. The lifespan must run for streams and
    waits to be told of changes.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if store is None:
            upgrade(settings)
            app.state.services = Services(settings, open_store(settings))
        services: Services = app.state.services
        services.tailer.start()
        try:
            yield
        finally:
            services.tailer.stop()
            if store is None:
                services.store.close()

    app = DescribedApp(
        title="Stoker",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # the catalogue has it, as strict as the others
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    if store is not None:
        app.state.services = Services(settings, store)
    problems.install(app)
    app.add_middleware(Gate, settings=settings)
    for module in ROUTERS:
        app.include_router(module.router)
    return app


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
