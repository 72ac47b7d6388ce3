"""The base of every spec model, and the bounded number types they share."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

DISAGREEMENT = "disagreement"


class SpecModel(BaseModel):
    """Frozen, strict as JSON is, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def disagreement(field: str, message: str, why: str, fix: Mapping[str, Any]) -> PydanticCustomError:
    """For a validator of a block whose fields cannot hold beside each other.

    `field` is the one to look at, `fix` gives the values of the block that mend it, by name.
    """
    said = {"message": message, "field": field, "why": why, "fix": dict(fix)}
    return PydanticCustomError(DISAGREEMENT, "{message}", said)


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]
Epochs = Annotated[int, Field(ge=1, le=1_000_000)]
BatchSize = Annotated[int, Field(ge=1, le=1_048_576)]
LARGEST_RATE = 10.0
LearningRate = Annotated[float, Field(gt=0.0, le=LARGEST_RATE)]
FieldName = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")
]
