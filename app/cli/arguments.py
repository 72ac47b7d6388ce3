"""Arguments that commands of several topics take."""

from typing import Annotated

import typer

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
