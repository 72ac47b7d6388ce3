"""Whether those who are to be told how runs end are told, for `stoker doctor`."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from app.cli.db.storage import is_created
from app.cli.host.findings import DoctorFinding
from app.cli.output import ago
from stoker.models.base import rfc3339

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store.notifications import NotificationRecord

NAME = "notify"
TRY_IT = "to try it: stoker doctor --notify"


def check_notifications(settings: "Settings") -> Iterator[DoctorFinding]:
    """How the last one went; nothing where nobody is to be told."""
    if settings.notify_url is None:
        return
    last = _last(settings)
    if last is None:
        yield DoctorFinding(NAME, "ok", "on; nothing was to be told yet", TRY_IT)
    elif last.error is None:
        yield DoctorFinding(NAME, "ok", f"{_which(last)} was sent {_when(last.ended_at)}")
    else:
        state = (
            "is tried again" if last.ended_at is None else f"was given up {_when(last.ended_at)}"
        )
        found = f"{_which(last)} {state}: {last.error}"
        yield DoctorFinding(NAME, "problem", found, f"look at STOKER_NOTIFY_URL; {TRY_IT}")


def try_notification(settings: "Settings") -> DoctorFinding:
    """Send a message now, and say how that went."""
    import asyncio  # late, and httpx with it: start-up

    from app.service.notify import NotDelivered, deliver, example_message

    if settings.notify_url is None:
        found = "nobody is told how runs end: there is no STOKER_NOTIFY_URL"
        return DoctorFinding(NAME, "problem", found, "set it, such as https://ntfy.sh/MY-TOPIC")
    try:
        asyncio.run(deliver(settings, example_message()))
    except NotDelivered as why:
        return DoctorFinding(NAME, "problem", f"not sent: {why}", "look at STOKER_NOTIFY_URL")
    return DoctorFinding(NAME, "ok", "a message was sent and accepted just now")


def _last(settings: "Settings") -> "NotificationRecord | None":
    """None also where the database is not as this version has it, which its own finding says."""
    if not is_created(settings):
        return None
    from app.store import open_store  # SQLAlchemy: late, as in connect
    from app.store.engine import migrate

    if migrate.check(settings):
        return None
    with closing(open_store(settings)) as store:
        return store.notifications.last()


def _which(told: "NotificationRecord") -> str:
    return f"that run {told.run_id} {told.kind}"


def _when(moment: float | None) -> str:
    return "" if moment is None else ago(rfc3339(moment))
