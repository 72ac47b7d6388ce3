"""Arms with a process of their own, in which they take their turns.

Peers with an environment of their own (`make peers`), since what mosaicml-streaming asks for holds
back NumPy and brings the clients of several clouds; and a plain script, without the memory settings
of a trainer.
"""

import importlib.metadata
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.heap import plain_environment
from benchmarks.loading.arms import Epoch
from benchmarks.loading.files import DataFile

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv" / "peers"
PACKAGES = ("mosaicml-streaming", "spdl-core")
NOT_INSTALLED = "not installed here; `make peers` does it"
END_SECONDS = 5.0
ANSWER_SECONDS = 300.0
"""To write the file anew in a peer's own format takes some of them, an epoch a few seconds."""


class ArmsProcess:
    """Reads one file, in order or shuffled; `arms` are those it has."""

    def __init__(
        self,
        python: Path,
        module: str,
        file: DataFile,
        *,
        shuffled: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """RuntimeError when the process ends or hangs; its message is on standard error then."""
        self._module = module
        document = {**asdict(file), "path": str(file.path), "shuffled": shuffled}
        self._process = subprocess.Popen(
            [python, "-m", f"{__package__}.{module}", json.dumps(document)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            self.arms = [Neighbour(name, self) for name in self._answer()]
        except BaseException:
            self.close()
            raise

    def epoch(self, name: str, number: int) -> Epoch:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        print(json.dumps([name, number]), file=self._process.stdin, flush=True)
        return Epoch(*self._answer())

    def close(self) -> None:
        """At the end of its input it ends, or is ended with all its children: a peer's threads may
        hold them up. Closing again is harmless, as each of its arms does.
        """
        if self._process.returncode is not None:  # its number may be another's by now
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None  # noqa: S101 - a pipe was asked for
            pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        if not ready:
            raise RuntimeError(f"{self._module} said nothing for {ANSWER_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._module} ended; it says above why")
        return json.loads(line)


@dataclass(frozen=True)
class Neighbour:
    """One arm of the process."""

    name: str
    process: ArmsProcess

    def run(self, _: DataFile, number: int) -> Epoch:
        """One epoch of the file that the process has, checked there."""
        return self.process.epoch(self.name, number)

    def close(self) -> None:
        self.process.close()


def neighbours(file: DataFile, *, shuffled: bool) -> Sequence[Neighbour]:
    """None where they are not installed."""
    if not ENVIRONMENT.exists():
        return ()
    return ArmsProcess(
        ENVIRONMENT / "bin" / "python", "peers_process", file, shuffled=shuffled
    ).arms


def plain_script(file: DataFile, *, shuffled: bool) -> Sequence[Neighbour]:
    """What the reference design and DataLoader bring their users."""
    environment = plain_environment()
    return ArmsProcess(
        Path(sys.executable), "plain_process", file, shuffled=shuffled, environment=environment
    ).arms


def versions() -> Mapping[str, str]:
    """Of the peers that are installed."""
    places = [str(place) for place in ENVIRONMENT.glob("lib/python*/site-packages")]
    found = importlib.metadata.distributions(path=places)
    named = {one.name.replace("_", "-"): one.version for one in found}
    return {name: named[name] for name in PACKAGES if name in named}
