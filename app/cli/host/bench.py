"""`stoker bench`: runs the benchmarks, which are a part of the repository."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

import app
from app.cli.failures import CommandFailed
from app.cli.output import JsonOption


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...", help="What to measure; everything, if nothing is named."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what has broken before, in under 3 minutes.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda", help="The device that batches are loaded to and trained on."
        ),
    ] = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure this machine and compare it with the bounds. All of it takes over an hour."""
    root = Path(app.__file__).parents[1]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise CommandFailed(
            "The benchmarks are in Stoker's repository, and not in the installed package: clone "
            "it, then `make bench` there."
        )
    with tempfile.NamedTemporaryFile(suffix=".json") as figures:
        command = [sys.executable, "-P", "-m", "benchmarks", *(parts or ()), "--device", device]
        command += ["--quick"] if quick else []
        if as_json:  # the table goes beside it
            command += ["--json", figures.name]
        done = subprocess.run(
            command,
            stdout=sys.stderr if as_json else None,
            cwd=root,
            check=False,
        )
        if as_json:
            typer.echo(Path(figures.name).read_text(), nl=False)
    raise typer.Exit(done.returncode)
