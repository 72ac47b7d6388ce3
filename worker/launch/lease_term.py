"""How long a trainer may train on the strength of one stored beat; see docs/design/lease.md."""

from app.lifecycle import LEASE_BEATS
from app.settings import Settings
from worker.protocol import LeaseTerm

# An observer counts whole reads, and a kill takes a moment: the last of the beats is for these.
RESERVED_BEATS = 1
# To save takes time: so much of the lease is for it, or the grace time if that is less.
SAVING_SHARE = 1 / 3
# For a row, or a SQLite file, that others hold: far below the lease, so that signals are served
# meanwhile. What could not be told is told by the next beat.
BUSY_SECONDS = 5.0
# Beats are made one after the other: if all runs of an agent are locked at once, so much of the
# lease goes by before it comes to the last one.
WAITING_SHARE = 1 / 3


def lease_term(told_at: float, settings: Settings) -> LeaseTerm:
    """What a beat, or a claim, gives that the store was asked for at `told_at` (boottime) and took.

    Nobody else can have seen it earlier, so nobody can have counted to LEASE_BEATS before the
    trainer is gone.
    """
    lease_seconds = (LEASE_BEATS - RESERVED_BEATS) * settings.beat_seconds
    saving_seconds = min(settings.stop_grace_seconds, lease_seconds * SAVING_SHARE)
    kill_at = told_at + lease_seconds
    return LeaseTerm(stop_at=kill_at - saving_seconds, kill_at=kill_at)


def lock_patience(settings: Settings, slots: int) -> float:
    """How many seconds a beat waits for others' locks, in an agent with so many slots."""
    return min(BUSY_SECONDS, LEASE_BEATS * settings.beat_seconds * WAITING_SHARE / slots)
