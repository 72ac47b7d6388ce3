"""Exit codes, and how an error becomes a sentence on stderr."""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from app.cli.output import AS_JSON, print_lines, wrapped
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
    """Done; for `watch` and `--watch`: the run succeeded."""
    failed = 1
    """The run failed; or the command did; or `doctor` or `db check` found a problem."""
    usage = 2
    """The command line is wrong."""
    stopped = 3
    """The run was stopped."""
    paused = 4
    """The run is paused."""
    refused = 5
    """Refused: a spec with errors, a state that does not allow it, something that is not there, a
    wrong token or setting."""
    unreachable = 6
    """The service does not answer, or is not ready; `watch` tries for a minute first."""
    interrupted = 130
    """Ctrl-C; a run that was watched goes on."""


OUTCOMES = {
    "succeeded": ExitCode.ok,
    "failed": ExitCode.failed,
    "stopped": ExitCode.stopped,
    "paused": ExitCode.paused,
}


class CommandFailed(Exception):
    """A command that could not do its work: a sentence, the code to exit with, further lines.

    `document` is what the service said, where it was the service that refused; else `code` is what
    --json calls it, by default the word of the exit code.
    """

    def __init__(
        self,
        detail: str,
        exit_code: ExitCode = ExitCode.refused,
        hints: Sequence[str] = (),
        document: Mapping[str, Any] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.exit_code = exit_code
        self.hints = list(hints)
        self.document = {**({} if code is None else {"code": code}), **(document or {})}


@dataclass(frozen=True)
class Explained:
    """An error as it is told: a sentence, the exit code, further lines, and the document of --json,
    which has a `code` of its own or that of the exit code.
    """

    detail: str
    exit_code: ExitCode
    hints: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)


class StokerGroup(TyperGroup):
    """Turns the errors that a user can meet into sentences on stderr; and its help shows a value
    only where an option takes one.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_values(command.get_params(ctx))
        return command

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
            fail(explained, as_json=bool(ctx.meta.get(AS_JSON)))


def _without_values(params: list[Any]) -> list[Any]:
    """The same; of those that are flags no type is shown, as if `--watch` were given one."""
    for param in params:
        if getattr(param, "is_bool_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


def fail(told: Explained, *, as_json: bool) -> NoReturn:
    """Print the sentence on stderr, or with --json the document with the exit code, and leave."""
    if as_json:
        typer.echo(json.dumps(error_document(told), indent=2, ensure_ascii=False), err=True)
    else:
        print_error(told)
    raise typer.Exit(told.exit_code)


def error_document(told: Explained) -> dict[str, Any]:
    """What --json shows of an error."""
    return {
        "code": told.exit_code.name,
        **told.document,
        "detail": told.detail,
        "exit_code": told.exit_code.value,
    }


def print_error(told: Explained) -> None:
    """The sentence on stderr, and what else is to be said."""
    for line in wrapped(f"error: {told.detail}", err=True):
        typer.secho(line, err=True, fg=typer.colors.RED)
    print_lines(told.hints, err=True)


def require_yes(consequence: str) -> None:
    """Ask before something is lost; where nobody can be asked, --yes is needed."""
    if not sys.stdin.isatty():
        raise CommandFailed(f"{consequence} There is no terminal to ask on; --yes goes ahead.")
    typer.confirm(f"{consequence} Continue?", abort=True)


def explain(error: Exception) -> Explained | None:
    """What to tell of an error of ours; None for any other."""
    match error:
        case CommandFailed():
            return Explained(error.detail, error.exit_code, error.hints, error.document)
        case Problem():
            return _explain_problem(error)
        case ServiceUnreachable():
            return Explained(error.detail, ExitCode.unreachable)
        case StokerError():
            known_as = {"code": error.problem_code}
            return Explained(error.detail, ExitCode.refused, document=known_as)
        case ClientError():
            return Explained(error.detail, ExitCode.refused)
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return Explained(f"{where}{error.strerror or error}.", ExitCode.failed)
    return None


def _explain_problem(error: Problem) -> Explained:
    """What the service refused. The findings say all that its sentence would, each with its fix."""
    if error.status == Unauthorized.status:
        return Explained(error.detail, ExitCode.refused, [WAYS_BACK_IN], error.document)
    code = ExitCode.unreachable if error.status == Unavailable.status else ExitCode.refused
    if error.issues:
        title = f"{error.title.rstrip('.')}."
        return Explained(title, code, issue_lines(error.issues), error.document)
    return Explained(error.detail, code, document=error.document)


def issue_lines(
    issues: list[dict[str, Any]], options: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Each finding of the guard, with why it matters and what would mend it. `options`: of fields
    that the command has an option of its own for; others are given by --set.
    """
    lines = []
    for issue in issues:
        place = ".".join(str(part) for part in issue.get("loc", ())) or "spec"
        field = ".".join(part for part in issue.get("loc", ()) if isinstance(part, str))
        message, why = (_in_options(issue.get(part) or "", options) for part in ("message", "why"))
        place, field = options.get(place, place), options.get(field, field)
        lines.append(f"  {issue['severity']} {issue['code']} at {place}: {message}")
        if why:  # what a field is, is no reason
            lines.append(f"    {'' if why.startswith(f'{field}: ') else 'why: '}{why}")
        if steps := fix_steps(issue, options):
            lines.append(f"    fix: {', '.join(steps)}")
        if others := [step for op in issue.get("other_fix", ()) for step in _steps_of(op, options)]:
            lines.append(f"    or: {', '.join(others)}")
        if issue.get("accepted"):
            lines.append("    accepted by accept_risks")
        elif waiver := WAIVERS.get(issue.get("waived_by") or ""):
            lines.append(f"    {waiver}")
        elif issue.get("overridable") and issue["severity"] == "error":
            lines.append(f"    or accept it: --set 'accept_risks=[{issue['code']}]'")
    return lines


def _in_options(text: str, options: Mapping[str, str]) -> str:
    """A text with the command's options in place of the fields that they say."""
    for name, option in options.items():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", option, text)
    return text


def fix_steps(issue: Mapping[str, Any], options: Mapping[str, str]) -> list[str]:
    """The fix of a finding in words of the command line."""
    fix = issue.get("fix", ())
    if issue["code"] == "unknown_field" and len(fix) > 1:
        return [_renamed(fix[0], fix[-1])]
    return [step for op in fix for step in _steps_of(op, options)]


def _renamed(removed: dict[str, Any], added: dict[str, Any]) -> str:
    """What a field should be called; its value as well, which may have a name of its own here."""
    new, value = _dotted(added), added["value"]
    told = f"rename {_dotted(removed)} to {new}"
    if isinstance(value, dict):
        return told
    return f"{told} ({new}={value if isinstance(value, str) else json.dumps(value)})"


def _dotted(op: dict[str, Any]) -> str:
    return str(op["path"]).strip("/").replace("/", ".")


def _steps_of(op: dict[str, Any], options: Mapping[str, str]) -> list[str]:
    name = _dotted(op)
    if name == "from":  # where a restart begins is an option, not a setting of the run
        return [f"--from {op['value']}"]
    if op["op"] == "remove":
        return [f"remove {options.get(name, name)}"]
    return _settings_of(name, op["value"], options)


def _settings_of(name: str, value: Any, options: Mapping[str, str]) -> list[str]:
    """A --set for each value of a block: one for the block would replace what else is in it."""
    if isinstance(value, dict):
        return [
            line
            for key, inner in value.items()
            for line in _settings_of(f"{name}.{key}", inner, options)
        ]
    if name in options:
        return [f"{options[name]} {shlex.quote(str(value))}"]
    return [f"--set '{name}={value if isinstance(value, str) else json.dumps(value)}'"]
