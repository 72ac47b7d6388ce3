"""What time it is: by this host for what is told, by the database for what hosts compare."""

import time

from sqlalchemy import Connection, text


class Clock:
    """Unix seconds."""

    def __call__(self) -> float:
        """By this host."""
        return time.time()

    def of(self, connection: Connection) -> float:
        """By the database, which is one for all hosts; SQLite has but this host's clock."""
        if connection.dialect.name == "sqlite":
            return self()
        moment = connection.execute(text("SELECT extract(epoch FROM clock_timestamp())"))
        return float(moment.scalar_one())
