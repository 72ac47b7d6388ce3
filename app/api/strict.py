"""What a request says is heeded or refused: bodies are read strictly, what is unknown is named."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.api.bodies import YAML_TYPE, is_json, is_yaml, media_type, read_json
from app.api.hints import unknown_name
from app.api.operations import Operation, note_operation, operation_of
from app.api.problems import UnsupportedMediaType
from app.errors import InvalidRequest, StokerError
from app.spec.issue import at_most


class StrictRequest(Request):
    """A request whose JSON was read before FastAPI asks for it.

    What is wrong with it is said by `refuse_unknown`, when the token was looked at.
    """

    document: Any = None
    refusal: StokerError | None = None

    async def json(self) -> Any:
        return self.document


class StrictRoute(APIRoute):
    """A route that reads JSON by our reader: FastAPI's "Custom Request and APIRoute class".

    Python's own lets NaN, keys given twice and halves of surrogate pairs pass.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_first(request: Request) -> Response:
            note_operation(request, self.operation_id)
            strict = StrictRequest(request.scope, request.receive)
            body = await strict.body()
            if body and is_json(media_type(strict)):
                try:
                    strict.document = await read_json(body)
                except StokerError as error:
                    strict.refusal = error
            return await handle(strict)

        return read_first


async def refuse_unknown(request: Request) -> None:
    """Of every call: InvalidRequest for parameters and bodies that it does not take."""
    operation = operation_of(request)
    if isinstance(request, StrictRequest) and request.refusal is not None:
        raise request.refusal
    if operation is not None:
        _check_query(request, operation)
        _check_body(request, await request.body(), operation)


def _check_query(request: Request, operation: Operation) -> None:
    counts = Counter(name for name, _ in request.query_params.multi_items())
    unknown = sorted(counts.keys() - operation.parameters.keys())
    if unknown:
        issues = at_most(
            unknown, lambda name: unknown_name("parameter", ["query", name], operation.parameters)
        )
        raise InvalidRequest(
            f"The request is not valid: {' '.join(issue.message for issue in issues[:3])}",
            issues=[issue.model_dump(mode="json") for issue in issues],
        )
    for name, count in counts.items():
        if count > 1 and not operation.parameters[name]:
            raise InvalidRequest(
                f"The parameter {name} is given {count} times, and only one could count. Give it "
                "once."
            )


def _check_body(request: Request, body: bytes, operation: Operation) -> None:
    if not operation.media_types:
        if body.strip() and getattr(request, "document", None) != {}:
            raise InvalidRequest(
                f"{request.method} {request.url.path[:200]} takes no body, so what the body says "
                "would be ignored. Leave it out; options of actions are query parameters, see "
                "/openapi.json."
            )
        return
    kind = media_type(request)
    if body and not is_json(kind) and not (is_yaml(kind) and YAML_TYPE in operation.media_types):
        raise UnsupportedMediaType(
            f"The body's Content-Type is {kind or 'not given'}; send "
            f"{' or '.join(sorted(operation.media_types))}."
        )
