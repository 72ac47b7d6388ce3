"""The route class of all endpoints: what an endpoint does not read, it refuses."""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from app.api.bodies import media_type, read_json, require_json
from app.api.calling import ABSENT, Endpoint
from app.api.hints import unknown_name
from app.errors import InvalidRequest
from app.spec.issue import at_most


class StrictRoute(APIRoute):
    """Declared bodies are read by `read_json`; unknown parameters and stray bodies are refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = Endpoint(self)
        parameters = frozenset(_query_names(self.dependant))
        has_model = self.body_field is not None
        reads_body = has_model or "requestBody" in (self.openapi_extra or {})

        async def strict(request: Request) -> Response:
            _check_query(request, parameters)
            if not reads_body:
                await _refuse_body(request)
            return await endpoint.respond(
                request, await _document(request) if has_model else ABSENT
            )

        return strict

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """No match where a part of the path cannot be what it stands for, such as /runs/x."""
        match, child = super().matches(scope)
        if match is not Match.NONE and self._leads_nowhere(child["path_params"]):
            return Match.NONE, {}
        return match, child

    def _leads_nowhere(self, parts: Mapping[str, Any]) -> bool:
        return any(
            field.validate(parts[field.alias], {}, loc=("path", field.alias))[1]
            for field in self.dependant.path_params
        )


async def _document(request: Request) -> Any:
    """The body, strictly read; ABSENT where there is none."""
    body = await request.body()
    if not body:
        return ABSENT
    require_json(media_type(request))
    return await read_json(body)


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Names of the parameters that the endpoint and its dependencies declare."""
    yield from (field.alias for field in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _query_names(dependency)


def _check_query(request: Request, known: frozenset[str]) -> None:
    if not request.scope["query_string"]:
        return
    counts = Counter(name for name, _ in request.query_params.multi_items())
    unknown = sorted(counts.keys() - known)
    if unknown:
        issues = at_most(unknown, lambda name: unknown_name("parameter", ["query", name], known))
        raise InvalidRequest(
            f"The request is not valid: {' '.join(issue.message for issue in issues[:3])}",
            issues=[issue.model_dump(mode="json") for issue in issues],
        )
    for name, count in counts.items():
        if count > 1:
            raise InvalidRequest(
                f"The parameter {name} is given {count} times, and only one could count. Give it "
                "once."
            )


async def _refuse_body(request: Request) -> None:
    announced = request.headers.get("content-length", "0") != "0"
    if (announced or "transfer-encoding" in request.headers) and await request.body():
        raise InvalidRequest(
            f"{request.method} {request.url.path[:200]} takes no body, so what the body says would "
            "be ignored. Leave it out; options of actions are query parameters, see /openapi.json."
        )
