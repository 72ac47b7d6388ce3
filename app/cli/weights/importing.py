"""`stoker checkpoints`: those of a run, and weights from elsewhere as one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode, StokerGroup
from app.cli.output import JsonOption, print_json, print_lines
from app.cli.results import checkpoints
from app.cli.weights.exporting import wait_for

OF_A_RUN = "list"
LISTED = 8


class CheckpointsGroup(StokerGroup):
    """What begins with none of its commands is a run, of which the checkpoints are listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_own = bool(args) and args[0] not in (*self.commands, "-h", "--help")
        return super().parse_args(ctx, [OF_A_RUN, *args] if is_own else args)


app = typer.Typer(
    cls=CheckpointsGroup,
    no_args_is_help=True,
    help="List a run's checkpoints (stoker checkpoints RUN), or import one.",
)
app.command(OF_A_RUN, hidden=True)(checkpoints)


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .pt file with a state dict, or .safetensors, in the service's DATA_ROOT: "
            "absolute, or relative to it."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="Of the run that will hold it.")],
    key: Annotated[
        str | None,
        typer.Option(help="Where in the file the weights lie: state_dict, or module/state_dict."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(help="OLD=NEW: what names begin with. module.= strips it. Can be repeated."),
    ] = None,
    notes: Annotated[str, typer.Option(help="A note on where they are from.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Import weights, for runs to begin with: init_from: {checkpoint: ID}.

    A worker reads them as weights alone; nothing in the file is executed. The run that holds them
    was never trained. Its checkpoint is listed, downloaded and deleted as others are.
    """
    renames = _renames(rename or [])
    with connect() as client:
        job = client.import_checkpoint(str(file), name, key=key, rename=renames, notes=notes)
        job = wait_for(client, job, f"Importing {file.name}", is_quiet=as_json)
        if job["result"] is None:
            raise CommandFailed(str(job["error"]), ExitCode.refused)
        run = client.run(job["result"]["run_id"])
    made, left = job["result"], job["result"]["left"]
    if as_json:
        print_json(made)
        return
    typer.echo(f"Checkpoint {made['checkpoint_id']}, of run {run['id']} ({run['name']}).")
    print_lines([f"  {run['message']}"])
    if left:
        more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
        print_lines([f"  left out: {', '.join(left[:LISTED])}{more}"])
    typer.echo(f"  init_from: {{checkpoint: {made['checkpoint_id']}}}")


def _renames(given: list[str]) -> dict[str, str]:
    """Old beginnings and new ones. BadParameter."""
    renames = {}
    for one in given:
        old, is_said, new = one.partition("=")
        if not is_said:
            raise typer.BadParameter(f"{one!r} is not OLD=NEW", param_hint="--rename")
        renames[old] = new
    return renames
