"""The API as a process of its own, as `stoker api` starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx

SERVE = """
from app.loading import unsearched
with unsearched():
    from app.api.main import serve
    from app.settings import load_settings
"""


class ApiProcess:
    """Started on a free port; ended with SIGTERM."""

    def __init__(self, home: Path, *, before: str = "", **settings: str) -> None:
        self.home = home
        self._code = f"{SERVE}{before}serve(load_settings())"
        self._environment = os.environ | {
            "STOKER_HOME": str(home),
            "STOKER_PORT": "0",
            **settings,
        }

    def __enter__(self) -> Self:
        with (self.home / "api.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", self._code],
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        address = self.home / "api.json"
        while not address.exists():
            assert self.process.poll() is None, self.log
            time.sleep(0.02)
        self.url = json.loads(address.read_text())["url"]
        self.token = (self.home / "token").read_text().strip()
        self.client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
            trust_env=False,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)

    @property
    def log(self) -> str:
        return (self.home / "api.log").read_text()
