"""A command of the user's own as it was typed: its program, and the script that it is given."""

import re
import shlex
import shutil
from pathlib import Path

from app.cli.failures import CommandFailed, ExitCode
from app.suggest import closest_file, did_you_mean

# Interpreters that are given a file, unless an option has one of these letters: a module, code,
# or standard input. A value follows options that end with one of the others.
INTERPRETER = re.compile(r"(python|bash|sh)[0-9.]*")
NO_FILE, VALUED = frozenset("mcs"), frozenset("WXoO")
# A variable that is set for a command, and what a shell does more than to start a program.
ASSIGNMENT, OF_A_SHELL = re.compile(r"[A-Za-z_]\w*=\S*$"), frozenset("|&;<>$`*?~")
SHELL, TAKES_ONE_WORD = re.compile(r"(ba|da|z)?sh"), re.compile(r"-[a-z]*c")


def find_program(command: str) -> str:
    """The absolute path of the program, as the shell would find it here. CommandFailed."""
    path = shutil.which(command)
    if path is None:
        is_path = "/" in command
        way = "Correct the path." if is_path else "Give its path, or activate its environment."
        if command.endswith(".py") and Path(command).is_file():
            way = f"Did you mean `stoker run -- python {command}`?"
        elif is_path and Path(command).is_file():
            way = f"`chmod +x {command}`, or name what runs it, such as bash, before it."
        elif command == "python" and shutil.which("python3"):
            way = "`python3` is there; or activate the environment whose python you mean."
        elif ASSIGNMENT.match(command):
            way = _way_to_set(command)
        elif OF_A_SHELL.intersection(command):
            way = f"Only a shell reads it: stoker run -- bash -c {shlex.quote(command)}"
        elif " " in command:
            way = f"Leave out the quotes: stoker run -- {command}"
        said = f"{command!r} is not in PATH or not executable. {way}"
        raise CommandFailed(said, ExitCode.refused)
    # Not resolved: the python of an environment is a link, and works by the place of the link.
    return str(Path(path).absolute())


def _way_to_set(assignment: str) -> str:
    """How a command gets this variable, or that it has it from Stoker."""
    from app.spec.script import is_set_by_stoker  # imported late: start-up of every command

    name = assignment.partition("=")[0]
    if name == "CUDA_VISIBLE_DEVICES":
        return "Stoker sets it to the GPUs that are free: leave it out, and say how many by --gpus."
    if is_set_by_stoker(name):
        return f"Leave it out: a run gets {name} from Stoker."
    return f"Set variables before it: {assignment} stoker run -- …"


def require_script(cwd: Path, command: list[str]) -> None:
    """CommandFailed where an interpreter is surely given a file, and it is not there, or a shell
    one word of a command.
    """
    _require_quotes(command)
    words, file = iter(command[1:]), None
    for word in words if INTERPRETER.fullmatch(Path(command[0]).name) else ():
        if not word.startswith("-"):
            file = Path(word)
            break
        if word == "-" or word.startswith("--") or NO_FILE.intersection(word):
            return
        if word[-1] in VALUED:
            next(words, None)
    if file is None or (cwd / file).exists():
        return
    meant = closest_file(cwd / file, [file.suffix])
    if meant is not None and not file.is_absolute():
        meant = meant.relative_to(cwd)
    named = None if meant is None else str(meant)
    raise CommandFailed(f"There is no file {file} in {cwd}.{did_you_mean(named)}")


def _require_quotes(command: list[str]) -> None:
    """CommandFailed for `bash -c python train.py`, which starts `python` alone, and ends well."""
    if len(command) < 4 or not SHELL.fullmatch(Path(command[0]).name):
        return
    shell, option, script = command[:3]
    if TAKES_ONE_WORD.fullmatch(option) and re.fullmatch(r"[\w./-]+", script):
        whole = shlex.quote(shlex.join(command[2:]))
        raise CommandFailed(
            f"{shell} {option} runs one word, here {script!r}, without what follows. Put quotes "
            f"around it: stoker run -- {shell} {option} {whole}"
        )
