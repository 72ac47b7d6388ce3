"""Standard input of `stoker run`: what is piped to it, for the command that it queues."""

import os
import re
import select
import shlex
import stat
import sys
import time
from pathlib import Path

import typer

from app.cli.failures import CommandFailed, ExitCode
from app.cli.typed import VALUED

MOST_BYTES = 2**20
# Who pipes into `stoker run` writes at once. A pipe that a CI job or ssh leaves open stays silent.
FIRST_SECONDS = 1.0
# A program that a command reads from its standard input is waited for, and so is the end of it.
REST_SECONDS = 60.0
PIECE_BYTES = 65_536
# Programs that read their code from standard input, and the options after which it is elsewhere or
# nothing runs.
PYTHON = re.compile(r"(python|pypy)[0-9.]*"), re.compile(r"-[a-zA-Z]*[cm]|-[Vh]|--.+")
SHELL = re.compile(r"(ba|da|z|k)?sh"), re.compile(r"-[a-zA-Z]*c|--.+")
OTHER = re.compile(r"perl|ruby|node|julia"), re.compile(r"-[a-zA-Z]*[eEp]|-[vh]|--.+")


def read_piped(command: list[str]) -> bytes:
    """Returns the bytes that were piped to this command, empty if there are none. CommandFailed
    for too many, for an end that does not come, and for a program that is not there.
    """
    is_program = reads_program(command)
    source = _source(is_inherited_too=is_program)
    data = b"" if source is None else _read(source, command, is_program=is_program)
    if is_program and not data:
        typed = shlex.join(command)
        raise CommandFailed(
            f"`{typed}` reads its program from standard input, and nothing is piped to it. Name "
            f"the file: stoker run -- {command[0]} FILE; or pipe it: stoker run -- {typed} < FILE",
            ExitCode.refused,
        )
    return data


def reads_program(command: list[str]) -> bool:
    """True for an interpreter that is given no file, module or code."""
    name, words = Path(command[0]).name, iter(command[1:])
    kinds = [kind for kind in (PYTHON, SHELL, OTHER) if kind[0].fullmatch(name)]
    if not kinds:
        return False
    for word in words:
        if word == "-" or (word == "-s" and kinds[0] is SHELL):
            return True
        if not word.startswith("-") or kinds[0][1].fullmatch(word):
            return False
        if word[-1] in VALUED:
            next(words, None)
    return True


def _source(*, is_inherited_too: bool) -> os.stat_result | None:
    """Describes standard input if it is a file or a pipe for this command. What the calling shell
    reads as well is left to it: `while read x; do stoker run …; done < list` has to go on.
    """
    if sys.stdin is None:  # it was closed; another file may have its number by now
        return None
    own = os.fstat(0)
    if not (stat.S_ISREG(own.st_mode) or stat.S_ISFIFO(own.st_mode) or stat.S_ISSOCK(own.st_mode)):
        return None
    if is_inherited_too or not _is_of_caller(own):
        return own
    if _has_bytes(own):
        typer.echo(
            "Standard input is left to the calling program, which reads it too. To pass it on: "
            "stoker run -- COMMAND < FILE",
            err=True,
        )
    return None


def _is_of_caller(own: os.stat_result) -> bool:
    try:
        callers = Path(f"/proc/{os.getppid()}/fd/0").stat()
    except OSError:
        return False
    return os.path.samestat(own, callers)


def _has_bytes(own: os.stat_result) -> bool:
    if stat.S_ISREG(own.st_mode):
        return os.lseek(0, 0, os.SEEK_CUR) < own.st_size
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _read(source: os.stat_result, command: list[str], *, is_program: bool) -> bytes:
    """Reads to the end of the input."""
    if stat.S_ISREG(source.st_mode):  # the place in the file is the shell's: it stays
        data = os.pread(0, MOST_BYTES + 1, os.lseek(0, 0, os.SEEK_CUR))
    else:
        data = _read_pipe(REST_SECONDS if is_program else FIRST_SECONDS, command)
    if len(data) > MOST_BYTES:
        raise CommandFailed(
            f"Standard input has more than {MOST_BYTES:,} bytes, the most that is kept with a run. "
            f"{_way(command)}",
            ExitCode.refused,
        )
    return data


def _read_pipe(first_seconds: float, command: list[str]) -> bytes:
    data, deadline = b"", time.monotonic() + first_seconds
    while len(data) <= MOST_BYTES:
        if not select.select([0], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        if not (piece := os.read(0, PIECE_BYTES)):
            return data
        if not data:
            deadline = time.monotonic() + REST_SECONDS
        data += piece
    else:
        return data
    if not data:
        typer.echo(
            f"Nothing came through the pipe on standard input within {first_seconds:g} s; the run "
            "gets an empty one.",
            err=True,
        )
        return b""
    raise CommandFailed(
        f"The end of standard input did not come within {REST_SECONDS:g} seconds. {_way(command)}",
        ExitCode.refused,
    )


def _way(command: list[str]) -> str:
    return "Write it to a file that the command reads itself: stoker run -- bash -c " + shlex.quote(
        f"{shlex.join(command)} < FILE"
    )
