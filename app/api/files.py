"""Files of a checkpoint, as a download: one file with ranges, or the folder as a streamed zip."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from fastapi.responses import FileResponse, StreamingResponse
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api.problems import RangeNotSatisfiable, response_of
from app.errors import Conflict, InvalidRequest, NotFound, StokerError
from app.service.services import Services
from app.store.artifact_root import ArtifactRoot
from app.store.records import CheckpointRecord
from stoker.manifest import MANIFEST, BadManifest, parse_manifest

PIECE_BYTES = 1 << 20
LARGE_BYTES = 1 << 31  # from here on a zip needs its 64-bit form
EARLIEST = 315_619_200  # a zip knows no time before 1980


def _damaged(record: CheckpointRecord) -> Conflict:
    """The answer for a checkpoint that cannot be used."""
    return Conflict(
        f"Checkpoint {record.id} is damaged: {record.damage}. It cannot be used. GET "
        f"/runs/{record.run_id}/checkpoints lists those that can be had.",
        code="checkpoint_damaged",
    )


class CheckpointFiles:
    """The regular files directly in a checkpoint's folder; no link, no other path is followed."""

    def __init__(self, artifacts: ArtifactRoot, record: CheckpointRecord) -> None:
        artifacts.require()
        artifact_root = artifacts.path
        self._record = record
        self._label = f"run-{record.run_id}-step-{record.step}"
        folder = (artifact_root / record.path).resolve()
        inside = folder.is_relative_to(artifact_root.resolve())
        if record.damage is not None:
            raise _damaged(record)
        if record.state != "saved" or not inside or not folder.is_dir():
            raise NotFound(
                f"The files of checkpoint {record.id} are gone. GET /runs/{record.run_id}"
                "/checkpoints lists those that can be had."
            )
        try:
            self._paths = {
                path.name: path
                for path in sorted(folder.iterdir())
                if path.is_file() and not path.is_symlink()
            }
        except OSError:
            raise self._removed() from None

    def damage(self) -> str | None:
        """What the manifest says of the files that is not so, told by their sizes; None: nothing,
        or it cannot be read now. Whoever downloads them compares the hashes.
        """
        try:
            manifest = parse_manifest(self._paths[MANIFEST].read_bytes())
            sizes = {name: path.stat().st_size for name, path in self._paths.items()}
        except BadManifest as error:
            return str(error)
        except (KeyError, OSError):
            return None  # it is being removed, or its disk is away
        for name, entry in manifest["files"].items():
            if sizes.get(name) != entry["bytes"]:
                has = f"has {sizes[name]} bytes" if name in sizes else "is gone"
                return f"{name} {has}, and {entry['bytes']} were written"
        return None

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
        with ExitStack() as files:
            file = self._open(files, path)
            return _OpenFileResponse(file, files.pop_all(), f"{self._label}-{name}")

    def _zip(self) -> StreamingResponse:
        with ExitStack() as files:
            opened = {name: self._open(files, path) for name, path in self._paths.items()}
            pieces = _zip_pieces(files.pop_all(), opened, self._label)
        return StreamingResponse(
            pieces,
            media_type="application/zip",
            headers={"Content-Disposition": f'attachment; filename="{self._label}.zip"'},
        )

    def _open(self, files: ExitStack, path: Path) -> IO[bytes]:
        """Opened before the answer begins, so that retention cannot take it away in the middle."""
        try:
            return files.enter_context(path.open("rb"))
        except OSError:
            raise self._removed() from None

    def _removed(self) -> NotFound:
        return NotFound(
            f"Checkpoint {self._record.id} was removed just now. GET /runs/{self._record.run_id}"
            "/checkpoints lists those that are left."
        )


class _OpenFileResponse(FileResponse):
    """A file that can be sent, in ranges too, even when its name is gone by then."""

    def __init__(self, file: IO[bytes], files: ExitStack, name: str) -> None:
        facts = os.fstat(file.fileno())
        super().__init__(
            f"/proc/self/fd/{file.fileno()}",
            media_type="application/octet-stream",
            filename=name,
            stat_result=facts,
        )
        self._files = files
        self._bytes = facts.st_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The file, or a problem where FileResponse would refuse the Range in plain text."""

        async def send_unless_refused(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                raise self._bad_range(message["status"])
            await send(message)

        with self._files:
            try:
                await super().__call__(scope, receive, send_unless_refused)
            except StokerError as error:
                size = {"Content-Range": f"bytes */{self._bytes}"} if error.status == 416 else {}
                await response_of(error, size)(scope, receive, send)

    def _bad_range(self, status: int) -> StokerError:
        if status == 416:
            return RangeNotSatisfiable(
                f"The file has {self._bytes} bytes and no such range; ask for one within them, or "
                "leave Range out for the whole file."
            )
        return InvalidRequest(
            "The header Range cannot be read; it looks like `bytes=0-999`, or `bytes=1000-` for "
            "all that follows."
        )


def whole_files(services: Services, record: CheckpointRecord) -> CheckpointFiles:
    """Its files; Conflict, and noted for all, where they are not those that were saved. NotFound
    where they are gone, Unavailable while the artifact root is away.
    """
    files = CheckpointFiles(services.artifacts, record)
    if (why := files.damage()) is not None:
        services.store.checkpoints.note_damage(record.id, why)
        raise _damaged(replace(record, damage=why))
    return files


def _zip_pieces(files: ExitStack, opened: Mapping[str, IO[bytes]], label: str) -> Iterator[bytes]:
    sink = _Sink()
    with files, ZipFile(sink, "w", ZIP_STORED) as archive:
        for name, source in opened.items():
            member = _member(f"{label}/{name}", os.fstat(source.fileno()))
            is_large = member.file_size >= LARGE_BYTES
            with archive.open(member, "w", force_zip64=is_large) as target:
                while piece := source.read(PIECE_BYTES):
                    target.write(piece)
                    yield sink.take()
    yield sink.take()


def _member(name: str, facts: os.stat_result) -> ZipInfo:
    written = time.localtime(max(facts.st_mtime, EARLIEST))[:6]
    member = ZipInfo(name, written)
    member.external_attr = (facts.st_mode & 0xFFFF) << 16
    member.file_size = facts.st_size
    return member


class _Sink:
    """A file that cannot seek; what was written to it is taken away piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """ZipFile leaves it open, for it did not open it."""

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
