"""`stoker token`: the tokens that open the API. Done on the service's machine, in its database."""

import typer

from app.cli.failures import StokerGroup

app = typer.Typer(cls=StokerGroup, no_args_is_help=True, help="Tokens that open the API.")
