"""Telling a run what to do: stop, kill, pause, resume, restart, delete."""

import shlex
import time
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from app.cli.arguments import RunIds, cut_off, for_each, parse_seconds
from app.cli.connect import connect
from app.cli.failures import CommandFailed, ExitCode, issue_lines, require_yes
from app.cli.output import JsonOption, in_words, label_line, print_json, print_lines
from app.cli.specs.planview import carry_lines, has_nothing, print_plan
from app.cli.specs.specfile import NO_CHANGES, SetOption, patch_of
from app.cli.watch import watch_run
from app.lifecycle import TERMINAL
from stoker import Problem, ServiceUnreachable

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
        parser=parse_seconds,
        metavar="SECONDS",
        help="Wait until it is done; of several runs until all are, at most this long in all. "
        "What is not done by then goes on: its line has its status, and the exit code is 0.",
    ),
]
# The state in which an action has nothing more to do.
AT_REST = {"stop": "stopped", "kill": "stopped", "pause": "paused"}
# What --wait waits for, unless the run ends before.
DONE = {**AT_REST, "resume": "running"}
POLL_SECONDS = 0.2
# Why a restart cannot go on with its parent's weights, by the code of the finding.
UNFIT = {
    "shape_changed": "A new {place} changes the shape of the model, so the weights of run {run} do "
    "not fit.",
    "init_from_changed": "A restart goes on with the weights of run {run}, so {place} would have "
    "no effect.",
}


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
        _plan_restart(run_ids[0], source, assignments, as_json=as_json)
        return
    with connect() as client:
        if watch:
            with _with_a_way_out(run_ids[0], source, assignments):
                run = client.restart(run_ids[0], from_=source, patch=patch, force=force)
            _watch_restarted(client, run, as_json=as_json)

        def act(run_id: int) -> tuple[Document, list[str]]:
            with _with_a_way_out(run_id, source, assignments):
                run = client.restart(run_id, from_=source, patch=patch, force=force)
            return run, [] if as_json else _restarted(client, run_id, run, source)

        for_each(run_ids, act, as_json=as_json)


def _watch_restarted(client: "Client", run: Document, *, as_json: bool) -> NoReturn:
    warnings = [] if as_json else client.issues(run["id"])
    print_lines(issue_lines(warnings))
    raise typer.Exit(watch_run(client, run["id"], warnings, as_json=as_json))


def _restarted(client: "Client", run_id: int, run: Document, source: "Source") -> list[str]:
    words, carry = in_words(run["status"], run["waits_for"]), run["carry"]
    begins = carry and (carry["kind"] == "scratch" or has_nothing(carry))
    does = "starts anew" if begins else "goes on"
    return [
        f"Run {run_id} {does} as run {run['id']}, which {words}.",
        *carry_lines(carry, source, client.spec(run["id"])["spec"]["recipe"]),
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
        there = [] if yes else [one for one in dict.fromkeys(run_ids) if _is_there(client, one)]
        if there:
            which = f"run {there[0]} with its" if len(there) == 1 else (
                f"runs {', '.join(map(str, there))} with their"
            )  # fmt: skip
            require_yes(f"This removes {which} checkpoints, metrics and logs.")

        def act(run_id: int) -> tuple[Document, list[str]]:
            try:
                client.delete(run_id)
            except Problem as problem:
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
    deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
    with connect() as client:
        # Each is asked once, and all before any is waited for: so they end side by side.
        asked, is_cut = _ask(client, run_ids, action, lose_progress=lose_progress)

        def act(run_id: int) -> tuple[Document, list[str]]:
            nonlocal is_cut
            answer = asked[run_id]
            if isinstance(answer, Exception):
                raise answer
            before, run = answer
            if deadline is not None and not is_cut:
                try:
                    run = _when_done(client, run, action, deadline)
                except KeyboardInterrupt:  # it was accepted, as those behind it were
                    is_cut = True
            said = in_words(run["status"], run["waits_for"])
            if before == AT_REST.get(action):
                said = said.replace(" ", " already ", 1)
            return run, [f"Run {run_id} {said}."]

        try:
            for_each(run_ids, act, as_json=as_json)
        except typer.Exit:
            if not is_cut:
                raise
        if is_cut:
            raise typer.Exit(ExitCode.interrupted)


def _ask(
    client: "Client", run_ids: list[int], action: Action, *, lose_progress: bool
) -> tuple[dict[int, tuple[str, Document] | Exception], bool]:
    """Of each run its state before and the run as it was answered, or why it was refused. Where
    the service does not answer, that is so of all the others. And whether Ctrl-C came.
    """
    asked: dict[int, tuple[str, Document] | Exception] = {}
    for run_id in run_ids:
        if run_id in asked:
            continue
        try:
            before = client.run(run_id)["state"]
            try:
                run = client.act(run_id, action, lose_progress=lose_progress)
            except Problem as problem:
                raise _refusal(client, run_id, action, problem) from None
            asked[run_id] = before, run
        except ServiceUnreachable as error:
            return dict.fromkeys(run_ids, error) | asked, False
        except KeyboardInterrupt:
            others = {one: cut_off(one, was_asked=one == run_id) for one in run_ids}
            return others | asked, True
        except (CommandFailed, Problem) as error:
            asked[run_id] = error
    return asked, False


def _when_done(client: "Client", run: Document, action: Action, deadline: float) -> Document:
    """The run once the action is done, or as it is when the time is over. CommandFailed where the
    service goes away meanwhile.
    """
    while run["state"] not in (*TERMINAL, DONE[action]):
        left = deadline - time.monotonic()
        time.sleep(max(0.0, min(POLL_SECONDS, left)))
        try:
            run = client.run(run["id"])
        except ServiceUnreachable as error:
            raise CommandFailed(
                f"The {action} of run {run['id']} was accepted; what came of it is not known. "
                f"{error.detail}",
                ExitCode.unreachable,
            ) from None
        if left <= 0:
            break
    return run


def _is_there(client: "Client", run_id: int) -> bool:
    try:
        client.run(run_id)
    except Problem as problem:
        if problem.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


def _refusal(
    client: "Client", run_id: int, action: str, problem: Problem
) -> "CommandFailed | Problem":
    """An action that the run's state does not allow, as a person would say it."""
    if problem.code != "action_not_allowed":
        return problem
    state = client.run(run_id)["state"]
    allowed = " or ".join(f"`stoker {verb} {run_id}`" for verb in problem.allowed_actions)
    if action == "delete":
        said = f"Run {run_id} is {state}; only one that has ended can be deleted."
    elif state in TERMINAL:
        said = f"Run {run_id} {in_words(state)}; there is nothing to {action}."
    else:
        said = f"Run {run_id} is {state}; you cannot {action} it now."
    return CommandFailed(f"{said} Possible now: {allowed}.", document=problem.document)


def _plan_restart(
    run_id: int,
    source: "Source",
    assignments: list[str],
    *,
    as_json: bool,
) -> None:
    patch = patch_of(assignments) or None
    with connect() as client, _with_a_way_out(run_id, source, assignments):
        answer = client.plan_restart(run_id, from_=source, patch=patch)
    if as_json:
        print_json(answer)
    else:
        print_plan(answer, everything=False)
        recipe = (answer["spec"] or {}).get("recipe") or {}
        print_lines(carry_lines(answer["carry"], source, recipe))
    if not answer["accepted"]:
        raise typer.Exit(ExitCode.refused)


@contextmanager
def _with_a_way_out(run_id: int, source: "Source", assignments: list[str]) -> "Iterator[None]":
    """What a restart is refused for, as a person would say it, with the restart that would do."""
    try:
        yield
    except Problem as problem:
        changes = [word for assignment in assignments for word in ("--set", assignment)]
        again = shlex.join(["stoker", "restart", str(run_id), *changes])
        for issue in problem.issues:
            if issue["code"] in UNFIT:
                place = ".".join(map(str, issue["loc"]))
                if place == "data.dataset":
                    place += " (or its file)"
                anew = f"  fix: leave {place} as it was, or train anew: {again} --from scratch"
                said = UNFIT[issue["code"]].format(place=place, run=run_id)
                raise CommandFailed(said, hints=[anew], document=problem.document) from None
        if any(issue["code"] == "correctness.nothing_left" for issue in problem.issues):
            told = [*issue_lines(problem.issues), f"  or train anew: {again} --from scratch"]
            title = f"{problem.title.rstrip('.')}."
            raise CommandFailed(title, hints=told, document=problem.document) from None
        if problem.code == "no_such_checkpoint":
            latest = "" if source in ("latest", "scratch") else f"{again}, or "
            hints = [f"  fix: {latest}{again} --from scratch"]
            raise CommandFailed(problem.detail, hints=hints, document=problem.document) from None
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
