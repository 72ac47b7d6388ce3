"""Where the database lies and how it is."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.host.findings import DoctorFinding
from app.cli.output import size

if TYPE_CHECKING:
    from app.settings import Settings

SQLITE_PREFIX = "sqlite:///"


def sqlite_file(settings: "Settings") -> Path | None:
    """The database's file; None when it is not SQLite."""
    url = settings.database_url
    return Path(url.removeprefix(SQLITE_PREFIX)) if url.startswith(SQLITE_PREFIX) else None


def is_created(settings: "Settings") -> bool:
    """Whether there is a database; a PostgreSQL server is taken to have one."""
    file = sqlite_file(settings)
    return file is None or file.exists()


def check_database(settings: "Settings") -> list[DoctorFinding]:
    """Schema and integrity, and the size of a SQLite file."""
    if not is_created(settings):
        return [DoctorFinding("database", "ok", "not there yet; the first start creates it")]
    from app.store.engine import migrate, sqlite  # SQLAlchemy: late, as in connect

    problems = migrate.check(settings)
    if problems:
        advice = "stoker db upgrade for an old schema, else stoker db restore a backup"
        return [DoctorFinding("database", "problem", problem, advice) for problem in problems]
    file = sqlite_file(settings)
    kind = (
        "PostgreSQL"
        if file is None
        else f"SQLite {sqlite.driver.sqlite_version} ({sqlite.journal_mode()})"
    )
    amount = "" if file is None else f", {size(file.stat().st_size)}"
    return [DoctorFinding("database", "ok", f"{kind}, schema {migrate.current(settings)}{amount}")]


def check_artifacts(settings: "Settings") -> list[DoctorFinding]:
    """Whether the artifact root is the folder that the database knows."""
    if not is_created(settings):
        return []
    from app.store import open_store  # SQLAlchemy: late, as in connect
    from app.store.artifact_root import ArtifactRoot
    from app.store.engine import migrate

    if migrate.check(settings):
        return []  # the database's own finding says so
    with closing(open_store(settings)) as store:
        away = ArtifactRoot(store.database, settings.artifact_root).why_away()
    if away is None:
        return [
            DoctorFinding("artifact id", "ok", f"{settings.artifact_root} belongs to this database")
        ]
    return [
        DoctorFinding("artifact id", "problem", away, "`stoker workers` shows which workers wait")
    ]
