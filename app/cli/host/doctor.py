"""`stoker doctor`: every check of the machine, what it found, and what to do about it."""

from typing import Annotated

import typer

from app.cli.connect import read_settings
from app.cli.host.findings import DoctorFinding, report
from app.cli.output import JsonOption

NotifyOption = Annotated[
    bool, typer.Option("--notify", help="Only send a message to STOKER_NOTIFY_URL, to try it.")
]


def doctor(notify: NotifyOption = False, as_json: JsonOption = False) -> None:
    """Check environment, driver, disk, database, ports and token; ends with 1 on a problem."""
    # Late: half of what every other command would start with.
    from app.cli.host.checks import run_checks, run_machine_checks
    from app.cli.host.notifying import try_notification
    from app.settings import SettingsError

    try:
        settings = read_settings()
    except SettingsError as error:
        advice = "correct it in the environment or in HOME/stoker.toml; most checks need it"
        wrong = DoctorFinding("settings", "problem", error.detail, advice)
        report([wrong, *run_machine_checks()], as_json=as_json)
        return
    report([try_notification(settings)] if notify else run_checks(settings), as_json=as_json)
