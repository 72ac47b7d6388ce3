"""The token of this installation: made at first start, kept readable by its owner alone."""

import os
from contextlib import suppress
from pathlib import Path

import structlog

from app.settings import Settings
from app.store.store import Store

log = structlog.get_logger("stoker.api")


def ensure_token(settings: Settings, store: Store) -> None:
    """Have HOME/token hold a token that the database knows; nothing to do under AUTH=none."""
    if settings.auth == "none":
        return
    path = settings.token_path
    with suppress(FileNotFoundError):
        if store.tokens.verify(path.read_text(errors="replace").strip()) is not None:
            path.chmod(0o600)
            return
        log.warning("HOME/token is damaged, revoked or of another database; a new one replaces it")
    _, secret = store.tokens.create("default")
    write_atomically(path, secret + "\n", mode=0o600)
    log.info("a token was made; the CLI finds it", path=str(path))


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write the whole file or nothing, also at a power cut; nobody sees it with a wider mode."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        part.unlink()
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
