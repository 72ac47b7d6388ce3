"""Checkpoints: list, keep, remove, bring here."""

from collections.abc import Iterator
from pathlib import Path

from stoker.calls.base import Calls, Which
from stoker.download import Told, download, pieces_of
from stoker.errors import Document
from stoker.manifest import MANIFEST


class CheckpointCalls(Calls):
    def checkpoints(self, run_id: int, *, limit: int = 50, after: str | None = None) -> Document:
        """Newest first."""
        return self._get(f"/runs/{run_id}/checkpoints", {"limit": limit, "after": after})

    def checkpoint(self, checkpoint_id: int) -> Document:
        return self._transport.json("GET", f"/checkpoints/{checkpoint_id}")

    def pin_checkpoint(self, checkpoint_id: int) -> Document:
        """Keep it from being removed by retention."""
        return self._transport.json("POST", f"/checkpoints/{checkpoint_id}/pin")

    def unpin_checkpoint(self, checkpoint_id: int) -> Document:
        return self._transport.json("POST", f"/checkpoints/{checkpoint_id}/unpin")

    def delete_checkpoint(self, checkpoint_id: int) -> Document:
        """Have a worker remove it; Problem (409) while it is pinned or a run needs it."""
        return self._transport.json("DELETE", f"/checkpoints/{checkpoint_id}")

    def download_checkpoint(
        self, checkpoint_id: int, *, file: str | None = None
    ) -> Iterator[bytes]:
        """The folder as a zip, or one `file` of it, in pieces as they come; see `download`."""
        return pieces_of(self._transport, f"/checkpoints/{checkpoint_id}/download", file)

    def download_run_checkpoint(
        self, run_id: int, which: Which, *, file: str | None = None
    ) -> Iterator[bytes]:
        """As download_checkpoint, of the run's latest or best."""
        return pieces_of(self._transport, f"/runs/{run_id}/checkpoints/{which}/download", file)

    def download(
        self, run_id: int, which: Which | int, folder: Path, told: Told = lambda _here, _whole: None
    ) -> Path:
        """Bring a checkpoint's files to `folder`: the run's latest or best, or one by its id.

        The folder must not be there, or be empty. The files are checked against the checkpoint's
        manifest. A download that broke off goes on where it was when the same checkpoint is asked
        for again: by its id, as the latest of a run that trains is soon another. `told` is given
        the bytes that are here, and all of them.
        """
        chosen = which if isinstance(which, int) else self.chosen_checkpoint(run_id, which)
        path, again = f"/checkpoints/{chosen}/download", f"stoker download {run_id}"
        download(self._transport, path, f"{again} --checkpoint {chosen}", folder, told)
        return folder

    def chosen_checkpoint(self, run_id: int, which: Which) -> int:
        """The id of a run's latest or best checkpoint; Problem (404) with the reason."""
        while True:
            for row in self.every(self.checkpoints, run_id):
                if row[f"is_{which}"]:
                    return int(row["id"])
            # The service says why there is none, or one was saved meanwhile.
            for _ in self.download_run_checkpoint(run_id, which, file=MANIFEST):
                pass
