"""GET /rules: every rule with its example, and what needs no rule."""

from app.guard.documentation import EARLY, IMPOSSIBLE, TO_COME
from app.guard.registry import RULES
from stoker.models.rules import RulePage
from tests.api.support import SPEC


def test_every_rule_is_listed_with_an_example_that_it_refuses(api):
    listed = api.get("/rules").json()
    assert [rule["code"] for rule in listed["data"]] == [rule.code for rule in RULES]
    assert listed["next_cursor"] is None
    for rule in listed["data"]:
        assert rule["example"]["issue"]["code"] == rule["code"]
        assert rule["summary"]
        assert rule["stands_on"]


def test_what_needs_no_rule_is_listed_beside_them(api):
    listed = api.get("/rules").json()
    assert [early["code"] for early in listed["before_rules"]] == [early.code for early in EARLY]
    assert len(listed["by_construction"]) == len(IMPOSSIBLE)
    assert all(entry["shown_by"].startswith("tests/") for entry in listed["by_construction"])
    assert [entry["option"] for entry in listed["to_come"]] == [entry.option for entry in TO_COME]


def test_the_documents_example_is_an_answer(api):
    operation = api.get("/openapi.json").json()["paths"]["/rules"]["get"]
    example = operation["responses"]["200"]["content"]["application/json"]["example"]
    listed = RulePage.model_validate(api.get("/rules").json())
    shown = RulePage.model_validate(example)
    assert shown.data[0] in listed.data
    assert shown.to_come[0] in listed.to_come


def test_a_run_shows_the_risks_that_it_accepts_and_only_those_that_were_there(api, player):
    risky = {**SPEC, "checkpoint": {"mode": "max"}}
    accepted = {**risky, "accept_risks": ["learning.monitor_upside_down", "speed.*"]}
    run_id = api.post("/runs", json=accepted).json()["id"]
    run = api.get(f"/runs/{run_id}").json()
    assert run["accepted_risks"] == ["learning.monitor_upside_down"]
    plain = api.post("/runs", json=SPEC).json()
    assert plain["accepted_risks"] == []
