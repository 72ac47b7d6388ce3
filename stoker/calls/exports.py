"""Exports: have one made, list, remove, bring here; and weights from elsewhere."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from stoker.calls.base import Calls
from stoker.download import Told, download, pieces_of
from stoker.errors import Document
from stoker.states import ExportFormat


class ExportCalls(Calls):
    def export_checkpoint(
        self, checkpoint_id: int, format_: ExportFormat, *, wait_seconds: float | None = None
    ) -> Document:
        """Have a worker export it; the job. `wait_seconds` waits for its end."""
        return self._transport.json(
            "POST",
            f"/checkpoints/{checkpoint_id}/export",
            body={"format": format_},
            wait_seconds=wait_seconds,
        )

    def import_checkpoint(
        self,
        path: str,
        name: str,
        *,
        notes: str = "",
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        rename: Mapping[str, str] | None = None,
        wait_seconds: float | None = None,
    ) -> Document:
        """Have a worker read weights from a file under DATA_ROOT; the job, whose `result` names the
        run and the checkpoint. `key`: where in the file they lie; `rename`: beginnings of names,
        and what stands there instead. `wait_seconds` waits for its end.
        """
        given = {"path": path, "name": name, "notes": notes, "labels": labels}
        body = {**given, "key": key, "rename": rename}
        return self._transport.json(
            "POST",
            "/checkpoints/import",
            body={name: value for name, value in body.items() if value},
            wait_seconds=wait_seconds,
        )

    def job(self, job_id: int, *, wait_seconds: float | None = None) -> Document:
        """How far work is that was asked for; `wait_seconds` waits for its end."""
        return self._get(f"/jobs/{job_id}", {}, wait_seconds)

    def exports(self, run_id: int, *, limit: int = 50, after: str | None = None) -> Document:
        """Newest first."""
        return self._get(f"/runs/{run_id}/exports", {"limit": limit, "after": after})

    def export(self, export_id: int) -> Document:
        return self._transport.json("GET", f"/exports/{export_id}")

    def delete_export(self, export_id: int) -> Document:
        """Have a worker remove it; the checkpoint stays."""
        return self._transport.json("DELETE", f"/exports/{export_id}")

    def download_export(self, export_id: int, *, file: str | None = None) -> Iterator[bytes]:
        """The folder as a zip, or one `file` of it, in pieces as they come; see `save_export`."""
        return pieces_of(self._transport, f"/exports/{export_id}/download", file)

    def save_export(
        self, export_id: int, folder: Path, told: Told = lambda _here, _whole: None
    ) -> Path:
        """Bring an export's files to `folder`, as `download` does those of a checkpoint."""
        run_id = self.export(export_id)["run_id"]
        again = f"stoker download {run_id} --export {export_id}"
        download(self._transport, f"/exports/{export_id}/download", again, folder, told)
        return folder
