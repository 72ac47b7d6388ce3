"""The table of all commands, and how one is run."""

import os
import sys
from collections.abc import Callable

import typer

from app import __version__
from app.cli import actions, plan, presets, results, rules, run, runs, tokens, watch
from app.cli.data import datasets
from app.cli.db import database
from app.cli.failures import ExitCode, StokerGroup
from app.cli.host import bench, doctor, machine, queue, service, systemd
from app.cli.weights import exporting, importing

app = typer.Typer(
    name="stoker",
    help="A training service that keeps GPUs fed.",
    cls=StokerGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TOPICS: dict[str, dict[str, Callable[..., None]]] = {
    "Service": {
        "up": service.up,
        "down": service.down,
        "api": service.api,
        "worker": service.worker,
    },
    "Runs": {
        "run": run.run,
        "submit": runs.submit,
        "plan": plan.plan,
        "ls": runs.ls,
        "show": runs.show,
        "watch": watch.watch,
        "stop": actions.stop,
        "kill": actions.kill,
        "pause": actions.pause,
        "resume": actions.resume,
        "restart": actions.restart,
        "edit": actions.edit,
        "delete": actions.delete,
    },
    "Results": {
        "logs": results.logs,
        "metrics": results.metrics,
        "download": results.download,
        "export": exporting.export,
        "exports": exporting.exports,
    },
    "Machine": {
        "gpus": machine.gpus,
        "workers": machine.workers,
        "presets": presets.presets,
        "rules": rules.rules,
        "doctor": doctor.doctor,
        "bench": bench.bench,
    },
}
GROUPS = {
    "queue": queue.app,
    "checkpoints": importing.app,
    "data": datasets.app,
    "service": systemd.app,
    "token": tokens.app,
    "db": database.app,
}

PANELS = {"queue": "Machine", "checkpoints": "Results"}

# What follows a command of the user's own is its, also without `--` before it.
CONTEXTS = {"run": {"allow_interspersed_args": False}}

for topic, commands in TOPICS.items():
    for name, command in commands.items():
        settings = CONTEXTS.get(name)
        app.command(name, rich_help_panel=topic, context_settings=settings)(command)
for name, group in GROUPS.items():
    panel = PANELS.get(name, "Administration")
    app.add_typer(group, name=name, rich_help_panel=panel)


@app.callback(invoke_without_command=True)
def stoker(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """A training service that keeps GPUs fed."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; a defect of Stoker itself ends as a sentence too."""
    try:
        app()
    except Exception as error:
        if os.environ.get("STOKER_LOG_LEVEL") == "debug":
            raise
        typer.secho(
            f"error: {type(error).__name__}: {error}. This is a defect in Stoker, not in your "
            "command; with STOKER_LOG_LEVEL=debug it shows where.",
            err=True,
            fg=typer.colors.RED,
        )
        sys.exit(ExitCode.failed)
