"""Runs that are posted at the same time: planned and stored together, each answered for itself."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from app.api import intake
from app.service import facts as knowledge
from app.service.services import Services
from app.settings import Settings
from app.store.store import Store
from tests.api.support import SPEC, Answer, Api, Player, spec_with

MANY = 10
Document = dict[str, Any]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits together is planned together, however long that takes here."""
    monkeypatch.setattr(intake, "PLANNING_SECONDS", 60.0)


def until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def held_up(api: Api, store: Store) -> Iterator[None]:
    """A run is being stored meanwhile and cannot be, so that those after it wait together."""
    with store.database.write():
        first = api.start("POST", "/runs", json=SPEC)
        until(lambda: len(api.services.intake.queue) == 1)
        api.pass_turns(2 * intake.TURNS_WITHOUT)
        yield
    assert first.result(60).status_code == 201


def post(api: Api, request: Document, key: str | None = None) -> "Future[Answer]":
    """Post a run and see it wait."""
    before = len(api.services.intake.queue)
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = api.start("POST", "/runs", json=request, headers=headers)
    until(lambda: len(api.services.intake.queue) > before)
    return answer


def post_together(api: Api, store: Store, requests: list[Document]) -> list[Answer]:
    with held_up(api, store):
        waiting = [post(api, request) for request in requests]
    return [one.result(60) for one in waiting]


def runs_of_each_transaction(store: Store) -> list[int]:
    """How many runs were stored at a time, from now on."""
    stored: list[int] = []

    def note(_c: Any, _u: Any, statement: str, rows: Any, _x: Any, many: bool) -> None:
        if statement.startswith("INSERT INTO run_documents"):
            stored.append(len(rows) if many else 1)

    event.listen(store.database.engine, "before_cursor_execute", note)
    return stored


def test_runs_posted_together_are_stored_together(api: Api, store: Store, player: Player) -> None:
    stored = runs_of_each_transaction(store)
    names = [f"run-{number}" for number in range(MANY)]
    requests = [{**SPEC, "name": name, "labels": {"is": name}} for name in names]
    answers = post_together(api, store, requests)
    assert [answer.status_code for answer in answers] == [201] * MANY
    assert stored == [1, MANY], "the one that held them up, and then all"
    ids = [answer.json()["id"] for answer in answers]
    assert sorted(set(ids)) == ids, "in the order in which they came"
    for run_id, name in zip(ids, names, strict=True):
        assert api.get(f"/runs/{run_id}/spec").json()["request"]["name"] == name
        assert [one.data["to"] for one in store.events.list(run_id)] == ["queued"]
        listed = api.get("/runs", params={"label": f"is={name}"}).json()["data"]
        assert [run["id"] for run in listed] == [run_id]


def test_nothing_is_planned_while_requests_are_still_being_read(
    settings: Settings, store: Store, player: Player
) -> None:
    stored = runs_of_each_transaction(store)
    services = Services(settings, store)

    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        run, _ = await intake.create(services, SPEC, None)
        return run.id

    async def one_each_turn(count: int) -> list[int]:
        return await asyncio.gather(*(after(turns) for turns in range(count)))

    ids = asyncio.run(one_each_turn(MANY))
    assert (ids, stored) == (sorted(ids), [MANY])
    del stored[:]
    asyncio.run(one_each_turn(intake.MOST_AT_ONCE + MANY))
    assert stored[0] == intake.MOST_AT_ONCE, "those that come on and on keep nobody waiting"


def test_each_gets_the_answer_that_it_would_get_alone(
    api: Api, store: Store, player: Player
) -> None:
    store.datasets.register("later", "later.h5")
    requests = [
        SPEC,
        spec_with("training", epoch=3),
        spec_with("data", dataset="moon"),
        spec_with("data", dataset="later"),
        {**SPEC, "recipe": "sequence"},
        {"recipe": {"kind": "sequence"}, "data": [1]},
        SPEC,
    ]
    alone = [api.post("/runs", json=request) for request in requests]
    together = post_together(api, store, requests)
    assert [one.status_code for one in together] == [201, 422, 422, 409, 422, 422, 201]
    assert [one.status_code for one in together] == [one.status_code for one in alone]
    for one, other in zip(together, alone, strict=True):
        if one.status_code != 201:
            assert one.json() == other.json()


def test_a_key_that_comes_again_meanwhile_is_in_flight_and_afterwards_known(
    api: Api, store: Store, player: Player
) -> None:
    with held_up(api, store):
        first = post(api, SPEC, key="k")
        again = api.post("/runs", json=SPEC, headers={"Idempotency-Key": "k"})
        assert again.problem("idempotency_in_flight") == 409
        others = [post(api, SPEC, key=f"k{number}") for number in range(3)]
    made = [one.result(60).json()["id"] for one in (first, *others)]
    assert len(set(made)) == 4
    with held_up(api, store):
        known = post(api, SPEC, key="k")
        misused = post(api, {**SPEC, "name": "another"}, key="k1")
        fresh = post(api, SPEC, key="fresh")
    assert (known.result(60).status_code, known.result(60).json()["id"]) == (200, made[0])
    assert misused.result(60).problem("idempotency_key_reused") == 422
    assert fresh.result(60).status_code == 201


def test_when_very_many_wait_one_more_is_told_so(
    api: Api, store: Store, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_WAITING", 3)
    with held_up(api, store):
        waiting = [post(api, SPEC), post(api, SPEC)]
        refused = api.post("/runs", json=SPEC)
        assert refused.problem("overloaded") == 503
        assert "Nothing of this call was stored" in refused.json()["detail"]
    assert [one.result(60).status_code for one in waiting] == [201, 201]
    assert api.post("/runs", json=SPEC).status_code == 201
    assert sum(store.runs.counts_by_state().values()) == 4


def test_for_a_client_that_hung_up_nothing_is_made_and_nobody_is_held_up(
    api: Api, store: Store, player: Player
) -> None:
    with held_up(api, store):
        before, gone, after = (post(api, SPEC, key=key) for key in ("a", "gone", "b"))
        assert gone.cancel()
    assert [one.result(60).status_code for one in (before, after)] == [201, 201]
    assert sum(store.runs.counts_by_state().values()) == 3
    again = api.post("/runs", json=SPEC, headers={"Idempotency-Key": "gone"})
    assert again.status_code == 201
    with held_up(api, store):
        assert post(api, SPEC).cancel()
    assert sum(store.runs.counts_by_state().values()) == 5, "the one that held it up, no other"


def test_a_run_posted_right_after_a_workers_start_sees_that_worker(
    api: Api, store: Store, player: Player
) -> None:
    gpu = spec_with("runtime", device="cuda")
    before = api.post("/runs", params={"dry_run": "true"}, json=gpu).json()
    device = {"kind": "cuda", "name": "A GPU", "total_memory_bytes": 2**36, "capability": "8.0"}
    device["free_memory_bytes"] = 2**36
    store.workers.beat(player.worker_id, "alive", [], [device], {"host_memory_bytes": 2**34})
    after = api.post("/runs", params={"dry_run": "true"}, json=gpu).json()
    assert before != after
    store.workers.set_state(player.worker_id, "gone")
    assert api.services.workers.get() == []
    for _ in range(2):
        Player(store, api.services.settings)
    assert len(api.services.workers.get()) == 2


def test_without_the_database_all_are_told_so_and_none_waits_for_ever(
    api: Api, store: Store, player: Player
) -> None:
    with store.database.write() as connection:
        connection.execute(text("ALTER TABLE run_documents RENAME TO elsewhere"))
    with store.database.write() as connection:
        waiting = [post(api, SPEC) for _ in range(MANY)]
        connection.execute(text("SELECT 1"))
    assert [one.result(60).problem("unavailable") for one in waiting] == [503] * MANY
    with store.database.write() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO run_documents"))
    assert api.post("/runs", json=SPEC).status_code == 201
    assert sum(store.runs.counts_by_state().values()) == 1


def test_an_unexpected_error_of_one_is_its_own(
    api: Api, store: Store, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes up before each is looked at by itself."""

    def moment_of(services: Any, requests: list[Document]) -> Any:
        if any(request.get("name") == "odd" for request in requests):
            raise TypeError("nobody thought of that")
        return known(services, requests)

    known = knowledge.moment_of
    monkeypatch.setattr(intake, "moment_of", moment_of)
    odd = {**SPEC, "name": "odd"}
    answers = post_together(api, store, [SPEC, odd, SPEC, odd])
    assert [answer.status_code for answer in answers] == [201, 500, 201, 500]
