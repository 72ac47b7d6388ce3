"""The OpenAPI document: complete, consistent, and what the service does (schemathesis)."""

import re

import pytest

from app.api.main import create_app
from app.api.problems import MEDIA_TYPE
from app.spec.run import RunSpec

OPEN_PATHS = {"/healthz", "/readyz", "/metrics"}
# Section 3 of the contract, call by call: what users and dashboards rely on.
CONTRACT = {
    "/runs": {"get", "post"},
    "/runs/{run_id}": {"get", "patch", "delete"},
    "/runs/{run_id}/{action}": {"post"},
    "/runs/{run_id}/restart": {"post"},
    "/runs/{run_id}/status": {"post"},
    "/runs/bulk/{action}": {"post"},
    "/runs/{run_id}/spec": {"get"},
    "/runs/{run_id}/events": {"get"},
    "/runs/{run_id}/logs": {"get"},
    "/runs/{run_id}/metrics": {"get"},
    "/runs/{run_id}/attempts": {"get"},
    "/runs/{run_id}/checkpoints": {"get"},
    "/runs/{run_id}/checkpoints/{which}/download": {"get"},
    "/runs/{run_id}/diagnosis": {"get"},
    "/runs/{run_id}/verify-resume": {"post"},
    "/runs/compare": {"get"},
    "/checkpoints/{checkpoint_id}": {"get", "delete"},
    "/checkpoints/{checkpoint_id}/download": {"get"},
    "/checkpoints/{checkpoint_id}/pin": {"post"},
    "/checkpoints/{checkpoint_id}/unpin": {"post"},
    "/checkpoints/{checkpoint_id}/export": {"post"},
    "/datasets": {"get", "post"},
    "/datasets/{name}": {"get"},
    "/presets": {"get"},
    "/recipes": {"get"},
    "/rules": {"get"},
    "/workers": {"get"},
    "/queue": {"get"},
    "/version": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
    "/docs": {"get"},
    "/openapi.json": {"get"},
    "/": {"get"},
    "/ui": {"get"},
}
# Of it, what no version has yet. Whoever builds one of them takes it out.
NOT_YET = {
    ("post", "/runs/{run_id}/status"),
    ("get", "/runs/{run_id}/diagnosis"),
    ("post", "/runs/{run_id}/verify-resume"),
    ("get", "/runs/compare"),
    ("get", "/"),
    ("get", "/ui"),
}
# What the service has beyond it.
ALSO = {
    ("delete", "/datasets/{name}"),
    ("post", "/runs/{run_id}/move"),
    ("get", "/runs/{run_id}/exports"),
    ("get", "/exports/{export_id}"),
    ("delete", "/exports/{export_id}"),
    ("get", "/exports/{export_id}/download"),
    ("get", "/jobs/{job_id}"),
    ("post", "/checkpoints/import"),
}
# What is there and describes itself or is for people, so that the document does not name it.
UNDESCRIBED = {("get", "/openapi.json"), ("get", "/docs"), ("get", "/"), ("get", "/ui")}


@pytest.fixture
def document(settings, store):
    return create_app(settings, store).openapi()


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def is_there(api, method, path):
    """Whether a request is taken by somebody, be it to refuse it."""
    names = {"run_id": 1, "checkpoint_id": 1, "name": "w", "which": "best", "action": "stop"}
    answer = api.request(method.upper(), path.format(**names))
    return answer.status_code != 405 and "There is nothing at" not in answer.text


def test_every_call_of_the_contract_is_there_and_described(api, document):
    contract = {(method, path) for path, methods in CONTRACT.items() for method in methods}
    there = {call for call in contract if is_there(api, *call)}
    assert there == contract - NOT_YET
    described = {(method, path) for path, method, _ in operations(document)}
    assert described == (there | ALSO) - UNDESCRIBED


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("get", path) for path in ("/", "/ui", "/ui/runs/7", "/login", "/runs/compare?ids=1,2")),
        *(("get", path) for path in ("/runs/7/diagnosis", "/slots/usage")),
        *(("head", path) for path in ("/", "/runs/7/diagnosis")),
        *(("post", f"/runs/7/{name}") for name in ("status", "verify-resume", "stacks", "profile")),
    ],
)
def test_a_call_that_is_not_built_yet_says_so(api, method, path):
    answer = api.request(method.upper(), path)
    assert answer.status_code == 422
    if method != "head":
        assert answer.problem("not_available_yet") == 422
        assert "this version does not" in answer.json()["detail"]


def test_every_call_of_the_contract_that_is_missing_says_so(api):
    for method, path in NOT_YET:
        answer = api.request(method.upper(), path.format(run_id=1))
        assert answer.problem("not_available_yet") == 422, path


@pytest.mark.parametrize(
    ("method", "path", "names", "meant"),
    [
        ("post", "/runs/7/halt", "actions known there are kill, move, pause, restart, resume", ""),
        ("post", "/runs/7/stopp", "restart, resume, stop.", "Did you mean stop?"),
        ("post", "/runs/bulk/del", "actions known there are delete, kill, pause,", ""),
        ("post", "/checkpoints/7/pn", "export, pin, unpin.", "Did you mean pin?"),
        ("get", "/runs/7/lgos", "names known there are attempts, checkpoints,", "mean logs?"),
        ("get", "/runs/x/logs", "", ""),
        ("get", "/nothing", "", ""),
    ],
)
def test_an_unknown_word_in_a_path_names_the_known_ones(api, method, path, names, meant):
    answer = api.request(method.upper(), path)
    assert answer.problem("not_found") == 404
    detail = answer.json()["detail"]
    assert names in detail
    assert meant in detail
    assert ("known there" in detail) is bool(names)


def test_every_operation_has_name_summary_and_problems_with_examples(document):
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        needs_token = path not in OPEN_PATHS
        assert ("401" in operation["responses"]) == needs_token, where
        assert ("security" in operation) == needs_token, where
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                (problem,) = response["content"].items()
                assert problem[0] == MEDIA_TYPE, where
                for example in problem[1]["examples"].values():
                    assert example["value"]["status"] == int(status), where


def test_every_reference_leads_somewhere(document):
    schemas = document["components"]["schemas"]
    used = set(re.findall(r"#/components/schemas/([\w\[\]-]+)", str(document)))
    assert used <= schemas.keys()
    assert "HTTPValidationError" not in used


def test_the_run_spec_is_in_it_field_by_field(document):
    schema = document["components"]["schemas"]["RunSpec"]
    assert schema["properties"].keys() == RunSpec.model_fields.keys()
    assert all(field.get("description") for field in schema["properties"].values())
