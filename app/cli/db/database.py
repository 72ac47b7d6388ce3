"""`stoker db`: upgrade, backup, restore, check, prune. Done on the service's machine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.connect import open_database, read_settings
from app.cli.db.backup import back_up, put_back, require_backup
from app.cli.db.prune import choose, delete, parse_age, parse_size
from app.cli.db.storage import check_database, is_created
from app.cli.failures import CommandFailed, ExitCode, StokerGroup, require_yes
from app.cli.host.findings import report
from app.cli.host.home_lock import holder_of
from app.cli.output import JsonOption, print_json, size
from stoker import read_api_file

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store import Store

MOST_NAMED = 100  # runs whose ids are shown

app = typer.Typer(
    cls=StokerGroup,
    no_args_is_help=True,
    help="Back up, restore, check, prune or upgrade the database.",
)


@app.command()
def upgrade(as_json: JsonOption = False) -> None:
    """Create the database or bring its schema up to date; a start does it too."""
    from app.store.engine import migrate  # SQLAlchemy: late, as in connect

    settings = read_settings()
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    migrate.upgrade(settings)
    revision = migrate.current(settings)
    if as_json:
        print_json({"revision": revision})
    else:
        typer.echo(f"The schema is at revision {revision}.")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.", dir_okay=False)],
    as_json: JsonOption = False,
) -> None:
    """Copy the database into a file, also while the service runs. Artifacts are not in it."""
    settings = read_settings()
    _require_created(settings)
    if file.exists():
        raise CommandFailed(f"{file} exists already; give another name.")
    back_up(settings, file)
    if as_json:
        print_json({"file": str(file), "bytes": file.stat().st_size})
    else:
        typer.echo(f"{file}: {size(file.stat().st_size)}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.", dir_okay=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in the database's place; the service must not be running."""
    settings = read_settings()
    require_backup(settings, file)
    _require_ended(settings)
    if is_created(settings) and not yes:
        require_yes("This replaces all runs and events that are there now.")
    from app.store.engine.restored import (  # SQLAlchemy: late, as in connect
        read_replaced,
        take_over,
    )

    replaced = read_replaced(settings)
    kept = put_back(settings, file)
    take_over(settings, replaced)
    if as_json:
        print_json({"restored": str(file), "kept": kept and str(kept)})
        return
    typer.echo(f"{file} is restored; `stoker db upgrade` brings an older one up to date.")
    if kept is not None:
        typer.echo(f"The database that was there before is now {kept}")


@app.command()
def check(as_json: JsonOption = False) -> None:
    """Check schema and integrity; exits with 1 on a problem."""
    settings = read_settings()
    _require_created(settings)
    report(check_database(settings), as_json=as_json)


@app.command()
def accept_root(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Use ARTIFACT_ROOT although it is not the folder that the database knows.

    For artifacts that are lost for good: checkpoints that are not there are forgotten then.
    """
    from app.store.artifact_root import ArtifactRoot  # SQLAlchemy: late, as in connect

    settings = read_settings()
    with open_database(settings) as store:
        root = ArtifactRoot(store.database, settings.artifact_root)
        why = root.why_away()
        if why is not None:
            if not yes:
                require_yes(f"{why}\nCheckpoints that are not in this folder will be forgotten.")
            try:
                root.accept()
            except OSError as error:
                raise CommandFailed(
                    f"{root.path} cannot be used: {error}", ExitCode.failed
                ) from None
    if as_json:
        print_json({"artifact_root": str(root.path), "was_away": why})
    else:
        typer.echo(f"{root.path} is the artifact root of this database.")


@app.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Runs that ended longer ago: 30d, 12h.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The oldest, until artifacts take less: 50GiB."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete ended runs with their artifacts, by age or size; a worker removes the files."""
    if older_than is None and max_size is None:
        raise typer.BadParameter("give at least one", param_hint="--older-than, --max-size")
    oldest = None if older_than is None else time.time() - parse_age(older_than)
    most_bytes = None if max_size is None else parse_size(max_size)
    settings = read_settings()
    with open_database(settings) as store:
        if most_bytes is not None:
            _require_artifacts(store, settings)
        chosen = choose(store, settings.artifact_root, oldest, most_bytes)
        kept = {} if dry_run else delete(store, chosen)
    gone = [run for run in chosen if run.id not in kept]
    freed = sum(run.bytes for run in gone)
    ids = [run.id for run in gone]
    if as_json:
        print_json({"runs": ids, "bytes": freed, "kept": kept, "dry_run": dry_run})
        return
    verb = "would go" if dry_run else "are deleted"
    which = f" ({', '.join(map(str, ids))})" if 0 < len(ids) <= MOST_NAMED else ""
    typer.echo(f"{len(ids)} runs{which} {verb}, {size(freed)} of artifacts.")
    for reason in kept.values():
        typer.echo(f"Kept: {reason}")


def _require_artifacts(store: "Store", settings: "Settings") -> None:
    from app.store.artifact_root import ArtifactRoot  # SQLAlchemy: late, as in connect

    ArtifactRoot(store.database, settings.artifact_root).require()


def _require_created(settings: "Settings") -> None:
    if not is_created(settings):
        raise CommandFailed(f"There is no database in {settings.home} yet: stoker db upgrade")


def _require_ended(settings: "Settings") -> None:
    """Refuse while a process of the service could still write into the database."""
    from stoker import Client  # httpx: late, as in connect

    if holder_of(settings) is not None:
        raise CommandFailed("The service is running; stop it first: stoker down")
    written = read_api_file(settings.home)
    if written is None:
        return
    with Client(written["url"]) as client:
        if client.alive():
            raise CommandFailed(
                f"An API answers at {client.url}; stop it and its workers first, then restore."
            )
