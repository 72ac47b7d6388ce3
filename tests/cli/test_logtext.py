"""Prints of `stoker logs` into a pipe: bars as one line, whatever pieces they come in."""

import io

import pytest

from app.cli.logtext import LogPrinter

BAR = "".join(f"\r{part}%|{'#' * part:4}|" for part in range(1, 5))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo\n", "one\ntwo\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        (f"{BAR}\nsaved\n", "4%|####|\nsaved\n"),
        (f"{BAR}", "4%|####|"),
        (f"{BAR[1:]}\r\nsaved", "4%|####|\nsaved"),
        (f"{BAR}\r        \rdone\n", "done\n"),
        (f"{BAR}\r        \r", "4%|####|"),
        ("\n\n \n", "\n\n \n"),
    ],
)
def test_a_pipe_gets_the_last_state_of_a_line(text: str, shown: str):
    for size in (1, 3, len(text)):
        out = io.StringIO()
        printer = LogPrinter(out)
        for start in range(0, len(text), size):
            printer.print(text[start : start + size])
        printer.close()
        assert out.getvalue() == shown


def test_a_terminal_gets_all_of_it():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    LogPrinter(out).print(BAR)
    assert out.getvalue() == BAR
