"""Runs that are asked for at the same time share a thread and a transaction.

To hand a request to a thread and back takes about as long as to plan it, threads that compute take
turns anyway, and a commit takes the same time for many runs as for one. So nothing is planned while
requests are still being read: each turn costs both threads, and fewer would share the commit.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence, Sized
from itertools import islice

from starlette.concurrency import run_in_threadpool

from app.errors import Unavailable
from app.service.facts import Moment, moment_of
from app.service.services import Made, Services, Waiting
from app.service.submit import Document, made_before, new_run_of, plan_request
from app.store.records import Idempotency, Submission

MOST_WAITING = 1000
# What is taken at once: so many, or as many as were planned in that time.
MOST_AT_ONCE = 16
PLANNING_SECONDS = 0.02
# Turns of the event loop until the next request of a client that was just answered waits: one to
# answer, one to read, one to begin, and one to see it.
TURNS_WITHOUT = 4


async def create(services: Services, request: Document, idempotency: Idempotency | None) -> Made:
    """Guard the request and store the run. Unavailable, too, when very many wait already."""
    intake = services.intake
    if len(intake.queue) >= MOST_WAITING:
        raise Unavailable(
            f"{MOST_WAITING} requests for runs are waiting already. Nothing of this call was "
            "stored; repeat it in a moment.",
            code="overloaded",
        )
    made: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
    intake.queue.append(Waiting(request, idempotency, made))
    if intake.task is None:
        intake.task = asyncio.create_task(_work_off(services))
    return await made


async def _work_off(services: Services) -> None:
    queue = services.intake.queue
    try:
        while queue:
            await _all_read(queue)
            _drop_abandoned(queue)
            first = list(islice(queue, MOST_AT_ONCE))
            if not first:
                break
            for made in await run_in_threadpool(_create_first, services, first):
                _answer(queue.popleft(), made)
    finally:
        services.intake.task = None


async def _all_read(queue: Sized) -> None:
    """Until what has reached the service waits, or as many as are taken at once."""
    turns, known = 0, len(queue)
    while turns < TURNS_WITHOUT and known < MOST_AT_ONCE:
        await asyncio.sleep(0)
        turns = turns + 1 if len(queue) == known else 0
        known = len(queue)


def _drop_abandoned(queue: deque[Waiting]) -> None:
    """Requests whose clients have left: nothing is made for nobody."""
    wanted = [one for one in queue if not one.made.done()]
    queue.clear()
    queue.extend(wanted)


def _answer(waiting: Waiting, made: Made | Exception) -> None:
    if waiting.made.done():  # nobody waits for it any more
        return
    if isinstance(made, Exception):
        waiting.made.set_exception(made)
    else:
        waiting.made.set_result(made)


def _create_first(services: Services, waiting: Sequence[Waiting]) -> list[Made | Exception]:
    """What has become of the first of them: of as many as were planned in time."""
    try:
        return _create_together(services, waiting)
    except Unavailable as error:
        return [error] * len(waiting)
    except Exception as error:  # noqa: BLE001 - given to the one that it belongs to
        return [error] if len(waiting) == 1 else _create_first(services, waiting[:1])


def _create_together(services: Services, waiting: Sequence[Waiting]) -> list[Made | Exception]:
    moment = moment_of(services, [one.request for one in waiting])
    deadline = time.monotonic() + PLANNING_SECONDS
    planned: list[Submission | Made | Exception] = []
    for one in waiting:
        planned.append(_planned(services, one, moment))
        if time.monotonic() > deadline:
            break
    new = [one for one in planned if isinstance(one, Submission)]
    stored = iter(services.store.runs.create_all(new) if new else ())
    return [next(stored) if isinstance(one, Submission) else one for one in planned]


def _planned(services: Services, waiting: Waiting, moment: Moment) -> Submission | Made | Exception:
    """A run to be stored, the one that its key has made, or why there is none."""
    try:
        made = made_before(services, waiting.idempotency)
        if made is not None:
            return made, False
        new = new_run_of(plan_request(services, waiting.request, moment=moment))
    except Exception as error:  # noqa: BLE001 - each request has an answer of its own
        return error
    return Submission(new, waiting.idempotency)
