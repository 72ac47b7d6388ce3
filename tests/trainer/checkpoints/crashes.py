"""What a disk may hold after a power cut: whatever was not made durable may be there or not.

Nothing is durable by itself, from the artifact root down: neither what is in a file before the file
was synced, nor any name (of a folder, a file, or by a rename) before the folder it is in was.
"""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.trainer.lab import DISK
from worker.trainer.checkpoints import disk

Damage = Callable[[bytes], bytes]
DAMAGES: tuple[Damage, ...] = (
    lambda data: data,
    lambda data: data[: len(data) // 2],
    lambda data: bytes(len(data)),
    lambda _: b"",
)
NAMING = ("make_folder", "write_file", "rename")


@dataclass(frozen=True)
class Operation:
    """On the disk; `announced`: others were told that `path` is there to stay."""

    name: str
    path: Path
    data: bytes | Path | None = None

    @property
    def named(self) -> Path:
        """The name that it gives."""
        return self.data if isinstance(self.data, Path) else self.path


class Recorder:
    """Notes each operation on the disk, which happens as well."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.operations: list[Operation] = []
        for name in DISK:
            patch.setattr(disk, name, self._noting(name))

    def note(self, name: Literal["make_folder", "announced"], path: Path) -> None:
        """What was done without `worker.trainer.checkpoints.disk`."""
        self.operations.append(Operation(name, path))

    def _noting(self, name: str) -> Callable[..., None]:
        original = getattr(disk, name)

        def operate(path: Path, data: Any = None) -> None:
            original(path) if data is None else original(path, data)
            kept = path.read_bytes() if name == "write_file" else data
            self.operations.append(Operation(name, path, kept))

        return operate


@dataclass(frozen=True)
class CrashState:
    """A power cut after the operations that are `done`."""

    done: Sequence[Operation]
    lost: Sequence[Operation]
    """Their names are not there."""
    unsynced: frozenset[Path]
    damage: Damage

    @property
    def announced(self) -> list[Path]:
        return [op.path for op in self.done if op.name == "announced"]

    def produce(self, root: Path) -> None:
        """Leave in `root`, which is empty, what the disk would hold."""
        for op in self.done:
            if op.name == "make_folder":
                op.path.mkdir()
            elif op.name == "write_file" and isinstance(op.data, bytes):
                is_damaged = op.path in self.unsynced
                op.path.write_bytes(self.damage(op.data) if is_damaged else op.data)
            elif op.name == "rename":
                op.path.rename(op.named)
        for op in reversed(self.lost):
            if op.name == "rename" and op.named.exists():
                op.named.rename(op.path)
            elif op.path.is_dir():
                shutil.rmtree(op.path)
            else:
                op.path.unlink(missing_ok=True)
        assert root.is_dir()


def crash_states(operations: Sequence[Operation]) -> Iterator[CrashState]:
    """After each operation: every volatile name alone lost, all of them, and none; and with none
    and with all of them lost, unsynced contents as they are, cut, zeros or empty.
    """
    for count in range(len(operations) + 1):
        done = operations[:count]
        synced = {op.path for op in done if op.name == "sync_file"}
        contents = frozenset(op.path for op in done if op.name == "write_file") - synced
        names = _volatile(done)
        for name in names:
            yield CrashState(done, [name], contents, DAMAGES[0])
        for lost, damage in itertools.product(
            ([], names) if names else ([],), DAMAGES if contents else DAMAGES[:1]
        ):
            yield CrashState(done, lost, contents, damage)


def _volatile(done: Sequence[Operation]) -> list[Operation]:
    """Those whose name was not made durable after they had given it."""
    return [
        op
        for place, op in enumerate(done)
        if op.name in NAMING
        and not any(
            later.name == "sync_folder" and later.path == op.named.parent for later in done[place:]
        )
    ]
