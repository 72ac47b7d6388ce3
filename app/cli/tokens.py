"""`stoker token`: the tokens that open the API. Done on the service's machine, in its database."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.connect import open_database, read_settings
from app.cli.failures import CommandFailed, StokerGroup
from app.cli.output import JsonOption, ago, print_json, print_table
from stoker import find_token

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store import Store

MOST_ID = 10**18  # below what a database takes as a whole number

app = typer.Typer(
    cls=StokerGroup, no_args_is_help=True, help="Create, list and revoke tokens that open the API."
)


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
        {
            "id": record.id,
            "name": record.name,
            "created_at": _moment(record.created_at),
            "revoked_at": _moment(record.revoked_at),
        }
        for record in records
    ]
    if as_json:
        print_json({"data": rows})
        return
    print_table(
        ["id", "name", "created", "revoked"],
        [(row["id"], row["name"], ago(row["created_at"]), ago(row["revoked_at"])) for row in rows],
        "No tokens; the API makes one at its first start.",
    )


@app.command()
def revoke(
    token_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=MOST_ID, help="The token's id.")
    ],
    this_one: Annotated[
        bool, typer.Option("--yes-this-one", help="Also the one that this command line uses.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a token useless at once; a stream that is open goes on until it ends."""
    settings = read_settings()
    with open_database(settings) as store:
        if not this_one and token_id == _own_token_id(settings, store):
            raise CommandFailed(
                f"Token {token_id} is the one that this command line uses: without it every call "
                "would be refused. Make another first (export STOKER_TOKEN=$(stoker token create "
                f"NAME)), then revoke this one with: stoker token revoke {token_id} --yes-this-one"
            )
        store.tokens.revoke(token_id)
    if as_json:
        print_json({"revoked": token_id})
    else:
        typer.echo(f"Token {token_id} is revoked and opens nothing any more.")


def _own_token_id(settings: "Settings", store: "Store") -> int | None:
    """The id of the token that commands here would send; None when it opens nothing anyway."""
    secret = find_token(settings.home)
    record = None if secret is None else store.tokens.verify(secret)
    return None if record is None else record.id


def _moment(seconds: float | None) -> str | None:
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds")
    )
