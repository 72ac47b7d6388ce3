"""Explains why a command could not be started: its first line, its mode, its interpreter."""

import errno
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from worker.regular_files import open_regular
from worker.script.stopping import SHELL

FIRST_BYTES = 256
ELF = b"\x7fELF"
# Programs that run files of these names.
RUN_BY = {".py": "python", ".R": "Rscript", ".jl": "julia", ".pl": "perl", ".rb": "ruby"}
Explanation = tuple[str, str]


def why_not_started(argv: Sequence[str], cwd: Path, error: OSError) -> Explanation:
    """Returns a sentence on what happened and one on what to do. `argv[0]` is an absolute path, or
    one from `cwd`.
    """
    path, why = cwd / argv[0], error.strerror or error
    failed, named = f"{argv[0]} could not be started", f"Name what runs it: {_named(argv, cwd)}."
    try:
        with open_regular(path) as file:
            head = file.read(FIRST_BYTES)
        is_executable = path.stat().st_mode & 0o111
    except OSError:
        advice = "Check that it is there and executable, and submit the command again."
        return f"{failed}: {why}.", advice
    if not is_executable:
        return f"{failed}: it is not executable.", f"`chmod +x {shlex.quote(argv[0])}`. {named}"
    if error.errno == errno.EACCES:
        return f"{failed}: {why}. Its file system may be mounted with noexec.", named
    if head.startswith(b"#!"):
        return _of_first_line(head, argv, error)
    if error.errno == errno.ENOEXEC and not head.startswith(ELF):
        return f"{failed}: no first line says what runs it (#!).", named
    return f"{failed}: {why}.", "It may be a program for another machine, or lack its loader."


def on_windows_lines(argv: Sequence[str], cwd: Path) -> str | None:
    """Returns what to do if the file that a shell or a first line runs has lines that end in CR LF.
    `#!/usr/bin/env python3` starts then, and fails.
    """
    is_shell = SHELL.fullmatch(Path(argv[0]).name) is not None
    files = [word for word in argv[1:] if not word.startswith("-")][:1] if is_shell else [argv[0]]
    for file in files:
        with suppress(OSError), open_regular(cwd / file) as opened:
            line = opened.readline(FIRST_BYTES)
            if line.endswith(b"\r\n") and (is_shell or line.startswith(b"#!")):
                way = f"`sed -i 's/\\r$//' {shlex.quote(file)}`"
                return f"The lines of {file} end in CR LF, as on Windows. Take the CR out: {way}."
    return None


def _of_first_line(head: bytes, argv: Sequence[str], error: OSError) -> Explanation:
    line = head.partition(b"\n")[0].decode("utf-8", "replace").removeprefix("#!")
    program = line.strip(" \t").split(" ")[0]
    failed = f"{argv[0]} could not be started: its first line names {program!r}"
    if program.endswith("\r"):
        way = f"Take the CR of Windows out of it: `sed -i 's/\\r$//' {shlex.quote(argv[0])}`."
        return f"{failed}, and no program is called that.", way
    if error.errno == errno.ENOENT:
        return f"{failed}, which is not there.", "Correct that line, or install the program."
    return f"{failed} ({error.strerror or error}).", "Correct that line."


def _named(argv: Sequence[str], cwd: Path) -> str:
    file = Path(argv[0])
    shown = str(file.relative_to(cwd)) if file.is_relative_to(cwd) else argv[0]
    command = [RUN_BY.get(file.suffix, "bash"), shown, *argv[1:]]
    return f"`stoker run -- {shlex.join(command)}`"
