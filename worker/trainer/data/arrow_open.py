"""The files of an Arrow dataset while they are read: few are open at once, all are watched."""

import os
from collections.abc import Sequence

import numpy as np

from worker.trainer.data.arrow_folder import FileStamp
from worker.trainer.data.parts import MOST_SKIPPED_BYTES, Parts, fill
from worker.trainer.data.read_queue import read_together
from worker.trainer.data.source import Rows
from worker.trainer.errors import DataError, DatasetChanged

# Of 1,024 that a process may have as a rule.
MOST_OPEN = 256


class OpenFiles:
    """Files by their numbers. One thread opens and checks them; several may read."""

    def __init__(self, files: Sequence[FileStamp]) -> None:
        self._files = files
        self._open: dict[int, int] = {}
        # As if they lay one behind another, so far apart that nobody reads on from one to the next.
        sizes = [file.size + MOST_SKIPPED_BYTES + 1 for file in files]
        self.begins: Rows = np.cumsum([0, *sizes[:-1]])

    def groups(self, numbers: Rows) -> Rows:
        """For each of these, which do not fall, the number of a group whose files may be open at
        once.
        """
        ranks = np.cumsum(np.diff(numbers, prepend=numbers[:1]) != 0)
        groups: Rows = ranks // MOST_OPEN
        return groups

    def open(self, numbers: Sequence[int]) -> None:
        """Have these open, as they were when they were looked into; DataError, DatasetChanged."""
        wanted = set(numbers)
        missing = [number for number in numbers if number not in self._open]
        for number in list(self._open):
            if len(self._open) + len(missing) <= MOST_OPEN:
                break
            if number not in wanted:
                os.close(self._open.pop(number))
        for number in missing:
            path = self._files[number].path
            try:
                self._open[number] = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                raise DatasetChanged(
                    f"{path} is gone since the run began. Put it back, or register the dataset"
                    " again and restart the run."
                ) from None
            except OSError as error:
                raise DataError(f"{path} cannot be opened ({error}); check disk and file.") from (
                    error
                )
        self.check(missing)

    def check(self, numbers: Sequence[int]) -> None:
        """DatasetChanged where one of these open files was written to."""
        for number in numbers:
            stat, known = os.fstat(self._open[number]), self._files[number]
            if (stat.st_size, stat.st_mtime_ns) != (known.size, known.mtime_ns):
                raise DatasetChanged(
                    f"{known.path} was changed during the run ({known.size:,} bytes at the start,"
                    f" {stat.st_size:,} now), so what was read cannot be trusted. Restore it, or"
                    " register the dataset again and restart the run."
                )

    def read(self, parts: Parts) -> None:
        """Of files one behind another, as `begins` says; OSError, EOFError."""
        runs = parts.runs()
        numbers = np.searchsorted(self.begins, parts.offsets[runs], side="right") - 1
        offsets = parts.offsets[runs] - self.begins[numbers]
        files = np.array([self._open[number] for number in numbers.tolist()], np.int64)
        for left in read_together(parts, runs, files, offsets):
            memories = parts.run(runs, left).memories()
            self._fill(int(numbers[left]), int(offsets[left]), memories)

    def read_bytes(self, number: int, offset: int, size: int) -> memoryview:
        """OSError, EOFError."""
        memory = memoryview(bytearray(size))
        if size:
            self._fill(number, offset, [memory])
        return memory

    def _fill(self, number: int, offset: int, memories: list[memoryview]) -> None:
        try:
            fill(self._open[number], offset, memories)
        except OSError as error:  # which does not know the file's name
            path = str(self._files[number].path)
            raise OSError(error.errno, error.strerror, path) from error

    def close(self) -> None:
        """Closing twice is harmless."""
        while self._open:
            os.close(self._open.popitem()[1])
