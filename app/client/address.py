"""Where the service answers, and the token that opens it."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app.client.errors import Document, ServiceUnreachable
from app.settings import Settings, SettingsError


@dataclass(frozen=True)
class Address:
    """Where the service answers, and the token that opens it (None: it asks for none)."""

    url: str
    token: str | None


def find_address(settings: Settings) -> Address:
    """The address from STOKER_URL and STOKER_TOKEN, else from the files a local API left in HOME.

    Raises ServiceUnreachable when neither is there, SettingsError when STOKER_URL is no address.
    """
    given = os.environ.get("STOKER_URL")
    url = _checked(given) if given else _local_url(settings)
    return Address(url.rstrip("/"), find_token(settings))


def find_token(settings: Settings) -> str | None:
    """The token from STOKER_TOKEN, else from HOME; None when there is none or none is needed.

    Raises SettingsError when it is none that could be sent; the text does not show it.
    """
    token, source = os.environ.get("STOKER_TOKEN"), "STOKER_TOKEN"
    if token is None and settings.auth == "token" and settings.token_path.exists():
        token, source = _read_token(settings.token_path), str(settings.token_path)
    if token is not None and re.fullmatch(r"[\x21-\x7e]+", token.strip()) is None:
        raise SettingsError(
            f"{source} holds no token: one is a single word such as stoker_…; "
            "`stoker token create` makes one."
        )
    return None if token is None else token.strip()


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise SettingsError(
            f"STOKER_URL={url[:200]} is no address of a service; one looks like "
            "http://127.0.0.1:8000."
        )
    return url


def _local_url(settings: Settings) -> str:
    written = read_api_file(settings)
    if written is None:
        raise ServiceUnreachable(
            f"No API is running for {settings.home}. Start one with `stoker up`, or set "
            "STOKER_HOME (another home on this machine) or STOKER_URL and STOKER_TOKEN."
        )
    return str(written["url"])


def read_api_file(settings: Settings) -> Document | None:
    """`{url, pid}`, which a local API keeps in HOME while it runs; None when it is not there."""
    path = settings.home / "api.json"
    try:
        written = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    except ValueError:
        written = {}
    if not isinstance(written, dict) or not {"url", "pid"} <= written.keys():
        raise _unreadable(path, "it is not what an API writes; `stoker up` writes it anew")
    return written


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise _unreadable(path, error.strerror) from None


def _unreadable(path: Path, why: str | None) -> ServiceUnreachable:
    return ServiceUnreachable(f"{path} cannot be read: {why}.")
