"""How a script ended, in words: by its exit code, and by the last lines of its log."""

import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.lifecycle import Reason
from stoker.script import LOG
from worker.regular_files import open_regular
from worker.reporting import ESCAPES, LONGEST_LAST_LINE, last_line
from worker.script.event_log import FULL
from worker.script.not_started import on_windows_lines
from worker.script.work import ScriptWork

OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory")
NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
# How parsers of arguments say that they do not know one, or that its value is missing or wrong:
# argparse, optparse, click, absl, Fire, Hydra, jsonargparse, Hugging Face's, getopt, clap, Go's.
USAGE_ERROR = re.compile(
    r"unrecogni[sz]ed (argument|option)|no such option|unexpected (extra )?argument"
    r"|unknown (command line )?(flag|option|argument)|(invalid|illegal) option|ambiguous option"
    r"|flag provided but not defined|option .+ (not recognized|is not accepted)"
    r"|not used by the HfArgumentParser|could not (consume arg|override)"
    r"|option .+ (requires|does not take) |argument .+: (expected|ignored explicit) "
    r"|argument .+: invalid (int|float|bool|choice)\b"
    r"|invalid value for .+ is not a valid",
    re.IGNORECASE,
)
# How Python says that there is no such module, or none to run (-m). Any other ImportError may be
# gone at the next attempt, as that of libcuda.so.1 is once the driver is up.
NO_MODULE = re.compile(r"(?:ModuleNotFoundError|^\S*python[0-9.]*): No module named '?([\w.]+)")
# What torch.distributed.run logs while its processes end, and that one ended as Python does after
# an error: what they wrote comes before that, and its own traceback after it.
OF_STARTER = re.compile(rb"\btorch[./]distributed[./]elastic\b")
RAISED_BELOW = re.compile(rb"\bfailed \(exitcode: 1\)")
# How Python says that nobody answers what `input` asks, or `breakpoint`.
NO_INPUT = ("EOFError: EOF when reading a line", "bdb.BdbQuit")
PYTHON = re.compile(r"(python|pypy)[0-9.]*")
# A shell's exit code for a process that a signal has ended: this and the signal's number.
OF_A_SIGNAL = 128
# The end of a traceback: indented frames, the error, and what a message of several lines adds.
TRACEBACK = "Traceback (most recent call last):"
RAISED = re.compile(
    r"(?:\n[ \t].*|\n)*\n([A-Za-z_][\w.]*(?:: .*)?)"
    r"(?:\n(?:[ \t].*|CUDA kernel errors .*|For debugging .*|Compile with .*)?)*"
)
LINES_AFTER = 3
# Python without its script or module, a program that is not there, a process that a signal ended,
# and an error in the script's own text.
NOT_STARTED = re.compile(
    r"^\S*python[0-9.]*: (can't (open file|find '__main__')|No module named|Error while)"
    r"|: line \d+: .*(command not found|No such file or directory|Permission denied)$"
    r"|: \d+: .*: not found$|: line \d+: +\d+ (Killed|Segmentation fault|Aborted|Bus error)"
    r"|^(Syntax|Indentation|Tab)Error: "
)
LONGEST_COMMAND = 100
LOG_END_BYTES = 8192
# An error of the runner may come when the script has long begun.
NOT_RUN = "The script could not be run, or not any further"


@dataclass(frozen=True)
class ScriptEnd:
    """How the attempt ended, as the end event tells it."""

    reason: Reason
    message: str
    result: dict[str, Any] | None = None


def how_it_ended(code: int) -> str:
    """An exit code, or a signal where it is negative."""
    if (below := signal_below(code)) is not None:
        return f"with exit code {code} (128 + {below}, as a shell says {below.name})"
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def on_what_was_left(commands: Sequence[str], code: int, *, was_stopped: bool) -> tuple[str, str]:
    """Returns what the end and a warning say of processes that outlived the script."""
    were = "1 process" if len(commands) == 1 else f"{len(commands)} processes"
    first = (
        commands[0] if len(commands[0]) <= LONGEST_COMMAND else f"{commands[0][:LONGEST_COMMAND]}…"
    )
    warning = (
        f"{were} that the script had started outlived it and had to be ended, so that the slot is "
        f"free: {first}."
    )
    if code == 0 and not was_stopped:
        warning += " If that was the training, it is cut: drop the `&` behind it, or `wait` for it."
    return f" {were} that it had started went on, and had to be ended.", warning


def signal_below(code: int) -> signal.Signals | None:
    """Returns the signal that ended a process, if a shell reports one by its exit code."""
    number = code - OF_A_SIGNAL
    return signal.Signals(number) if 0 < number <= signal.SIGSYS else None


def doubt_of(log: bytes, *, by_shell: bool) -> str | None:
    """Returns a sentence if the end of a log contradicts an exit code of 0: it is a traceback, or a
    shell's or an interpreter's error. A shell script may print a few lines after that.
    """
    lines = ESCAPES.sub("", log.decode("utf-8", "replace")).rstrip().split("\n")
    after = LINES_AFTER if by_shell else 0
    ends = ("\n".join(lines[: len(lines) - left_out]) for left_out in range(after + 1))
    error = next((found for end in ends if (found := _error_at(end))), None)
    if error is None:
        return None
    return (
        f"Exit code 0 may hide a failure: the log ends with an error ({error[:LONGEST_LAST_LINE]})."
        " In a pipe such as `python train.py | tee log` the last command's code counts: put `set -o"
        " pipefail` before it, and `set -e` at the head of a shell script."
    )


def _error_at(text: str) -> str | None:
    """Returns the error that is at the end of the text."""
    _, is_there, trace = text.rpartition(TRACEBACK)
    if is_there and (raised := RAISED.fullmatch(trace.rstrip())) is not None:
        return raised[1]
    last = text.rstrip().rpartition("\n")[2].strip()
    return last if NOT_STARTED.search(last) else None


def with_doubts(end: ScriptEnd, doubts: Sequence[str]) -> ScriptEnd:
    """Adds caveats to the result of a run that has succeeded by its exit code."""
    if not doubts:
        return end
    message = f"{end.message} It may have failed all the same, see its warnings."
    return replace(end, message=message, result={**(end.result or {}), "caveats": list(doubts)})


def end_by_itself(
    work: ScriptWork, code: int, told: str, result: dict[str, Any], *, has_moved: bool
) -> ScriptEnd:
    """Of a script that nobody asked to stop: by its exit code and the last lines of its log.
    `has_moved`: it has made a step, told a number or saved. What it lacks then may be put right,
    and a restart goes on.
    """
    if code == 0:
        return ScriptEnd(Reason.completed, told, result)
    log = work.folder / LOG
    data = end_of(log)
    below = _last_line_below(data)
    end, last = data.decode("utf-8", "replace"), below or last_line(data)
    stop = "" if last.endswith((".", "!", "?")) else "."
    whose = "its processes" if below else "its log"
    hint = f" The last line of {whose}: {last}{stop}" if last else ""
    if OUT_OF_MEMORY.search(end):
        return ScriptEnd(Reason.device_oom, f"{told} The GPU's memory ran out.{hint}", result)
    if NO_SPACE.search(end) or _is_full(log.parent):
        told = f"{told} A disk is full: free space, and restart the run."
        return ScriptEnd(Reason.disk_full, told + hint, result)
    if code == -signal.SIGKILL or signal_below(code) is signal.SIGKILL:
        return ScriptEnd(Reason.killed, f"{told} Stoker did not send that signal.", result)
    for_good = Reason.crashed if has_moved else Reason.spec_error
    if last in NO_INPUT:
        why = "A run has nothing on its standard input"
        if work.has_stdin:
            why = "It has read all that was piped to `stoker run`"
        why += ": take answers as arguments, and no breakpoints."
        return ScriptEnd(for_good, f"{told}{hint} {why}", result)
    if code > 0 and (advice := on_windows_lines(work.argv, work.cwd)) is not None:
        return ScriptEnd(for_good, f"{told}{hint} {advice}", result)
    lacking = NO_MODULE.search(last)
    if code > 0 and lacking is not None:
        # On a later attempt a drive may not be mounted yet: then it is tried again as usual.
        reason = for_good if work.attempt == 1 else Reason.crashed
        return ScriptEnd(reason, f"{told}{hint} {_not_importable(work.argv, lacking[1])}", result)
    return ScriptEnd(Reason.crashed, told + hint, result)


def with_what_is_lost(end: ScriptEnd, step: int, saved: int) -> ScriptEnd:
    """Of one that was asked to stop at a step; `saved`: that of its newest checkpoint, or 0."""
    lost = step - saved
    if end.reason is Reason.completed or not saved or lost <= 0:
        return end
    since = "The step after it is" if lost == 1 else f"The {lost:,} steps after it are"
    told = f"Its newest checkpoint is of step {saved:,}. {since} not saved."
    return replace(end, message=f"{end.message} {told}")


def _last_line_below(log: bytes) -> str:
    """Of what torch.distributed.run has started, where a process of it raised; "" elsewhere."""
    lines = log.split(b"\n")
    ends = [at for at, line in enumerate(lines) if OF_STARTER.search(line)]
    raised = [at for at in ends if RAISED_BELOW.search(lines[at])]
    before = range(raised[-1] if raised else 0)
    return last_line(b"\n".join(lines[at] for at in before if at not in ends))


def _not_importable(argv: Sequence[str], module: str) -> str:
    """Which Python could not import it, and how the one that can is named."""
    program, *words = argv
    is_python = PYTHON.fullmatch(Path(program).name) is not None
    who = program if is_python else f"The Python that {program} has started"
    typed = shlex.join(words) if is_python else "train.py"
    shown = typed if len(typed) <= LONGEST_COMMAND else "…"
    return (
        f"{who} cannot import the module {module!r}. Activate the environment that has it before "
        f"`stoker run`, or name its python: `stoker run -- /path/to/venv/bin/python {shown}`."
    )


def not_run(error: Exception) -> ScriptEnd:
    """Of a script that this host could not run, or not any further."""
    if isinstance(error, OSError) and error.errno in FULL:
        told = f"{NOT_RUN}: the disk of the run is full ({error})."
        advice = "Free space below the artifact root, and restart the run."
        return ScriptEnd(Reason.disk_full, f"{told} {advice}")
    told = f"{NOT_RUN}, on this worker: {type(error).__name__}: {error}."
    return ScriptEnd(Reason.trainer_error, told)


def refuses(log: Path, arguments: Sequence[str]) -> bool:
    """Whether the last lines of its log say that the script does not take one of these arguments:
    a usage error that names it. Another one may be passing, such as a folder that is not there.
    """
    names = {re.escape(name) for word in arguments for name in _names_of(word)}
    named = re.compile(rf"(?<![\w-])({'|'.join(names)})(?![\w-])")
    lines = end_of(log).decode("utf-8", "replace").split("\n")
    errors = [line for line in lines if USAGE_ERROR.search(line)]
    return bool(names) and any(named.search(line) for line in errors)


def _names_of(word: str) -> Iterator[str]:
    """What a parser may call an argument: `--option=value`, `--option`, `option` or `value`."""
    option, equals, value = word.partition("=")
    name = option.lstrip("-+")
    yield from {part for part in (word, option, value) if part}
    if name and (equals or name != option):
        yield name


def _is_full(folder: Path) -> bool:
    """Whether the log's own disk is, which then had no room to say so."""
    try:
        return shutil.disk_usage(folder).free < LOG_END_BYTES
    except OSError:
        return False


def end_of(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, 2) - LOG_END_BYTES))
            return file.read(LOG_END_BYTES)
    except OSError:
        return b""
