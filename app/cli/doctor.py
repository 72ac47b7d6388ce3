"""`stoker doctor`: every check of the machine, what it found, and what to do about it."""

from app.cli.checks import run_checks
from app.cli.connect import read_settings
from app.cli.findings import report
from app.cli.output import JsonOption


def doctor(as_json: JsonOption = False) -> None:
    """Check environment, driver, disk, database, ports and token; ends with 1 on a problem."""
    report(run_checks(read_settings()), as_json=as_json)
