"""Errors as the client sees them: RFC 9457 problem documents, never a traceback."""

import re
from collections.abc import Mapping
from http.client import responses
from typing import Any
from uuid import uuid4

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from app.api.hints import complaints
from app.api.operations import names_beside, operation_of
from app.api.unbuilt import missing_in
from app.errors import InvalidRequest, NotAvailableYet, NotFound, PayloadTooLarge, StokerError
from app.spec.issue import Issue
from app.spec.plugins import raised_in_plugin
from app.spec.reading import MAX_BYTES
from app.suggest import closest, did_you_mean

MEDIA_TYPE = "application/problem+json"
MOST_SHOWN = 200  # characters of what a client sent
CLIENT_HAS_LEFT = 499  # as nginx counts it; nobody receives it
WITHOUT_BODY = (204, 304)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
log = structlog.get_logger("stoker.api")


class Problem(BaseModel):
    """RFC 9457. Some problems carry more members, such as `allowed_actions`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="URI of the problem's kind.")
    title: str = Field(description="The kind of problem, in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened, why it matters, what to do now.")
    code: str = Field(description="Stable name of the kind, for programs.")
    issues: list[Issue] | None = Field(default=None, description="What is wrong where.")
    allowed_actions: list[str] | None = Field(default=None, description="What would be possible.")


class ProblemResponse(JSONResponse):
    media_type = MEDIA_TYPE


class UnsupportedMediaType(InvalidRequest):
    code, title, status = "unsupported_media_type", "The body's media type is not known", 415


class RangeNotSatisfiable(StokerError):
    code, title, status = "range_not_satisfiable", "The file has no such range", 416


def document_of(error: StokerError) -> dict[str, Any]:
    """The problem document of an error."""
    return {
        "type": f"urn:stoker:problem:{error.problem_code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.problem_code,
        **error.extensions,
    }


def response_of(error: StokerError, headers: Mapping[str, str] | None = None) -> ProblemResponse:
    """The response that reports an error."""
    headers = dict(headers or {})
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ProblemResponse(document_of(error), status_code=error.status, headers=headers)


def install_handlers(app: FastAPI) -> None:
    """Have every error of the app answered as a problem."""
    app.add_exception_handler(StokerError, _stoker_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _nobody_listens)
    app.add_exception_handler(Exception, _unexpected_error)


def unexpected(error: BaseException, path: str) -> StokerError:
    """An error that only the log may describe, unless it is a plugin's; the id in the answer finds
    it there.
    """
    error_id = uuid4().hex[:12]
    log.error("unexpected error", error_id=error_id, path=path, exc_info=error)
    if (raised := raised_in_plugin(error)) is not None:
        return StokerError(
            f"The recipe {raised.kind} raised {raised.told()} ({raised.file}, line {raised.line}). "
            "Mend its package, install it again and restart the service; its log has the details "
            f"under {error_id}.",
            error_id=error_id,
        )
    return StokerError(
        "The service made a mistake while answering. Your request may be fine: try again, and if "
        f"it happens again report error {error_id}, under which the service's log has the details.",
        error_id=error_id,
    )


async def _stoker_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, StokerError)  # noqa: S101 - what the handler is registered for
    return response_of(error)


async def _nobody_listens(request: Request, error: Exception) -> Response:
    """A client that left before its answer came; that is no mistake of the service."""
    return Response(status_code=CLIENT_HAS_LEFT)


async def _unexpected_error(request: Request, error: Exception) -> ProblemResponse:
    return response_of(unexpected(error, request.scope["path"]))


async def _validation_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    details = error.errors()
    if any(detail["loc"][0] == "path" for detail in details):
        return response_of(_nothing_at(request))
    issues = [issue.model_dump(mode="json") for issue in complaints(details, operation_of(request))]
    summary = "; ".join(str(issue["message"]).rstrip(".") for issue in issues[:3])
    end = "" if summary.endswith("?") else "."
    return response_of(InvalidRequest(f"The request is not valid: {summary}{end}", issues=issues))


async def _http_error(request: Request, error: Exception) -> Response:
    """Of the framework itself, with what it means here; of an endpoint, as it was raised."""
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    status = error.status_code
    phrase = responses.get(status, "Error")
    if status in WITHOUT_BODY:
        return Response(status_code=status, headers=error.headers)
    if error.detail in (phrase, "Content Too Large"):
        if status == 413:
            return response_of(too_large())
        if status == 404:
            return response_of(_nothing_at(request))
        if status == 405:
            return _not_allowed(request)
    code = re.sub(r"[^a-z]+", "_", phrase.lower())
    document = {
        "type": f"urn:stoker:problem:{code}",
        "title": phrase,
        "status": status,
        "detail": str(error.detail),
        "code": code,
    }
    return ProblemResponse(document, status_code=status, headers=error.headers)


def _not_allowed(request: Request) -> ProblemResponse:
    methods = ", ".join(_methods_at(request))
    path, method = request.scope["path"][:MOST_SHOWN], request.method[:MOST_SHOWN]
    refusal = MethodNotAllowed(f"{path} does not take {method}, only {methods}.")
    return response_of(refusal, {"Allow": methods})


def too_large() -> PayloadTooLarge:
    """The refusal of a body that is larger than any request needs."""
    return PayloadTooLarge(
        f"The body is larger than {MAX_BYTES >> 20} MiB; no request needs that much."
    )


def _nothing_at(request: Request) -> StokerError:
    """With the names that would be known at that place, or that this version lacks the call."""
    whole, method = request.scope["path"], request.method
    path = whole[:MOST_SHOWN]
    if (what := missing_in(method, whole)) is not None:
        return NotAvailableYet(f"There is nothing at {path} yet: this version does not {what}.")
    names = names_beside(request.app.openapi(), method, whole)
    kind = "actions" if method == "POST" else "names"
    known = f" The {kind} known there are {', '.join(names)}." if names else ""
    meant = did_you_mean(closest(whole.rpartition("/")[2], names))
    return NotFound(f"There is nothing at {path}.{known}{meant} /docs shows what there is.")


def _methods_at(request: Request) -> list[str]:
    """Methods that the path takes; Starlette names those of the first route that fits it.

    Its documentation does not name `matches`, and has no other way to ask (`BEYOND_DOCUMENTATION`
    in the tests).
    """
    scope = {name: request.scope[name] for name in ("type", "path", "root_path")}
    taken = [
        method
        for method in METHODS
        if any(
            route.matches({**scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]
    return ["GET", "HEAD", *taken[1:]] if "GET" in taken else taken


class MethodNotAllowed(StokerError):
    code, title, status = "method_not_allowed", "The method is not allowed here", 405
