"""Endpoints are FastAPI's: whatever its documentation shows works here, and is answered our way."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Cookie, Depends, FastAPI, HTTPException, Query, Response
from pydantic import BaseModel, ConfigDict
from starlette.testclient import TestClient

from app.api.deps import services_of
from app.api.main import create_app
from app.api.strict import StrictRoute, refuse_unknown
from app.settings import Settings
from app.store.store import Store
from tests.api.support import SPEC, Api


class Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = 1


class Chosen(BaseModel):
    many: Annotated[int, Query(ge=1)] = 2
    kinds: list[str] = []


class Doubled:
    """A dependency that is a class."""

    def __init__(self, many: int = 2) -> None:
        self.twice = 2 * many


@pytest.fixture
def app(api: Api) -> FastAPI:
    """The service's own application, for further endpoints, which its document has to tell."""
    api.app.openapi_schema = None
    return api.app


@pytest.fixture
def route(app: FastAPI) -> Any:
    """Adds an endpoint as the service's routers do."""

    def add(path: str, **options: Any) -> Any:
        router = app.router
        router.route_class = StrictRoute
        name = path.strip("/")
        return app.post(path, operation_id=name, dependencies=[Depends(refuse_unknown)], **options)

    return add


def test_values_are_checked_and_those_not_sent_are_the_defaults(api: Api, route: Any) -> None:
    @route("/wished")
    async def wished(
        wish: Wish, chosen: Annotated[Chosen, Query()], biscuit: Annotated[str, Cookie()] = "none"
    ) -> dict[str, Any]:
        return {"size": wish.size, **chosen.model_dump(), "biscuit": biscuit}

    answer = api.post("/wished", json={})
    assert answer.json() == {"size": 1, "many": 2, "kinds": [], "biscuit": "none"}
    answer = api.post(
        "/wished?many=3&kinds=a&kinds=b", json={"size": 4}, headers={"Cookie": "biscuit=round"}
    )
    assert answer.json() == {"size": 4, "many": 3, "kinds": ["a", "b"], "biscuit": "round"}
    wrong = api.post("/wished?many=0", json={"size": "x"}).json()
    assert [issue["loc"] for issue in wrong["issues"]] == [["query", "many"], ["body", "size"]]
    assert "Did you mean size?" in api.post("/wished", json={"sise": 1}).text
    assert "Did you mean kinds?" in api.post("/wished?kind=a", json={}).text
    assert [issue["loc"] for issue in api.post("/wished").json()["issues"]] == [["body"]]


def test_dependencies_may_be_functions_classes_and_generators(api: Api, route: Any) -> None:
    told = []

    def opened() -> Iterator[str]:
        told.append("open")
        yield "it"
        told.append("closed")

    def plain(many: int = 2) -> int:
        return many

    @route("/depends")
    def depends(
        one: Annotated[str, Depends(opened)],
        many: Annotated[int, Depends(plain)],
        doubled: Annotated[Doubled, Depends()],
    ) -> list[Any]:
        told.append("called")
        return [one, many, doubled.twice]

    assert api.post("/depends?many=3").json() == ["it", 3, 6]
    assert told == ["open", "called", "closed"]


def test_a_dependency_can_be_overridden(api: Api, app: FastAPI) -> None:
    app.dependency_overrides[services_of] = lambda: None
    assert api.get("/runs").problem("internal_error") == 500
    app.dependency_overrides.clear()
    assert api.get("/runs").status_code == 200


def test_an_endpoint_without_annotations_answers_with_what_it_returns(api: Api, route: Any) -> None:
    done: list[str] = []

    @route("/bare", status_code=202)
    def bare(tasks: BackgroundTasks, response: Response) -> Any:
        tasks.add_task(done.append, "afterwards")
        response.headers["ETag"] = '"1"'
        return {"seen": 7}

    answer = api.post("/bare")
    assert (answer.status_code, answer.headers["etag"], answer.json()) == (202, '"1"', {"seen": 7})
    assert done == ["afterwards"]


@pytest.mark.parametrize(
    ("status", "code"), [(503, "service_unavailable"), (404, "not_found"), (418, "i_m_a_teapot")]
)
def test_an_http_exception_keeps_its_status_and_its_words(
    api: Api, route: Any, status: int, code: str
) -> None:
    @route("/raises")
    async def raises() -> None:
        raise HTTPException(status, "Come back after lunch.", headers={"Retry-After": "60"})

    answer = api.post("/raises")
    assert answer.problem(code) == status
    assert answer.json()["detail"] == "Come back after lunch."
    assert answer.headers["retry-after"] == "60"


def test_an_answer_that_is_not_what_was_promised_is_the_services_mistake(
    api: Api, route: Any
) -> None:
    @route("/broken", response_model=Wish)
    async def broken() -> Any:
        return {"size": "many"}

    assert api.post("/broken").problem("internal_error") == 500


def test_an_http_exception_without_a_body_has_none(api: Api, route: Any) -> None:
    @route("/nothing-new")
    async def nothing_new() -> None:
        raise HTTPException(304, headers={"ETag": '"1"'})

    answer = api.post("/nothing-new")
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", '"1"')


def test_starlettes_test_client_serves_an_application(settings: Settings, store: Store) -> None:
    """With its lifespan: what waits is told of changes, and an override is heeded."""
    app = create_app(settings)
    _, token = store.tokens.create("test")
    ours = {"Authorization": f"Bearer {token}"}
    with TestClient(app, base_url="http://127.0.0.1", headers=ours) as client:
        assert client.get("/healthz").json()["status"] == "ok"
        (settings.data_root / "weather.h5").touch()
        made = client.post("/datasets", json={"name": "weather", "path": "weather.h5"})
        assert made.status_code == 202, made.text
        refused = client.post("/runs?wait=0.2", json=SPEC)
        assert (refused.status_code, refused.json()["code"]) == (409, "dataset_not_ready")
        app.dependency_overrides[services_of] = lambda: None
        with pytest.raises(AttributeError):
            client.get("/runs")
