"""How long a run waits before it is tried again."""

import random
from itertools import takewhile

from app.lifecycle import Reason
from app.store.store import Store
from worker.agent.classify import Verdict

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0
# A disk that is away may be so for hours, and each look at it costs an attempt.
MOST_UNREADABLE_SECONDS = 300.0


def retry_delay_seconds(store: Store, run_id: int, verdict: Verdict) -> float:
    """Doubling from one second on, with jitter so that runs do not come in step."""
    if verdict.retry_seconds:
        return verdict.retry_seconds * random.uniform(1.0, 1.25)
    if verdict.reason is Reason.checkpoint_error:
        failures, most = _unreadable_in_a_row(store, run_id), MOST_UNREADABLE_SECONDS
    else:
        run = store.runs.get(run_id)
        failures, most = max(run.retries_used, run.losses), MOST_SECONDS
    return min(FIRST_SECONDS * 2.0 ** min(failures, 10), most) * random.uniform(0.75, 1.25)


def _unreadable_in_a_row(store: Store, run_id: int) -> int:
    """Attempts, the last ones, that ended so; they are free, and so the run does not count them."""
    ended = [one for one in store.attempts.list(run_id) if one.reason is not None]
    alike = takewhile(lambda one: one.reason is Reason.checkpoint_error, reversed(ended))
    return sum(1 for _ in alike)
