"""Files of a checkpoint, as a download: one file with ranges, or the folder as a streamed zip."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from fastapi.responses import FileResponse, StreamingResponse
from starlette.responses import Response

from app.errors import NotFound
from app.store.records import CheckpointRecord

PIECE_BYTES = 1 << 20
LARGE_BYTES = 1 << 31  # from here on a zip needs its 64-bit form


class CheckpointFiles:
    """The regular files directly in a checkpoint's folder; no link, no other path is followed."""

    def __init__(self, artifact_root: Path, record: CheckpointRecord) -> None:
        self._record = record
        self._label = f"run-{record.run_id}-step-{record.step}"
        folder = (artifact_root / record.path).resolve()
        inside = folder.is_relative_to(artifact_root.resolve())
        if record.state != "saved" or not inside or not folder.is_dir():
            raise NotFound(
                f"The files of checkpoint {record.id} are gone. GET /runs/{record.run_id}"
                "/checkpoints lists those that can be had."
            )
        self._paths = {
            path.name: path
            for path in sorted(folder.iterdir())
            if path.is_file() and not path.is_symlink()
        }

    def response(self, name: str | None) -> Response:
        """The file of that name, or a zip of all; NotFound when there is no such file."""
        if name is None:
            return self._zip()
        path = self._paths.get(name)
        if path is None:
            raise NotFound(
                f"Checkpoint {self._record.id} has no file {name[:100]!r}; "
                f"it has {', '.join(self._paths)}."
            )
        return FileResponse(
            path, media_type="application/octet-stream", filename=f"{self._label}-{name}"
        )

    def _zip(self) -> StreamingResponse:
        files = ExitStack()
        try:  # opened now, so that retention cannot take a file away in the middle
            opened = {
                name: files.enter_context(path.open("rb")) for name, path in self._paths.items()
            }
        except OSError:
            files.close()
            raise NotFound(f"Checkpoint {self._record.id} was removed just now.") from None
        return StreamingResponse(
            _zip_pieces(files, self._paths, opened, self._label),
            media_type="application/zip",
            headers={"Content-Disposition": f'attachment; filename="{self._label}.zip"'},
        )


def _zip_pieces(
    files: ExitStack, paths: dict[str, Path], opened: Mapping[str, IO[bytes]], label: str
) -> Iterator[bytes]:
    sink = _Sink()
    with files, ZipFile(sink, "w", ZIP_STORED) as archive:  # type: ignore[call-overload]
        for name, source in opened.items():
            member = ZipInfo.from_file(paths[name], f"{label}/{name}", strict_timestamps=False)
            is_large = member.file_size >= LARGE_BYTES
            with archive.open(member, "w", force_zip64=is_large) as target:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
                    yield sink.take()
    yield sink.take()


class _Sink:
    """A file that cannot seek; what was written to it is taken away piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
