"""The Grafana dashboard: every expression is valid, every metric exists, every reference holds."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

MONITORING = Path(__file__).parents[2] / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/stoker.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_panels_use_the_provisioned_data_source():
    provisioned = YAML(typ="safe").load(
        (MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    (source,) = provisioned["datasources"]
    used = set(re.findall(r'"uid": "([^"]+)"', json.dumps(DASHBOARD["panels"])))
    assert used == {source["uid"]}


def test_panels_say_what_they_show_and_do_not_overlap():
    assert all(panel["title"] and panel["description"] for panel in PANELS)
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on PATH")
def test_promtool_accepts_every_expression(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$run_id", ".*")}
        for number, expression in enumerate(EXPRESSIONS)
    ]
    wrapped = tmp_path / "panels.yml"
    wrapped.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    answer = subprocess.run(
        ["promtool", "check", "rules", str(wrapped)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
