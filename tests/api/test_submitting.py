"""Runs that are posted at the same time: each is answered for itself, and made once."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from app.service import submit
from app.store.store import Store
from tests.api.support import SPEC, Answer, Api, Player, spec_with

MANY = 10
Document = dict[str, Any]


def post(api: Api, request: Document, key: str | None = None) -> "Future[Answer]":
    headers = {} if key is None else {"Idempotency-Key": key}
    return api.start("POST", "/runs", json=request, headers=headers)


@contextmanager
def held_up(store: Store) -> Iterator[None]:
    """Nothing can be stored meanwhile."""
    with store.database.write():
        yield


def until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_runs_posted_together_are_each_stored_whole(api: Api, store: Store, player: Player) -> None:
    names = [f"run-{number}" for number in range(MANY)]
    with held_up(store):
        waiting = [post(api, {**SPEC, "name": name, "labels": {"is": name}}) for name in names]
    answers = [one.result(60) for one in waiting]
    assert [answer.status_code for answer in answers] == [201] * MANY
    assert len({answer.json()["id"] for answer in answers}) == MANY
    for answer, name in zip(answers, names, strict=True):
        run_id = answer.json()["id"]
        assert api.get(f"/runs/{run_id}/spec").json()["request"]["name"] == name
        assert [one.data["to"] for one in store.events.list(run_id)] == ["queued"]
        listed = api.get("/runs", params={"label": f"is={name}"}).json()["data"]
        assert [run["id"] for run in listed] == [run_id]


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
    together = [one.result(60) for one in [post(api, request) for request in requests]]
    assert [one.status_code for one in together] == [201, 422, 422, 409, 422, 422, 201]
    for one, other in zip(together, alone, strict=True):
        if one.status_code != 201:
            assert one.json() == other.json()


def test_a_key_that_comes_again_meanwhile_is_in_flight_and_afterwards_known(
    api: Api, store: Store, player: Player
) -> None:
    with held_up(store):
        first = post(api, SPEC, key="k")
        until(lambda: ("runs", "k") in api.services.in_flight._keys)
        again = api.post("/runs", json=SPEC, headers={"Idempotency-Key": "k"})
        assert again.problem("idempotency_in_flight") == 409
        others = [post(api, SPEC, key=f"k{number}") for number in range(3)]
    made = [one.result(60).json()["id"] for one in (first, *others)]
    assert len(set(made)) == 4
    known = post(api, SPEC, key="k").result(60)
    assert (known.status_code, known.json()["id"]) == (200, made[0])
    misused = post(api, {**SPEC, "name": "another"}, key="k1").result(60)
    assert misused.problem("idempotency_key_reused") == 422
    assert post(api, SPEC, key="fresh").result(60).status_code == 201


def test_a_run_says_whose_token_made_it(api: Api, store: Store, player: Player) -> None:
    _, secret = store.tokens.create("ada")
    hers = {"Authorization": f"Bearer {secret}"}
    mine = api.post("/runs", json=SPEC).json()
    made = api.post("/runs", json=SPEC, headers=hers).json()
    child = api.post(f"/runs/{mine['id']}/restart", json={"from": "scratch"}, headers=hers).json()
    assert [one["created_by"] for one in (mine, made, child)] == ["test", "ada", "ada"]
    listed = api.get("/runs", params={"created_by": "ada"}).json()["data"]
    assert [run["id"] for run in listed] == [child["id"], made["id"]]


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


def test_who_waits_for_a_dataset_plans_when_something_has_become_of_one(
    api: Api, store: Store, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.datasets.register("later", "later.h5")
    planned = []
    plan = submit.plan_request

    def count(*given: Any) -> Any:
        planned.append(given)
        return plan(*given)

    later = spec_with("data", dataset="later")
    monkeypatch.setattr(submit, "plan_request", count)
    waiting = api.start("POST", "/runs", params={"wait": 60}, json=later)
    until(lambda: len(planned) == 1)
    with store.database.read():
        for _ in range(3):
            store.tokens.create("another commit")
            assert post(api, SPEC).result(60).status_code == 201
    assert len(planned) == 4, "its own, and those of the others"
    player.inspect("later")
    assert waiting.result(60).status_code == 201
