"""Environments that have everything this one has, so that a package can be installed besides."""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def new_environment(folder: Path) -> str:
    """The path of its Python; `stoker` lies beside it."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    own = [str(ROOT), *site.getsitepackages(), *(p for p in sys.path if p.endswith("-packages"))]
    (packages / "shared.pth").write_text("\n".join(dict.fromkeys(own)) + "\n")
    python = folder / "bin" / "python"
    command = folder / "bin" / "stoker"
    command.write_text(f"#!{python}\nfrom app.cli.start import main\n\nmain()\n")
    command.chmod(0o755)
    return str(python)


def install(python: str, package: Path) -> None:
    """Without what it depends on, which is there."""
    command = ["-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", python]
    subprocess.run([sys.executable, *command, str(package)], check=True)


class Reader:
    """Somebody who types commands in a folder, in which `.venv` has Stoker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = [str(folder / ".venv" / "bin"), str(Path(sys.executable).parent)]
        self.environment = os.environ | {
            "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
            "STOKER_HOME": str(folder / "home"),
            "STOKER_PORT": "0",
            "STOKER_EXPORTER_PORT": "0",
            "COLUMNS": "1000",  # what is printed is compared whole
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *command: str, cwd: str = ".") -> str:
        done = subprocess.run(
            command,
            cwd=self.folder / cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def type(self, commands: str) -> str:
        """What they print; the first that fails ends them, and the test."""
        return self.run("bash", "-euo", "pipefail", "-c", commands)

    def leave(self) -> None:
        """End the service, if it runs."""
        subprocess.run(["stoker", "down"], env=self.environment, check=False, capture_output=True)
