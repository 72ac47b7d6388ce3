"""API and agent, to be forked: see `tests/forking.py`."""

import app.api.main  # noqa: F401 - what a started API needs
import worker.agent.agent  # noqa: F401 - and an agent
from app.cli.host.service import api
from tests.forking import serve
from worker.__main__ import main as agent


def be_an_api() -> int:
    api(None, None)
    return 0


if __name__ == "__main__":
    serve({"api": be_an_api, "agent": agent})
