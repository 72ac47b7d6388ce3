"""A real git for tests, whatever the user or the environment has configured."""

import os
import subprocess
from pathlib import Path

IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """What the command prints, without the white space around it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *IDENTITY, *words],
        cwd=folder, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def committed(folder: Path) -> Path:
    """The folder as a repository with one commit of all that is in it."""
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder
