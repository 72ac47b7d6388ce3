"""Environments that have everything this one has, so that a package can be installed besides."""

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
