"""`stoker data cache`: what runs keep of data for the next one, and the room that it takes."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from app.cli.connect import read_settings
from app.cli.failures import CommandFailed, StokerGroup
from app.cli.output import JsonOption, ago, print_json, print_table, size
from app.datacache import Entry, cache_folder, entries, remove

app = typer.Typer(
    cls=StokerGroup,
    no_args_is_help=True,
    help="What runs keep of data for the next one, on this host.",
)


@app.command()
def ls(as_json: JsonOption = False) -> None:
    """List what is kept, the one used last first."""
    settings = read_settings()
    found = entries(cache_folder(settings.home))
    total = sum(entry.bytes for entry in found)
    if as_json:
        rows = [vars(entry) | {"used_at": _time(entry)} for entry in found]
        print_json({"data": rows, "bytes": total, "most_bytes": settings.data_cache_bytes})
        return
    print_table(
        ["key", "recipe", "content", "datasets", "size", "used"],
        [
            (
                one.key,
                one.recipe,
                one.content,
                ", ".join(one.datasets),
                size(one.bytes),
                ago(_time(one)),
            )
            for one in found
        ],
        "Nothing is kept: no recipe has prepared data, and no baselines were scored yet.",
    )
    if found:
        typer.echo(f"{size(total)} of {size(settings.data_cache_bytes)} (STOKER_DATA_CACHE_BYTES).")


def _time(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.used_at, UTC).isoformat()


@app.command()
def clear(
    key: Annotated[str | None, typer.Argument(help="One entry; without it, all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what is kept; the next run that needs it prepares it again."""
    folder = cache_folder(read_settings().home)
    chosen = [entry for entry in entries(folder) if key in (None, entry.key)]
    if key is not None and not chosen:
        raise CommandFailed(f"There is no entry {key}; `stoker data cache ls` shows all.")
    try:
        removed = [entry for entry in chosen if remove(folder, entry.key)]
    except OSError as error:
        raise CommandFailed(f"The cache cannot be cleared: {error}.") from error
    in_use = [entry.key for entry in chosen if entry not in removed]
    freed = sum(entry.bytes for entry in removed)
    if as_json:
        print_json({"removed": [one.key for one in removed], "bytes": freed, "in_use": in_use})
    else:
        typer.echo(f"Removed {len(removed)} of {len(chosen)}: {size(freed)}.")
    if in_use:
        raise CommandFailed(
            f"A trainer is at {', '.join(in_use)} now, so that stays; clear it when its run trains."
        )
