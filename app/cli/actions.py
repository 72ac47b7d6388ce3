"""Telling a run what to do: stop, kill, pause, resume, restart, delete."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.arguments import RunId
from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode, issue_lines, require_yes
from app.cli.output import JsonOption, in_words, number, print_json, print_lines
from app.cli.planview import print_plan
from app.cli.specfile import NO_CHANGES, SetOption, patch_of
from app.cli.watch import watch_run
from stoker import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker import Client, Which

Action = Literal["stop", "kill", "pause", "resume"]

WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait", min=0, metavar="SECONDS", help="Wait for it to be done, this long at most."
    ),
]
# The state in which an action has nothing more to do.
AT_REST = {"stop": "stopped", "kill": "stopped", "pause": "paused"}
ENDED = ("succeeded", "failed", "stopped")


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
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it; the exit code is the outcome.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would come of it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a new run that goes on from this one; an active one is stopped first."""
    source, patch = _source(from_), patch_of(assignments) or None
    if dry_run:
        if force or watch:
            raise typer.BadParameter("nothing is restarted with --dry-run")
        _plan_restart(run_id, source, patch, as_json=as_json)
        return
    with connect() as client, _shape_explained(run_id):
        run = client.restart(run_id, from_=source, patch=patch, force=force)
        warnings = [] if as_json else client.issues(run["id"])
        if watch:
            print_lines(issue_lines(warnings))
            raise typer.Exit(watch_run(client, run["id"], as_json=as_json))
    if as_json:
        print_json(run)
        return
    typer.echo(f"Run {run_id} goes on as run {run['id']}, which {in_words(run['status'])}.")
    _explain_carry(run["carry"], source)
    print_lines(issue_lines(warnings))
    typer.echo(f"  stoker watch {run['id']}")


def delete(
    run_id: RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove an ended run with its checkpoints, metrics and logs."""
    with connect() as client:
        client.run(run_id)  # one that is not there is refused before anybody is asked
        if not yes:
            require_yes(f"This removes run {run_id} with its checkpoints, metrics and logs.")
        try:
            client.delete(run_id)
        except _problem_type() as problem:
            raise _refusal(client, run_id, "delete", problem) from None
    if as_json:
        print_json({"deleted": run_id})
    else:
        typer.echo(f"Run {run_id} is deleted; a worker will remove its files.")


def _act(run_id: int, action: Action, wait_seconds: float | None, as_json: bool) -> None:
    with connect() as client:
        state_before = client.run(run_id)["state"]
        try:
            run = client.act(run_id, action, wait_seconds=wait_seconds)
        except _problem_type() as problem:
            raise _refusal(client, run_id, action, problem) from None
    if as_json:
        print_json(run)
        return
    said = in_words(run["status"])
    if state_before == AT_REST.get(action):
        said = said.replace(" ", " already ", 1)
    typer.echo(f"Run {run_id} {said}.")


def _problem_type() -> "type[Problem]":
    return Problem


def _refusal(
    client: "Client", run_id: int, action: str, problem: Problem
) -> "CommandFailed | Problem":
    """An action that the run's state does not allow, as a person would say it."""
    if problem.code != "action_not_allowed":
        return problem
    state = client.run(run_id)["state"]
    allowed = "".join(f"\n  stoker {verb} {run_id}" for verb in problem.allowed_actions)
    if action == "delete":
        said = f"Run {run_id} is {state}; only one that has ended can be deleted."
    elif state in ENDED:
        said = f"Run {run_id} {in_words(state)}; there is nothing to {action}."
    else:
        said = f"Run {run_id} is {state}; you cannot {action} it now."
    return CommandFailed(f"{said} Possible now:{allowed}")


def _plan_restart(
    run_id: int,
    source: "Which | Literal['scratch'] | int",
    patch: dict[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    with connect() as client, _shape_explained(run_id):
        answer = client.plan_restart(run_id, from_=source, patch=patch)
    if as_json:
        print_json(answer)
    else:
        print_plan(answer, everything=False)
        _explain_carry(answer["carry"], source)
    if not answer["accepted"]:
        raise typer.Exit(ExitCode.refused)


@contextmanager
def _shape_explained(run_id: int) -> "Iterator[None]":
    """Weights that cannot fit, as a person would say it."""
    try:
        yield
    except _problem_type() as problem:
        for issue in problem.issues:
            if issue["code"] == "shape_changed":
                raise CommandFailed(
                    f"A new {'.'.join(map(str, issue['loc']))} changes the shape of the model, so "
                    f"the weights of run {run_id} do not fit. Leave it as it was, or train anew "
                    "with: --from scratch"
                ) from None
        raise


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


def _explain_carry(
    carry: dict[str, Any] | None, source: "Which | Literal['scratch'] | int"
) -> None:
    if carry is None:
        return
    typer.echo(f"  {_carried(carry, source)}")
    if carry["kind"] == "weights" and (carry["waits_for_parent"] or carry["step"] is not None):
        files = {"/data/dataset": "data.dataset, or the file behind it"}
        differ = [files.get(path, path.strip("/").replace("/", ".")) for path in carry["changed"]]
        typer.echo(f"  These differ from its parent's: {'; '.join(differ)}.")
        typer.echo(f"  These start anew: {', '.join(carry['starts_anew'])}.")


def _carried(carry: dict[str, Any], source: "Which | Literal['scratch'] | int") -> str:
    if carry["kind"] == "scratch":
        return "It starts from scratch."
    what = "the whole training state" if carry["kind"] == "full" else "the weights alone"
    if carry["waits_for_parent"] and source in ("latest", "best"):
        which = "latest" if source == "latest" else "best by then"
        return f"It takes over {what}, as saved ({which}) once its parent has stopped."
    if carry["step"] is None:
        return "Nothing is saved that it could go on from: it starts from the beginning."
    return f"It takes over {what}, as of step {number(carry['step'])}."
