"""Clients that others generate from /openapi.json: complete, and what they say is understood."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.api.openapi import EXAMPLE_SPEC
from tests.api.process import ApiProcess
from tests.api.support import Player

GENERATORS = ("openapi-python-client==0.29.1", "datamodel-code-generator==0.89.0")
# Plans and makes a run with the generated client, in a process that knows nothing of Stoker.
CALLS = """
import json, sys
from client import AuthenticatedClient
from client.api.actions import act, restart_run
from client.api.runs import create_run, get_run, list_runs
from client.models import Plan, RestartBody, Run, RunSpec, ScriptSpec, Training
url, token, spec = json.load(sys.stdin)
with AuthenticatedClient(base_url=url, token=token) as client:
    spec = RunSpec.from_dict({**spec, "training": Training(epochs=3).to_dict()})
    plan = create_run.sync(client=client, body=spec, dry_run=True)
    assert isinstance(plan, Plan), plan
    training = plan.provenance["/training/batch_size"], plan.provenance["/training/epochs"]
    assert [one["source"] for one in training] == ["default", "request"], training
    run = create_run.sync(client=client, body=spec)
    assert isinstance(run, Run), run
    listed = list_runs.sync(client=client)
    assert [one.id for one in listed.data] == [run.id], listed
    assert act.sync(run.id, "stop", client=client).state == "stopped"
    child = restart_run.sync(run.id, client=client, body=RestartBody())
    assert get_run.sync(child.id, client=client).parent_id == run.id
    script = ScriptSpec.from_dict({"recipe": {"kind": "script", "command": "count"}})
    print(json.dumps([plan.accepted, create_run.sync(client=client, body=script).to_dict()]))
"""
MODELS = """
import json, sys, models
for name, document in json.load(sys.stdin):
    getattr(models, name).model_validate(document)
"""


@pytest.fixture(scope="module")
def generators() -> Path:
    """The programs of an environment without Stoker. It is made once, by pip and its settings."""
    folder = Path(sys.prefix) / "generators"
    finished = folder / "installed.txt"
    if not finished.exists() or finished.read_text() != str(GENERATORS):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        words = ("-m", "pip", "install", "--quiet", "--no-compile", *GENERATORS)
        subprocess.run([folder / "bin" / "python", *words], check=True)
        finished.write_text(str(GENERATORS))
    return folder / "bin"


@pytest.fixture
def openapi_file(document: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    return path


def run(*words: str | Path, folder: Path, given: Any = None) -> str:
    done = subprocess.run(
        words, cwd=folder, input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_no_field_of_a_spec_has_a_default_that_a_client_would_send(document):
    """openapi-python-client leaves out a model where an object has one, and calls that use it."""
    schemas = document["components"]["schemas"]
    places = [
        f"{name}.{key}"
        for name, schema in schemas.items()
        for key, inner in schema.get("properties", {}).items()
        if isinstance(inner.get("default"), dict)
    ]
    assert places == []
    assert schemas["RunSpec"]["properties"]["optimizer"]["examples"][0]["kind"] == "adamw"
    batch_size = schemas["Training"]["properties"]["batch_size"]
    assert ("default" in batch_size, batch_size["examples"]) == (False, [128])
    assert schemas["AdamW"]["properties"]["kind"]["default"] == "adamw", "it has no other value"


@pytest.mark.slow
def test_a_client_of_openapi_python_client_is_complete_and_works(
    generators, document, openapi_file, tmp_path, settings, store
):
    words = ("generate", "--path", openapi_file, "--output-path", tmp_path / "client")
    config = tmp_path / "config.yaml"
    config.write_text("post_hooks: []\n")
    said = run(
        generators / "openapi-python-client", *words, "--meta", "none", "--config", config,
        folder=tmp_path,
    )  # fmt: skip
    assert said.count("WARNING") == 1, said
    assert "Unsupported content type application/yaml" in said, "JSON is what it sends"
    calls = {path.stem for path in (tmp_path / "client" / "api").glob("*/*.py")} - {"__init__"}
    described = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert calls == described
    Player(store, settings)
    (settings.home / "stoker.toml").write_text(
        f'[scripts.count]\nargv = ["/bin/true"]\ncwd = "{tmp_path}"\n'
    )
    with ApiProcess(settings.home) as server:
        given = [server.url, server.token, EXAMPLE_SPEC]
        said = run(generators / "python", "-c", CALLS, folder=tmp_path, given=given)
    accepted, script = json.loads(said)
    assert accepted
    assert script["name"] == "count"


@pytest.mark.slow
def test_models_of_datamodel_code_generator_take_every_answer(
    generators, openapi_file, tmp_path, api, player
):
    run(
        generators / "datamodel-codegen", "--input", openapi_file, "--input-file-type", "openapi",
        "--output", "models.py", "--output-model-type", "pydantic_v2.BaseModel",
        folder=tmp_path,
    )  # fmt: skip
    plan = api.post("/runs", params={"dry_run": "true"}, json=EXAMPLE_SPEC).json()
    made = api.post("/runs", json=EXAMPLE_SPEC).json()
    answers = [
        ("RunSpec", EXAMPLE_SPEC),
        ("RunSpec", made_spec := api.get(f"/runs/{made['id']}/spec").json()["spec"]),
        ("Plan", plan),
        ("Run", made),
        ("PageRun", api.get("/runs").json()),
        ("RunDocuments", api.get(f"/runs/{made['id']}/spec").json()),
        ("Problem", api.post("/runs", json={**EXAMPLE_SPEC, "data": {}}).json()),
    ]
    assert made_spec["optimizer"]["kind"] == "adamw"
    run(generators / "python", "-c", MODELS, folder=tmp_path, given=answers)
