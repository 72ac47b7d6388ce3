"""Damaged checkpoints over HTTP: listed with the reason, not served, found when asked for."""

import pytest

from app.lifecycle import Reason
from tests.api.support import SPEC

LONGER = {"patch": {"training": {"epochs": 100}, "schedule": {"kind": "constant"}}}


@pytest.fixture
def lease(api, player):
    api.post("/runs", json=SPEC)
    return player.claim()


@pytest.fixture
def damaged(api, settings, player, lease):
    """A run with checkpoints at steps 10 and 20, whose newer one was cut short on disk."""
    player.checkpoint(lease, 10)
    path = settings.artifact_root / player.checkpoint(lease, 20) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return lease.run_id


def listed(api, run_id):
    return {c["step"]: c for c in api.get(f"/runs/{run_id}/checkpoints").json()["data"]}


@pytest.mark.parametrize("name", [None, "model.safetensors"])
def test_a_download_that_finds_damage_tells_everybody(api, damaged, name):
    params = {} if name is None else {"file": name}
    answer = api.get(f"/runs/{damaged}/checkpoints/latest/download", params=params)
    assert answer.problem("checkpoint_damaged") == 409
    assert "has 6999 bytes, and 7000 were written" in answer.json()["detail"]
    newer, older = listed(api, damaged)[20], listed(api, damaged)[10]
    assert (newer["state"], newer["is_latest"], newer["is_best"]) == ("damaged", False, False)
    assert "6999" in newer["damage"]
    assert (older["state"], older["is_latest"], older["damage"]) == ("saved", True, None)
    assert api.get(f"/runs/{damaged}/checkpoints/latest/download").status_code == 200
    assert api.get(newer["links"]["download"]).problem("checkpoint_damaged") == 409
    assert api.delete(newer["links"]["self"]).status_code == 202


def test_a_folder_that_is_away_is_not_called_damaged(api, settings, player, lease):
    path = settings.artifact_root / player.checkpoint(lease, 10)
    path.rename(path.with_name("away"))
    api.get(f"/runs/{lease.run_id}/checkpoints/latest/download").problem("not_found")
    assert listed(api, lease.run_id)[10]["state"] == "saved"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_restart_from_one_that_is_damaged_is_refused_with_those_that_are_not(
    api, damaged, dry_run
):
    newer, older = (listed(api, damaged)[step]["id"] for step in (20, 10))
    for _ in range(2):  # found on the disk, and then known
        body, query = {"from": newer}, {"dry_run": dry_run}
        answer = api.post(f"/runs/{damaged}/restart", json=body, params=query)
        assert answer.problem("no_such_checkpoint") == 422
        told = "model.safetensors has 6999 bytes, and 7000 were written"
        assert answer.json()["detail"] == (
            f"Checkpoint {newer} is damaged: {told}. To go on from: step 10 (checkpoint {older})."
        )
    assert listed(api, damaged)[20]["state"] == "damaged"
    run = api.get(f"/runs/{damaged}").json()
    assert (run["intent"], run["child_ids"]) == ("run", []), "its parent trains on"
    again = api.post(f"/runs/{damaged}/restart", json={"from": older, **LONGER})
    assert again.status_code == 201, again.json()


def test_a_restart_from_one_that_is_gone_is_refused_but_not_while_all_are_away(
    api, settings, player, lease
):
    path = settings.artifact_root / player.checkpoint(lease, 10)
    only = listed(api, lease.run_id)[10]["id"]
    path.rename(path.with_name("gone"))
    answer = api.post(f"/runs/{lease.run_id}/restart", json={"from": only})
    assert answer.problem("no_such_checkpoint") == 422
    assert "is not there, or not any more. Run 1 has no other" in answer.json()["detail"]
    assert listed(api, lease.run_id)[10]["state"] == "saved"
    settings.artifact_root.rename(settings.artifact_root.with_name("unmounted"))
    assert (
        api.post(f"/runs/{lease.run_id}/restart", json={"from": only, **LONGER}).status_code == 201
    )


@pytest.mark.parametrize("wish", ["latest", "best"])
def test_what_is_damaged_is_not_said_to_have_never_been_saved(api, player, lease, damaged, wish):
    for each in listed(api, damaged).values():
        player.store.checkpoints.note_damage(each["id"], "it was cut short")
    path = f"/runs/{damaged}/checkpoints/{wish}/download"
    told = "all of its 2 checkpoints are damaged. `stoker checkpoints 1` says what is wrong"
    assert told in api.get(path).json()["detail"]
    api.post(f"/runs/{damaged}/stop")
    player.finish(lease, Reason.interrupted)
    answer = api.post(f"/runs/{damaged}/restart", json={"from": wish})
    assert answer.problem("no_such_checkpoint") == 422
    assert f"Run 1 has nothing to go on from: {told}" in answer.json()["detail"]
    assert "`stoker restart 1 --from scratch` begins anew" in answer.json()["detail"]
    assert api.post(f"/runs/{damaged}/restart", json={"from": "scratch"}).status_code == 201
