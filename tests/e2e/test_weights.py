"""Weights from a run to the file, and from a file to a run: by real workers and commands."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.e2e.service import Service, eventually
from tests.e2e.shell import typed
from tests.pages import blocks

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "weights.md"

SPEC: dict[str, Any] = {
    "name": "waves",
    "recipe": {"kind": "sequence", "hidden_size": 16, "patch": 2},
    "data": {"dataset": "waves"},
    "training": {"epochs": 2, "batch_size": 32},
    "optimizer": {"lr": 0.003},
    "runtime": {"threads": 1},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def stoker(service: Service, *arguments: str, fails: bool = False) -> Any:
    """The document that the command prints with --json, or its error."""
    done = typed(service.home, service.environment, *arguments, "--json")
    assert (done.exit_code != 0) == fails, done.stderr
    return json.loads(done.stderr if fails else done.stdout)


def keep_as_series(folder: Path) -> None:
    """The same samples, as `data convert` would keep windows."""
    with h5py.File(folder / "waves.h5") as waves, h5py.File(folder / "series.h5", "w") as file:
        file["targets"] = waves["targets"][:]
        windows = waves["features"][:]
        group = file.create_group("features")
        group.attrs["window_length"] = windows.shape[1]
        group["series"] = windows.reshape(-1, windows.shape[2])
        group["starts"] = np.arange(len(windows)) * windows.shape[1]


@pytest.mark.minutes
def test_the_best_checkpoint_becomes_a_model_elsewhere(service: Service, tmp_path: Path) -> None:
    run_id = service.submit(SPEC)
    done = service.wait_for_end(run_id)
    assert done["state"] == "succeeded", done
    folder = tmp_path / "weather-onnx"  # as the page has it
    made = stoker(service, "export", str(run_id), "--format", "int8", "-o", str(folder))
    best = done["result"]["best"]
    assert made["step"] == best["step"]
    found = {one["model"]: one["scores"] for one in made["facts"]["measured"]}
    assert found["onnx"]["mae"] == pytest.approx(best["val_mae"], rel=1e-4)
    (snippet,) = blocks("python", PAGE.read_text("utf-8"))
    snippet = snippet.replace("674", "120")
    keep_as_series(service.home / "data")
    for name in ("waves.h5", "series.h5"):
        printed = subprocess.run(
            [sys.executable, "-c", snippet.replace("weather.h5", name)],
            cwd=tmp_path,
            env=os.environ | {"STOKER_HOME": str(service.home)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert float(printed.split()[0]) == pytest.approx(found["int8"]["mae"], abs=1e-4)

    plain = stoker(service, "export", str(run_id), "--format", "safetensors", "--latest")
    listed = stoker(service, "exports", str(run_id))["data"]
    assert [one["id"] for one in listed] == [plain["id"], made["id"]]
    where = service.home / "artifacts" / made["path"]
    assert service.http.delete(f"/exports/{made['id']}").status_code == 202
    eventually(lambda: not where.exists(), "the export is removed")
    eventually(lambda: service.http.get(f"/exports/{made['id']}").status_code == 404, "it is gone")
    service.http.delete(f"/runs/{run_id}").raise_for_status()
    eventually(
        lambda: not (service.home / "artifacts" / "runs" / str(run_id)).exists(),
        "the run's folder is removed, exports too",
    )


@pytest.mark.minutes
def test_why_there_is_no_export_is_said(service: Service) -> None:
    short = {**SPEC, "training": {"max_steps": 3}}
    run_id = service.submit(short)
    assert service.wait_for_end(run_id)["state"] == "succeeded"
    assert stoker(service, "exports", str(run_id))["data"] == []
    data = service.home / "data" / "waves.h5"
    aside = data.rename(data.with_suffix(".aside"))
    told = stoker(service, "export", str(run_id), "--format", "onnx", fails=True)
    aside.rename(data)
    assert "waves.h5" in told["detail"]
    assert "Traceback" not in told["detail"]
    weights = stoker(service, "export", str(run_id), "--format", "safetensors")
    assert weights["facts"]["measured"] == []
    other = service.submit(short)
    (mine,) = service.http.get(f"/runs/{run_id}/checkpoints").json()["data"][:1]
    told = stoker(
        service, "export", str(other), "--format", "onnx", "--checkpoint", str(mine["id"]),
        fails=True,
    )  # fmt: skip
    assert f"is of run {run_id}" in told["detail"]
    service.wait_for_end(other)


def lstm() -> dict[str, torch.Tensor]:
    """Of 3 features, 2 steps folded into one: as the recipe names its encoder, in a model's own."""
    encoder = torch.nn.LSTM(6, 16, batch_first=True)
    return {f"module.encoder.{name}": one for name, one in encoder.state_dict().items()}


@pytest.mark.minutes
def test_a_run_begins_with_imported_weights(service: Service) -> None:
    torch.save({"epoch": 3, "state_dict": lstm()}, service.home / "data" / "lstm.pt")
    arguments = ["checkpoints", "import", "lstm.pt", "--name", "pretrained"]
    before = service.http.get("/runs").json()["data"]
    told = stoker(service, *arguments, fails=True)
    assert "--key state_dict (4 tensors)" in told["detail"]
    assert service.http.get("/runs").json()["data"] == before
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


@pytest.mark.minutes
def test_a_file_outside_of_the_data_root_is_refused(service: Service, tmp_path: Path) -> None:
    torch.save(lstm(), tmp_path / "lstm.pt")
    outside: Any = stoker(
        service, "checkpoints", "import", str(tmp_path / "lstm.pt"), "--name", "x", fails=True
    )
    assert outside["code"] == "path_outside_data_root"
