"""A service under load: wrk asks it from so many connections, each again once it is answered."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("load.lua")
TIMEOUT_SECONDS = 30
Document = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """What is asked of a service: `paths` in turn; in `body`, NUMBER is the request's number."""

    url: str
    paths: Sequence[str]
    method: str = "GET"
    body: Document | None = None
    token: str | None = None


@dataclass(frozen=True)
class Load:
    """What came of it: answers a second, milliseconds that half and 99 % of them took, and how many
    were errors or did not come.
    """

    rate: float
    p50: float
    p99: float
    errors: int


def is_there() -> bool:
    """Whether wrk, the load generator, is on PATH."""
    return shutil.which("wrk") is not None


def load(target: Target, clients: int, seconds: int) -> Load:
    """Load from one thread of wrk for so long."""
    told = {
        "LOAD_METHOD": target.method,
        "LOAD_PATHS": " ".join(target.paths),
        "LOAD_BODY": None if target.body is None else json.dumps(target.body),
        "LOAD_TOKEN": target.token,
    }
    options = [f"-c{clients}", f"-d{seconds}s", f"--timeout={TIMEOUT_SECONDS}s", f"-s{SCRIPT}"]
    done = subprocess.run(
        ["wrk", "-t1", *options, target.url],
        env=os.environ | {name: text for name, text in told.items() if text is not None},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    rate = found["requests"] / found["microseconds"] * 1e6
    return Load(rate, found["p50"] / 1e3, found["p99"] / 1e3, found["errors"])
