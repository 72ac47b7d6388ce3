"""`stoker token`: the tokens that open the API. Done on the service's machine, in its database."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from app.cli.connect import open_database, read_settings
from app.cli.failures import CommandFailed, StokerGroup
from app.cli.output import JsonOption, print_json, print_table

app = typer.Typer(cls=StokerGroup, no_args_is_help=True, help="Tokens that open the API.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use it.")],
    as_json: JsonOption = False,
) -> None:
    """Make a token; it is shown once, and stored as a hash."""
    if not name.strip() or len(name) > 200:
        raise CommandFailed("A token's name has 1 to 200 characters: who or what will use it.")
    with open_database(read_settings()) as store:
        record, secret = store.tokens.create(name.strip())
    if as_json:
        print_json({"id": record.id, "name": record.name, "token": secret})
        return
    typer.echo(secret)
    typer.echo("It is not shown again. Use it as: Authorization: Bearer TOKEN", err=True)


@app.command("list")
def list_tokens(as_json: JsonOption = False) -> None:
    """List tokens, without their secrets."""
    with open_database(read_settings()) as store:
        records = store.tokens.list()
    rows = [
        (record.id, record.name, _moment(record.created_at), _moment(record.revoked_at))
        for record in records
    ]
    if as_json:
        names = ("id", "name", "created_at", "revoked_at")
        print_json({"data": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    print_table(
        ["id", "name", "created", "revoked"],
        rows,
        "No tokens; the API makes one at its first start.",
    )


@app.command()
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The token's id.")],
    as_json: JsonOption = False,
) -> None:
    """Make a token useless; a running API forgets it within seconds."""
    with open_database(read_settings()) as store:
        store.tokens.revoke(token_id)
    if as_json:
        print_json({"revoked": token_id})
    else:
        typer.echo(f"Token {token_id} is revoked; a running API forgets it within seconds.")


def _moment(seconds: float | None) -> str | None:
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")
    )
