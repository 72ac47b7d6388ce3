"""API tokens: only their hashes are stored."""

import hashlib
import secrets
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update

from app.errors import NotFound
from app.store.engine.clock import Clock
from app.store.engine.database import Database, retried
from app.store.records import TokenRecord
from app.store.tables import tokens

PREFIX = "stoker_"
SECRET_BYTES = 32  # as random as the hash is long, so a plain SHA-256 is enough
_COLUMNS = [tokens.c[name] for name in TokenRecord.__dataclass_fields__]
# Asked at each request, and to build it costs more than to execute it.
_VALID = select(*_COLUMNS).where(
    tokens.c.secret_hash == bindparam("hash"), tokens.c.revoked_at.is_(None)
)


class Tokens:
    """Creates, verifies and revokes tokens."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def create(self, name: str) -> tuple[TokenRecord, str]:
        """A new token and its secret, which cannot be shown again."""
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        row = {"name": name, "secret_hash": _hash(secret), "created_at": self._clock()}
        with self._database.write() as connection:
            created = connection.execute(insert(tokens).values(row).returning(*_COLUMNS)).one()
        return _to_record(created), secret

    def verify(self, secret: str) -> TokenRecord | None:
        """The token of a secret; None when there is none, or it was revoked."""
        with self._database.read() as connection:
            row = connection.execute(_VALID, {"hash": _hash(secret)}).one_or_none()
        return None if row is None else _to_record(row)

    def list(self) -> list[TokenRecord]:
        """All, also the revoked ones, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(*_COLUMNS).order_by(tokens.c.id)).all()
        return [_to_record(row) for row in rows]

    @retried
    def revoke(self, token_id: int) -> TokenRecord:
        """End a token at once; once more changes nothing. NotFound."""
        ended = update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
        with self._database.write() as connection:
            connection.execute(ended.values(revoked_at=self._clock()))
            row = connection.execute(select(*_COLUMNS).where(tokens.c.id == token_id)).one_or_none()
        if row is None:
            raise NotFound(f"There is no token {token_id}. `stoker token list` shows them.")
        return _to_record(row)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _to_record(row: Row[Any]) -> TokenRecord:
    return TokenRecord(**row._asdict())
