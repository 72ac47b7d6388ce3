"""Tables that Stoker was not made with: a three-line spec next to the best simple baseline.

    python -m benchmarks.workloads.foreign seattle.csv:96:24:temp co2.csv:52:8:co2

An argument is FILE:WINDOW:HORIZON:TARGET. Prints the model's error over that of the best baseline,
on the validation and the test part, each the last 15 % and the 15 % before: below 1 is better.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.examples import own_service
from benchmarks.workloads.seeds import trained
from stoker import Client


def converted(environment: Mapping[str, str], table: str) -> str:
    """Converts and registers a table; returns the dataset's name."""
    path, window, horizon, target = table.rsplit(":", 3)
    name = Path(path).stem
    data = Path(environment["STOKER_HOME"], "data")
    data.mkdir(exist_ok=True)
    options = ["--window", window, "--horizon", horizon, "--target", target, "--max-gap", "20d"]
    for arguments in (
        ["convert", str(Path(path).resolve()), str(data / f"{name}.h5"), *options],
        ["register", name, f"{name}.h5"],
    ):
        command = [sys.executable, "-m", "app.cli", "data", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{path}: {done.stdout}{done.stderr}")
    return name


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Returns the model's errors over those of the best baseline."""
    errors = {"val_mae": result["best"]["val_mae"], "test_mae": result["test"]["test_mae"]}
    return {name: error / result["naive"][name] for name, error in errors.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="+", metavar="FILE:WINDOW:HORIZON:TARGET")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    with own_service() as environment:
        names = [converted(environment, table) for table in given.tables]
        with Client(home=Path(environment["STOKER_HOME"])) as client:
            for name in names:
                split = {"validation_fraction": 0.15, "test_fraction": 0.15}
                request: dict[str, Any] = {
                    "name": name,
                    "recipe": {"kind": "sequence"},
                    "data": {"dataset": name, "split": split},
                    "accept_risks": ["learning.*"],
                }
                results = [
                    trained(client, {**request, "training": {"epochs": 10, "seed": seed}})
                    for seed in given.seeds
                ]
                each = [ratios(result) for result in results]
                for metric in each[0]:
                    values = " ".join(f"{one[metric]:.3f}" for one in each)
                    print(f"{name}: {metric} over the best baseline's: {values}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
