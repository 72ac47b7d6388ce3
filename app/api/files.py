"""Files of a checkpoint or an export: one file with ranges, or the folder as a streamed zip."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import IO, Annotated
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from fastapi import Query
from fastapi.responses import FileResponse, StreamingResponse
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.api.openapi import problems
from app.api.problems import RangeNotSatisfiable, response_of
from app.errors import Conflict, InvalidRequest, NotFound, StokerError
from app.service.checkpoint_files import StoredFiles

FileName = Annotated[
    str | None,
    Query(
        max_length=255,
        pattern=r"^[^\x00]+$",
        description="One file of the folder, such as model.safetensors, or tokens/vocab.txt in a "
        "folder below; takes Range.",
    ),
]
BINARY = {"schema": {"type": "string", "format": "binary"}}
DOWNLOADS = {
    200: {
        "description": "The folder as a zip, or the file",
        "content": {"application/zip": BINARY, "application/octet-stream": BINARY},
    },
    206: {"description": "A part of the file", "content": {"application/octet-stream": BINARY}},
    **problems(InvalidRequest, NotFound, Conflict, RangeNotSatisfiable),
}

PIECE_BYTES = 1 << 20
LARGE_BYTES = 1 << 31  # from here on a zip needs its 64-bit form
EARLIEST = 315_619_200  # a zip knows no time before 1980


def download_response(files: StoredFiles, name: str | None) -> Response:
    """The file of that name, or a zip of all; NotFound when there is no such file."""
    with ExitStack() as opened:
        if name is not None:
            file = files.open(opened, name)
            saved_as = f"{files.label}-{name.replace('/', '-')}"
            return _OpenFileResponse(file, opened.pop_all(), saved_as)
        sources = {one: files.open(opened, one) for one in files.names}
        pieces = _zip_pieces(opened.pop_all(), sources, files.label)
    return StreamingResponse(
        pieces,
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{files.label}.zip"'},
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
