"""Keeps what came with a command in the home: its environment, its shell's settings, and its input.

They lie in `environments/KEY.json`, `KEY.shell.json` and `KEY.stdin`, for their user alone to read.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Self

from app.errors import InvalidRequest
from app.inherited import Inherited

Document = dict[str, Any]
MOST_STDIN_BYTES = 2**20
NO_ENVIRONMENT = "An environment is names with a text each."
SHELL, STDIN = ".shell.json", ".stdin"


class Kept(NamedTuple):
    """`stdin`: the file that each attempt reads; None: nothing was piped."""

    environment: dict[str, str]
    inherited: Inherited
    stdin: Path | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads what lies beside `path`, the file of the environment. OSError, ValueError."""
        environment = json.loads(path.read_text())
        shell = path.with_suffix(SHELL)
        if not shell.exists():  # an earlier version kept the environment alone
            return cls(environment, Inherited(), None)
        document = json.loads(shell.read_text())
        stdin = path.with_suffix(STDIN)
        if not document["has_stdin"]:
            return cls(environment, Inherited.parse(document), None)
        stdin.stat()  # one that is gone must not look like an empty one
        return cls(environment, Inherited.parse(document), stdin)


def keep(path: Path, environment: Document, asked: Document) -> None:
    """Writes down what came with a command, all of it or nothing. InvalidRequest, OSError."""
    _require_valid(environment)
    stdin, shell = _stdin_of(asked), asked.get("shell")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        _write(path, json.dumps(environment).encode())
        if shell is not None:
            document = {**_inherited_of(shell).document(), "has_stdin": stdin is not None}
            _write(path.with_suffix(SHELL), json.dumps(document).encode())
        if stdin is not None:
            _write(path.with_suffix(STDIN), stdin)
    except FileExistsError:  # the key of another command
        raise
    except (InvalidRequest, OSError):
        forget(path)  # it may hold secrets, and no run would ever let go of it
        raise


def forget(path: Path) -> None:
    """Removes what `keep` has written beside `path`. OSError."""
    for suffix in (STDIN, SHELL, path.suffix):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _require_valid(environment: Document) -> None:
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in environment.items()):
        raise InvalidRequest(NO_ENVIRONMENT)
    wrong = [k for k, v in environment.items() if not k or "=" in k or "\0" in k + v]
    if wrong:
        raise InvalidRequest(
            f"{wrong[0]!r} is not a valid environment variable: a name must not be empty or "
            "contain `=`, and neither name nor value may contain a NUL character. Leave it out."
        )


def _inherited_of(shell: Any) -> Inherited:
    try:
        return Inherited.parse(shell)
    except ValueError as error:
        raise InvalidRequest(f"The shell of a command: {error}.") from None


def _stdin_of(asked: Document) -> bytes | None:
    """The bytes that were piped to the command, which come as base64."""
    text = asked.get("stdin")
    if text is None:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise InvalidRequest("The standard input of a command comes as base64.") from None
    if len(data) > MOST_STDIN_BYTES or asked.get("shell") is None:
        raise InvalidRequest(
            f"A command's standard input has {MOST_STDIN_BYTES:,} bytes at most, and comes with "
            "the settings of its shell."
        )
    return data
