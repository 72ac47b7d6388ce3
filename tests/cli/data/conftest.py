"""Converters in this process."""

from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO

import pytest

from app.cli.failures import CommandFailed


def run_here(module: str, *arguments: str, timeout_seconds: float | None = None) -> str:
    """As `run_worker_module` runs it as a child."""
    with redirect_stdout(StringIO()) as told, redirect_stderr(StringIO()) as said:
        code = import_module(module).main(list(arguments))
    if code != 0:
        raise CommandFailed(said.getvalue().strip().splitlines()[-1])
    return told.getvalue()


@pytest.fixture
def converter_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start one as a child takes ten times as long as what most tests give it; those of
    test_data.py do.
    """
    monkeypatch.setattr("app.cli.data.conversion.run_worker_module", run_here)
