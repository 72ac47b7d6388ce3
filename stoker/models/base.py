"""The bases of answers and bodies, and the types that they and the run spec share."""

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

LARGEST_ID = 2**63 - 1
LONGEST_FILTER = 200  # characters; databases refuse to look for very long texts
Id = Annotated[int, Field(ge=1, le=LARGEST_ID)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
RunName = Annotated[str, StringConstraints(max_length=200)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(max_length=200)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Priority = Annotated[int, Field(ge=-1_000, le=1_000)]
DatasetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
# In a spec any text: what no dataset is called is told with the name that was meant.
NameOfDataset = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]


def rfc3339(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Time = Annotated[
    str,
    BeforeValidator(lambda value: rfc3339(value) if isinstance(value, int | float) else value),
    Field(json_schema_extra={"format": "date-time"}, examples=["2026-03-01T12:00:00.000Z"]),
]


class Answer(BaseModel):
    """Something the API says. Built from store records, whose times are unix seconds."""

    model_config = ConfigDict(from_attributes=True, use_attribute_docstrings=True)


class Body(BaseModel):
    """Something the API is told: strict, and nothing unknown is ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


T = TypeVar("T")


class Page(Answer, Generic[T]):
    """One page of a list."""

    # For each Page[…] pydantic would look for them in every frame of the stack, and find none: 8 %
    # of the API's imports.
    model_config = ConfigDict(use_attribute_docstrings=False)

    data: list[T]
    next_cursor: str | None = Field(
        None, description="Give it as `after` for the next page; null on the last one."
    )
