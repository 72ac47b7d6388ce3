"""Trains the example `panel-graph` with and without each part of its model, on two panels.

`python -m benchmarks.workloads.panel_parts` prints a table: the mean and the spread of the test
error and of the rank correlation over seeds, next to the best baseline on the same rows. One panel
is the sample, the other comes from a factor model. Name arms, or a panel, to train fewer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from app.planning.ladder import NO_RUNG
from app.spec.layers import overlay, with_default_kinds
from app.spec.reading import read_yaml
from benchmarks.examples import EXAMPLES
from benchmarks.steps import spec_of
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.tools.panel.sample_panel import MadeSize, build, make

MADE = MadeSize(entities=48, dates=2_000, seed=0)
NAME = "panel-graph.yaml"
GAP = 79  # a window and the longest horizon, less one; as settled at submission
METRICS = ("mae", "rank_correlation")
PANELS: dict[str, Callable[[Path], object]] = {
    "sample": build,
    "made": lambda path: make(path, MADE),
}
# Each changes the example's recipe.
ARMS: dict[str, dict[str, Any]] = {
    "example": {},
    "no highway": {"highway": 0},
    "no date means": {"date_means": False},
    "no graph": {"graph": None},
    "no frequencies": {"top_frequencies": 0},
}


def trained(folder: Path, data: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Trains in a process of its own, on one thread. Returns the run's result."""
    attempt = folder / "attempt-1"
    attempt.mkdir(parents=True)
    name = spec["data"]["dataset"]
    document = {
        "run_id": 1,
        "attempt": 1,
        "spec": spec_of(spec).model_dump(mode="json"),
        "datasets": {name: {"path": str(data), "fingerprint": fingerprint(data)}},
        "device": "cpu",
        "threads": 1,
        "restore": [],
        "run_dir": str(folder),
        "memory_rung": NO_RUNG.as_json(),
        "rollback": None,
        "keep": [],
        "data_cache": None,
    }
    (attempt / "spec.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "worker.trainer", str(attempt)]
    with (attempt / "log").open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    end = json.loads((attempt / "events.jsonl").read_text().splitlines()[-1])
    if end["result"] is None:
        raise SystemExit(f"The run {folder.name} failed: {end['message']}")
    result: dict[str, Any] = end["result"]
    return result


def spec_for(recipe: Mapping[str, Any], seed: int, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The example with this recipe and seed; `patch` changes other blocks."""
    example = with_default_kinds(read_yaml((EXAMPLES / NAME).read_bytes()))
    changed = overlay(example, {"recipe": recipe, "training": {"seed": seed}})
    changed["data"]["split"]["gap"] = GAP
    return overlay(changed, patch)


def row(name: str, results: list[dict[str, Any]]) -> str:
    cells = [name.ljust(34)]
    for part in ("val", "test"):
        for metric in METRICS:
            source = "best" if part == "val" else "test"
            values = [result[source][f"{part}_{metric}"] for result in results]
            spread = max(values) - min(values)
            cells.append(f"{statistics.mean(values):.4f} ({spread:.4f})")
    return "  ".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(prog="panel_parts", description=__doc__)
    parser.add_argument("arms", nargs="*", help=f"any of: {', '.join(ARMS)}; default all")
    parser.add_argument("--panel", choices=PANELS, action="append", help="default both")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0; default 3")
    parser.add_argument("--set", type=json.loads, default={}, help="a JSON patch of the spec")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time; default 2")
    options = parser.parse_args()
    names = options.arms or list(ARMS)
    with tempfile.TemporaryDirectory(prefix="stoker-parts-") as root:
        for panel in options.panel or PANELS:
            data = Path(root, f"{panel}.h5")
            PANELS[panel](data)

            def one(arm: str, seed: int, data: Path = data) -> dict[str, Any]:
                spec = spec_for(ARMS[arm], seed, options.set)
                return trained(data.parent / data.stem / f"{arm}-{seed}", data, spec)

            print(f"{panel}: val_mae, val_rank, test_mae, test_rank; mean (spread) of seeds")
            with ThreadPoolExecutor(options.at_once) as pool:
                jobs = {
                    name: [pool.submit(one, name, seed) for seed in range(options.seeds)]
                    for name in names
                }
                for name, futures in jobs.items():
                    results = [future.result() for future in futures]
                    print(row(name, results), flush=True)
            for baseline in results[0].get("baselines", []):
                print(f"  {baseline['name']}: {baseline['metric']} {baseline['value']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
