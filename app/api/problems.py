"""Errors as the client sees them: RFC 9457 problem documents, never a traceback."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from app.api.hints import fields_at, unknown_name
from app.errors import InvalidRequest, NotFound, StokerError
from app.spec.issue import Issue

MEDIA_TYPE = "application/problem+json"
MOST_ISSUES = 50  # of those in one answer
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


class PayloadTooLarge(InvalidRequest):
    code, title, status = "payload_too_large", "The body is too large", 413


class UnsupportedMediaType(InvalidRequest):
    code, title, status = "unsupported_media_type", "The body's media type is not known", 415


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


def install(app: FastAPI) -> None:
    """Have every error of the app answered as a problem."""
    app.add_exception_handler(StokerError, _stoker_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)


def unexpected(error: BaseException, path: str) -> StokerError:
    """An error that only the log may describe; the id in the answer finds it there."""
    error_id = uuid4().hex[:12]
    log.error("unexpected error", error_id=error_id, path=path, exc_info=error)
    return StokerError(
        "The service made a mistake while answering. Your request may be fine: try again, and if "
        f"it happens again report error {error_id}, under which the service's log has the details.",
        error_id=error_id,
    )


async def _stoker_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, StokerError)  # noqa: S101 - what the handler is registered for
    return response_of(error)


async def _unexpected_error(request: Request, error: Exception) -> ProblemResponse:
    return response_of(unexpected(error, request.scope["path"]))


async def _validation_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    details = error.errors()
    if any(item["loc"][0] == "path" for item in details):
        path = request.scope["path"]
        return response_of(NotFound(f"There is nothing at {path}. /openapi.json lists what is."))
    body = getattr(request.scope.get("route"), "body_field", None)
    model = None if body is None else body.field_info.annotation
    issues = [_issue(item, model).model_dump(mode="json") for item in details[:MOST_ISSUES]]
    summary = "; ".join(str(issue["message"]).rstrip(".") for issue in issues[:3])
    end = "" if summary.endswith("?") else "."
    return response_of(InvalidRequest(f"The request is not valid: {summary}{end}", issues=issues))


def _issue(item: Mapping[str, Any], model: Any) -> Issue:
    if item["type"] == "extra_forbidden":
        place = item["loc"][1:-1]
        return unknown_name("field", list(item["loc"]), fields_at(model, place))
    where = ".".join(str(part) for part in item["loc"])
    said = str(item["msg"]).removeprefix("Value error, ").rstrip(".")
    return Issue(
        code="missing_field" if item["type"] == "missing" else "wrong_value",
        severity="error",
        loc=list(item["loc"]),
        message=f"{where}: {said}",
    )


async def _http_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    path, method = request.scope["path"], request.method
    problem: StokerError
    if error.status_code == 404:
        problem = NotFound(f"There is nothing at {path}. /openapi.json lists what is.")
    elif error.status_code == 405:
        problem = MethodNotAllowed(f"{path} does not take {method}; see the Allow header.")
    else:
        problem = InvalidRequest(f"The request could not be read: {error.detail}.")
    return response_of(problem, error.headers)


class MethodNotAllowed(StokerError):
    code, title, status = "method_not_allowed", "The method is not allowed here", 405
