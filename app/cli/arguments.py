"""Arguments that commands of several topics take, and how one acts on several runs."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from app.cli.failures import ExitCode, error_document, explain, print_error
from app.cli.output import print_json, print_lines

Document = dict[str, Any]
Act = Callable[[int], tuple[Document, Sequence[str]]]
"""From a run's id to what --json shows, and the lines that are said else."""
MOST_DIGITS = 18


def parse_run_id(text: str) -> int:
    """The id of a run as typed; BadParameter when it is none."""
    is_whole = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not is_whole or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a run's id: ids are whole numbers from 1 on, and `stoker ls` lists "
            "them.",
            param_hint="RUN",
        )
    return int(text)


RunId = Annotated[int, typer.Argument(metavar="RUN", parser=parse_run_id, help="The run's id.")]
RunIds = Annotated[
    list[int],
    typer.Argument(metavar="RUN…", parser=parse_run_id, help="The run's id, or several."),
]


def for_each(run_ids: Sequence[int], act: Act, *, as_json: bool) -> None:
    """Act on each run, and say what came of it. Of several a refusal of one does not touch the
    others, and the exit code is that of the worst.
    """
    if len(run_ids) == 1:
        document, said = act(run_ids[0])
        print_json(document) if as_json else print_lines(said)
        return
    results: list[Document] = []
    for run_id in dict.fromkeys(run_ids):
        try:
            document, said = act(run_id)
        except Exception as error:
            told = explain(error)
            if told is None or told.exit_code is ExitCode.unreachable:
                raise
            results.append(_result(run_id, told.exit_code, problem=error_document(told)))
            if not as_json:
                print_error(told)
        else:
            results.append(_result(run_id, ExitCode.ok, answer=document))
            if not as_json:
                print_lines(said)
    if as_json:
        print_json({"results": results})
    if worst := max(one["exit_code"] for one in results):
        raise typer.Exit(worst)


def _result(run_id: int, code: ExitCode, **more: Document) -> Document:
    return {"id": run_id, "exit_code": code.value, **more}
