"""`make workloads`: every spec of `examples`, trained one after another on real data.

In a home of its own that is gone afterwards. Prints how each ended and how good it became; ends
with 1 when one of them has not succeeded.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
SAMPLES = ("weather", "bars", "board", "molecules", "panel")
SOAK = "weather-long.yaml"  # trains for up to eight hours, so only where it is named


def stoker(environment: Mapping[str, str], *arguments: str, quiet: bool = True) -> int:
    """Run a command; its exit code. A quiet one may print only its errors."""
    command = [sys.executable, "-m", "app.cli", *arguments]
    out = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, env=environment, stdout=out, check=False).returncode


@contextmanager
def own_service() -> Iterator[dict[str, str]]:
    """Starts a service in a home of its own, which is removed afterwards; yields the environment of
    its commands. SystemExit if it does not start.
    """
    home = Path(tempfile.mkdtemp(prefix="stoker-workloads-"))
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    own = {"STOKER_HOME": str(home), "STOKER_PORT": "0", "STOKER_EXPORTER_PORT": "0"}
    environment = others | own
    try:
        if stoker(environment, "up", "--detach"):
            raise SystemExit("The service did not start.")
        yield environment
    finally:
        stoker(environment, "down")
        shutil.rmtree(home, ignore_errors=True)


def samples_of(specs: Iterable[Path]) -> list[str]:
    """Returns the samples that these examples train on."""
    texts = [path.read_text() for path in specs]
    return [name for name in SAMPLES if any(name in one for one in texts)]


def newest(environment: Mapping[str, str]) -> dict[str, Any]:
    """The run that was submitted last."""
    listed = subprocess.run(
        [sys.executable, "-m", "app.cli", "ls", "-n", "1", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(listed.stdout)["data"][0]
    return found


def train_all(environment: Mapping[str, str], specs: list[Path]) -> int:
    """How many of the specs did not succeed, trained in this order."""
    failed = 0
    for spec in specs:
        began = time.monotonic()
        code = stoker(environment, "submit", str(spec), "--wait", "120", "--watch", quiet=False)
        took = f"{time.monotonic() - began:.0f} s"
        if code:
            failed += 1
            print(f"{spec.name}: exit code {code} after {took}\n")
            continue
        best = newest(environment)["result"]["best"] or {}
        scores = ", ".join(f"{name} {best[name]:.4g}" for name in best if name.startswith("val_"))
        print(f"{spec.name}: succeeded after {took}, {scores}\n")
    return failed


def main(names: list[str]) -> int:
    """Train the examples of these names, all but the soak where none is named; the exit code. Those
    come last that begin with what others have learned.
    """
    specs = [path for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".toml")]
    specs.sort(key=lambda path: ("init_from:" in path.read_text(), path.name))
    specs = [path for path in specs if path.name in names or (not names and path.name != SOAK)]
    with own_service() as environment:
        if any(stoker(environment, "data", "sample", name) for name in samples_of(specs)):
            return 1
        failed = train_all(environment, specs)
    print(f"{len(specs) - failed} of {len(specs)} examples have succeeded.")
    if not names:
        print(f"Left out, since it trains for hours: python -m benchmarks.examples {SOAK}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
