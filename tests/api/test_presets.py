"""A restart goes on with what its parent's preset brought, whatever devices are there by then."""

from typing import Any

import pytest

from app.guard.presets.catalog import load_catalog
from app.service.services import Cached
from tests.api.support import SPEC

GIB = 2**30
RTX = {
    "kind": "cuda", "name": "NVIDIA RTX 4090", "capability": [8, 9],
    "total_memory_bytes": 24 * GIB, "free_memory_bytes": 23 * GIB,
}  # fmt: skip
CPU = {"kind": "cpu", "name": "cpu"}
MINE = 'description = "mine"\n[spec.training]\nbatch_size = 7\nepochs = 9\n'


def have(api, store, player, *devices: dict[str, Any]) -> None:
    """Only these devices are alive from now on."""
    slots = [{"name": "0", "device": "cpu", "run_id": None, "waiting": None}]
    store.workers.beat(player.worker_id, "alive", slots=slots, devices=list(devices), facts={})
    api.services.workers = Cached(lambda: list(store.workers.list(alive_only=True)))


def submitted(api, **changes: Any) -> int:
    answer = api.post("/runs", json={**SPEC, **changes})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def restarted(api, run_id: int, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The child, and its documents."""
    answer = api.post(f"/runs/{run_id}/restart", json=body)
    assert answer.status_code == 201, answer.text
    child = answer.json()
    return child, api.get(f"/runs/{child['id']}/spec").json()


@pytest.mark.parametrize("now", [CPU, RTX], ids=["CPU", "RTX"])
@pytest.mark.parametrize(("preset", "batch"), [("rtx-24g", 192), ("auto", 128)])
def test_a_restart_keeps_the_batch_that_the_preset_brought(api, store, player, preset, batch, now):
    have(api, store, player, RTX)
    run_id = submitted(api, preset=preset)
    have(api, store, player, now)
    for _ in range(2):  # and so does the restart of a restart
        child, documents = restarted(api, run_id, patch={"training": {"epochs": 3}})
        assert child["carry"]["kind"] == "full"
        assert documents["spec"]["training"]["batch_size"] == batch
        run_id = child["id"]
    source = documents["provenance"]["/training/batch_size"]["source"]
    assert source == ("preset:rtx-24g" if batch == 192 else "default")


@pytest.mark.parametrize(
    "body",
    [
        {"patch": {"preset": "auto"}},
        {"patch": {"preset": None}},
        {"patch_ops": [{"op": "add", "path": "/preset", "value": "auto"}]},
    ],
    ids=str,
)
def test_a_patch_that_names_the_preset_has_it_picked_anew(api, store, player, body):
    have(api, store, player, RTX)
    run_id = submitted(api, preset="rtx-24g")
    have(api, store, player, CPU)
    child, documents = restarted(api, run_id, **body)
    assert (child["carry"]["kind"], documents["spec"]["preset"]) == ("weights", "cpu")
    assert documents["spec"]["training"]["batch_size"] == 128


def test_a_request_goes_before_what_is_inherited(api, store, player):
    have(api, store, player, RTX)
    run_id = submitted(api, preset="rtx-24g")
    have(api, store, player, CPU)
    child, documents = restarted(api, run_id, patch={"training": {"batch_size": 32}})
    assert documents["spec"]["training"]["batch_size"] == 32
    assert child["carry"]["changed"] == ["/training/batch_size"]


@pytest.mark.parametrize("now", [MINE.replace("7", "8"), None], ids=["changed", "gone"])
def test_what_a_preset_of_ones_own_brought_holds_when_its_file_does_not(
    api, store, player, settings, now
):
    settings.presets_dir.mkdir()
    path = settings.presets_dir / "mine.toml"
    path.write_text(MINE)
    run_id = submitted(api, preset="mine", training={})
    if now is None:
        path.unlink()
    else:
        path.write_text(now)
    api.services.catalog = Cached(lambda: load_catalog(settings.presets_dir))
    child, documents = restarted(api, run_id)
    assert documents["spec"]["training"]["batch_size"] == 7
    assert documents["spec"]["training"]["epochs"] == 9
    assert (child["carry"]["kind"], documents["spec"]["preset"]) == ("full", "mine")
