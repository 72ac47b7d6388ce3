"""`stoker doctor`: every check of the machine, what it found, and what to do about it."""

from app.cli.checks import run_checks, run_machine_checks
from app.cli.connect import read_settings
from app.cli.findings import Finding, report
from app.cli.output import JsonOption


def doctor(as_json: JsonOption = False) -> None:
    """Check environment, driver, disk, database, ports and token; exits with 1 on a problem."""
    from app.settings import SettingsError  # pydantic: late, as in connect

    try:
        settings = read_settings()
    except SettingsError as error:
        advice = "correct it in the environment or in HOME/stoker.toml; most checks need it"
        wrong = Finding("settings", "problem", error.detail, advice)
        report([wrong, *run_machine_checks()], as_json=as_json)
        return
    report(run_checks(settings), as_json=as_json)
