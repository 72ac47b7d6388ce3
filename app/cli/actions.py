"""Telling a run what to do: stop, kill, pause, resume, restart, delete."""

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from app.cli.arguments import RunIds, for_each
from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode, issue_lines, require_yes
from app.cli.output import JsonOption, in_words, label_line, number, print_json, print_lines
from app.cli.planview import print_plan
from app.cli.specs.specfile import NO_CHANGES, SetOption, patch_of
from app.cli.watch import watch_run
from stoker import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker import Client, Which

    Source = Which | Literal["scratch"] | int

Document = dict[str, Any]
Action = Literal["stop", "kill", "pause", "resume"]

WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="Wait until it is done, at most this long for a run.",
    ),
]
# The state in which an action has nothing more to do.
AT_REST = {"stop": "stopped", "kill": "stopped", "pause": "paused"}
ENDED = ("succeeded", "failed", "stopped")


def stop(run_ids: RunIds, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """Save a checkpoint and end the run; of several, each."""
    _act(run_ids, "stop", wait, as_json)


def kill(run_ids: RunIds, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """End the run at once; what came after the last checkpoint is lost."""
    _act(run_ids, "kill", wait, as_json)


def pause(
    run_ids: RunIds,
    wait: WaitOption = None,
    lose_progress: Annotated[
        bool,
        typer.Option(
            "--lose-progress", help="Pause even a script that has saved nothing to resume from."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Save a checkpoint and free the GPU; `resume` goes on from there."""
    _act(run_ids, "pause", wait, as_json, lose_progress=lose_progress)


def resume(run_ids: RunIds, wait: WaitOption = None, as_json: JsonOption = False) -> None:
    """Put a paused run back into the queue."""
    _act(run_ids, "resume", wait, as_json)


def restart(
    run_ids: RunIds,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="latest|best|scratch|N",
            help="The checkpoint to start from; N is its id.",
        ),
    ] = "latest",
    assignments: SetOption = NO_CHANGES,
    force: Annotated[
        bool, typer.Option("--force", help="Kill an active run instead of letting it save.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it to its end; the exit code is the outcome.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a new run that goes on from this one, which is stopped first if it is active."""
    source, patch = _source(from_), patch_of(assignments) or None
    if dry_run and (force or watch):
        raise typer.BadParameter("nothing is restarted with --dry-run")
    if len(run_ids) > 1 and (dry_run or watch or isinstance(source, int)):
        raise typer.BadParameter("--watch, --dry-run and --from N are for one run")
    if dry_run:
        _plan_restart(run_ids[0], source, patch, as_json=as_json)
        return
    with connect() as client:
        if watch:
            _restart_and_watch(client, run_ids[0], source, patch, force=force, as_json=as_json)

        def act(run_id: int) -> tuple[Document, list[str]]:
            with _shape_explained(run_id):
                run = client.restart(run_id, from_=source, patch=patch, force=force)
            return run, [] if as_json else _restarted(client, run_id, run, source)

        for_each(run_ids, act, as_json=as_json)


def _restart_and_watch(
    client: "Client", run_id: int, source: "Source", patch: Document | None, *, force: bool,
    as_json: bool,
) -> NoReturn:  # fmt: skip
    with _shape_explained(run_id):
        run = client.restart(run_id, from_=source, patch=patch, force=force)
    warnings = [] if as_json else client.issues(run["id"])
    print_lines(issue_lines(warnings))
    raise typer.Exit(watch_run(client, run["id"], warnings, as_json=as_json))


def _restarted(client: "Client", run_id: int, run: Document, source: "Source") -> list[str]:
    words, carry = in_words(run["status"], run["waits_for"]), run["carry"]
    begins = carry and (carry["kind"] == "scratch" or _has_nothing(carry))
    does = "starts anew" if begins else "goes on"
    return [
        f"Run {run_id} {does} as run {run['id']}, which {words}.",
        *_carry_lines(carry, source, is_script=run["recipe"] == "script"),
        *issue_lines(client.issues(run["id"])),
        f"  stoker watch {run['id']}",
    ]


def edit(
    run_ids: RunIds,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    notes: Annotated[str | None, typer.Option(help="Free text.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Higher is claimed first, -1000 to 1000.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Set a label; KEY= removes it. May come again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change name, notes, labels or priority of a run; its spec stays."""
    given = {"name": name, "notes": notes, "priority": priority}
    changes: Document = {key: value for key, value in given.items() if value is not None}
    if not changes and not label:
        raise typer.BadParameter("say what to change: --name, --notes, --priority or --label")
    with connect() as client:

        def act(run_id: int) -> tuple[Document, list[str]]:
            old = client.run(run_id)
            labels = {"labels": _labelled(old["labels"], label)} if label else {}
            version = old["version"] if label else None
            run = client.update(run_id, {**changes, **labels}, version=version)
            shown = [f"{key} {value!r}" for key, value in changes.items()]
            if label:
                shown.append(f"labels {label_line(run['labels']) or '(none)'}")
            return run, [f"Run {run_id} now has the {', '.join(shown)}."]

        for_each(run_ids, act, as_json=as_json)


def _labelled(labels: dict[str, str], changes: list[str]) -> dict[str, str]:
    new = dict(labels)
    for change in changes:
        key, is_given, value = change.partition("=")
        if not is_given or not key:
            raise typer.BadParameter(f"{change!r} is not KEY=VALUE", param_hint="--label")
        new[key] = value
    return {key: value for key, value in new.items() if value}


def delete(
    run_ids: RunIds,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove an ended run with its checkpoints, metrics and logs."""
    with connect() as client:
        for run_id in run_ids:  # one that is not there is refused before anybody is asked
            client.run(run_id)
        if not yes:
            which = f"run {run_ids[0]} with its" if len(run_ids) == 1 else (
                f"runs {', '.join(map(str, run_ids))} with their"
            )  # fmt: skip
            require_yes(f"This removes {which} checkpoints, metrics and logs.")

        def act(run_id: int) -> tuple[Document, list[str]]:
            try:
                client.delete(run_id)
            except _problem_type() as problem:
                raise _refusal(client, run_id, "delete", problem) from None
            told = f"Run {run_id} is deleted; a worker will remove its files."
            return {"deleted": run_id}, [told]

        for_each(run_ids, act, as_json=as_json)


def _act(
    run_ids: list[int],
    action: Action,
    wait_seconds: float | None,
    as_json: bool,
    *,
    lose_progress: bool = False,
) -> None:
    with connect() as client:
        before: dict[int, str] = {}

        def ask(run_id: int, wait: float | None) -> tuple[Document, list[str]]:
            before.setdefault(run_id, client.run(run_id)["state"])
            try:
                run = client.act(run_id, action, wait_seconds=wait, lose_progress=lose_progress)
            except _problem_type() as problem:
                raise _refusal(client, run_id, action, problem) from None
            said = in_words(run["status"], run["waits_for"])
            if before[run_id] == AT_REST.get(action):
                said = said.replace(" ", " already ", 1)
            return run, [f"Run {run_id} {said}."]

        if wait_seconds and len(run_ids) > 1:  # all are asked first, so that they end side by side
            for run_id in run_ids:
                with suppress(CommandFailed, _problem_type()):
                    ask(run_id, None)
        for_each(run_ids, lambda run_id: ask(run_id, wait_seconds), as_json=as_json)


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
    return CommandFailed(f"{said} Possible now:{allowed}", document=problem.document)


def _plan_restart(
    run_id: int,
    source: "Source",
    patch: Document | None,
    *,
    as_json: bool,
) -> None:
    with connect() as client, _shape_explained(run_id):
        answer = client.plan_restart(run_id, from_=source, patch=patch)
    if as_json:
        print_json(answer)
    else:
        print_plan(answer, everything=False)
        kind = ((answer["spec"] or {}).get("recipe") or {}).get("kind")
        print_lines(_carry_lines(answer["carry"], source, is_script=kind == "script"))
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
                    "with: --from scratch",
                    document=problem.document,
                ) from None
        raise


def _source(text: str) -> "Source":
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


def _carry_lines(carry: Document | None, source: "Source", *, is_script: bool) -> list[str]:
    if carry is None:
        return []
    lines = [f"  {_carried(carry, source, is_script=is_script)}"]
    if carry["kind"] == "weights" and (carry["waits_for_parent"] or carry["step"] is not None):
        files = {"/data/dataset": "data.dataset, or the file behind it"}
        differ = [files.get(path, path.strip("/").replace("/", ".")) for path in carry["changed"]]
        lines.append(f"  These differ from its parent's: {'; '.join(differ)}.")
        lines.append(f"  These start anew: {', '.join(carry['starts_anew'])}.")
    return lines


def _carried(carry: Document, source: "Source", *, is_script: bool) -> str:
    if carry["kind"] == "scratch":
        return "It starts from scratch."
    what = "the full training state" if carry["kind"] == "full" else "the weights alone"
    takes = "It is given what was saved" if is_script else f"It continues with {what}, as saved"
    if carry["waits_for_parent"] and source in ("latest", "best"):
        which = "latest" if source == "latest" else "best by then"
        return f"{takes} ({which}) once its parent has stopped."
    if carry["step"] is None:
        return "Nothing is saved that it could go on from: it starts from the beginning."
    takes = "It is given the checkpoint of" if is_script else f"It continues with {what} from"
    return f"{takes} step {number(carry['step'])}."


def _has_nothing(carry: dict[str, Any]) -> bool:
    """Whether its parent has saved nothing, and will not."""
    return carry["step"] is None and not carry["waits_for_parent"]
