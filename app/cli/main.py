"""The table of all commands, and how one is run."""

import os
import re
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperCommand

from app import __version__
from app.cli import actions, presets, results, rules, run, runs, show, tokens, watch
from app.cli.data import datasets
from app.cli.db import database
from app.cli.failures import ExitCode, StokerGroup
from app.cli.host import bench, doctor, machine, queue, service, systemd
from app.cli.specs import plan
from app.cli.weights import exporting, importing

STATE = (
    "`stoker ls` shows the state of all runs, `stoker show RUN` that of one, `stoker queue` what "
    "waits, and `stoker doctor` whether the service is well"
)
RUNS = "`stoker ls` lists runs"
ENDING = "`stoker stop RUN` saves and ends a run, and `stoker kill RUN` ends it at once"
LOG = "`stoker logs RUN --follow` follows the log, and `stoker watch RUN` the progress"
STARTING = (
    "`stoker submit SPEC` starts a run, `stoker run -- python train.py` a script of yours, and "
    "`stoker up` the service"
)
REMOVING = "`stoker delete RUN` removes a run that has ended"

# What another tool calls so, or is not built yet, is answered with the commands that there are.
CALLED_HERE = {
    **dict.fromkeys(("status", "state", "info", "describe"), STATE),
    **dict.fromkeys(("list", "ps", "jobs", "runs", "squeue"), RUNS),
    **dict.fromkeys(("cancel", "abort", "terminate", "end", "scancel"), ENDING),
    **dict.fromkeys(("tail", "log", "follow", "attach"), LOG),
    **dict.fromkeys(("start", "train", "launch", "sbatch", "create", "exec"), STARTING),
    **dict.fromkeys(("rm", "remove", "del"), REMOVING),
    **dict.fromkeys(("top", "nvidia-smi", "gpu"), "`stoker gpus` lists the GPUs and who uses them"),
    "compare": "it is not built yet; `stoker show RUN` tells the result of each run, and `stoker "
    "metrics RUN` its curves",
    "diagnose": "it is not built yet; `stoker show RUN` says how a run ended, `stoker logs RUN` "
    "has its log, and `stoker doctor` looks at the service",
    "events": "it is not built yet; `stoker watch RUN --json` prints those of a run",
    "serve": "`stoker up` starts the service: API, worker and exporter",
    "help": "`stoker --help` lists the commands, and `stoker COMMAND --help` explains one",
    "version": "`stoker --version` prints it",
}


class Commands(StokerGroup):
    """All of them; who types another tool's word for one is told ours."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0] if args else ""
        if word in CALLED_HERE and word not in self.commands:
            ctx.fail(f"No such command {word!r}: {CALLED_HERE[word]}.")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """One of them; its usage line has `RUN…` as its help has, without brackets around it."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"^\{(.*…)\}\.\.\.$", r"\1", piece) for piece in pieces]


class ScriptCommand(Command):
    """`stoker run`: an option that it does not have is most often one of the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            wrong: Any = error
            if hasattr(wrong, "possibilities"):  # of an option that there is not
                wrong.message += (
                    ". Options of your script go behind it: "
                    f"stoker run -- python train.py {wrong.option_name} …"
                )
            raise


app = typer.Typer(
    name="stoker",
    help="A training service that keeps GPUs fed.",
    cls=Commands,
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
        "show": show.show,
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
        "pin": results.pin,
        "unpin": results.unpin,
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
CONTEXTS = {
    "run": {"allow_interspersed_args": False},
    "metrics": {"allow_extra_args": True},  # which it refuses itself, and says how to name them
}

for topic, commands in TOPICS.items():
    for name, command in commands.items():
        how: dict[str, Any] = {"rich_help_panel": topic, "context_settings": CONTEXTS.get(name)}
        app.command(name, cls=ScriptCommand if name == "run" else Command, **how)(command)
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
    if isinstance(sys.stdout, TextIOWrapper):
        # A file's name may be no UTF-8, and a terminal may have no dash: neither ends a command.
        sys.stdout.reconfigure(errors="backslashreplace")
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
