"""Downloads a checkpoint or an export, checked by its manifest, from where it broke off."""

import hashlib
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from stoker.errors import ClientError
from stoker.manifest import MANIFEST, BadManifest, parse_manifest
from stoker.transport import Transport

SILENCE_SECONDS = 60.0
PIECE_BYTES = 1 << 20

Told = Callable[[int, int], None]
"""Is given the bytes that are here and those of the whole folder."""


def pieces_of(transport: Transport, path: str, file: str | None) -> Iterator[bytes]:
    """What a path serves, or one file of it, as it comes. ClientError."""
    params, has_begun = {} if file is None else {"file": file}, False
    try:
        with transport.stream(path, {}, SILENCE_SECONDS, params=params) as response:
            has_begun = True
            yield from response.iter_bytes(PIECE_BYTES)
    except httpx.TransportError as error:
        if not has_begun:
            raise transport.unreachable(error) from None
        raise ClientError(
            f"The download broke off ({error or type(error).__name__}), so what came is not whole. "
            "Ask for it again; Client.download goes on where it was."
        ) from None


def download(transport: Transport, source: str, again: str, folder: Path, told: Told) -> None:
    """Bring the files that the path `source` serves to `folder`, which must be empty or not there.

    They are gathered in a hidden folder, and leave it when all are whole. After an error it stays,
    and the next call for the same path and folder goes on with it. `again`: the command, without
    the folder, that does so. ClientError, OSError.
    """
    target = folder.resolve()
    partial = _gathered_in(target)
    command = f"{again} --output {shlex.quote(str(target))}"
    fetch = _Fetch(transport, source, partial, command)
    manifest = fetch.manifest()
    files: Mapping[str, Any] = manifest["files"]
    whole, here = sum(entry["bytes"] for entry in files.values()), 0
    for name, entry in files.items():
        for done in fetch.file(name, entry):
            told(here + done, whole)
        here += entry["bytes"]
    if partial.parent != target:
        partial.rename(target)
        return
    for path in [one for one in partial.iterdir() if one.name != MANIFEST]:
        path.rename(target / path.name)
    (partial / MANIFEST).rename(target / MANIFEST)  # where a manifest is, all is there
    partial.rmdir()


def require_room(folder: Path) -> None:
    """ClientError where `download` could write nothing; asked before what it brings is made."""
    _gathered_in(folder.resolve())


def _gathered_in(target: Path) -> Path:
    """The hidden folder for what has come. ClientError when the target cannot be used.

    In an empty folder it lies inside: that may be a mount point, or where somebody is, and so can
    be neither removed nor replaced.
    """
    if not target.exists():
        return target.with_name(f".{target.name}.part")
    inside = target / ".download.part"
    if not target.is_dir() or any(path != inside for path in target.iterdir()):
        raise ClientError(
            f"{target} is there already, and is not an empty folder. Nothing in it was changed; "
            "--output names another one."
        )
    return inside


class _Fetch:
    """Of one path, into one folder; `again`: the command that goes on with it."""

    def __init__(self, transport: Transport, path: str, folder: Path, again: str) -> None:
        self._transport = transport
        self._path = path
        self._folder = folder
        self._again = again

    def manifest(self) -> dict[str, Any]:
        """What the service has; what is here already of another folder is thrown away."""
        data = b"".join(self._pieces(MANIFEST, 0))
        kept = self._folder / MANIFEST
        if self._folder.exists() and not (kept.is_file() and kept.read_bytes() == data):
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(data)
        try:
            return parse_manifest(data)
        except BadManifest as error:
            raise self._damaged(str(error)) from None

    def file(self, name: str, entry: Mapping[str, Any]) -> Iterator[int]:
        """Bring one file, or what is missing of it; yields how many bytes of it are here."""
        target, size = self._folder / name, entry["bytes"]
        target.parent.mkdir(parents=True, exist_ok=True)
        here = target.stat().st_size if target.is_file() else 0
        with target.open("ab") as out:
            if here < size:
                for piece in self._pieces(name, here):
                    out.write(piece)
                    here += len(piece)
                    yield here
        with target.open("rb") as written:
            found = hashlib.file_digest(written, "sha256").hexdigest()
        if (here, found) != (size, entry["sha256"]):
            target.unlink()
            raise self._damaged(f"{name} has {here} bytes, and is not as it was written")
        yield here

    def _pieces(self, name: str, begin: int) -> Iterator[bytes]:
        """From byte `begin` on."""
        ranged = {"Range": f"bytes={begin}-"} if begin else {}
        try:
            with self._transport.stream(
                self._path, ranged, SILENCE_SECONDS, params={"file": name}
            ) as response:
                if begin and response.status_code != HTTPStatus.PARTIAL_CONTENT:
                    raise ClientError(f"The service sent all of {name} instead of its rest.")
                yield from response.iter_bytes(PIECE_BYTES)
        except httpx.TransportError as error:
            if name == MANIFEST:  # nothing has come yet
                raise self._transport.unreachable(error) from None
            raise ClientError(
                f"The download broke off ({error or type(error).__name__}). What has come is kept "
                f"in {self._folder}; `{self._again}` goes on from there."
            ) from None

    def _damaged(self, what: str) -> ClientError:
        return ClientError(
            f"What came is not what was saved: {what}. Download it again; if it comes damaged "
            "again, it is damaged where it lies, and another one has to do (`stoker checkpoints "
            "RUN` and `stoker exports RUN` list them)."
        )
