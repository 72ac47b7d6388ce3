"""Nothing that a request says is ignored: unknown parameters, fields and bodies are refused."""

import pytest
from fastapi.routing import APIRoute

from app.api.main import ROUTERS
from app.api.routers import health
from app.api.strict import StrictRoute
from stoker.models.issue import Issue
from tests.api.support import SPEC, spec_with

VERY_MANY = 10_000

ROUTES = [
    (
        method,
        route.path_format.format_map(
            {f"{of}_id": 1 for of in ("run", "checkpoint", "export", "job")}
            | {"name": "w", "which": "best", "action": "stop"}
        ),
    )
    for module in (*ROUTERS, health)
    for route in module.router.routes
    if isinstance(route, APIRoute)
    for method in route.methods or ()
]


def test_an_unknown_parameter_is_refused_everywhere(api):
    assert len(ROUTES) > 30
    for method, path in ROUTES:
        answer = api.request(method, path, params={"no_such_parameter": "1"})
        assert answer.status_code == 422, (method, path)
        answer.problem("invalid_request")
        (issue,) = answer.json()["issues"]
        assert issue["loc"] == ["query", "no_such_parameter"], (method, path)


@pytest.mark.parametrize(
    ("method", "path", "given", "said"),
    [
        (
            "GET", "/runs?state=stoped", None,
            'query.state = "stoped": it must be one of queued, running, paused, succeeded, failed, '
            "stopped. Did you mean stopped?",
        ),
        (
            "GET", "/runs?status=running,paused", None,
            "For several, repeat the parameter: status=running&status=paused.",
        ),
        ("POST", "/runs?dry_run=maybe", SPEC, 'query.dry_run = "maybe": it must be true or false.'),
        ("GET", "/healthz?x=1", None, "There is no parameter x. This call takes no parameters."),
        *(
            (
                "GET", f"/runs?created_{side}={time}", None,
                "it must be a time with its zone, such as 2026-03-01T12:00:00Z (write + as %2B in "
                "a URL).",
            )
            for side in ("after", "before")
            for time in (
                "1767225600", "2026-03-01", "2026-03-01T12:00:00", "2026-03-01T12:00:00+02:00",
                "2026-13-01T12:00:00Z", "nexT",
            )
        ),
        ("GET", "/runs?limit=0", None, 'query.limit = "0": it must be greater than or equal to 1.'),
        ("PATCH", "/runs/1", {"priority": "high"}, 'body.priority = "high": it must be a valid'),
        ("POST", "/runs/bulk/stop", {"filter": {"status": "Queued"}}, "Did you mean queued?"),
        (
            "POST", "/runs/1/restart", {"from": "lastest"},
            'body.from = "lastest": it must be one of latest, best, scratch or it must be a valid '
            "integer. Did you mean latest?",
        ),
        ("POST", "/datasets", {"name": "w"}, "body.path is missing."),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_those_that_are_possible(
    api, player, method, path, given, said
):
    api.post("/runs", json=SPEC)
    answer = api.request(method, path, **({} if given is None else {"json": given}))
    assert answer.problem("invalid_request") == 422
    (issue,) = answer.json()["issues"]
    assert said in issue["message"]
    assert said.rstrip(".?") in answer.json()["detail"]


@pytest.mark.parametrize(("path", "methods"), [
    ("/runs", "GET, HEAD, POST"), ("/runs/1", "GET, HEAD, PATCH, DELETE"), ("/queue", "GET, HEAD"),
    ("/openapi.json", "GET, HEAD"), ("/runs/1/metrics", "GET, HEAD"),
])  # fmt: skip
def test_a_wrong_method_is_refused_with_all_that_are_right(api, path, methods):
    answer = api.request("PUT", path)
    assert answer.problem("method_not_allowed") == 405
    assert answer.headers["allow"] == methods
    assert answer.json()["detail"] == f"{path} does not take PUT, only {methods}."


@pytest.mark.parametrize(
    "path", ["/runs/1/curves", "/runs/x", "/runs/0/spec", "/datasets/A", "/runs/bulk/stop"]
)
def test_where_nothing_is_no_other_method_is_named(api, path):
    answer = api.get(path)
    if path == "/runs/bulk/stop":
        assert (answer.problem("method_not_allowed"), answer.headers["allow"]) == (405, "POST")
    else:
        assert answer.problem("not_found") == 404
        assert "/docs shows what there is" in answer.json()["detail"]
        assert api.get("/docs").status_code == 200


@pytest.mark.parametrize("path", ["/runs/1/diagnosis", "/runs/x/stop", "/runs/bulk/halt"])
def test_a_path_that_leads_nowhere_is_said_first(api, path):
    answer = api.post(path, params={"format": "csv"}, json={})
    assert answer.problem("not_found") == 404


@pytest.mark.parametrize(
    ("method", "path", "given", "meant"),
    [
        ("POST", "/runs", "dryrun", "dry_run"),
        ("POST", "/runs", "Dry-Run", "dry_run"),
        ("GET", "/runs", "cursor", None),
        ("GET", "/runs", "labels", "label"),
        ("GET", "/runs/1/metrics", "maxpoints", "max_points"),
        ("POST", "/runs/1/stop", "waits", "wait"),
    ],
)
def test_it_is_said_what_was_meant(api, player, method, path, given, meant):
    answer = api.request(method, path, params={given: "true"}, json=SPEC)
    assert answer.problem("invalid_request") == 422
    assert f"There is no parameter {given}" in answer.json()["detail"]
    assert ("Did you mean" in answer.json()["detail"]) == (meant is not None)
    assert f"Did you mean {meant}?" in answer.json()["detail"] or meant is None
    assert api.get("/runs").json()["data"] == []


def test_a_parameter_that_is_given_twice_is_refused(api):
    answer = api.get("/runs?state=queued&state=running")
    assert answer.problem("invalid_request") == 422
    assert "state is given 2 times" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/runs/1/stop"), ("DELETE", "/runs/1"), ("POST", "/checkpoints/1/pin"),
        ("DELETE", "/checkpoints/1"), ("GET", "/runs"),
    ],
)  # fmt: skip
def test_a_body_where_none_is_read_is_refused(api, player, method, path):
    api.post("/runs", json=SPEC)
    answer = api.request(method, path, json={"force": True})
    assert answer.problem("invalid_request") == 422
    assert "takes no body" in answer.json()["detail"]
    assert api.get("/runs/1").json()["state"] == "queued"


@pytest.mark.parametrize(
    ("method", "path", "body", "loc", "said"),
    [
        ("PATCH", "/runs/1", {"label": {}}, ["label"], "Did you mean labels?"),
        ("PATCH", "/runs/1", {"epochs": 3}, ["epochs"], "There are labels, name, notes, priority."),
        ("POST", "/runs/1/restart", {"patches": {}}, ["patches"], "Did you mean patch?"),
        ("POST", "/runs/1/restart", {"From": "best"}, ["From"], "Did you mean from?"),
        (
            "POST", "/runs/1/restart", {"patch_ops": [{"op": "test", "pth": "/a", "path": "/a"}]},
            ["patch_ops", 0, "pth"], "Did you mean path?",
        ),
        ("POST", "/runs/bulk/stop", {"id": [1]}, ["id"], "Did you mean ids?"),
        (
            "POST", "/runs/bulk/stop", {"filter": {"stat": "queued"}}, ["filter", "stat"],
            "Did you mean state?",
        ),
        ("POST", "/datasets", {"name": "w", "pathh": "w"}, ["pathh"], "Did you mean path?"),
    ],
    ids=str,
)  # fmt: skip
def test_an_unknown_field_of_a_body_is_refused_with_what_was_meant(
    api, player, method, path, body, loc, said
):
    api.post("/runs", json=SPEC)
    answer = api.request(method, path, json=body)
    assert answer.problem("invalid_request") == 422
    issues = {tuple(issue["loc"]): issue for issue in answer.json()["issues"]}
    issue = issues["body", *loc]
    assert issue["code"] == "unknown_field"
    assert issue["message"].endswith(said)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/runs", {**SPEC, **{f"field{n}": 1 for n in range(VERY_MANY)}}),
        ("POST", "/runs", spec_with("training", **{f"sead{n}": 1 for n in range(VERY_MANY)})),
        ("POST", "/runs", {**SPEC, "labels": {f"l{n}": {"": n} for n in range(VERY_MANY)}}),
        ("POST", "/datasets", {f"field{n}": 1 for n in range(VERY_MANY)}),
    ],
    ids=["spec", "block", "nameless", "body"],
)
def test_of_very_many_findings_the_first_are_made_and_told_and_how_many_more_there_are(
    api, player, monkeypatch, method, path, body
):
    made, make = [], Issue.__init__

    def counted(issue, **fields):
        made.append(fields["code"])
        make(issue, **fields)

    monkeypatch.setattr(Issue, "__init__", counted)
    answer = api.request(method, path, json=body)
    assert len(made) == 20 + 1
    assert answer.status_code == 422
    *issues, last = answer.json()["issues"]
    assert len(issues) == 20
    assert last["code"] == "more_issues"
    left_out = int(last["message"].split()[0].replace(",", ""))
    assert VERY_MANY - 20 <= left_out <= VERY_MANY + 20
    assert len(answer.content) < 50_000


def test_of_very_many_parameters_too(api):
    answer = api.get("/runs", params={f"field{n}": 1 for n in range(100)})
    *issues, last = answer.json()["issues"]
    assert (len(issues), last["message"]) == (20, "80 more places are wrong.")


def test_every_endpoint_reads_strictly_and_tells_what_its_parameters_are(api):
    routes = [
        route
        for module in (*ROUTERS, health)
        for route in module.router.routes
        if isinstance(route, APIRoute)
    ]
    loose = [one.path for one in routes if not (isinstance(one, StrictRoute) and one.operation_id)]
    assert loose == []
    untold = [
        (operation["operationId"], parameter["name"])
        for path in api.app.openapi()["paths"].values()
        for operation in path.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert untold == []


def test_what_may_come_several_times_is_heeded_each_time(api, player):
    ids = [api.post("/runs", json=SPEC).json()["id"] for _ in range(3)]
    api.post(f"/runs/{ids[0]}/stop", json={})
    api.post(f"/runs/{ids[1]}/pause", content=b"{ }", headers={"Content-Type": "application/json"})
    found = api.get("/runs?status=stopped&status=paused").json()["data"]
    assert [run["id"] for run in found] == [ids[1], ids[0]]
