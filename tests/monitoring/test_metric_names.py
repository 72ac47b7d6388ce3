"""Alerts and panels ask only for metrics, and only by labels, that API and worker really expose."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from app.api.telemetry import Telemetry
from app.settings import load_settings
from app.store import open_store
from app.store.engine.migrate import upgrade
from tests.worker.telemetry.test_exporter import GPU
from worker.telemetry.exporter import RunView, TelemetrySnapshot, WorkerCollector
from worker.telemetry.histogram import CHECKPOINT_DURATIONS

MONITORING = Path(__file__).parents[2] / "monitoring"
FROM_PROMETHEUS = {"job", "instance", "le", "__name__"}
PROGRESS = {
    "phase": "training",
    "step": 5,
    "steps": 10,
    "epoch": 1,
    "t": 1.0,
    "lr": 1e-3,
    "iterations_per_second": 20.0,
    "grad_norm": 1.0,
    "queue_depth": 2,
    "host_memory_bytes": 1,
    "torch_memory": {"allocated": 1, "reserved": 1, "peak": 1},
    "totals": {"train_iterations": 5, "train_samples": 640, "bytes_read": 1},
    "phase_seconds": {"data_wait": 0.1, "compute": 0.9},
}


def worker_text(root: Path) -> str:
    """A scrape of a worker with one GPU and one run, everything known."""
    run = RunView(
        run_id=1,
        attempt=1,
        recipe="sequence",
        gpus=("0",),
        progress_timeout_seconds=3600.0,
        progress=PROGRESS,
        losses={"train": 1.0},
        iterations=CHECKPOINT_DURATIONS.observe(0.1),
        checkpoints=CHECKPOINT_DURATIONS.observe(0.1),
    )
    collector = WorkerCollector(home=root)
    collector.publish(TelemetrySnapshot(runs=(run,), gpus=(GPU,), beat_at=1.0))
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def api_text(home: Path) -> str:
    """A scrape of an API that has answered a request."""
    settings = load_settings(home=home)
    upgrade(settings)
    store = open_store(settings)
    try:
        telemetry = Telemetry(store)
        telemetry.observe_request("GET", "/runs", 200, 0.0)
        return telemetry.exposition().decode()
    finally:
        store.close()


def exposed(*texts: str) -> dict[str, set[str]]:
    """Sample names and the labels they carry. Counters without a series are known by their type."""
    found: dict[str, set[str]] = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate"}}
    for text in texts:
        for family in text_string_to_metric_families(text):
            suffix = "_total" if family.type == "counter" else ""
            found.setdefault(family.name + suffix, set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    found["stoker_runs_finished_total"] |= {"outcome", "reason"}  # no run has ended here
    return found


def expressions() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana/dashboards/stoker.json").read_text())
    panels = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    rules = [
        rule["expr"]
        for path in (MONITORING / "alerts").glob("*.yml")
        for group in YAML(typ="safe").load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    return panels + rules


def test_every_metric_and_label_that_is_asked_for_is_exposed(tmp_path):
    known = exposed(worker_text(tmp_path), api_text(tmp_path / "home"))
    asked = expressions()
    assert len(asked) > 30
    for expression in asked:
        for name, selector in re.findall(r"\b(stoker_\w+|up)\b(?:\{([^}]*)\})?", expression):
            assert name in known, expression
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert labels <= known[name] | FROM_PROMETHEUS, expression
