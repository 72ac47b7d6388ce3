"""Trains the example `panel-graph` with and without each part of its model, on several panels.

`python -m benchmarks.workloads.panel_parts` prints a table for each panel: means and spreads over
seeds of the error and of the rank correlation, of the best checkpoint by validation, next to the
baselines on the same rows. Panels are the sample, one of a factor model, and small ones that each
have a signal for one part.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.planning.ladder import NO_RUNG
from app.spec.layers import overlay, with_default_kinds
from app.spec.reading import read_yaml
from benchmarks.examples import EXAMPLES
from benchmarks.steps import spec_of
from benchmarks.workloads import panel_made
from worker.reporting import EventLog, Pulse
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.run import execute
from worker.trainer.stop import StopFlag
from worker.trainer.tools.panel.sample_panel import MadeSize, build, make

EXAMPLE = "panel-graph.yaml"
METRICS = ("mae", "rank_correlation")
FACTORS = MadeSize(entities=48, dates=2_000, seed=0)
# A window and the longest horizon, less one, as settled at submission.
GAP = 79
PANELS: dict[str, Callable[[Path], object]] = {
    "sample": build,
    "factors": lambda path: make(path, FACTORS),
    **{kind: partial(panel_made.write, kind=kind) for kind in panel_made.MADE},
}
ALL = 10**6  # neighbors: as many as there are
# Each changes the example.
ARMS: dict[str, dict[str, Any]] = {
    "example": {},
    "no highway": {"recipe": {"highway": 0}},
    "no date means": {"recipe": {"date_means": False}},
    "no highway, no date means": {"recipe": {"highway": 0, "date_means": False}},
    "no graph": {"recipe": {"graph": None}},
    "all neighbors": {"recipe": {"graph": {"neighbors": ALL}}},
    "all neighbors, correlations": {
        "recipe": {"graph": {"neighbors": ALL, "edges": "correlation"}}
    },
    "correlations": {"recipe": {"graph": {"edges": "correlation"}}},
    "1 frequency": {"recipe": {"top_frequencies": 1}},
    "2 frequencies": {"recipe": {"top_frequencies": 2}},
    "slices of 6": {"recipe": {"slice_dates": 6}},
    "variable selection": {"recipe": {"variable_selection": True}},
    "rank loss, 0.3": {"recipe": {"rank_loss": True}, "loss_weights": {"rank": 0.3}},
    "mae loss": {"recipe": {"loss": "mae"}},
    "quantiles": {"recipe": {"loss": "quantile"}},
}


def trained(run_dir: Path, data: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Trains as a worker does, on one thread. Returns the run's result."""
    torch.set_num_threads(1)
    attempt = run_dir / "attempt-1"
    attempt.mkdir(parents=True)
    name = spec["data"]["dataset"]
    document = {
        "run_id": int(run_dir.name),
        "attempt": 1,
        "spec": spec_of(spec).model_dump(mode="json"),
        "datasets": {name: {"path": str(data), "fingerprint": fingerprint(data)}},
        "device": "cpu",
        "threads": 1,
        "restore": [],
        "run_dir": str(run_dir),
        "memory_rung": NO_RUNG.as_json(),
        "rollback": None,
        "keep": [],
        "data_cache": None,
    }
    (attempt / "spec.json").write_text(json.dumps(document))
    events, pulse = EventLog(attempt / "events.jsonl"), Pulse(attempt / "pulse")
    try:
        result = execute(attempt, StopFlag(), events, pulse).result
    finally:
        events.close()
        pulse.close()
    if result is None:
        raise RuntimeError(f"the run in {run_dir} was stopped before its first step")
    return result


def spec_for(panel: str, arm: str, seed: int, entities: int) -> dict[str, Any]:
    example = with_default_kinds(read_yaml((EXAMPLES / EXAMPLE).read_bytes()))
    changes: list[dict[str, Any]] = [{"data": {"split": {"gap": GAP}}}]
    changes += [panel_made.SPEC] if panel in panel_made.MADE else []
    changes += [ARMS[arm], {"training": {"seed": seed}}]
    for change in changes:
        example = overlay(example, change)
    graph = example["recipe"].get("graph")
    if graph:
        example["recipe"]["graph"] = graph | {"neighbors": min(graph["neighbors"], entities - 1)}
    return example


def row(name: str, results: list[dict[str, Any]]) -> str:
    cells = [name.ljust(30)]
    for part, scores in (("val", "best"), ("test", "test")):
        for metric in METRICS:
            values = [result[scores][f"{part}_{metric}"] for result in results]
            cells.append(f"{statistics.mean(values):.4f} ({max(values) - min(values):.4f})")
    return "  ".join(cells)


def baselines_of(result: dict[str, Any]) -> list[str]:
    scores: dict[str, dict[str, float]] = {}
    for one in result["baselines"]:
        scores.setdefault(one["name"], {})[one["metric"]] = one["value"]
    names = [f"{part}_{metric}" for part in ("val", "test") for metric in METRICS]
    return [
        "  ".join([f"  {name}", *(f"{metric} {each[metric]:.4f}" for metric in names)])
        for name, each in scores.items()
    ]


def ablation(panel: str, arms: list[str], seeds: int, pool: ProcessPoolExecutor) -> None:
    """Prints the panel's table, row by row."""
    with tempfile.TemporaryDirectory(prefix="stoker-parts-") as root:
        data = Path(root, "panel.h5")
        PANELS[panel](data)
        entities = panel_made.entities_of(data)
        print(f"{panel}: val_mae, val_rank, test_mae, test_rank; mean (spread) of {seeds} seeds")
        jobs: dict[tuple[str, int], Future[dict[str, Any]]] = {}
        for arm in arms:
            for seed in range(seeds):
                spec = spec_for(panel, arm, seed, entities)
                jobs[arm, seed] = pool.submit(trained, Path(root, str(len(jobs) + 1)), data, spec)
        for arm in arms:
            results = [jobs[arm, seed].result() for seed in range(seeds)]
            print(row(arm, results), flush=True)
        print("\n".join(baselines_of(jobs[arms[0], 0].result())), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="panel_parts", description=__doc__)
    parser.add_argument("arms", nargs="*", help=f"any of: {', '.join(ARMS)}; default all")
    parser.add_argument("--panel", choices=PANELS, action="append", help="default all")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0; default 3")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time; default 2")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(options.at_once) as pool:
        for panel in options.panel or PANELS:
            ablation(panel, options.arms or list(ARMS), options.seeds, pool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
