"""The blocks of a page of the documentation, and a shell that runs them as they stand."""

import re
import subprocess
from pathlib import Path


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_as_typed(commands: str, folder: Path, environment: dict[str, str]) -> str:
    """What the commands print; the first that fails ends them, and the test."""
    done = subprocess.run(
        ["bash", "-c", f"set -euxo pipefail\n{commands}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
