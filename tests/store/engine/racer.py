"""Processes that each do one thing to a store, all at once, or one that holds a run.

Run as a script it takes orders, a line of JSON each: [HOME, DATABASE_URL, [[ACT, ARGUMENT], ...]],
and answers each with a JSON list of what the acts gave. They are forked with everything loaded, so
that they start together.
"""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from app.lifecycle import Intent, Reason
from app.planning.requirements import SlotOffer
from app.settings import Settings, load_settings
from app.store import Store, open_store
from app.store.engine import migrate
from app.store.identity import this_process
from app.store.records import (
    Beat,
    Finish,
    Idempotency,
    MetricPoint,
    NewEvent,
    NewRun,
)
from app.store.worker_records import NewWorker

CPU = SlotOffer("cpu-0-0", "cpu", "cpu")
NEW = NewRun(
    request={}, spec={}, provenance={}, issues=[], name="", notes="", labels={}, priority=0,
    recipe="sequence", mode="train", dataset="weather", device="auto", gpus=1, max_retries=3,
)  # fmt: skip


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def claim(store: Store, _: str) -> list[int]:
    """Claim until nothing is left; the ids of what was claimed."""
    me = this_process()
    worker = store.workers.register(
        NewWorker("racer", me.host, me.boot_id, me.pid, me.start_time, "0")
    )
    claimed = []
    while (lease := store.leases.claim(worker, [CPU])) is not None:
        claimed.append(lease.run_id)
    return claimed


def submit(store: Store, count: str) -> list[int]:
    """Submit from four threads; the ids."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda _: store.runs.create(NEW)[0].id, range(int(count))))


def submit_once(store: Store, key: str) -> tuple[int, bool]:
    """Submit with an idempotency key; (id, whether it is new)."""
    run, created = store.runs.create(NEW, idempotency=Idempotency(key, "hash", "POST /runs"))
    return run.id, created


def beat(store: Store, token_and_count: str) -> int:
    """Beat with an event, a point and a line each time; how often."""
    token, count = token_and_count.split()
    for i in range(int(count)):
        store.leases.beat(
            token,
            Beat(
                events=[NewEvent("warning", float(i), {"i": i})],
                metric_points=[MetricPoint("val_loss", i, float(i), 1.0)],
                log_text=f"{i}\n",
            ),
        )
    return int(count)


def finish(store: Store, token: str) -> str:
    """End an attempt for a reason that is retried; the state it led to."""
    return store.leases.finish(token, Finish(Reason.drained, "")).state


def stop(store: Store, run_id: str) -> str:
    """Stop a run; the state it is in then."""
    return store.runs.set_intent(int(run_id), Intent.stop)[0].state


def hold(store: Store, _: str) -> list[Any]:
    """Claim one run and print it, then do nothing until stdin ends: a worker that hangs."""
    me = this_process()
    worker = store.workers.register(
        NewWorker("racer", me.host, me.boot_id, me.pid, me.start_time, "0")
    )
    lease = store.leases.claim(worker, [CPU])
    say(lease and lease.run_id)
    sys.stdin.read()
    return []


ACTS: dict[str, Callable[[Store, str], Any]] = {
    act.__name__: act for act in (claim, submit, submit_once, beat, finish, stop, hold)
}


def perform(settings: Settings, act: str, argument: str, ready: Callable[[], object]) -> Any:
    """Do one act once all are `ready`, on a store of its own."""
    if act == "upgrade":
        ready()
        migrate.upgrade(settings)
        return migrate.current(settings)
    with closing(open_store(settings)) as store:
        store.ping()
        ready()
        return ACTS[act](store, argument)


def race(end: Connection, *given: Any) -> None:
    end.send(perform(*given))


def race_all(settings: Settings, acts: list[list[str]]) -> list[Any]:
    fork = get_context("fork")
    barrier = fork.Barrier(len(acts), timeout=60)  # for where one of them fails before
    racers = []
    for act, argument in acts:
        mine, theirs = fork.Pipe(duplex=False)
        racer = fork.Process(target=race, args=(theirs, settings, act, argument, barrier.wait))
        racer.start()
        theirs.close()
        racers.append(mine)
    return [racer.recv() for racer in racers]


def main() -> None:
    for line in sys.stdin:
        home, url, acts = json.loads(line)
        settings = load_settings(home=home, database_url=url)
        if acts[0][0] == "hold":
            [[act, argument]] = acts
            perform(settings, act, argument, lambda: None)
            return
        say(race_all(settings, acts))


if __name__ == "__main__":
    main()
