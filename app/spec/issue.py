"""How findings are made: so many at once, each with the pointer to its place."""

from collections.abc import Callable, Sequence
from typing import TypeVar

# They are answers of the API as well, and so lie where users import them.
from stoker.models.issue import Issue as Issue
from stoker.models.issue import PatchOp as PatchOp

T = TypeVar("T")
MOST_ISSUES = 20
MORE = "more_issues"
"""The code of the last issue, where there are more than are told."""


def at_most(places: Sequence[T], make: Callable[[T], Issue]) -> list[Issue]:
    """The issue of each place; of very many places, of the first ones, and how many more there are.

    To make one may mean to look for what was probably meant, and nobody reads thousands.
    """
    issues = [make(place) for place in places[:MOST_ISSUES]]
    left_out = len(places) - len(issues)
    if left_out:
        issues.append(
            Issue(
                code=MORE,
                severity="error",
                loc=[],
                message=f"{left_out:,} more places are wrong.",
                why="Only the first ones are shown. Correct those, and ask again.",
            )
        )
    return issues


def pointer(loc: Sequence[str | int]) -> str:
    """The JSON Pointer (RFC 6901) of a location."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc)
