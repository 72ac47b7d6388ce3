"""How endpoints are called; what they are sent and answer is in the tests of each."""

import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Body, Cookie, Depends, FastAPI, Header, Query, Response
from pydantic import BaseModel

from app.api import problems
from app.api.strict import StrictRoute
from tests.api.support import Api


def app_of(endpoint: Callable[..., Any], **route: Any) -> FastAPI:
    app = FastAPI()
    problems.install(app)
    app.router.route_class = StrictRoute
    app.post("/", **route)(endpoint)
    return app


class Wish(BaseModel):
    size: int = 1


def test_values_are_checked_and_those_not_sent_are_the_defaults() -> None:
    async def wished(
        wish: Wish,
        many: Annotated[int, Query(ge=1)] = 2,
        who: Annotated[str, Header(alias="X-Who")] = "nobody",
    ) -> dict[str, Any]:
        return {"size": wish.size, "many": many, "who": who}

    with Api(app_of(wished), None) as api:
        assert api.post("/", json={}).json() == {"size": 1, "many": 2, "who": "nobody"}
        answer = api.post("/?many=3", json={"size": 4}, headers={"X-Who": "me"})
        assert answer.json() == {"size": 4, "many": 3, "who": "me"}
        assert answer.headers["content-type"] == "application/json"
        wrong = api.post("/?many=0", json={"size": "x"}).json()
        assert [issue["loc"] for issue in wrong["issues"]] == [["query", "many"], ["body", "size"]]
        nothing = api.post("/").json()
        assert [issue["loc"] for issue in nothing["issues"]] == [["body"]]


def test_a_function_whose_inputs_are_wrong_is_not_called() -> None:
    called = []

    async def first(many: Annotated[int, Query(ge=1)]) -> int:
        called.append(many)
        return many

    async def whole(many: Annotated[int, Depends(first)], other: int) -> int:
        called.append(other)
        return many + other

    with Api(app_of(whole), None) as api:
        places = [issue["loc"][1] for issue in api.post("/?many=0").json()["issues"]]
        assert (places, called) == (["many", "other"], [])
        assert api.post("/?many=1&other=2").json() == 3


def test_a_synchronous_endpoint_is_called_and_its_answer_written_in_one_thread() -> None:
    threads = []

    class Noted(BaseModel):
        @property
        def seen(self) -> int:
            threads.append(threading.current_thread())
            return 7

    class Shown(BaseModel):
        seen: int

    def noted(response: Response) -> Any:
        threads.append(threading.current_thread())
        response.headers["ETag"] = '"1"'
        response.status_code = 202
        return Noted()

    with Api(app_of(noted, response_model=Shown), None) as api:
        answer = api.post("/")
        assert threads[0] is not api.loop_thread
    assert (answer.status_code, answer.headers["etag"], answer.json()) == (202, '"1"', {"seen": 7})
    assert len(set(threads)) == 1


def test_an_answer_that_is_not_what_was_promised_is_the_services_mistake() -> None:
    async def broken() -> Any:
        return {"size": "many"}

    with Api(app_of(broken, response_model=Wish), None) as api:
        assert api.post("/").problem("internal_error") == 500


def with_tasks(tasks: BackgroundTasks) -> None: ...


def with_cookie(biscuit: Annotated[str, Cookie()]) -> None: ...


def with_bodies(one: Annotated[int, Body()], other: Annotated[int, Body()]) -> None: ...


def with_several(name: Annotated[list[str], Query()]) -> None: ...


def closing() -> Iterator[int]:
    yield 1


def with_something_to_close(opened: Annotated[int, Depends(closing)]) -> None: ...


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        (with_tasks, "background_tasks_param_name"),
        (with_cookie, "cookie_params"),
        (with_bodies, "more than one body"),
        (with_several, "several name"),
        (with_something_to_close, "not async"),
    ],
)
def test_what_would_not_be_looked_for_cannot_be_declared(
    endpoint: Callable[..., Any], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        app_of(endpoint)
