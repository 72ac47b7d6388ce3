"""Who may claim: a worker that the store knows, and knows to be alive."""

from sqlalchemy import Connection, select

from app.errors import Conflict
from app.store.tables import workers


def require_alive(connection: Connection, worker_id: int) -> str:
    """The name of a worker that may take something new; it stays so in this transaction.

    Conflict for one that drains, was taken for lost or is forgotten: what it would take could be
    left with nobody who is watched.
    """
    wanted = select(workers.c.name).where(workers.c.id == worker_id, workers.c.state == "alive")
    name = connection.execute(wanted.with_for_update(read=True)).scalar()
    if name is None:
        raise Conflict(
            f"Worker {worker_id} can claim nothing: it drains, ended, or was not heard of for so "
            "long that it was given up. Its next beat says that it lives."
        )
    return str(name)
