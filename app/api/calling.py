"""How an endpoint is called: what it declares is read and checked, what it returns is written.

FastAPI describes endpoints and finds them. Its own way to call them looks, at each request, for
what none of them has, such as forms, cookies, and what is to be closed afterwards; and what a
synchronous one returns it has checked by a second thread, and written by the event loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, get_origin

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

Document = dict[str, Any]
# In place of a body that the client did not send.
ABSENT = object()
MISSING = {"type": "missing", "msg": "Field required", "input": None}
PLACES = ("path", "query", "header")
# What FastAPI would look for, and `_Inputs` does not.
UNUSED = (
    "cookie_params", "websocket_param_name", "http_connection_param_name",
    "background_tasks_param_name", "security_scopes_param_name", "concurrency",
)  # fmt: skip


class Endpoint:
    """Of a route: from a request to the response. TypeError for what no endpoint here may have."""

    def __init__(self, route: APIRoute) -> None:
        self._inputs = _Inputs(route.dependant)
        self._waits = iscoroutinefunction(route.endpoint)
        self._status = route.status_code or 200
        model = route.response_model
        self._answer: TypeAdapter[Any] | None = None if model is None else TypeAdapter(model)

    async def respond(self, request: Request, body: Any = ABSENT) -> Response:
        """The response; `body`: what was sent as the declared one. RequestValidationError."""
        response = Response(status_code=self._status)
        del response.headers["content-length"]  # until something is written
        given = _Given(request, response, body)
        values = await self._inputs.read(given)
        if given.errors:
            raise RequestValidationError(given.errors)
        if self._waits:
            return self._written(await self._inputs.call(**values), response)
        return await run_in_threadpool(self._called, values, response)

    def _called(self, values: Document, response: Response) -> Response:
        return self._written(self._inputs.call(**values), response)

    def _written(self, answer: Any, response: Response) -> Response:
        """The endpoint's own response; or the one that it was given, with its answer as JSON."""
        if isinstance(answer, Response):
            return answer
        if self._answer is not None:
            checked = self._answer.validate_python(answer, from_attributes=True)
            response.body = self._answer.dump_json(checked, by_alias=True)
            response.headers["content-length"] = str(len(response.body))
            response.headers["content-type"] = "application/json"
        return response


@dataclass
class _Given:
    """Of one request: what came with it, what is wrong with that, and what will be answered."""

    request: Request
    response: Response
    body: Any
    errors: list[Any] = field(default_factory=list)

    def at(self, place: str) -> Mapping[str, str]:
        if place == "query":
            return self.request.query_params if self.request.scope["query_string"] else {}
        return self.request.headers if place == "header" else self.request.path_params


class _Inputs:
    """What a function declares, and that of each function on whose result it depends."""

    def __init__(self, dependant: Dependant) -> None:
        self.call = _plain_call(dependant)
        self._before = [(one.name or "", _Inputs(one)) for one in dependant.dependencies]
        self._parameters = [
            (place, one) for place in PLACES for one in getattr(dependant, f"{place}_params")
        ]
        self._body = next(iter(dependant.body_params), None)
        self._request = dependant.request_param_name
        self._response = dependant.response_param_name

    async def read(self, given: _Given) -> Document:
        """The values by name; what is wrong with any is added to the errors."""
        values: Document = {}
        for name, before in self._before:
            known = len(given.errors)
            inner = await before.read(given)
            if len(given.errors) == known:
                values[name] = await before.call(**inner)
        for place, one in self._parameters:
            sent = given.at(place).get(one.alias, ABSENT)
            values[one.name] = _checked(one, sent, (place, one.alias), given.errors)
        if self._body is not None:
            values[self._body.name] = _checked(self._body, given.body, ("body",), given.errors)
        if self._request is not None:
            values[self._request] = given.request
        if self._response is not None:
            values[self._response] = given.response
        return values


def _plain_call(dependant: Dependant) -> Callable[..., Any]:
    """The function; TypeError where more would have to be done for it."""
    call = dependant.call
    odd = [name for name in UNUSED if getattr(dependant, name)]
    odd += ["more than one body"] * (len(dependant.body_params) > 1)
    awaited = (one.call for one in dependant.dependencies)
    odd += [f"{one}, which is not async" for one in awaited if not iscoroutinefunction(one)]
    odd += [f"several {one.name}" for one in dependant.query_params if _is_several(one)]
    if call is None or odd:
        raise TypeError(f"An endpoint cannot be called: {call} declares {', '.join(odd)}.")
    return call


def _is_several(one: Any) -> bool:
    """Whether it would be all values of that name, of which `at` gives one."""
    return get_origin(one.field_info.annotation) in (list, tuple, set, frozenset)


def _checked(one: Any, sent: Any, loc: tuple[str, ...], errors: list[Any]) -> Any:
    """The value of a parameter or body, which is its default where it was not sent."""
    if sent is not ABSENT:
        value, wrong = one.validate(sent, {}, loc=loc)
        errors += wrong
        return value
    if one.field_info.is_required():
        errors.append({**MISSING, "loc": loc})
        return None
    return one.field_info.default
