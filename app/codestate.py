"""The code of a command as it is now: what git says of it, and a copy where one is asked for."""

import difflib
import os
import re
import secrets
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

from app.errors import InvalidRequest

# What came with one submission is kept under such a key: the copy of its code, its environment.
KEY = re.compile(r"[0-9a-f]{32}")
DIFF_BYTES = 2**20
# Code alone: settings may hold secrets, and a script may write its other files itself.
SOURCES = frozenset({".py", ".sh", ".bash"})
MOST_SOURCES = 100
SOURCES_BYTES = 2**18
MOST_NAMES = 1_000
GIT_SECONDS = 20.0


def code_state(folder: Path, argv: list[str]) -> dict[str, Any]:
    """`git_sha`, whether it is `dirty`, the `diff` (1 MiB at most) and its `diff_bytes`,
    `untracked` names, `argv`; which `repository` it is, and which `folder` of it; `sources`, the
    texts of the code that git does not know, by path.
    """
    known: dict[str, Any] = dict.fromkeys(("git_sha", "dirty", "diff", "diff_bytes"))
    known |= {"untracked": [], "argv": argv, "repository": None, "folder": None}
    known["sources"] = _sources(folder, argv)
    found = _git(folder, "rev-parse", "HEAD", "--git-common-dir", "--show-prefix")
    if found is None:
        return known
    sha, common, inside = found.split("\n")[:3]
    status = _git(folder, "--no-optional-locks", "status", "--porcelain", "-z") or ""
    entries = [entry for entry in status.split("\0") if entry]
    untracked = [entry[3:] for entry in entries if entry.startswith("??")]
    changed = len(entries) > len(untracked)
    diff = (_git(folder, "--no-optional-locks", "diff", "HEAD") if changed else "") or ""
    return known | {
        "git_sha": sha,
        "dirty": bool(entries),
        "diff": _cut(diff),
        "diff_bytes": len(diff.encode()),
        "untracked": untracked[:MOST_NAMES],
        "repository": str((folder / common).resolve()),  # of a copy, that of the original
        "folder": inside,
    }


def changes_since(before: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """The code state now if it differs from an earlier one; its `diff` has the changed sources too.

    None: it is the same, or cannot be read: the folder is not there, or git is not.
    """
    now = code_state(folder, list(before["argv"]))
    if before["git_sha"] is not None and now["git_sha"] is None:
        return None
    was, sources = before.get("sources") or {}, now["sources"]
    edited = [path for path in was if path in sources and sources[path] != was[path]]
    by_git = ("git_sha", "diff") if before["git_sha"] is not None else ()
    if not edited and all(now[name] == before[name] for name in by_git):
        return None
    diffs = [now["diff"] or "", *(_diff_of(path, was[path], sources[path]) for path in edited)]
    return {**now, "diff": _cut("".join(diffs))}


def _diff_of(path: str, before: str, after: str) -> str:
    was, now = (text.splitlines(keepends=True) for text in (before, after))
    lines = difflib.unified_diff(was, now, f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _sources(folder: Path, argv: list[str]) -> dict[str, str]:
    """Returns the code that a command names and the Python files next to it, except for what git
    tracks or ignores.
    """
    named = [folder / word for word in argv if Path(word).suffix in SOURCES]
    beside = [path for one in named[:1] for path in sorted(one.parent.glob("*.py"))]
    paths = {os.path.relpath(path, folder): None for path in [*named, *beside][:MOST_SOURCES]}
    ignored = "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *paths
    known = (_git(folder, "ls-files", "-z", "--", *paths) or "") + (_git(folder, *ignored) or "")
    tracked = set(known.split("\0"))
    texts: dict[str, str] = {}
    room = SOURCES_BYTES
    for path in paths:
        text = None if path in tracked else _text_of(folder / path, room)
        if text is not None:
            texts[path] = text
            room -= len(text)
    return texts


def _text_of(path: Path, most: int) -> str | None:
    """The text of a regular file; None for one that is larger, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            known = os.fstat(descriptor)
            if not stat.S_ISREG(known.st_mode) or known.st_size > most:
                return None
            return file.read(most).decode("utf-8", "replace").replace("\0", "\ufffd")
    except OSError:
        return None


def _cut(diff: str) -> str:
    if len(diff.encode()) <= DIFF_BYTES:
        return diff
    kept = diff.encode()[:DIFF_BYTES].decode("utf-8", "ignore")
    return f"{kept}\n[cut: the whole diff has {len(diff.encode()):,} bytes]\n"


def checkout(folder: Path) -> dict[str, Any]:
    """`git_sha` and `git_dirty` of the checkout at `folder`; {} where there is none, or no git.

    Only one whose top is `folder`: an installed Stoker may lie inside somebody's other repository.
    """
    if not (folder / ".git").exists():
        return {}
    sha = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "--no-optional-locks", "status", "--porcelain")
    if sha is None or changed is None:
        return {}
    return {"git_sha": sha.strip(), "git_dirty": bool(changed)}


def make_snapshot(folder: Path, home: Path) -> Path:
    """The same folder in a worktree of the code as it is now, in HOME/snapshots/KEY; changes of
    tracked files are in it, files that git does not know are not. InvalidRequest.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise InvalidRequest(
            f"--snapshot copies the code by git, and {folder} is in no repository (or git is not "
            "installed). `git init`, then add and commit what the run needs."
        )
    if _git(folder, "rev-parse", "HEAD") is None:
        raise InvalidRequest("--snapshot needs a commit, and this repository has none yet.")
    stashed = _git(folder, "stash", "create")
    if stashed is None:
        raise InvalidRequest("git could not make a commit of the changes here (git stash create).")
    commit = stashed.strip() or str(_git(folder, "rev-parse", "HEAD")).strip()
    place = home / "snapshots" / secrets.token_hex(16)  # one for each submission
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _git(folder, "worktree", "add", "--detach", "--quiet", str(place), commit) is None:
        raise InvalidRequest(f"git could not make a worktree of {commit[:12]} in {place}.")
    return place / folder.resolve().relative_to(Path(top.strip()).resolve())


def remove_snapshot(place: Path) -> None:
    """Remove such a worktree, with all that has been written there since. OSError."""
    if place.exists() and _git(place, "worktree", "remove", "--force", str(place)) is None:
        shutil.rmtree(place)  # its repository has gone, or it was cut short


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says of that folder, whatever the environment names; None where it fails, or is not
    there.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            env=clean,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
