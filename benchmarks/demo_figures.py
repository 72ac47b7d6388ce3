"""How long `make demo` takes once everything is installed."""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.heap import callers_environment

DEMO_SECONDS = 45.0
COMMAND = "make demo"


def measure() -> list[Figure]:
    """Run the demo once; CalledProcessError when it fails."""
    start = time.perf_counter()
    script = Path(__file__).with_name("demo.py")
    subprocess.run(
        [sys.executable, script], env=callers_environment(), check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - start
    return [Figure("make demo, repeated", seconds, "s", DEMO_SECONDS, 1, COMMAND)]
