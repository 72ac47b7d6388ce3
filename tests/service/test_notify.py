"""Who is told how runs end: who sends it, in which form, and what goes wrong."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from sqlalchemy import update

from app.lifecycle import Reason
from app.service import notify
from app.service.notify import (
    NotDelivered,
    Notifier,
    deliver,
    example_message,
    form_of,
    told_of,
    without_url,
)
from app.settings import NOTIFY_EVENTS, Settings, load_settings
from app.store import Store
from app.store.notifications import GIVE_UP_SECONDS
from app.store.records import Finish
from app.store.tables import notifications
from tests.e2e.service import eventually
from tests.pages import blocks
from tests.service.receiver import Answer, receiving
from tests.store.conftest import World

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "notifications.md"
SECRET = "a secret that nobody guesses"


def end(world: World, reason: Reason = Reason.completed, message: str = "It is done.") -> int:
    lease = world.running()
    world.store.leases.finish(lease.token, Finish(reason, message))
    return lease.run_id


# --- who sends it ---------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits as short as a test can stand."""
    monkeypatch.setattr(notify, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(notify, "LONGEST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(notify, "TRY_SECONDS", 1.0)


@contextmanager
def notifying(world: World, url: str, **more: Any) -> Iterator[Store]:
    """A store with a thread that tells, and with clocks that go."""
    store = Store(world.database)
    given = {"home": world.settings.home, "notify_url": url, "beat_seconds": 0.05}
    notifier = Notifier(load_settings(**given, **more), store)
    store.notifications.begin()
    notifier.start()
    try:
        yield store
    finally:
        notifier.close()


def ended_with(store: Store, error: str | None) -> bool:
    last = store.notifications.last()
    if last is None or last.ended_at is None:
        return False
    assert (last.error or "").startswith(error or ""), last.error
    assert (last.error is None) == (error is None), last.error
    return True


def now_ended(world: World, store: Store, count: int = 1) -> list[int]:
    """Runs that end now, by the clock of the thread."""
    world.clock.now = time.time()
    return [end(world) for _ in range(count)]


def test_two_processes_send_each_once(world: World, quick: None) -> None:
    with receiving() as receiver:
        with notifying(world, receiver.url) as store, notifying(world, receiver.url):
            runs = now_ended(world, store, 20)
            eventually(lambda: len(receiver.requests) >= 20, "all are told")
            time.sleep(0.3)
        told = [json.loads(one.body)["data"]["run"]["id"] for one in receiver.requests]
    assert sorted(told) == runs


def test_errors_of_the_receiver_are_tried_again_until_it_takes_it(
    world: World, quick: None
) -> None:
    with receiving(500, 503, 429, 200) as receiver, notifying(world, receiver.url) as store:
        now_ended(world, store)
        eventually(lambda: ended_with(store, None), "it is sent")
        assert len(receiver.requests) == 4
        assert len({one.headers["webhook-id"] for one in receiver.requests}) == 1


def test_a_receiver_that_is_not_there_is_tried_again(world: World, quick: None) -> None:
    with receiving() as receiver:
        gone = receiver.url
    with notifying(world, gone) as store:
        now_ended(world, store)
        last = eventually(store.notifications.last, "it has failed")
        assert (last.error or "").startswith("127.0.0.1 cannot be reached")
        assert last.ended_at is None


def test_a_redirect_is_not_followed(world: World, quick: None) -> None:
    with receiving() as elsewhere:

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(307)
            handler.send_header("Location", f"{elsewhere.url}/secret")
            handler.end_headers()

        with receiving(redirect) as receiver, notifying(world, receiver.url) as store:
            now_ended(world, store)
            eventually(
                lambda: ended_with(store, "127.0.0.1 redirects to 127.0.0.1 (307)"), "given up"
            )
            assert len(receiver.requests) == 1
        assert elsewhere.requests == []


@pytest.mark.parametrize("status", [404, 410])
def test_a_receiver_that_is_gone_is_not_asked_again(world: World, quick: None, status: int) -> None:
    with receiving(status) as receiver, notifying(world, receiver.url) as store:
        now_ended(world, store)
        eventually(lambda: ended_with(store, f"127.0.0.1 answered {status}"), "it is given up")
        time.sleep(0.3)
        assert len(receiver.requests) == 1


def endless(status: int) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(10_000):
                handler.wfile.write(b"x" * 100_000)

    return answer


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, each within any time limit."""
    with suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for _ in range(1_000):
            handler.wfile.write(b"X-Filler: x\r\n")
            time.sleep(0.05)


def test_of_a_huge_answer_little_is_read(world: World, quick: None) -> None:
    with receiving(endless(500), endless(200)) as receiver, notifying(world, receiver.url) as store:
        now_ended(world, store)
        eventually(lambda: ended_with(store, None), "it is sent")
        assert len(receiver.requests) == 2


def test_a_slow_receiver_is_left_after_a_time_and_asked_again(world: World, quick: None) -> None:
    with receiving(drip, 200) as receiver, notifying(world, receiver.url) as store:
        now_ended(world, store)
        eventually(lambda: ended_with(store, None), "it is sent")
        assert len(receiver.requests) == 2


def test_an_end_of_the_process_waits_for_no_receiver_and_the_next_one_sends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "HOLD_SECONDS", 1.0)
    released = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        released.wait(60)

    with receiving(hang, 200) as receiver:
        with notifying(world, receiver.url) as store:
            now_ended(world, store)
            eventually(lambda: receiver.requests, "it is being sent")
            began = time.monotonic()
        assert time.monotonic() - began < notify.TRY_SECONDS / 2
        with notifying(world, receiver.url) as store:
            eventually(lambda: ended_with(store, None), "it is sent")
        assert len(receiver.requests) == 2
        released.set()


def test_a_database_that_is_away_for_a_while_ends_nothing(
    world: World, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "AFTER_ERROR_SECONDS", 0.05)
    failures = iter([RuntimeError("away"), RuntimeError("away")])
    claim = Store(world.database).notifications.claim

    def flaky(*arguments: Any) -> Any:
        if (error := next(failures, None)) is not None:
            raise error
        return claim(*arguments)

    with receiving() as receiver, notifying(world, receiver.url) as store:
        monkeypatch.setattr(store.notifications, "claim", flaky)
        now_ended(world, store)
        eventually(lambda: ended_with(store, None), "it is sent")


def test_what_ended_while_nobody_was_told_is_no_news(world: World, quick: None) -> None:
    with receiving() as receiver:
        world.store.notifications.begin()
        world.clock.now = time.time()
        old, new = end(world), end(world)
        with world.database.write() as connection:
            of_it = notifications.c.run_id == old
            aged = world.clock.now - GIVE_UP_SECONDS - 60
            connection.execute(update(notifications).where(of_it).values(t=aged))
        with notifying(world, receiver.url) as store:
            eventually(lambda: ended_with(store, None), "it is sent")
        told = [json.loads(one.body)["data"]["run"]["id"] for one in receiver.requests]
    assert told == [new]


# --- in which form --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://ntfy.sh/my-runs", "ntfy"),
        ("https://ntfy.example.org/my-runs", "ntfy"),
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://canary.discord.com/api/webhooks/1/x", "discord"),
        ("https://discord.com/channels/1", "json"),
        ("https://example.org/hooks.slack.com", "json"),
        ("http://127.0.0.1:9000/", "json"),
    ],
)
def test_the_receiver_is_known_by_its_url(url: str, form: str) -> None:
    assert form_of(url) == form


def settings_for(tmp_path: Any, url: str, **more: Any) -> Settings:
    return load_settings(home=tmp_path, notify_url=url, **more)


async def sent(tmp_path: Any, prefix: str, path: str, told: Any) -> tuple[str, dict[str, Any]]:
    with receiving() as receiver:
        url = f"{prefix}+{receiver.url}{path}"
        await deliver(settings_for(tmp_path, url), told)
    (one,) = receiver.requests
    assert one.headers["content-type"] == "application/json"
    assert "webhook-id" not in one.headers
    return one.path, json.loads(one.body)


NASTY = "@everyone <!channel> & \u200b\U0001f525 \ud800"


@pytest.fixture
def told(world: World) -> Any:
    world.store.notifications.begin()
    lease = world.running(name=NASTY)
    finish = Finish(Reason.trainer_error, "long " * 10_000)
    world.store.leases.finish(lease.token, finish)
    record = world.store.notifications.claim(NOTIFY_EVENTS, 60)
    assert record is not None
    return told_of(record)


def test_ntfy_slack_and_discord_get_their_own_forms(told: Any, tmp_path: Any) -> None:
    title = f"Run 1 ({NASTY[:-1]}\ufffd\ufffd\ufffd) has failed"
    path, ntfy = asyncio.run(sent(tmp_path, "ntfy", "/my/topic?auth=x", told))
    assert (path, ntfy["topic"], ntfy["title"]) == ("/my/?auth=x", "topic", title)
    assert len(ntfy["message"].encode()) < 4_096
    path, slack = asyncio.run(sent(tmp_path, "slack", "/services/x", told))
    assert path == "/services/x"
    assert slack["text"].startswith("Run 1 (@everyone &lt;!channel&gt; &amp; ")
    path, discord = asyncio.run(sent(tmp_path, "discord", "/api/webhooks/1/x", told))
    assert discord["content"].startswith(title)
    assert len(discord["content"]) <= 2_000
    assert discord["allowed_mentions"] == {"parse": []}


def test_all_others_get_json_that_is_signed(world: World, quick: None) -> None:
    """Verified as the guide shows it."""
    with (
        receiving() as receiver,
        notifying(world, f"{receiver.url}/hook", notify_secret=SECRET) as store,
    ):
        (run,) = now_ended(world, store)
        eventually(lambda: ended_with(store, None), "it is sent")
    (one,) = receiver.requests
    key, sent_at = one.headers["webhook-id"], one.headers["webhook-timestamp"]
    shown: dict[str, Any] = {}
    exec(blocks("python", GUIDE.read_text())[0], shown)  # noqa: S102
    assert shown["is_from_stoker"](one.headers, one.body, SECRET)
    assert not shown["is_from_stoker"](one.headers, one.body + b" ", SECRET)
    assert not shown["is_from_stoker"](one.headers, one.body, SECRET + "!")
    old = one.headers | {"webhook-timestamp": str(int(sent_at) - 1_000)}
    assert not shown["is_from_stoker"](old, one.body, SECRET)
    document = json.loads(one.body)
    assert (one.path, key, document["type"]) == ("/hook", f"run-{run}-1-succeeded", "run.succeeded")
    about = document["data"]["run"]
    assert (about["id"], about["name"], about["reason"]) == (run, "lstm", "completed")
    assert about["finished_at"].endswith("Z")


def test_a_trial_says_why_it_did_not_arrive(tmp_path: Any) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(403)
        handler.end_headers()
        handler.wfile.write(b"no such\n topic \xff")

    with receiving(refuse) as receiver:
        with pytest.raises(NotDelivered, match=r"^127.0.0.1 answered 403: no such topic") as caught:
            asyncio.run(deliver(settings_for(tmp_path, receiver.url), example_message()))
        assert caught.value.is_final


@pytest.mark.parametrize("before", ["Cannot POST ", "Cut" + " " * 973], ids=["whole", "cut"])
@pytest.mark.parametrize("form", ["json", "ntfy"])
def test_a_receiver_that_repeats_its_url_gives_no_secret_away(
    tmp_path: Any, form: str, before: str
) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(404)
        handler.end_headers()
        # Escaped and decoded, as different servers quote it.
        path = "/api/webhooks/4242/t0ken-of-%C3%A4?key=s3cret"
        quoted = (path, path.replace("/", "\\/"), unquote(path), path.replace("&", "&amp;"))
        handler.wfile.write((before + " ".join(quoted)).encode())

    with receiving(refuse) as receiver:
        address = receiver.url.removeprefix("http://")
        url = f"{form}+http://us3r:p4ss@{address}/api/webhooks/4242/t0ken-of-%C3%A4?key=s3cret"
        with pytest.raises(NotDelivered, match=r"^127.0.0.1 answered 404: ") as caught:
            asyncio.run(deliver(settings_for(tmp_path, url), example_message()))
    for secret in ("4242", "t0ken", "s3cret"):
        assert secret not in str(caught.value)


def test_what_is_no_part_of_the_url_is_told(tmp_path: Any) -> None:
    url = "https://us3r:p4ss@example.org/api/x/t0ken?k=s3cret"
    said = "no t0ken, S3CRET, us3r or p4ss at example.org/api/x/t0ken: it expired"
    assert without_url(said, url) == "no …, …, … or … at example.org/…: it expired"
    assert without_url("nothing here", "https://example.org/") == "nothing here"


def test_no_proxy_leads_to_loopback(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with receiving() as receiver:
        asyncio.run(deliver(settings_for(tmp_path, receiver.url), example_message()))
        assert len(receiver.requests) == 1
