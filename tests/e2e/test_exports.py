"""An export from the command to the file: made by a real worker, listed, downloaded, removed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Service, eventually
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
    """The document that the real command prints with --json, or its error."""
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments, "--json"],
        env=os.environ | {"STOKER_HOME": str(service.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return json.loads(done.stderr if fails else done.stdout)


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
    snippet = snippet.replace("weather.h5", "waves.h5").replace("1023", "120")
    printed = subprocess.run(
        [sys.executable, "-c", snippet],
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


def test_why_there_is_no_export_is_said(service: Service) -> None:
    gru = {**SPEC, "recipe": {**SPEC["recipe"], "encoder": "gru"}, "training": {"max_steps": 3}}
    run_id = service.submit(gru)
    assert service.wait_for_end(run_id)["state"] == "succeeded"
    told = stoker(service, "export", str(run_id), "--format", "int8", fails=True)
    assert "This model has GRU layers" in told["detail"]
    assert stoker(service, "exports", str(run_id))["data"] == []
    data = service.home / "data" / "waves.h5"
    aside = data.rename(data.with_suffix(".aside"))
    told = stoker(service, "export", str(run_id), "--format", "onnx", fails=True)
    aside.rename(data)
    assert "waves.h5" in told["detail"]
    assert "Traceback" not in told["detail"]
    weights = stoker(service, "export", str(run_id), "--format", "safetensors")
    assert weights["facts"]["measured"] == []
    other = service.submit(gru)
    (mine,) = service.http.get(f"/runs/{run_id}/checkpoints").json()["data"][:1]
    told = stoker(
        service, "export", str(other), "--format", "onnx", "--checkpoint", str(mine["id"]),
        fails=True,
    )  # fmt: skip
    assert f"is of run {run_id}" in told["detail"]
    service.wait_for_end(other)
