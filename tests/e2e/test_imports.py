"""Weights from elsewhere: imported by the command, and begun with by a run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.service import Service, eventually
from tests.e2e.test_exports import SPEC, stoker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def lstm() -> dict[str, torch.Tensor]:
    """Of 3 features, 2 steps folded into one: as the recipe names its encoder, in a model's own."""
    encoder = torch.nn.LSTM(6, 16, batch_first=True)
    return {f"module.encoder.{name}": one for name, one in encoder.state_dict().items()}


def test_a_run_begins_with_imported_weights(service: Service) -> None:
    torch.save({"epoch": 3, "state_dict": lstm()}, service.home / "data" / "lstm.pt")
    arguments = ["checkpoints", "import", "lstm.pt", "--name", "pretrained"]
    told = stoker(service, *arguments, fails=True)
    assert "--key state_dict (4 tensors)" in told["detail"]
    assert service.http.get("/runs").json()["data"] == []
    renamed = ["--key", "state_dict", "--rename", "module.="]
    made = stoker(service, *arguments, *renamed)
    run = service.run(made["run_id"])
    assert (run["state"], run["recipe"], run["name"]) == ("succeeded", "imported", "pretrained")
    (listed,) = stoker(service, "checkpoints", str(made["run_id"]))["data"]
    assert (listed["id"], listed["step"]) == (made["checkpoint_id"], 0)
    assert stoker(service, "show", str(made["run_id"]))["message"].startswith(
        "Imported from lstm.pt. It has 4 tensors"
    )

    wanted = {"init_from": {"checkpoint": made["checkpoint_id"], "prefix": "encoder."}}
    child = service.submit({**SPEC, **wanted, "optimizer": {"lr": 1e-4}})
    assert service.wait_for_end(child)["state"] == "succeeded"
    (applied,) = service.http.get(f"/runs/{child}/spec").json()["applied"]
    assert (applied["init_from"]["matched"], applied["init_from"]["left"]) == (4, [])
    by_name = {"init_from": {"run": "pretrained", "prefix": "encoder."}}
    plan = service.http.post("/runs", params={"dry_run": True}, json={**SPEC, **by_name}).json()
    assert [i for i in plan["issues"] if i["code"].startswith("correctness.")] == []

    refused = service.http.post(f"/runs/{made['run_id']}/restart", json={})
    assert refused.json()["code"] == "nothing_to_restart"
    answer = service.http.post(
        f"/checkpoints/{made['checkpoint_id']}/export", json={"format": "onnx"}
    )
    assert answer.json()["code"] == "not_exportable"
    service.http.delete(f"/runs/{made['run_id']}").raise_for_status()
    folder = service.home / "artifacts" / "runs" / str(made["run_id"])
    eventually(lambda: not folder.exists(), "the imported weights are removed")


def test_a_file_outside_of_the_data_root_is_refused(service: Service, tmp_path: Path) -> None:
    torch.save(lstm(), tmp_path / "lstm.pt")
    outside: Any = stoker(
        service, "checkpoints", "import", str(tmp_path / "lstm.pt"), "--name", "x", fails=True
    )
    assert outside["code"] == "path_outside_data_root"
