"""The id of a home: commands are claimed by workers of the home that took them.

A home keeps what came with its commands: their environments, and copies of their code. A worker of
another home has neither, although it may be the same user's on the same host.
"""

import fcntl
import os
import re
import secrets
from functools import cache
from pathlib import Path

import structlog

from app.durable import sync
from app.planning.requirements import HOME_ID

log = structlog.get_logger("stoker.worker")

MOST_BYTES = 8192


@cache
def home_id(home: Path) -> str:
    """Returns the id, which the first worker of a home writes. It stays when the home is moved.

    The id begins with the path that the home had then, for people. Raises OSError.
    """
    path, locks = home / "home_id", home / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / "home_id").open("w") as lock:  # two workers may start at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _read(path) or _write(path, f"{_shown(home)}#{secrets.token_hex(8)}")


def _read(path: Path) -> str | None:
    """The id; None where there is none, or a damaged one."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    if re.fullmatch(HOME_ID, text):
        return text
    log.warning("a damaged home_id is replaced; commands of the old one stay queued")
    return None


def _write(path: Path, text: str) -> str:
    new = path.with_name(f".home_id.{os.getpid()}")
    new.write_text(f"{text}\n")
    sync(new)
    new.replace(path)
    sync(path.parent)
    return text


def _shown(home: Path) -> str:
    """The path with a question mark for each character that no message could show."""
    return "".join(one if one.isprintable() else "?" for one in str(home.resolve()))
