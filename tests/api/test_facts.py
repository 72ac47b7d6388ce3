"""From what a worker or a file really says to what the guard answers: nothing here is made up."""

import json
import subprocess
import sys
from typing import Any

import h5py
import numpy as np
import pytest
from sqlalchemy import text, update

from app.lifecycle import Reason
from app.store.records import Beat, Inspection
from app.store.tables import run_documents
from worker.agent.registration import describe_devices
from worker.telemetry.host import host_now, host_setup

RNG = np.random.default_rng(5)
ROWS = 400


def windows(rows: int) -> Any:
    """Windows of one noisy series, each moved on by one step."""
    series = RNG.normal(size=(rows + 24, 3)).astype(np.float32)
    return np.stack([series[i : i + 24] for i in range(rows)])


def arrays(**changed: Any) -> dict[str, Any]:
    usual = {"features": RNG.normal(size=(ROWS, 24, 3)), "targets": RNG.normal(size=(ROWS, 4))}
    return {name: array.astype(np.float32) for name, array in {**usual, **changed}.items()}


def inspect(api, store, player, data: dict[str, Any], **storage: Any) -> None:
    """Write a file and register it; its inspection is the worker's own child process."""
    path = store.datasets.get("weather").path
    file_path = api.services.settings.data_root / path
    with h5py.File(file_path, "w") as file:
        for name, array in data.items():
            file.create_dataset(name, data=array, **storage)
    command = [sys.executable, "-m", "worker.trainer.tools.inspect", str(file_path), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert found["problems"] == []
    names = ("fields", "samples", "layout", "size_bytes", "fingerprint", "read_probe")
    store.datasets.register("weather", path)
    job = store.jobs.claim(player.worker_id)
    inspection = Inspection("ready", **{name: found[name] for name in names})
    store.jobs.finish(job.id, player.worker_id, inspection=inspection)


def tell_host(store, player, settings) -> None:
    """Have the player's worker tell what an agent tells of this machine."""
    settings.artifact_root.mkdir(exist_ok=True)
    host = host_setup() | host_now(settings.artifact_root)
    slots = [{"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}]
    devices = describe_devices(None)
    store.workers.beat(player.worker_id, "alive", slots=slots, devices=devices, facts=host)


def plan(api, **blocks: Any) -> dict[str, Any]:
    request = {
        "recipe": {"kind": "sequence", "hidden_size": 8, "patch": 6},
        "training": {"epochs": 2, "batch_size": 32},
        **blocks,
        "data": {"dataset": "weather", **blocks.get("data", {})},
    }
    answer = api.post("/runs", params={"dry_run": True}, json=request)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def codes(answer: dict[str, Any]) -> set[str]:
    return {issue["code"] for issue in answer["issues"]}


SORTED = np.sort(RNG.integers(0, 3, ROWS)).astype(np.float32)
EIGHT_TOGETHER = {"shuffle_group": 32, "shuffle_block": 8}
WITH_NAN = arrays()["features"]
WITH_NAN[7, 3, 1] = np.nan
# What the file holds, what is asked for, the issue, and the request in which it is gone.
FILES: dict[str, tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = {
    "sorted labels": (
        arrays(targets=SORTED[:, None]), {}, "learning.sorted_split",
        {"data": {"split": {"method": "random"}}},
    ),
    "sorted labels in blocks": (
        arrays(targets=SORTED[::-1, None]),
        {"data": {"split": {"method": "random"}, "loader": EIGHT_TOGETHER}},
        "learning.sorted_blocks",
        {"data": {"split": {"method": "random"}, "loader": {"shuffle": "full"}}},
    ),
    "unscaled": (
        arrays(targets=RNG.normal(300.0, 40.0, (ROWS, 4))),
        {"data": {"standardize": {"targets": False}}}, "learning.unscaled",
        {"data": {"standardize": {"targets": True}}},
    ),
    "windows of a series": (
        arrays(features=windows(ROWS)), {"data": {"split": {"method": "random"}}},
        "correctness.leaking_split", {"data": {"split": {"method": "chronological"}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_what_a_file_holds_is_judged(api, store, player, kind):
    data, asked, code, mended = FILES[kind]
    inspect(api, store, player, data)
    assert codes(plan(api, **asked)) == {code}
    assert codes(plan(api, **mended)) == set()


def test_a_file_with_nan_is_refused_and_without_it_is_not(api, store, player, settings):
    tell_host(store, player, settings)
    inspect(api, store, player, arrays(features=WITH_NAN))
    (issue,) = plan(api)["issues"]
    assert issue["code"] == "correctness.nonfinite_values"
    assert "1 NaN" in issue["message"]
    inspect(api, store, player, arrays())
    answer = plan(api)
    assert answer["issues"] == []
    # No run is like it yet, and where this test's files lie need not be known.
    unchecked = {one["code"] for one in answer["unchecked"]}
    assert unchecked <= {"speed.frequent_checkpoints", "speed.network_full_shuffle"}


def test_how_a_file_is_stored_is_judged_and_shown(api, store, player, settings):
    tell_host(store, player, settings)
    inspect(api, store, player, arrays(), chunks=True, compression="gzip")
    asked = {"residency": "stream", "shuffle": "full"}
    long = {"epochs": 100_000}  # a minute of waiting in all is no loss
    small, large = (
        plan(api, data={"loader": {**asked, "chunk_size": size}}, training=long)
        for size in ("16KiB", "1MiB")
    )
    assert "speed.random_reads_of_chunks" in codes(small)
    assert "speed.random_reads_of_chunks" not in codes(large)
    shown = api.get("/datasets/weather").json()
    features = shown["fields"]["features"]
    assert (features["storage"], features["compression"]) == ("chunked", "gzip")
    assert features["chunks"][1:] <= [24, 3]
    assert features["mean"] == pytest.approx(0.0, abs=0.1)
    assert features["std"] == pytest.approx(1.0, abs=0.1)
    assert features["sorted"] is False
    assert shown["layout"]["network"] in (True, False, None)


def test_what_an_earlier_inspection_did_not_look_at_is_unchecked(api, player):
    """The player's inspection is such a one: shapes and types alone."""
    answer = plan(api, data={"standardize": {"targets": False}})
    unchecked = {one["code"]: one["missing"] for one in answer["unchecked"]}
    assert unchecked["learning.unscaled"] == "the spread of 'targets' in weather"
    assert {"correctness.nonfinite_values", "learning.sorted_split"} <= unchecked.keys()


def test_a_plan_tells_what_a_batch_is_worth(api, store, player, settings):
    """Eight rows that follow one another have one label; four blocks of them make a batch."""
    tell_host(store, player, settings)
    labels = np.repeat(RNG.normal(size=(ROWS // 8, 1)), 8, axis=0)
    inspect(api, store, player, arrays(targets=labels))
    full = plan(api)
    assert full["estimate"]["batch_worth"] == {
        "samples": 32, "independent": 32, "target": "targets",
    }  # fmt: skip
    blocks = plan(api, data={"loader": EIGHT_TOGETHER})
    assert blocks["estimate"]["batch_worth"]["independent"] == 4
    (issue,) = blocks["issues"]
    assert (issue["code"], issue["severity"]) == ("learning.alike_batches", "warning")
    assert issue["message"] == "A batch of 32 samples is worth about 4 independent ones."
    assert "drawn from 4 blocks of 8 neighbours" in issue["why"]
    assert "With the fix it is 32." in issue["why"]
    assert {"op": "add", "path": "/data/loader/shuffle", "value": "full"} in issue["fix"]


def trained(api, player, *, steps: int, seconds: float, **blocks: Any) -> int:
    """A run that a worker trained to its end at that pace, with 4 checkpoints of half a second."""
    request = plan(api, **blocks)["spec"]
    run_id = api.post("/runs", json=request).json()["id"]
    lease = player.claim()
    for step in range(1, 5):
        player.checkpoint(lease, step)
    parts = {"data_wait": 0.0, "compute": seconds, "sync": 0.0, "checkpoint": 2.0, "eval": 1.0}
    progress = {
        "phase": "training",
        "totals": {"train_iterations": steps, "eval_samples": 1000},
        "phase_seconds": parts,
    }
    environment = {"cuda": None, "device": "x86_64"}
    player.store.leases.beat(lease.token, Beat(progress=progress, environment=environment))
    player.finish(lease, Reason.completed)
    return int(run_id)


def test_time_is_reckoned_with_what_like_runs_needed(api, player):
    before = plan(api)
    assert (before["estimate"]["seconds"], before["estimate"]["from_runs"]) == (None, [])
    run_id = trained(api, player, steps=1000, seconds=500.0)
    estimate = plan(api)["estimate"]
    assert estimate["from_runs"] == [run_id]
    # 50 steps at 2 a second, 2 evaluations of 200 samples, as many new bests.
    assert estimate["seconds"] == pytest.approx(25 + 0.4 + 2 * 0.5, abs=0.3)
    longer = plan(api, training={"epochs": 20, "batch_size": 32})["estimate"]
    assert longer["seconds"] > 250
    other = plan(api, training={"epochs": 2, "batch_size": 64})["estimate"]
    assert (other["seconds"], other["from_runs"]) == (None, [])


@pytest.mark.parametrize(
    ("block", "bad", "good", "code"),
    [
        ("policy", {"max_duration_seconds": 24.0}, {"max_duration_seconds": 26.0},
         "learning.ends_before_its_epochs"),
        ("checkpoint", {"every_steps": 49, "keep_best": 0}, {"every_steps": 50, "keep_best": 0},
         "speed.frequent_checkpoints"),
        ("checkpoint", {"every_steps": 1300, "every_seconds": None, "keep_best": 0},
         {"every_steps": 1200, "every_seconds": None, "keep_best": 0}, "learning.rare_checkpoints"),
    ],
)  # fmt: skip
def test_rules_about_time_judge_by_the_history(api, player, block, bad, good, code):
    long = {"training": {"epochs": 2 if block == "policy" else 500, "batch_size": 32}}
    assert code in {one["code"] for one in plan(api, **long, **{block: bad})["unchecked"]}
    trained(api, player, steps=1000, seconds=500.0)
    assert codes(plan(api, **long, **{block: bad})) == {code}
    judged = plan(api, **long, **{block: good})
    assert codes(judged) == set()
    assert code not in {one["code"] for one in judged["unchecked"]}


def one_cycle_run(api, player, *steps: int, epochs: int, reason: Reason = Reason.completed) -> int:
    """A run of one cycle, 25 steps an epoch, that has ended and saved checkpoints at `steps`."""
    request = {
        "recipe": {"kind": "sequence", "hidden_size": 8, "patch": 6},
        "data": {"dataset": "weather"},
        "training": {"epochs": epochs, "batch_size": 32},
        "schedule": {"kind": "onecycle"},
    }
    run_id = api.post("/runs", json=request).json()["id"]
    lease = player.claim()
    for step in steps:
        player.checkpoint(lease, step)
    player.finish(lease, reason)
    return int(run_id)


SMALL = {
    "recipe": {"kind": "sequence", "hidden_size": 8, "patch": 6},
    "data": {"dataset": "weather"},
}
LONGER = [{"op": "replace", "path": "/training/epochs", "value": 40}]
JUMPS = "learning.rate_jumps_at_restart"


def test_a_restart_that_stretches_an_annealed_cycle_is_refused_with_a_fix(api, player):
    run_id = one_cycle_run(api, player, 240, epochs=10)
    refusal = api.post(f"/runs/{run_id}/restart", json={"patch_ops": LONGER})
    assert refusal.problem("spec_rejected") == 422
    (issue,) = refusal.json()["issues"]
    assert (issue["code"], issue["overridable"]) == (JUMPS, True)
    assert "At step 240 the learning rate jumps" in issue["message"]
    fixed = api.post(f"/runs/{run_id}/restart", json={"patch_ops": [*LONGER, *issue["fix"]]})
    assert fixed.status_code == 201, fixed.text
    assert fixed.json()["carry"]["kind"] == "weights"


def test_a_parent_that_a_newer_version_has_written_is_read_all_the_same(api, player, store):
    """Fields that this version does not know must not keep it from those that it does know."""
    run_id = api.post("/runs", json=SMALL).json()["id"]
    spec = {**store.runs.documents(run_id).spec, "of_a_newer_version": {"kind": "later"}}
    spec["data"]["split"]["gap"] = 3
    with store.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER run_documents_update"))
        connection.execute(update(run_documents).values(spec=spec))
    child = api.post(f"/runs/{run_id}/restart", json={"from": "scratch"})
    assert child.status_code == 201, child.text
    assert gap_of(api, child.json()["id"]) == 3  # that of its parent


def test_a_restart_goes_back_from_a_gap_that_was_asked_for_to_the_default(api, player):
    cut = {"data": {"dataset": "weather", "split": {"gap": 3}}}
    run_id = api.post("/runs", json={**SMALL, **cut}).json()["id"]
    again = api.post(f"/runs/{run_id}/restart", json={"from": "scratch"})
    assert gap_of(api, again.json()["id"]) == 3
    patch = {"data": {"split": {"gap": None}}}
    child = api.post(
        f"/runs/{again.json()['id']}/restart", json={"from": "scratch", "patch": patch}
    )
    assert child.status_code == 201, child.text
    assert gap_of(api, child.json()["id"]) == 0
    grandchild = api.post(f"/runs/{child.json()['id']}/restart", json={"from": "scratch"})
    assert gap_of(api, grandchild.json()["id"]) == 0


def gap_of(api, run_id):
    return api.get(f"/runs/{run_id}/spec").json()["spec"]["data"]["split"]["gap"]


def test_a_finished_run_that_is_to_train_longer_is_refused_with_a_fix(api, player):
    run_id = one_cycle_run(api, player, 250, epochs=10)
    refusal = api.post(f"/runs/{run_id}/restart", json={"patch_ops": LONGER})
    assert refusal.problem("spec_rejected") == 422
    (issue,) = refusal.json()["issues"]
    assert issue["code"] == JUMPS
    assert "In the fix training.epochs is therefore 30: what is still to come" in issue["why"]
    fixed = api.post(f"/runs/{run_id}/restart", json={"patch_ops": [*LONGER, *issue["fix"]]})
    assert fixed.status_code == 201, fixed.text
    spec = api.get(f"/runs/{fixed.json()['id']}/spec").json()["spec"]
    assert spec["training"]["epochs"] == 30  # of the 40, those that are still to come


@pytest.mark.parametrize("patch", [{}, {"training": {"epochs": 9}}, {"training": {"max_steps": 7}}])
def test_a_finished_run_is_not_restarted_for_nothing(api, player, patch):
    run_id = one_cycle_run(api, player, 250, epochs=10)
    refusal = api.post(f"/runs/{run_id}/restart", json={"patch": patch})
    assert refusal.problem("spec_rejected") == 422
    (issue,) = refusal.json()["issues"]
    assert (issue["code"], issue["overridable"]) == ("correctness.nothing_left", False)
    assert "The checkpoint is at step 250, and the run would end at step" in issue["message"]
    field = "max_steps" if "max_steps" in patch.get("training", {}) else "epochs"
    assert f"training.{field} counts what is done as well: with more of them" in issue["why"]
    merged = {**patch, "schedule": {"kind": "cosine_warmup"}, "optimizer": {"lr": 1e-4}}
    assert {op["path"] for op in issue["fix"]} == {"/schedule", "/optimizer"}, "it is one of these"
    lower = api.post(f"/runs/{run_id}/restart", json={"patch": merged})
    assert lower.status_code == 201, lower.text
    assert lower.json()["carry"]["kind"] == "weights"
    anew = api.post(f"/runs/{run_id}/restart", json={"from": "scratch", "patch": patch})
    assert anew.status_code == 201


def test_what_failed_at_its_last_step_may_end_its_evaluation(api, player):
    run_id = one_cycle_run(api, player, 250, epochs=10, reason=Reason.crashed)
    assert api.post(f"/runs/{run_id}/restart").status_code == 201


def test_the_jump_can_be_accepted(api, player):
    run_id = one_cycle_run(api, player, 240, epochs=10)
    patch = {"training": {"epochs": 40}, "accept_risks": [JUMPS]}
    child = api.post(f"/runs/{run_id}/restart", json={"patch": patch})
    assert child.status_code == 201, child.text
    assert child.json()["carry"]["kind"] == "full"


@pytest.mark.parametrize(
    ("from_", "patch"),
    [
        ("latest", {"training": {"epochs": 10}, "notes": "as long as before"}),
        ("latest", {"training": {"epochs": 40, "batch_size": 64}}),
        ("scratch", {"training": {"epochs": 40}}),
    ],
)
def test_a_restart_without_a_jump_is_taken(api, player, from_, patch):
    """The same schedule; the weights alone; nothing at all."""
    run_id = one_cycle_run(api, player, 240, epochs=10)
    child = api.post(f"/runs/{run_id}/restart", json={"from": from_, "patch": patch})
    assert child.status_code == 201, child.text


def test_a_restart_early_in_the_cycle_is_taken(api, player):
    run_id = one_cycle_run(api, player, 30, epochs=10)
    assert api.post(f"/runs/{run_id}/restart", json={"patch_ops": LONGER}).status_code == 201


def test_the_checkpoint_that_is_asked_for_decides(api, player):
    run_id = one_cycle_run(api, player, 30, 240, epochs=10)
    saved = api.get(f"/runs/{run_id}/checkpoints").json()["data"]
    by_step = {checkpoint["step"]: checkpoint["id"] for checkpoint in saved}
    for step, status in ((240, 422), (30, 201)):
        body = {"from": by_step[step], "patch_ops": LONGER}
        assert api.post(f"/runs/{run_id}/restart", json=body).status_code == status


def test_a_restart_of_a_restart_without_a_checkpoint_looks_at_the_first_run(api, player):
    first = one_cycle_run(api, player, 240, epochs=10)
    second = api.post(f"/runs/{first}/restart", json={"patch": {"notes": "again"}}).json()["id"]
    refusal = api.post(f"/runs/{second}/restart", json={"patch_ops": LONGER})
    assert refusal.problem("spec_rejected") == 422
    assert [issue["code"] for issue in refusal.json()["issues"]] == [JUMPS]
