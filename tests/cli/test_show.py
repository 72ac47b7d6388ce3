"""What `stoker show` tells of a run: its result, memory, progress and speed."""

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert, update

from app.cli.watch import result_facts, tell_what_it_waits_for
from app.settings import load_settings
from app.store import open_store
from app.store.tables import attempts, events, runs
from tests.store.conftest import new_run


def test_show_aligns_what_was_reached(cli, api):
    store = open_store(load_settings(home=api))
    run_id = store.runs.create(new_run(dataset="waves", labels={"team": "a"}))[0].id
    result = {"last": {"val_mae": 3.5}, "best": {"step": 7, "val_mae": 3.25}, "exit_code": 0}
    with store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run_id).values(result=result))
    store.close()
    lines = cli("show", str(run_id)).out.splitlines()
    shown = {value: line.index(value) for line in lines
             for value in ("team=a", "val_mae 3.5", "step 7") if value in line}  # fmt: skip
    assert len(shown) == 3
    assert len(set(shown.values())) == 1, shown


def test_the_first_of_equally_good_baselines_is_named():
    """They are listed from simple to complex, and the run's message names the same one."""
    names = ("most common class", "ridge on atom counts")
    baselines = [{"name": name, "metric": "val_accuracy", "value": 0.9} for name in names]
    facts = dict(result_facts({"baselines": baselines, "naive": {"val_accuracy": 0.9}}))
    assert facts["best baseline"] == "val_accuracy 0.9 (most common class)"


@pytest.mark.parametrize(
    ("planned", "measured", "line"),
    [
        (2**20, None, "1.0 MiB planned, on top of the trainer's libraries"),
        (
            2**20,
            3 * 2**19,
            "1.0 MiB planned, 1.5 MiB measured at the peak, on top of the trainer's libraries",
        ),
        (
            200 * 2**20,
            3 * 2**29,
            "0.2 GiB planned, 1.5 GiB measured at the peak, on top of the trainer's libraries",
        ),
        (None, 2**20, "1.0 MiB measured at the peak, on top of the trainer's libraries"),
        (None, None, None),
    ],
)
def test_show_tells_the_memory_as_far_as_it_is_known(cli, api, planned, measured, line):
    plan = planned and {"host": {"planned_bytes": planned}, "device": None}
    told = measured and {"peak_memory": {"host_bytes": measured, "device_bytes": None}}
    store = open_store(load_settings(home=api))
    run_id = store.runs.create(new_run(memory=plan, dataset="waves"))[0].id
    with store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run_id).values(progress=told))
    store.close()
    facts = [fact.split(maxsplit=1) for fact in cli("show", str(run_id)).out.splitlines()]
    assert [fact[1] for fact in facts if fact[0] == "memory"] == ([line] if line else [])


def test_show_tells_what_the_newest_attempt_makes_smaller(cli, api):
    rung = {"number": 3, "data_bytes": 24 * 2**20, "batch": 32, "evaluation_batch": None,
            "staging_bytes": None}  # fmt: skip
    store = open_store(load_settings(home=api))
    run_id = store.runs.create(new_run(dataset="waves"))[0].id

    def shown(number: int, applied: dict[str, Any] | None) -> list[str]:
        attempt = {
            "run_id": run_id, "number": number, "worker": "agent", "state": "running",
            "devices": [], "started_at": 1.0, "applied": applied, "saved_checkpoints": 0,
            "log_bytes": 0,
        }  # fmt: skip
        with store.database.write() as connection:
            connection.execute(insert(attempts), attempt)
        lines = cli("show", str(run_id)).out.splitlines()
        return [line.split(maxsplit=2)[2] for line in lines if line.startswith("  memory rung")]

    assert shown(1, {"memory_rung": None}) == []
    assert shown(2, {"memory_rung": rung}) == [
        "3: at most 24.0 MiB of data at once, micro-batches of 32"
    ]
    assert shown(3, None) == []  # not yet known
    store.close()


def test_show_has_what_the_progress_says_also_of_a_run_that_told_no_result(cli, api):
    store = open_store(load_settings(home=api))
    run_id = store.runs.create(new_run(dataset="waves"))[0].id
    told = {
        "step": 40, "eta_seconds": 90.0, "best": {"step": 30, "val_mae": 3.5},
        "iterations_per_second": 29.123, "samples_per_second": 932.0,
        "mean_iterations_per_second": 20.0, "mean_samples_per_second": 640.0,
    }  # fmt: skip

    def shown(state: str) -> str:
        with store.database.write() as connection:
            row = {"state": state, "progress": told}
            connection.execute(update(runs).where(runs.c.id == run_id).values(**row))
        return str(cli("show", str(run_id)).out)

    running, paused = shown("running"), shown("paused")
    assert "time left" in running
    assert "29.12 it/s, 932 samples/s" in running
    assert "time left" not in paused
    assert "20 it/s, 640 samples/s" in paused, "of the whole attempt, not of its last second"
    assert "  best      step 30 · val_mae 3.5\n" in paused
    told |= {"ratio": 0.7, "mean_samples_per_second": None}  # of a script
    assert {"progress step 40, 70 %", "speed 20 it/s"} <= {
        " ".join(line.split()) for line in shown("paused").splitlines()
    }
    store.close()


def test_show_has_the_newest_warnings_and_how_attempts_before_have_ended(cli, api):
    store = open_store(load_settings(home=api))
    run_id = store.runs.create(new_run(dataset="waves"))[0].id
    warned = ["loss is NaN", "slow", "slow", "a save was cut", "full"]
    with store.database.write() as connection:
        for number, state in ((1, "crashed"), (2, "running")):
            attempt = {
                "run_id": run_id, "number": number, "worker": "agent", "state": state,
                "reason": "worker_lost" if number == 1 else None, "devices": [],
                "started_at": 1.0, "saved_checkpoints": 0, "log_bytes": 0,
            }  # fmt: skip
            connection.execute(insert(attempts), attempt)
        for number, message in enumerate(warned):
            event = {
                "run_id": run_id, "seq": 100 + number, "t": 1.0, "attempt": 1, "kind": "warning",
                "data": {"code": "any", "message": message},
            }  # fmt: skip
            connection.execute(insert(events), event)
        connection.execute(update(runs).where(runs.c.id == run_id).values(attempt=2))
    store.close()
    lines = [" ".join(line.split()) for line in cli("show", str(run_id)).out.splitlines()]
    assert "attempt 2 (before: 1 worker_lost)" in lines
    assert "dataset waves" in lines
    assert lines[-4:] == [
        "warning full", "warning a save was cut", "warning slow",
        "warning 1 more: `stoker watch` tells them all",
    ]  # fmt: skip


def test_what_waits_for_a_paused_run_says_how_that_goes_on(cli, api):
    store = open_store(load_settings(home=api))
    first, second = (store.runs.create(new_run(dataset="waves"))[0].id for _ in range(2))
    with store.database.write() as connection:
        paused = {"state": "paused", "intent": "pause"}
        connection.execute(update(runs).where(runs.c.id == first).values(paused))
        connection.execute(update(runs).where(runs.c.id == second).values(waits_for=first))
    store.close()
    told = f"Run {first} is paused; `stoker resume {first}` lets it go on."
    said = cli("show", str(second)).out
    assert said.startswith(f"Run {second} (lstm) is waiting for run {first}.")
    for words in (said, cli("queue").out):
        assert told in " ".join(words.split())
    notes: list[str] = []
    client: Any = SimpleNamespace(run=lambda _: cli("show", str(second), "--json").document)
    view: Any = SimpleNamespace(note=lambda text, _: notes.append(text))
    tell_what_it_waits_for(client, second, view)
    assert notes == [f"waiting      {told}"]


@pytest.mark.parametrize(
    ("state", "beside"),
    [
        ("succeeded", ""),
        ("failed", " (that run failed)"),
        ("stopped", " (that run was stopped before its end)"),
        (None, " (that run is deleted)"),
    ],
)
def test_show_says_whose_weights_a_run_began_with(cli, api, state, beside):
    store = open_store(load_settings(home=api))
    first, second = (store.runs.create(new_run(dataset="waves"))[0].id for _ in range(2))
    attempt = {
        "run_id": second, "number": 1, "worker": "agent", "state": "running", "devices": [],
        "started_at": 1.0, "saved_checkpoints": 0, "log_bytes": 0,
    }  # fmt: skip
    with store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id == second).values(init_from_run=first))
        ended = {"state": state} if state else {"deleted_at": 1.0}
        connection.execute(update(runs).where(runs.c.id == first).values(ended))
    assert "weights from" not in cli("show", str(second)).out, "it has not begun"
    with store.database.write() as connection:
        applied = {"init_from": {"step": 512}}
        connection.execute(insert(attempts), {**attempt, "applied": applied})
        connection.execute(insert(attempts), {**attempt, "number": 2, "applied": {}})
    store.close()
    lines = [" ".join(line.split()) for line in cli("show", str(second)).out.splitlines()]
    assert f"weights from run {first}, step 512{beside}" in lines
