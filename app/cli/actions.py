"""Telling a run what to do: stop, kill, pause, resume, restart."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.connect import connect
from app.cli.output import JsonOption, print_json
from app.cli.runs import NO_CHANGES, RunId, SetOption
from app.cli.specfile import patch_of
from app.cli.watch import watch_run

if TYPE_CHECKING:
    from app.client import Which

WaitOption = Annotated[
    float | None, typer.Option("--wait", min=0, help="Wait until it is done, so many seconds.")
]


def stop(run_id: RunId, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """Save a checkpoint and end the run."""
    _act(run_id, "stop", wait, as_json)


def kill(run_id: RunId, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """End the run at once; what came after the last checkpoint is lost."""
    _act(run_id, "kill", wait, as_json)


def pause(run_id: RunId, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """Save a checkpoint and free the slot; `resume` goes on from there."""
    _act(run_id, "pause", wait, as_json)


def resume(run_id: RunId, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """Put a paused run back into the queue."""
    _act(run_id, "resume", wait, as_json)


def restart(
    run_id: RunId,
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="latest|best|scratch|N", help="Checkpoint to start from; N: its id."
        ),
    ] = "latest",
    assignments: SetOption = NO_CHANGES,
    force: Annotated[
        bool, typer.Option("--force", help="Kill an active run instead of letting it save.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it; end as the run does.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a new run that goes on from this one; an active one is stopped first."""
    with connect() as client:
        run = client.restart(
            run_id, from_=_source(from_), patch=patch_of(assignments) or None, force=force
        )
        if watch:
            raise typer.Exit(watch_run(client, run["id"], as_json=as_json))
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run_id} goes on as run {run['id']}, which is {run['status']}.")
    _explain_carry(run.get("carry"))
    typer.echo(f"  stoker watch {run['id']}")


def _act(
    run_id: int,
    action: Literal["stop", "kill", "pause", "resume"],
    wait_seconds: float | None,
    as_json: bool,
) -> None:
    with connect() as client:
        run = client.act(run_id, action, wait_seconds=wait_seconds)
    if as_json:
        print_json(run)
    else:
        typer.echo(f"Run {run_id} is {run['status']}.")


def _source(text: str) -> "Which | Literal['scratch'] | int":
    match text:
        case "latest" | "best" | "scratch":
            return text
        case digits if digits.isdecimal() and int(digits) > 0:
            return int(digits)
    raise typer.BadParameter(
        f"{text!r} is neither latest, best, scratch nor a checkpoint's id "
        "(`stoker checkpoints RUN` lists them)",
        param_hint="--from",
    )


def _explain_carry(carry: dict[str, Any] | None) -> None:
    said = {
        "full": "It carries the whole training state on.",
        "weights": "It carries the weights alone.",
        "scratch": "It starts from scratch.",
    }
    if carry is None:
        return
    typer.echo(f"  {said[carry['kind']]}")
    if carry["kind"] == "weights" and carry["starts_anew"]:
        typer.echo(f"  These start anew: {', '.join(carry['starts_anew'])}.")
