"""An environment with the libraries that other people train with, and a service to type at."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.e2e.shell import Shell

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"


@pytest.fixture(scope="session")
def libraries() -> Path:
    """Where the programs of an environment lie that knows nothing of Stoker. It is made once, in
    the folder of this one and with the same release of PyTorch, by pip and its settings.
    """
    folder = Path(sys.prefix) / "libraries"
    torch = f"torch=={version('torch').partition('+')[0]}"
    wanted = f"{REQUIREMENTS.read_text()}{torch}\n"
    finished = folder / "installed.txt"
    if not finished.exists() or finished.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        words = ("-m", "pip", "install", "--quiet", "--no-compile", "--requirement", REQUIREMENTS)
        subprocess.run([folder / "bin" / "python", *words, torch], check=True)
        finished.write_text(wanted)
    return folder / "bin"


@pytest.fixture(scope="module")
def service_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("libraries"))
    yield shell
    shell.service.close()


@pytest.fixture
def shell(service_shell: Shell, tmp_path: Path) -> Iterator[Shell]:
    """Typed at in an empty folder, with a free slot."""
    service_shell.project = tmp_path
    yield service_shell
    service_shell.end_all()
