"""The files of a checkpoint or an export: found, compared with what was written, and opened."""

from contextlib import ExitStack
from dataclasses import replace
from typing import IO

from app.errors import Conflict, NotFound
from app.service.services import Services
from app.store.artifact_root import ArtifactRoot
from app.store.records import CheckpointRecord
from app.store.weights.export_rows import ExportRecord
from stoker.manifest import MANIFEST, BadManifest, parse_manifest


def _damaged(record: CheckpointRecord) -> Conflict:
    """The answer for a checkpoint that cannot be used."""
    return Conflict(
        f"Checkpoint {record.id} is damaged: {record.damage}. It cannot be used. GET "
        f"/runs/{record.run_id}/checkpoints lists those that can be had.",
        code="checkpoint_damaged",
    )


class StoredFiles:
    """The regular files in a folder of the artifact root and in those below it, by their names from
    there; no link, no other path is followed. `name`: of what they are, and `others`: where there
    are more of these, for an answer.
    """

    def __init__(
        self, artifacts: ArtifactRoot, path: str, *, name: str, others: str, label: str
    ) -> None:
        """`label`: how what is downloaded is called. Unavailable while the artifact root is away,
        NotFound where the files are gone.
        """
        artifacts.require()
        self._name, self._others, self.label = name, others, label
        root = artifacts.path.resolve()
        folder = (root / path).resolve()
        if not folder.is_relative_to(root) or not folder.is_dir():
            raise self.gone()
        try:
            self._paths = {
                path.relative_to(folder).as_posix(): path
                for path in sorted(folder.rglob("*"))
                if path.is_file() and not path.is_symlink()
            }
        except OSError:
            raise self._removed() from None
        if not self._paths:  # it went between the two looks
            raise self._removed()

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

    def open(self, files: ExitStack, name: str) -> IO[bytes]:
        """The file of that name, closed with `files`; NotFound when there is no such file.

        Opened before an answer begins, so that retention cannot take it away in the middle.
        """
        path = self._paths.get(name)
        if path is None:
            raise NotFound(
                f"{self._named} has no file {name[:100]!r}; it has {', '.join(self._paths)}."
            )
        try:
            return files.enter_context(path.open("rb"))
        except OSError:
            raise self._removed() from None

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    @property
    def _named(self) -> str:
        return self._name.capitalize()

    def gone(self) -> NotFound:
        return NotFound(
            f"The files of {self._name} are gone. {self._others} lists those that can be had."
        )

    def _removed(self) -> NotFound:
        return NotFound(
            f"{self._named} was removed just now. {self._others} lists those that are left."
        )


class CheckpointFiles(StoredFiles):
    """Of a saved checkpoint."""

    def __init__(self, artifacts: ArtifactRoot, record: CheckpointRecord) -> None:
        """Conflict where it is known to be damaged; the rest as of StoredFiles."""
        if record.damage is not None:
            artifacts.require()
            raise _damaged(record)
        super().__init__(
            artifacts,
            record.path,
            name=f"checkpoint {record.id}",
            others=f"GET /runs/{record.run_id}/checkpoints",
            label=f"run-{record.run_id}-step-{record.step}",
        )
        if record.state != "saved":
            raise self.gone()


def whole_files(services: Services, record: CheckpointRecord) -> CheckpointFiles:
    """Its files; Conflict, and noted for all, where they are not those that were saved. NotFound
    where they are gone, Unavailable while the artifact root is away.
    """
    files = CheckpointFiles(services.artifacts, record)
    if (why := files.damage()) is not None:
        services.store.checkpoints.note_damage(record.id, why)
        raise _damaged(replace(record, damage=why))
    return files


def export_files(services: Services, record: ExportRecord) -> StoredFiles:
    """Those of an export; Conflict where they are not those that were written. NotFound,
    Unavailable.
    """
    files = StoredFiles(
        services.artifacts,
        record.path,
        name=f"export {record.id}",
        others=f"GET /runs/{record.run_id}/exports",
        label=f"run-{record.run_id}-step-{record.step}-{record.format}",
    )
    if record.state != "saved":
        raise files.gone()
    if (why := files.damage()) is not None:
        raise Conflict(
            f"Export {record.id} is damaged: {why}. Remove it (DELETE /exports/{record.id}) and "
            "have it made again.",
            code="export_damaged",
        )
    return files
