"""Runs of every recipe that an earlier version left behind go on as that version meant them.

make_home.py made them before `data.split.seed`, the weight decay of matrices alone, the ramp of
averaged weights and settled orders existed. Each recipe has a run that trained to its end, so the
losses of the runs that were interrupted are known: another split, order, decay or average would
give others.
"""

import tarfile
from pathlib import Path

import pytest

from tests.e2e.service import Service, eventually

HOME = Path(__file__).with_name("recipes-3eedc65.tar.xz")
# The interrupted runs went on from steps 96 to 143.
LAST_COMPARED = 250
NAMES = ("board", "timeframes", "panel", "molecules")
IDS = {
    state: dict(zip(NAMES, ids, strict=True))
    for state, ids in {
        "done": (1, 3, 5, 7),
        "paused": (2, 4, 6, 8),
        "running": (9, 10, 11, 12),
    }.items()
}

pytestmark = [pytest.mark.minutes, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The old home under this version, with an agent that has retried what was running."""
    home = tmp_path_factory.mktemp("old") / "home"
    with tarfile.open(HOME) as archive:
        archive.extractall(home, filter="data")
    service = Service(home)
    try:
        service.start_api()
        for run_id in IDS["paused"].values():
            service.http.post(f"/runs/{run_id}/resume").raise_for_status()
        service.start_agent()
        yield service
    finally:
        service.close()


def losses(service, run_id):
    """Rows of names and numbers, as they lie in losses.csv."""
    lines = service.losses(run_id).decode().splitlines()
    return [line.split(",") for line in lines[1:]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", ["paused", "running"])
def test_an_interrupted_run_ends_as_its_own_version_would_have_ended_it(service, state, name):
    done, run_id = IDS["done"][name], IDS[state][name]
    run = service.wait_for_end(run_id)
    assert (run["state"], run["reason"], run["attempt"]) == ("succeeded", "completed", 2), run
    rows, expected = losses(service, run_id), losses(service, done)
    assert [row[:-1] for row in rows] == [row[:-1] for row in expected]
    # Another CPU may round otherwise, and the longer the more. A reported loss of masked molecules
    # is a mean over hidden atoms by now, and was one over the batches' means.
    rel = 0.05 if name == "molecules" else 1e-3
    for row, other in zip(rows, expected, strict=True):
        if int(row[0]) <= LAST_COMPARED:
            assert float(row[-1]) == pytest.approx(float(other[-1]), rel=rel), row


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_carries_all_and_keeps_what_its_parent_meant(service, name):
    body = {"patch": {"training": {"epochs": 46}}}
    answer = service.http.post(f"/runs/{IDS['done'][name]}/restart", json=body)
    assert answer.status_code == 201, answer.text
    child = answer.json()
    assert child["carry"]["kind"] == "full", child["carry"]
    split = service.http.get(f"/runs/{child['id']}/spec").json()["spec"]["data"]["split"]
    assert split.get("seed") == (3 if split["method"] == "random" else None)
    run = service.wait_for_end(child["id"])
    assert (run["state"], run["reason"]) == ("succeeded", "completed"), run
    (attempt,) = service.http.get(f"/runs/{child['id']}/attempts").json()["data"]
    assert attempt["resumed_from_step"] == run["progress"]["steps"] // 46 * 45


@pytest.mark.parametrize("name", NAMES)
def test_a_new_run_begins_with_its_weights(service, name):
    old = service.http.get(f"/runs/{IDS['done'][name]}/spec").json()
    spec = {**old["request"], "name": "", "init_from": {"run": IDS["done"][name], "which": "best"}}
    spec["training"] = {**spec["training"], "epochs": 1}
    if "split" in spec["data"]:
        spec["data"] = {**spec["data"], "split": {**spec["data"]["split"], "seed": 3}}
    run = service.wait_for_end(service.submit(spec))
    assert (run["state"], run["reason"]) == ("succeeded", "completed"), run
    applied = service.http.get(f"/runs/{run['id']}/spec").json()["applied"]
    assert applied[0]["init_from"]["matched"] == applied[0]["init_from"]["parameters"]


@pytest.mark.parametrize("name", NAMES)
def test_its_best_checkpoint_is_exported(service, name):
    saved = service.http.get(f"/runs/{IDS['done'][name]}/checkpoints").json()["data"]
    answer = service.http.post(
        f"/checkpoints/{saved[0]['id']}/export", json={"format": "safetensors"}
    )
    assert answer.status_code == 202, answer.text
    job = answer.json()["id"]

    def ended():
        found = service.http.get(f"/jobs/{job}").json()
        return found if found["state"] not in ("queued", "running") else None

    assert eventually(ended, "the export ends")["state"] == "done"
