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
from app.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from app.settings import Settings

app = typer.Typer(cls=StokerGroup, no_args_is_help=True, help="Run as a service of the system.")

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
    _require_systemd()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(unit)
    _run("systemctl", "--user", "daemon-reload")
    _run("systemctl", "--user", "enable", "--now", UNIT_NAME)
    _run("loginctl", "enable-linger")
    if as_json:
        print_json({"path": str(path), "unit": unit})
        return
    typer.echo(f"{path} is installed and started; it will start again after a reboot.")
    typer.echo("  its log:   journalctl --user -u stoker -f")
    typer.echo("  remove it: systemctl --user disable --now stoker")


def unit_text(settings: "Settings") -> str:
    """The unit: SIGTERM goes to `stoker up` alone, which drains; the rest only if that fails."""
    environment = {
        name: value for name, value in sorted(os.environ.items()) if name.startswith("STOKER_")
    }
    environment["STOKER_HOME"] = str(settings.home)
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()]
    return "\n".join(
        [
            "[Unit]",
            "Description=Stoker, a training service",
            "After=network.target",
            "",
            "[Service]",
            f"ExecStart={_quoted(sys.executable)} -m app.cli up",
            f"WorkingDirectory={Path.cwd()}",
            *lines,
            "KillMode=mixed",
            f"TimeoutStopSec={settings.stop_grace_seconds + STOP_MARGIN_SECONDS:.0f}",
            "Restart=on-failure",
            "RestartSec=5",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quoted(text: str) -> str:
    """A word of a unit file: systemd's quotes, with % and $ taken literally."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


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
    probe = subprocess.run(
        ["systemctl", "--user", "show-environment"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        said = probe.stderr.strip() or "no reason given"
        raise CommandFailed(f"systemd has no session for this user ({said}). {instead}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip()}", ExitCode.failed)
