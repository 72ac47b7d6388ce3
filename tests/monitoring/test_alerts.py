"""The alert rules, checked by promtool: valid, tested both ways, and complete by the contract."""

import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ALERTS = Path(__file__).parents[2] / "monitoring" / "alerts"
CONTRACT = {
    *("GpuUnderutilized", "IterationRateUnstable", "HostMemoryHigh", "HostSwapping"),
    *("GpuMemoryNearFull", "GpuHot", "RunStalled", "DataBound", "CheckpointFailing"),
    *("DiskNearFull", "WorkerDown", "QueueWaitHigh", "RunFailureRate", "TelemetryMissing"),
}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on PATH")


def load(path):
    return YAML(typ="safe").load(path.read_text())


def rules():
    return [rule for path in ALERTS.glob("*.yml") for group in load(path)["groups"]
            for rule in group["rules"]]  # fmt: skip


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_every_alert_of_the_contract_is_there():
    assert {rule["alert"] for rule in rules()} == CONTRACT


def test_an_alert_says_what_why_and_what_to_do():
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "why", "action"}, rule["alert"]


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_is_silent():
    firing: set[str] = set()
    silent: set[str] = set()
    for path in (ALERTS / "tests").glob("*.yml"):
        for test in load(path)["tests"]:
            name = test["name"].split()[0]
            for check in test["promql_expr_test"]:
                assert f'alertname="{name}"' in check["expr"]
                (firing if check["exp_samples"] else silent).add(name)
    assert firing == silent == CONTRACT


@needs_promtool
@pytest.mark.prometheus
def test_promtool_accepts_the_configuration_and_every_rule():
    answer = promtool("check", "config", str(ALERTS.parent / "prometheus.yml"))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_promtool
@pytest.mark.prometheus
@pytest.mark.parametrize(
    "path", sorted((ALERTS / "tests").glob("*.yml")), ids=lambda path: path.stem
)
def test_alerts_fire_and_are_silent_when_they_should(path):
    answer = promtool("test", "rules", str(path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
