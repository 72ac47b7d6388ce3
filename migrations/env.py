"""How alembic runs here: within the transaction that app.store.migrate has opened."""

from alembic import context

from app.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite too: the transaction is begun explicitly
)
with context.begin_transaction():
    context.run_migrations()
