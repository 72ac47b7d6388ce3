"""Arguments that commands of several topics take, and how one acts on several runs."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from app.cli.failures import CommandFailed, ExitCode, error_document, explain, print_error
from app.cli.output import print_json, print_lines
from stoker import ServiceUnreachable

Document = dict[str, Any]
Act = Callable[[int], tuple[Document, Sequence[str]]]
"""From a run's id to what --json shows, and the lines that are said else."""
MOST_DIGITS = 18


def parse_run_id(text: str) -> int:
    """The id of a run as typed; BadParameter when it is none."""
    return _parse_id(text, "run", "stoker ls")


def parse_checkpoint_id(text: str) -> int:
    """The id of a checkpoint as typed; BadParameter when it is none."""
    return _parse_id(text, "checkpoint", "stoker checkpoints RUN")


def _parse_id(text: str, kind: str, listed_by: str) -> int:
    is_whole = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not is_whole or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a {kind}'s id: ids are whole numbers from 1 on, and `{listed_by}` "
            "lists them.",
            param_hint=kind.upper(),
        )
    return int(text)


def parse_seconds(text: str) -> float:
    """A time to wait as typed; BadParameter when it is none, as nan and inf are."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise typer.BadParameter(f"{text!r} is no number of seconds from 0 on")
    return seconds


RunId = Annotated[int, typer.Argument(metavar="RUN", parser=parse_run_id, help="The run's id.")]
RunIds = Annotated[
    list[int],
    typer.Argument(metavar="RUN…", parser=parse_run_id, help="The run's id, or several."),
]
CheckpointId = Annotated[
    int,
    typer.Argument(
        metavar="CHECKPOINT", parser=parse_checkpoint_id, help="Its id: `stoker checkpoints RUN`."
    ),
]


def for_each(run_ids: Sequence[int], act: Act, *, as_json: bool) -> None:
    """Act on each run, and say what came of it. Of several a refusal of one does not touch the
    others, and the exit code is that of the worst. Where the service does not answer, it is not
    asked about the others, nor after Ctrl-C; of each is said so.
    """
    if len(run_ids) == 1:
        document, said = act(run_ids[0])
        print_json(document) if as_json else print_lines(said)
        return
    results: list[Document] = []
    try:
        _act_on_several(list(dict.fromkeys(run_ids)), act, results, as_json=as_json)
    finally:
        if as_json:
            print_json({"results": results})
    if worst := max(one["exit_code"] for one in results):
        raise typer.Exit(worst)


def _act_on_several(
    run_ids: Sequence[int], act: Act, results: list[Document], *, as_json: bool
) -> None:
    for place, run_id in enumerate(run_ids):
        try:
            document, said = act(run_id)
        except KeyboardInterrupt:
            for one in run_ids[place:]:
                _refuse(cut_off(one, was_asked=one == run_id), [one], results, as_json=as_json)
            return
        except ServiceUnreachable as error:
            _refuse(error, run_ids[place:], results, as_json=as_json)
            return
        except Exception as error:  # noqa: BLE001 - raised again where nothing is known to say of it
            _refuse(error, [run_id], results, as_json=as_json)
        else:
            results.append(_result(run_id, ExitCode.ok, answer=document))
            if not as_json:
                print_lines(said)


def _refuse(
    error: Exception, run_ids: Sequence[int], results: list[Document], *, as_json: bool
) -> None:
    if (told := explain(error)) is None:
        raise error
    results += [_result(one, told.exit_code, problem=error_document(told)) for one in run_ids]
    if not as_json:
        print_error(told)


def cut_off(run_id: int, *, was_asked: bool) -> CommandFailed:
    """What to say of a run after Ctrl-C; `was_asked`: it came in the middle of asking."""
    told = (
        f"Ctrl-C came while this was asked of run {run_id}, so it is not known whether it was "
        f"accepted: `stoker show {run_id}` tells."
        if was_asked
        else f"Nothing was asked of run {run_id}: Ctrl-C came before."
    )
    return CommandFailed(told, ExitCode.interrupted)


def _result(run_id: int, code: ExitCode, **more: Document) -> Document:
    return {"id": run_id, "exit_code": code.value, **more}
