"""What endpoints are given: services, ids, paging, and the headers that guard a write."""

import re
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from pydantic import (
    AwareDatetime,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from app.errors import InvalidRequest
from app.service.services import Services
from stoker.models.base import LARGEST_ID, LONGEST_FILTER

LONGEST_WAIT_SECONDS = 300.0
LARGEST_PAGE = 500
ETAGS = r'^("[0-9]{1,18}"|\*)$'
# Text in a query that the database can compare; NUL is not.
QueryText = Annotated[str, Query(max_length=LONGEST_FILTER, pattern=r"^[^\x00]*$")]


# Both are async though they wait for nothing: FastAPI hands others to a thread.
async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def if_match(
    value: Annotated[
        str | None,
        Header(
            alias="If-Match",
            description="The run's ETag; otherwise 412.",
            examples=['"3"'],
            json_schema_extra={"pattern": ETAGS},  # shown; what is wrong is said in a sentence
        ),
    ] = None,
) -> int | None:
    """The version that an If-Match header asks for."""
    if value is None or value.strip() == "*":
        return None
    if re.fullmatch(ETAGS, value.strip()) is None:
        raise InvalidRequest(
            'If-Match must be the ETag of the run, such as "3" with its quotes: a version that '
            "cannot be compared would guard nothing."
        )
    return int(value.strip().strip('"'))


ServicesDep = Annotated[Services, Depends(services_of)]
IfMatch = Annotated[int | None, Depends(if_match)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes a repeated request harmless: same key and body, same run.",
    ),
]
RunId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Id of the run.", examples=[1])]
CheckpointId = Annotated[
    int, Path(ge=1, le=LARGEST_ID, description="Id of the checkpoint.", examples=[1])
]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="At most so many.")]
Cursor = Annotated[
    str | None,
    Query(max_length=200, pattern=r"^[^\x00]*$", description="The last page's next_cursor."),
]


def _moment(value: object, read: ValidatorFunctionWrapHandler) -> object:
    """The time; ValueError also for a number, which would be read as unix seconds."""
    if isinstance(value, str) and "T" in value.upper():
        with suppress(ValidationError):
            return read(value)
    raise ValueError(
        "it must be a time with its zone, such as 2026-03-01T12:00:00Z (write + as %2B in a URL)"
    )


Moment = Annotated[
    AwareDatetime,
    WrapValidator(_moment),
    Field(examples=["2026-03-01T12:00:00Z"]),
]
Position = Annotated[
    int, Query(ge=0, le=LARGEST_ID, description="Only what came after; 0 for everything.")
]
Wait = Annotated[
    float | None,
    Query(
        ge=0,
        le=LONGEST_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Answer when it is done, or after so many seconds.",
    ),
]
