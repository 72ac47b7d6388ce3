"""`stoker service install`: a systemd user unit, so that the service outlives logout and reboot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.connect import read_settings
from app.cli.failures import CommandFailed, ExitCode, StokerGroup
from app.cli.host.home_lock import holder_of
from app.cli.host.service import require_worker_extra
from app.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from app.settings import Settings

app = typer.Typer(
    cls=StokerGroup, no_args_is_help=True, help="Install Stoker as a service of the system."
)

UNIT_NAME = "stoker.service"
# Time for the worker to end its trainers, and for the API to leave, before systemd kills them.
STOP_MARGIN_SECONDS = 60


@app.callback()
def service() -> None:
    """Run as a service of the system."""


@app.command()
def install(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit alone.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Install, enable and start a systemd user unit with the settings of this environment."""
    settings = read_settings()
    unit = unit_text(settings)
    path = _unit_folder() / UNIT_NAME
    if dry_run:
        if as_json:
            print_json({"path": str(path), "unit": unit})
        else:
            typer.echo(f"# {path}\n{unit}", nl=False)
        return
    require_worker_extra()
    _require_systemd()
    _require_free(settings)
    write_unit(path, unit)
    _run("systemctl", "--user", "daemon-reload")
    _run("systemctl", "--user", "enable", UNIT_NAME)
    # Not `enable --now`, which would leave a running service with the settings of the last unit.
    _run("systemctl", "--user", "restart", UNIT_NAME)
    lingers = _ask("loginctl", "enable-linger").returncode == 0
    if as_json:
        print_json({"path": str(path), "unit": unit, "lingers": lingers})
        return
    typer.echo(f"{path} is installed and started.")
    typer.echo("  how it is: systemctl --user status stoker")
    typer.echo("  its log:   journalctl --user -u stoker -f")
    typer.echo("  remove it: systemctl --user disable --now stoker")
    if not lingers:
        typer.secho(
            "warning: it ends when you log out, and starts when you log in again, since this user "
            "may not switch lingering on. For a service that stays and starts at boot: "
            "sudo loginctl enable-linger $USER",
            err=True,
            fg=typer.colors.YELLOW,
        )


def unit_text(settings: "Settings") -> str:
    """The unit: SIGTERM goes to `stoker up` alone, which drains; the rest only if that fails.

    A refusal (a wrong setting, a home that is in use) is not tried again. A trainer that the kernel
    kills for its memory is the agent's affair, and no reason to end the others.
    """
    from app.settings import CLIENT_NAMES  # pydantic: late, as in connect

    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("STOKER_") and name.removeprefix("STOKER_") not in CLIENT_NAMES
    }
    # A relative one begins in the folder of now, which is not that of the unit.
    for name in ("home", "data_root", "artifact_root", "database_url"):
        if name == "home" or name in settings.model_fields_set:
            environment[f"STOKER_{name.upper()}"] = str(getattr(settings, name))
    named = [f"{name}={value}" for name, value in sorted(environment.items())]
    return "\n".join(
        [
            "[Unit]",
            "Description=Stoker, a training service",
            "",
            "[Service]",
            f"ExecStart={_quoted(sys.executable)} -P -m app.cli up",
            f"WorkingDirectory=-{_escaped(str(settings.home))}",  # which `up` makes
            *(f"Environment={_quoted(one)}" for one in named),
            "KillMode=mixed",
            f"TimeoutStopSec={settings.stop_grace_seconds + STOP_MARGIN_SECONDS:.0f}",
            "Restart=on-failure",
            "RestartSec=5",
            f"RestartPreventExitStatus={ExitCode.usage:d} {ExitCode.refused:d}",
            "OOMPolicy=continue",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quoted(text: str) -> str:
    """A word of a unit file, taken as it is: a path to start, or NAME=VALUE."""
    return '"' + _escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escaped(text: str) -> str:
    """Without systemd's specifiers; a setting of several lines, which no unit can say, is refused.

    Raises CommandFailed for control characters.
    """
    if not text.isprintable():
        raise CommandFailed(
            f"{text!r} holds a control character, which a unit file cannot hold. Change the "
            "setting, or go to a folder with another name."
        )
    return text.replace("%", "%%")


def write_unit(path: Path, unit: str) -> None:
    """For this user alone: the settings in it may hold the database's password."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(unit)


def _unit_folder() -> Path:
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration) / "systemd" / "user"


def _require_systemd() -> None:
    instead = (
        "`stoker up --detach` runs it in the background until the next reboot; "
        "`stoker service install --dry-run` prints the unit."
    )
    if not Path("/run/systemd/system").exists() or shutil.which("systemctl") is None:
        raise CommandFailed(f"This machine was not booted with systemd. {instead}")
    probe = _ask("systemctl", "--user", "show-environment")
    if probe.returncode != 0:
        said = probe.stderr.strip() or "no reason given"
        raise CommandFailed(f"systemd has no session for this user ({said}). {instead}")


def _require_free(settings: "Settings") -> None:
    """Refuse while a `stoker up` that is not the unit's has the home: the unit could not start."""
    holder = holder_of(settings)
    if holder is None or _ask("systemctl", "--user", "is-active", UNIT_NAME).returncode == 0:
        return
    raise holder.refused()


def _ask(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _run(*command: str) -> None:
    done = _ask(*command)
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip()}", ExitCode.failed)
