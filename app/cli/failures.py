"""Exit codes, and how an error becomes a sentence on stderr."""

import json
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from app.cli.output import print_lines, wrapped
from app.errors import StokerError, Unauthorized, Unavailable
from stoker import ClientError, Problem, ServiceUnreachable

WAYS_BACK_IN = (
    "  On the service's machine `stoker token create NAME` prints a new one, which goes into "
    "STOKER_TOKEN.\n  Where the file `token` of the service's home no longer holds a valid one, "
    "a restart of the service writes it anew."
)

WAIVERS = {
    "site": "an error, but for STOKER_GUARD=warn at the service",
    "parent": "an error in a new run; its parent was accepted with it",
}


class ExitCode(IntEnum):
    """What a command's end says; 3 and 4 come from `watch`, which ends as its run did."""

    ok = 0
    failed = 1
    usage = 2
    stopped = 3
    paused = 4
    refused = 5
    unreachable = 6
    interrupted = 130


OUTCOMES = {
    "succeeded": ExitCode.ok,
    "failed": ExitCode.failed,
    "stopped": ExitCode.stopped,
    "paused": ExitCode.paused,
}


class CommandFailed(Exception):
    """A command that could not do its work: a sentence, the code to exit with, further lines."""

    def __init__(
        self, detail: str, exit_code: ExitCode = ExitCode.refused, hints: Sequence[str] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.exit_code = exit_code
        self.hints = list(hints)


class StokerGroup(TyperGroup):
    """Turns the errors that a user can meet into sentences on stderr."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.interrupted) from None
        except BrokenPipeError:
            # The reader (`| head`) went away; the interpreter must not try to flush to it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.failed) from None
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            fail(*explained)


def fail(detail: str, exit_code: ExitCode, hints: list[str]) -> NoReturn:
    """Print the sentence and leave."""
    for line in wrapped(f"error: {detail}", err=True):
        typer.secho(line, err=True, fg=typer.colors.RED)
    print_lines(hints, err=True)
    raise typer.Exit(exit_code)


def require_yes(consequence: str) -> None:
    """Ask before something is lost; where nobody can be asked, --yes is needed."""
    if not sys.stdin.isatty():
        raise CommandFailed(f"{consequence} There is no terminal to ask on; --yes goes ahead.")
    typer.confirm(f"{consequence} Continue?", abort=True)


def explain(error: Exception) -> tuple[str, ExitCode, list[str]] | None:
    """Sentence, exit code and further lines for an error of ours; None for any other."""
    match error:
        case CommandFailed():
            return error.detail, error.exit_code, error.hints
        case Problem():
            return _explain_problem(error)
        case ServiceUnreachable():
            return error.detail, ExitCode.unreachable, []
        case ClientError() | StokerError():
            return error.detail, ExitCode.refused, []
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}{error.strerror or error}.", ExitCode.failed, []
    return None


def _explain_problem(error: Problem) -> tuple[str, ExitCode, list[str]]:
    """What the service refused. The findings say all that its sentence would, each with its fix."""
    if error.status == Unauthorized.status:
        return error.detail, ExitCode.refused, [WAYS_BACK_IN]
    code = ExitCode.unreachable if error.status == Unavailable.status else ExitCode.refused
    if error.issues:
        return f"{error.title.rstrip('.')}.", code, issue_lines(error.issues)
    return error.detail, code, []


def issue_lines(issues: list[dict[str, Any]]) -> list[str]:
    """Each finding of the guard, with why it matters and what would mend it."""
    lines = []
    for issue in issues:
        place = ".".join(str(part) for part in issue.get("loc", ())) or "spec"
        lines.append(f"  {issue['severity']} {issue['code']} at {place}: {issue['message']}")
        if issue.get("why"):
            lines.append(f"    why: {issue['why']}")
        steps = [step for op in issue.get("fix", ()) for step in _fix_steps(op)]
        if steps:
            lines.append(f"    fix: {', '.join(steps)}")
        if issue.get("accepted"):
            lines.append("    accepted by accept_risks")
        elif waiver := WAIVERS.get(issue.get("waived_by") or ""):
            lines.append(f"    {waiver}")
        elif issue.get("overridable") and issue["severity"] == "error":
            lines.append(f"    or accept it: --set 'accept_risks=[{issue['code']}]'")
    return lines


def _fix_steps(op: dict[str, Any]) -> list[str]:
    """One operation in words of the command line."""
    name = str(op["path"]).strip("/").replace("/", ".")
    return [f"remove {name}"] if op["op"] == "remove" else _settings_of(name, op["value"])


def _settings_of(name: str, value: Any) -> list[str]:
    """A --set for each value of a block: one for the block would replace what else is in it."""
    if isinstance(value, dict):
        return [
            line for key, inner in value.items() for line in _settings_of(f"{name}.{key}", inner)
        ]
    return [f"--set '{name}={value if isinstance(value, str) else json.dumps(value)}'"]
