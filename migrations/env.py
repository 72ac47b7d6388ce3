"""How alembic runs here: within the transaction that app.store.engine.migrate has opened.

Called by hand (`alembic check`) it opens that transaction for the database of STOKER_HOME.
"""

from alembic import context
from sqlalchemy import Connection

from app.settings import load_settings
from app.store.engine.migrate import alone
from app.store.tables import metadata


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transactional_ddl=True,  # SQLite too: the transaction is begun explicitly
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is None:
    with alone(load_settings()) as connection:
        run(connection)
else:
    run(given)
