"""The example package of a recipe: installed as a user would, it trains through POST /runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environment import ROOT, Reader, install, new_environment
from tests.e2e.service import Service, eventually
from tests.pages import blocks

PLUGIN = ROOT / "examples" / "plugin-recipe"
SPEC: dict[str, Any] = {
    "recipe": {"kind": "tabular", "task": "classification", "classes": 3, "hidden_size": 32},
    "data": {"dataset": "clouds", "split": {"method": "random"}},
    "training": {"epochs": 12, "batch_size": 320},
    "optimizer": {"lr": 3.0e-3},
    "runtime": {"threads": 1},
    "checkpoint": {"monitor": "val_accuracy"},
    "accept_risks": ["speed.*", "learning.*"],
}
LONG: dict[str, Any] = {**SPEC, "training": {"epochs": 40, "batch_size": 80}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of an environment that has everything this one has, and the package besides."""
    executable = new_environment(tmp_path_factory.mktemp("environment"))
    install(executable, PLUGIN)
    return executable


@pytest.fixture(scope="module")
def service(python: str, tmp_path_factory: pytest.TempPathFactory):
    service = Service(tmp_path_factory.mktemp("service") / "home", python=python)
    try:
        service.start_api()
        clouds = service.home / "data" / "clouds.h5"
        clouds.parent.mkdir()
        subprocess.run([python, PLUGIN / "make_clouds.py", clouds], check=True)
        yield service
    finally:
        service.close()


@pytest.mark.minutes
def test_its_own_tests_pass(python: str) -> None:
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.minutes
def test_its_readme_installs_and_trains_it(python: str, tmp_path: Path) -> None:
    (commands,) = blocks("sh", (PLUGIN / "README.md").read_text())
    (tmp_path / ".venv").symlink_to(Path(python).parents[1])
    (tmp_path / "examples").symlink_to(PLUGIN.parent)
    reader = Reader(tmp_path)
    try:
        told = reader.type(commands)
    finally:
        reader.leave()
    assert "tabular 0.1.0" in told
    best = re.search(r"best val_accuracy ([0-9.]+)", told)
    assert best, told
    assert float(best[1]) > 0.9


def test_it_is_listed_guarded_and_planned(service: Service) -> None:
    listed = {one["kind"]: one for one in service.http.get("/recipes").json()["data"]}
    tabular = listed["tabular"]
    assert (tabular["version"], tabular["package"]) == ("0.1.0", "stoker-tabular")
    assert "hidden_size" in tabular["parameters"]["properties"]
    assert tabular["metrics"] == {"mae": "min", "rmse": "min"}
    assert "Tabular" in service.http.get("/openapi.json").json()["components"]["schemas"]

    agent = service.start_agent()
    assert service.register("clouds", "clouds.h5")["state"] == "ready"
    for recipe, told, why in (
        ({"hidden_sise": 8}, "recipe.hidden_size?", ""),
        ({"hidden_size": 0}, "recipe.hidden_size", "Width of the hidden layers"),
        ({"task": "classification"}, "Classification needs recipe.classes", "The last layer gives"),
    ):
        answer = service.http.post("/runs", json={**SPEC, "recipe": {"kind": "tabular", **recipe}})
        assert answer.status_code == 422
        assert any(told in one["message"] and why in one["why"] for one in answer.json()["issues"])
    wrong = {**SPEC, "evaluation": {"metrics": ["acuracy"]}}
    issue = service.http.post("/runs", json=wrong).json()["issues"][0]
    assert "accuracy?" in issue["message"]

    plan = service.http.post("/runs", params={"dry_run": True}, json=SPEC).json()
    weights = plan["memory"]["host"]["items"]["weights"]
    assert weights == 4 * (6 * 32 + 33 * 32 + 33 * 3)
    service.stop(agent)


def test_a_worker_without_it_or_with_another_version_leaves_its_runs_in_the_queue(
    service: Service, python: str, tmp_path: Path
) -> None:
    service.python = sys.executable
    without = service.start_agent()
    run_id = service.submit(SPEC)
    message = "install stoker-tabular 0.1.0 there"
    eventually(lambda: message in (service.run(run_id)["message"] or ""), "the run says so")
    assert service.run(run_id)["state"] == "queued"
    service.stop(without)

    newer = tmp_path / "newer"
    shutil.copytree(PLUGIN, newer)
    project = newer / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1.0"', 'version = "0.2.0"'))
    service.python = new_environment(tmp_path / "environment")
    install(service.python, newer)
    other = service.start_agent()
    message = "0.2.0"
    eventually(lambda: message in (service.run(run_id)["message"] or ""), "the run says so")
    assert service.run(run_id)["state"] == "queued"
    service.stop(other)

    service.python = python
    right = service.start_agent()
    run = service.wait_for_end(run_id)
    assert run["state"] == "succeeded", run
    spec = service.http.get(f"/runs/{run_id}/spec").json()["spec"]
    assert spec["recipe"]["version"] == "0.1.0"

    plan = service.http.post("/runs", params={"dry_run": "true"}, json=SPEC).json()["memory"]
    assert (plan["unknown"], plan["measured"]["runs"]) == ([], [run_id])
    peak = service.http.get(f"/runs/{run_id}/spec").json()["memory"]["measured_bytes"]
    assert plan["host"]["least_bytes"] == pytest.approx(peak, rel=0.25)
    service.stop(right)


@pytest.mark.minutes
def test_it_learns_goes_on_after_a_pause_and_is_restarted(service: Service, python: str) -> None:
    service.python = python
    service.start_agent()
    assert service.register("clouds", "clouds.h5")["state"] == "ready"
    straight, paused = service.submit(LONG), service.submit(LONG)
    run = service.wait_for_end(straight)
    assert run["state"] == "succeeded", run
    assert run["result"]["best"]["val_accuracy"] > 0.9
    compared = {one["name"] for one in run["result"]["baselines"]}
    assert compared == {"most common class", "ridge on all columns"}
    service.wait_for_step(paused, 50)
    with service.held():
        service.http.post(f"/runs/{paused}/pause")
    assert service.wait_for_end(paused)["state"] == "paused"
    service.http.post(f"/runs/{paused}/resume")
    resumed = service.wait_for_end(paused)
    assert (resumed["state"], resumed["attempt"]) == ("succeeded", 2)
    assert service.losses(paused) == service.losses(straight)

    answer = service.http.post(
        f"/runs/{straight}/restart", json={"patch": {"training": {"epochs": 41}}}
    )
    assert answer.status_code == 201, answer.text
    child = answer.json()
    assert child["carry"]["kind"] == "full"
    assert service.wait_for_end(child["id"])["state"] == "succeeded"


def test_one_that_raises_at_import_is_named_and_harms_nothing_else(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(PLUGIN, broken)
    with (broken / "stoker_tabular" / "recipe.py").open("a") as file:
        file.write("raise RuntimeError('no such library')\n")
    python = new_environment(tmp_path / "environment")
    install(python, broken)
    told = subprocess.run(
        [python, "-m", "app.cli", "doctor"],
        env=os.environ | {"STOKER_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the recipe tabular cannot be used: stoker-tabular" in told.stdout
    assert "RuntimeError: no such library" in told.stdout
    assert "sequence 1" in told.stdout
