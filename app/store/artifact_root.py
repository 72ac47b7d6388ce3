"""The artifact root: whether the folder that lies there is the one that this database knows."""

import errno
import json
import os
import re
import time
from pathlib import Path

import structlog
from sqlalchemy import select, update

from app.durable import sync
from app.errors import Unavailable
from app.plainjson import dump_json
from app.store.checkpoint_rows import SAVED
from app.store.engine.database import Database, retried
from app.store.engine.sequences import raise_ids
from app.store.tables import attempts, checkpoints, database_identity, runs

log = structlog.get_logger("stoker.artifacts")

MARKER = "stoker-artifacts.json"
PURPOSE = (
    "This folder holds the artifacts of the Stoker database with this id. Keep this file in it, "
    "also in copies: without it no run is trained and no checkpoint is forgotten."
)
# So many of the newest checkpoints, and of the newest attempts, tell whether a folder is the one.
LOOKED_FOR = 50
RUN_ID = re.compile(r"\d{1,15}(?!\d)")
MEANWHILE = "Until then no run is started and no checkpoint is forgotten; it goes on by itself."
IS_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


class ArtifactRoot:
    """The folder with everything that runs leave, known by a marker with the database's id.

    `away`: why it was not there when it was last looked at; None: it was.
    """

    def __init__(self, database: Database, path: Path) -> None:
        self.path = path
        self.away: str | None = f"{path} has not been looked at yet."
        self._database = database

    @property
    def database_id(self) -> str:
        return self._database.id

    def is_here(self) -> bool:
        """Whether the root carries our marker at this moment: one small file is read."""
        return is_marked(self.path, self.database_id)

    def why_away(self) -> str | None:
        """Why the folder is not the one that this database knows, and what to do; None: it is, or
        it is the first use of an empty database. Nothing is changed.
        """
        try:
            marked = read_marker(self.path)
            if marked is None and self._is_first_use_or_known():
                return None
        except OSError as error:
            return (
                f"The artifact root {self.path} cannot be read ({error.strerror}): the disk or the "
                f"server below it may be down. Have it back, or mount it anew. {MEANWHILE}"
            )
        except ValueError:
            return (
                f"{self.path / MARKER} is damaged, so nobody can tell whose artifacts these are. "
                "Remove the file if they are this database's: it is written anew where the "
                f"checkpoints are found. {MEANWHILE}"
            )
        if marked is None:
            return (
                f"The artifact root {self.path} has no {MARKER}, and lacks what the database "
                "knows to be there: its disk may not be mounted. Mount it, or correct "
                f"STOKER_ARTIFACT_ROOT. {MEANWHILE} If the artifacts are lost for good: "
                "stoker db accept-root"
            )
        if marked == self.database_id:
            return None
        return (
            f"The artifact root {self.path} belongs to another database ({marked}); this one is "
            f"{self.database_id}. Mount or copy this database's artifacts, or correct "
            f"STOKER_ARTIFACT_ROOT. {MEANWHILE} To use this folder all the same: "
            "stoker db accept-root"
        )

    def require(self) -> None:
        """Unavailable, with the reason, while the root is away."""
        away = self.why_away()
        if away is not None:
            raise Unavailable(away, code="artifacts_away")

    def look(self) -> str | None:
        """As `why_away`, and `away` from now on; at first use the folder is made and marked.

        Unavailable when that takes the database and it cannot be reached: then it counts as away.
        """
        before = self.away
        if before is not None or not self.is_here():
            self.away = before or f"The artifact root {self.path} does not show its {MARKER}."
            why = self.why_away()
            self.away = self._begin() if why is None else why
            self._tell(before)
        return self.away

    def accept(self) -> None:
        """Take the folder as this database's, whatever lies in it. OSError."""
        write_marker(self.path, self.database_id)
        self._note_use()

    def _begin(self) -> str | None:
        """Begin to use a root that is there."""
        try:
            if not self.is_here():
                write_marker(self.path, self.database_id)
            self._note_use()
        except OSError as error:
            return (
                f"The artifact root {self.path} cannot be used ({error}): make it readable and "
                f"writable for the worker's user. {MEANWHILE}"
            )
        return None

    @retried
    def _note_use(self) -> None:
        """Remember that there is a root, and give no new run the id of a folder in it, which may be
        there since before a database was put back.
        """
        highest = highest_run_on_disk(self.path)
        unmarked = database_identity.c.root_marked_at.is_(None)
        with self._database.write() as connection:
            connection.execute(
                update(database_identity).where(unmarked).values(root_marked_at=time.time())
            )
            raise_ids(connection, {"runs": highest})

    def _tell(self, before: str | None) -> None:
        if self.away is None:
            log.info("the artifact root is there", path=str(self.path))
        elif before != self.away:
            log.warning("the artifact root is away, nothing is claimed", why=self.away)

    def _is_first_use_or_known(self) -> bool:
        """Nothing was saved yet; or most of the newest that was lies here, as in a home from before
        there were markers.
        """
        known = self._known_folders()
        if not known:
            with self._database.read() as connection:
                marked_at = connection.execute(select(database_identity.c.root_marked_at))
                return marked_at.scalar() is None
        found = [path for path in known if _is_folder(self.path / path)]
        return 2 * len(found) >= len(known)

    def _known_folders(self) -> list[str]:
        saved = (
            select(checkpoints.c.path)
            .where(checkpoints.c.state == SAVED)
            .order_by(checkpoints.c.id.desc())
            .limit(LOOKED_FOR)
        )
        # Those whose trainer has said what it uses had a folder; a deleted run has none any more.
        begun = (
            select(attempts.c.run_id, attempts.c.number)
            .join(runs, runs.c.id == attempts.c.run_id)
            .where(attempts.c.applied.is_not(None), runs.c.deleted_at.is_(None))
            .order_by(attempts.c.run_id.desc(), attempts.c.number.desc())
            .limit(LOOKED_FOR)
        )
        with self._database.read() as connection:
            paths = list(connection.execute(saved).scalars())
            numbers = connection.execute(begun).all()
        return [*paths, *(f"runs/{run_id}/attempt-{number}" for run_id, number in numbers)]


def read_marker(root: Path) -> str | None:
    """The id of the database whose root it is; None without a marker. OSError when it cannot be
    read, ValueError when it is no marker.
    """
    try:
        document = json.loads((root / MARKER).read_bytes())
    except OSError as error:
        if error.errno in IS_NOT_THERE:
            return None
        raise
    named = document.get("database") if isinstance(document, dict) else None
    if named is None:
        raise ValueError(f"{MARKER} names no database")
    return str(named)


def is_marked(root: Path, database_id: str) -> bool:
    """Whether the root carries the marker of this database: one small file is read."""
    try:
        return read_marker(root) == database_id
    except (OSError, ValueError):
        return False


def write_marker(root: Path, database_id: str) -> None:
    """Make the root, and mark it: all of it or nothing, and on the disk when this returns."""
    root.mkdir(parents=True, exist_ok=True)
    partial = root / f".{MARKER}.{os.getpid()}"
    with partial.open("w") as file:
        file.write(dump_json({"database": database_id, "purpose": PURPOSE}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(root / MARKER)
    for folder in (root, root.parent):
        sync(folder)


def highest_run_on_disk(root: Path) -> int:
    """The highest id of a run that has, or had, a folder there; 0: none. OSError."""
    try:
        with os.scandir(root / "runs") as entries:
            found = [RUN_ID.match(entry.name) for entry in entries]
    except FileNotFoundError:
        return 0
    return max((int(match[0]) for match in found if match), default=0)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        if error.errno in IS_NOT_THERE:
            return False
        raise
