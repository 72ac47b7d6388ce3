"""What `stoker ls` is asked for: its options as the service's filters, and as they are typed."""

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from app.cli.db.prune import parse_age
from app.cli.failures import CommandFailed, ExitCode, issue_lines
from stoker import Problem

OPTIONS = {
    "state": "--state",
    "status": "--status",
    "recipe": "--recipe",
    "dataset": "--dataset",
    "label": "--label",
    "q": "--search",
    "parent_id": "--parent",
    "created_after": "--since",
    "created_before": "--before",
    "created_by": "--by",
    "limit": "--limit",
    "after": "--after",
}
TIME_FORMS = (
    "2026-03-01T12:00:00Z (a time with its zone), 2026-03-01 (midnight UTC) or 1d, 12h, 30m (so "
    "long ago)"
)
SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Created since then: 2026-03-01T12:00:00Z, 2026-03-01 (midnight UTC), or 1d, 12h, "
        "30m ago.",
    ),
]
BeforeOption = Annotated[str | None, typer.Option(metavar="TIME", help="Created before then.")]


def as_typed(parameters: Mapping[str, Any]) -> str:
    """The options that ask for these parameters of the service, quoted for a shell."""
    words: list[str] = []
    for name, value in parameters.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        for one in values:
            words += [OPTIONS[name], str(one)]
    return shlex.join(words)


def moment(text: str | None, option: str) -> str | None:
    """A time with its zone, a date or how long ago, as RFC 3339; None where none was given."""
    if text is None:
        return None
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat()
        if datetime.fromisoformat(text).tzinfo is not None:
            return text
    except ValueError:
        pass  # it may be how long ago
    seconds = parse_age(text, option, TIME_FORMS)
    try:
        then = datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is before the year 1", param_hint=option) from None
    return then.isoformat(timespec="seconds")


def one_each(statuses: list[str] | None) -> list[str] | None:
    """The statuses; BadParameter for several in one."""
    for status in statuses or ():
        if "," in status:
            several = as_typed({"status": status.split(",")})
            raise typer.BadParameter(f"repeat the option: {several}", param_hint="--status")
    return statuses


def refusal(problem: Problem) -> CommandFailed:
    """What the service said of its parameters, said of the options that they come from."""
    issues = [_of_option(issue) for issue in problem.issues]
    return CommandFailed(
        f"{problem.title.rstrip('.')}.", ExitCode.refused, issue_lines(issues), problem.document
    )


def _of_option(issue: dict[str, Any]) -> dict[str, Any]:
    place = [str(part) for part in issue["loc"]]
    option = OPTIONS[place[1]]
    message = issue["message"].replace(".".join(place), option, 1)
    return {**issue, "loc": [option], "message": message}
