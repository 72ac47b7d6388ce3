"""`stoker rules` and `stoker presets`: the lists, one in full, and what is not there."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from app.guard.documentation import EARLY
from app.guard.registry import RULES
from stoker import Client


def test_every_rule_is_listed_whole(cli, api):
    out = cli("rules").out
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    for rule in RULES:
        assert rule.summary in lines[rule.code]
    assert "stoker rules --all" in out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_rules_fit_into_the_columns_and_each_code_begins_a_line(cli, api, width):
    out = cli("rules", "--all", columns=width).out
    assert max(len(line) for line in out.splitlines()) <= width
    words = " ".join(out.split())
    for rule in RULES:
        assert [line.split()[1] for line in out.splitlines() if line.startswith(rule.code + " ")]
        assert rule.summary in words


def test_all_shows_what_needs_no_rule(cli, api):
    out = cli("rules", "--all").out
    assert all(early.code in out for early in EARLY)
    assert "Impossible by construction:" in out
    assert "runtime.gpus: 2 or more" in out


@pytest.mark.parametrize("name", ["speed", "speed.*"])
def test_a_topic_is_listed_alone(cli, api, name):
    codes = [rule.code for rule in RULES if rule.topic == "speed"]
    assert [rule["code"] for rule in cli("rules", name, "--json").document["data"]] == codes


def test_one_rule_is_explained_with_its_example_and_its_fix(cli, api):
    out = cli("rules", "learning.monitor_upside_down").out
    assert "error; accept_risks may override it" in out
    assert "  checkpoint:\n    mode: max\n" in out
    assert "  -  mode: max\n  +  mode: min\n" in out


def test_a_code_before_the_rules_is_explained_too(cli, api):
    assert "found in the request before any rule" in cli("rules", "unknown_field").out


def test_every_rule_can_be_explained(cli, api, monkeypatch):
    """Of what is asked for once."""
    with Client() as client:
        once = SimpleNamespace(rules=client.rules().copy)
    monkeypatch.setattr("app.cli.rules.connect", lambda: nullcontext(once))
    shown = {rule.code: cli("rules", rule.code).out for rule in RULES}
    assert [rule.code for rule in RULES if rule.stands_on not in shown[rule.code]] == []


def test_a_rule_without_a_fix_says_so(cli, api):
    out = cli("rules", "speed.no_worker").out
    assert out.endswith("No change to the spec fixes it.\n")
    assert "Its fix" not in out


def test_a_rule_that_is_not_there_is_guessed(cli, api):
    answer = cli("rules", "no_warmupp")
    assert answer.code == 5
    assert "Did you mean learning.no_warmup?" in answer.err


def test_presets_that_cannot_be_used_are_named(cli, api):
    broken = api / "presets" / "torn.toml"
    broken.write_text("description = ")
    try:
        listed = cli("presets")
        assert "torn.toml cannot be used" in listed.out
        assert [row["name"] for row in cli("presets", "--json").document["broken"]] == ["torn"]
        one = cli("presets", "torn")
        assert one.code == 5
        assert "torn.toml cannot be used" in one.err
    finally:
        broken.unlink()


def test_presets_are_listed_with_the_users_own(cli, api):
    listed = cli("presets")
    assert "h200" in listed.out
    assert "tiny" in [preset["name"] for preset in cli("presets", "--json").document["data"]]


def test_one_preset_is_shown_with_its_defaults(cli, api):
    out = cli("presets", "rtx-24g").out
    assert "GPU, 24 GiB or more" in out
    assert "  training:\n    batch_size: 192\n" in out
    assert "It sets nothing" in cli("presets", "cpu").out
    assert cli("presets", "tiny", "--json").document["source"] == "user"
    assert "named in" not in out
    assert "no device by itself: name it in the spec" in cli("presets", "tiny").out


def test_a_preset_that_is_not_there_is_told_with_those_that_are(cli, api):
    answer = cli("presets", "nothing")
    assert answer.code == 5
    assert "there are a100-80g, cpu" in answer.err
