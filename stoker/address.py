"""Where the service answers, and the token that opens it."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from stoker.errors import ClientError, Document, ServiceUnreachable

DEFAULT_HOME = Path("~/.stoker")


@dataclass(frozen=True)
class Address:
    """Where the service answers, and the token that opens it (None: it asks for none)."""

    url: str
    token: str | None


def find_address(home: Path | None = None) -> Address:
    """The address from STOKER_URL and STOKER_TOKEN, else from the files a local API left in HOME.

    `home`: the service's home on this machine; STOKER_HOME unless given, else ~/.stoker.
    Raises ServiceUnreachable when neither is there, ClientError when STOKER_URL is no address.
    """
    home = home or Path(os.environ.get("STOKER_HOME") or DEFAULT_HOME).expanduser().absolute()
    given = os.environ.get("STOKER_URL")
    url = _checked(given) if given else _local_url(home)
    return Address(url.rstrip("/"), find_token(home))


def find_token(home: Path) -> str | None:
    """The token from STOKER_TOKEN, else from HOME; None when there is none.

    Raises ClientError when it is none that could be sent; the text does not show it.
    """
    token, source = os.environ.get("STOKER_TOKEN"), "STOKER_TOKEN"
    path = home / "token"
    if token is None and path.exists():
        token, source = _read_token(path), str(path)
    if token is not None and re.fullmatch(r"[\x21-\x7e]+", token.strip()) is None:
        raise ClientError(
            f"{source} does not hold a token: a token is a single word such as stoker_…; "
            "`stoker token create` makes one."
        )
    return None if token is None else token.strip()


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and is_host(parts.hostname or "")
        is_one = is_one and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise ClientError(
            f"STOKER_URL={url[:200]} is not the address of a service; one looks like "
            "http://127.0.0.1:8000."
        )
    return url


def is_host(name: str) -> bool:
    """Whether a name can be looked up at all; Python raises UnicodeError for one such as a..b."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def _local_url(home: Path) -> str:
    written = read_api_file(home)
    if written is None:
        raise ServiceUnreachable(
            f"No service is running for {home}. Start one with `stoker up`, or set "
            "STOKER_HOME (another home on this machine) or STOKER_URL and STOKER_TOKEN."
        )
    return str(written["url"])


def read_api_file(home: Path) -> Document | None:
    """`{url, pid}`, which a local API keeps in HOME while it runs; None when it is not there, or is
    damaged, as a power cut leaves it: the next API writes it anew.
    """
    path = home / "api.json"
    try:
        written = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    is_whole = isinstance(written, dict) and {"url", "pid"} <= written.keys()
    return written if is_whole else None


def _read_token(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise _unreadable(path, error.strerror) from None


def _unreadable(path: Path, why: str | None) -> ServiceUnreachable:
    return ServiceUnreachable(f"{path} cannot be read: {why}.")
