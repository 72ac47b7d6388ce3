"""What a check found, for `stoker doctor` and `stoker db check`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import typer

from app.cli.failures import ExitCode
from app.cli.output import print_json

Status = Literal["ok", "warning", "problem"]
MARKS = {"ok": ("ok", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


@dataclass(frozen=True)
class DoctorFinding:
    """What one check found. `advice` says what to do, empty when all is well."""

    check: str
    status: Status
    found: str
    advice: str = ""


def report(findings: Sequence[DoctorFinding], *, as_json: bool) -> None:
    """Print the findings; ends the command with 1 when one is a problem."""
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(ExitCode.failed)


def _print(finding: DoctorFinding) -> None:
    mark, color = MARKS[finding.status]
    typer.echo(f"{typer.style(f'{mark:>2}', fg=color)}  {finding.check:<12}  {finding.found}")
    if finding.advice:
        typer.echo(f"{'':<16}  → {finding.advice}")
