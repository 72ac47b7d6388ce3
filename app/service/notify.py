"""Notifications: how runs end is told to the administrator's URL, in the form that it takes.

Each process of the service has a thread for it. What is to be told lies in the database: whichever
process takes it first sends it, once, and is followed by another if it ends in the middle of that.
So each is sent at least once, as long as a process lives in the hours after, and twice only when
one ended, or the answer was lost, between the receiver's word and its record. Nothing waits for it.
"""

import asyncio
import base64
import hmac
import html
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx
import structlog

from app import __version__
from app.errors import Unavailable
from app.settings import Settings, is_loopback, split_notify_url
from app.store.notifications import NotificationRecord
from app.store.store import Store
from stoker.models.base import rfc3339

log = structlog.get_logger("stoker.service")

Document = dict[str, Any]
# One try, all of it; and how long another process waits with its own.
TRY_SECONDS = 20.0
HOLD_SECONDS = 120.0
# After the first try that failed; it grows threefold each time.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 900.0
AFTER_ERROR_SECONDS = 5.0
# Discord takes 2,000 characters, ntfy 4,096 bytes.
MOST_CHARACTERS = 1_500
# Of an answer, to tell why it refuses.
ANSWER_BYTES = 1_000
# A piece of the URL that is shorter tells nobody anything, and may be any word.
LEAST_SECRET_PIECE = 4
# Refusals that may become something else by themselves.
PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
TITLES = {
    "succeeded": "{run} has succeeded",
    "failed": "{run} has failed",
    "stopped": "{run} was stopped",
    "stalled": "{run} made no progress",
}
# Of ntfy, which shows them as emoji.
TAGS = {"succeeded": "white_check_mark", "failed": "x", "stopped": "stop_sign"}


@dataclass(frozen=True)
class Told:
    """A message, before it has a form. `key`: the same in each try; `t`: unix seconds."""

    key: str
    kind: str
    title: str
    text: str
    t: float
    run: Document = field(default_factory=dict)


class NotDelivered(Exception):
    """Why a try failed. `is_final`: the next would too."""

    def __init__(self, why: str, *, is_final: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.is_final = is_final
        self.wait_seconds = wait_seconds


class Notifier:
    """Owns the thread; without NOTIFY_URL there is none."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._settings.notify_url is None:
            return
        self._loop = loop = asyncio.new_event_loop()
        self._work = work = loop.create_task(self._tell_all())
        self._thread = threading.Thread(
            target=_run, args=(loop, work), name="notifier", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread and join it; what it was about to send, another process sends."""
        if self._thread is None or self._loop is None or self._work is None:
            return
        self._loop.call_soon_threadsafe(self._work.cancel)
        self._thread.join()
        self._loop.close()
        self._thread = None

    async def _tell_all(self) -> None:
        is_begun = False
        while True:
            wait = self._settings.beat_seconds
            try:
                if not is_begun:
                    self._store.notifications.begin()
                    is_begun = True
                while await self._tell_next():
                    pass
            except Unavailable as error:
                log.warning("notifications cannot be read, they are later", why=error.detail)
                wait = AFTER_ERROR_SECONDS
            except Exception:  # the thread must outlive a database that is away for a while
                log.exception("notifications cannot be told now; it is tried again")
                wait = AFTER_ERROR_SECONDS
            await asyncio.sleep(wait)

    async def _tell_next(self) -> bool:
        """Try to send the next; False when there is none."""
        outbox = self._store.notifications
        taken = outbox.claim(self._settings.notify_on, HOLD_SECONDS)
        if taken is None:
            return False
        try:
            await deliver(self._settings, told_of(taken))
        except NotDelivered as why:
            self._fail(taken, why)
        else:
            outbox.end(taken.id)
        return True

    def _fail(self, taken: NotificationRecord, why: NotDelivered) -> None:
        """Have it tried again, or give it up."""
        outbox, said = self._store.notifications, str(why)
        wait = min(RETRY_SECONDS * 3.0 ** (taken.tries - 1), LONGEST_RETRY_SECONDS)
        wait = max(wait, why.wait_seconds)
        of_it = {"run": taken.run_id, "kind": taken.kind, "why": said}
        if why.is_final:
            outbox.end(taken.id, said)
        elif outbox.retry(taken, said, wait):
            log.warning("a notification could not be sent", **of_it, again_in=wait)
            return
        log.warning("a notification is given up", **of_it)


def _run(loop: asyncio.AbstractEventLoop, work: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(work)


def told_of(record: NotificationRecord) -> Told:
    """The message about a run."""
    name = f" ({record.name})" if record.name else ""
    run = {
        "id": record.run_id,
        "name": record.name,
        "labels": record.labels,
        "recipe": record.recipe,
        "attempt": record.attempt,
        "reason": record.reason,
        "message": record.message,
        "worker": record.worker,
    }
    times = {n: getattr(record, n) for n in ("created_at", "started_at", "finished_at")}
    return Told(
        key=f"run-{record.run_id}-{record.attempt}-{record.kind}",
        kind=record.kind,
        title=TITLES[record.kind].format(run=f"Run {record.run_id}{name}"),
        text=record.message or "",
        t=record.t,
        run=run | {n: None if t is None else rfc3339(t) for n, t in times.items()},
    )


def example_message() -> Told:
    """What `stoker doctor --notify` sends."""
    now = time.time()
    text = "If you can read this, you will hear how your runs end."
    return Told(f"test-{now:.6f}", "test", "Stoker can reach you", text, now)


def form_of(url: str) -> str:
    """How messages are put for a URL that does not say it: ntfy, slack, discord or json."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "hooks.slack.com":
        return "slack"
    is_discord = host.removeprefix("canary.").removeprefix("ptb.") in (
        "discord.com",
        "discordapp.com",
    )
    if is_discord and parts.path.startswith("/api/webhooks/"):
        return "discord"
    return "ntfy" if host.startswith("ntfy.") else "json"


def put(told: Told, settings: Settings) -> tuple[str, bytes, dict[str, str]]:
    """Where a message goes, its body and its headers, in the receiver's own form."""
    named, url = split_notify_url(settings.notify_url or "")
    form = named or form_of(url)
    text = told.text if len(told.text) <= MOST_CHARACTERS else f"{told.text[:MOST_CHARACTERS]} …"
    whole = f"{told.title}\n{text}".strip()
    headers = {"Content-Type": "application/json", "User-Agent": f"stoker/{__version__}"}
    body: Document
    match form:
        case "slack":
            body = {"text": html.escape(whole, quote=False)}
        case "discord":  # nobody is called by a run's name, such as @everyone
            body = {"content": whole, "allowed_mentions": {"parse": []}}
        case "ntfy":
            url, topic = _apart(url)
            tags = [TAGS.get(told.kind, "hourglass")]
            body = {"topic": topic, "title": told.title, "message": text, "tags": tags}
        case _:
            kind = "test" if told.kind == "test" else f"run.{told.kind}"
            data = {"title": told.title, "message": text, "run": told.run or None}
            body = {"type": kind, "timestamp": rfc3339(told.t), "data": data}
            headers |= _signed(told.key, _as_json(body), settings)
    return url, _as_json(body), headers


def _apart(url: str) -> tuple[str, str]:
    """The address of an ntfy server that takes JSON, and the topic."""
    parts = urlsplit(url)
    above, _, topic = parts.path.rstrip("/").rpartition("/")
    return urlunsplit(parts._replace(path=f"{above}/")), topic


def _signed(key: str, body: bytes, settings: Settings) -> dict[str, str]:
    """The headers of Standard Webhooks; the signature where there is a secret."""
    sent_at = f"{time.time():.0f}"
    headers = {"webhook-id": key, "webhook-timestamp": sent_at}
    if settings.notify_secret is None:
        return headers
    secret = settings.notify_secret.get_secret_value().encode()
    digest = hmac.digest(secret, f"{key}.{sent_at}.".encode() + body, "sha256")
    return headers | {"webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}


def _as_json(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


async def deliver(settings: Settings, told: Told) -> None:
    """Send a message, within TRY_SECONDS; NotDelivered."""
    url, body, headers = put(told, settings)
    parts = urlsplit(url)
    is_here = is_loopback(parts.hostname or "")  # where no proxy leads to
    try:
        async with (
            asyncio.timeout(TRY_SECONDS),
            httpx.AsyncClient(timeout=TRY_SECONDS, trust_env=not is_here) as client,
            client.stream("POST", url, content=body, headers=headers) as answer,
        ):
            if not answer.is_success:
                raise await _refusal(answer, parts.hostname, settings.notify_url or "")
    except TimeoutError:
        why = f"{parts.hostname} did not answer within {TRY_SECONDS:g} seconds"
        raise NotDelivered(why) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        said = without_url(str(error), settings.notify_url or "") or type(error).__name__
        why = f"{parts.hostname} cannot be reached: {said}"
        raise NotDelivered(why) from None


async def _refusal(answer: httpx.Response, host: str | None, url: str) -> NotDelivered:
    status = answer.status_code
    if answer.is_redirect:
        to = urlsplit(answer.headers.get("Location", "")).hostname or "another address"
        why = f"{host} redirects to {to} ({status}), which is not followed: give the last address"
        return NotDelivered(why, is_final=True)
    said = b""
    async for piece in answer.aiter_raw(ANSWER_BYTES):
        said = piece[:ANSWER_BYTES]
        break
    words = said.decode("utf-8", "replace").split()
    if len(said) == ANSWER_BYTES:
        words = words[:-1]  # a part of the URL that was cut would not be known for one
    text = without_url(" ".join(words), url)[:200]
    why = f"{host} answered {status}{f': {text}' if text else ''}"
    is_final = answer.is_client_error and status not in PASSING
    wait = answer.headers.get("Retry-After", "")
    seconds = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else 0.0
    return NotDelivered(why, is_final=is_final, wait_seconds=min(seconds, 3600.0))


def without_url(text: str, url: str) -> str:
    """What a receiver says, without what it repeats of its URL: whoever knows that may write there.

    The path, query, user and password are replaced as wholes and in their pieces, for an answer may
    quote them encoded, escaped or in part.
    """
    parts = urlsplit(url)
    wholes = [
        url,
        parts.path.strip("/"),
        parts.query,
        parts.fragment,
        parts.netloc.rpartition("@")[0],
    ]
    pieces = [piece for whole in wholes[1:] for piece in re.split(r"[/&=:;,+]", whole)]
    secrets = {unquote(one) for one in (*wholes, *pieces)} | {*wholes, *pieces}
    long = [one for one in secrets if len(one) >= LEAST_SECRET_PIECE]
    for secret in sorted(long, key=len, reverse=True):
        text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
    return text
