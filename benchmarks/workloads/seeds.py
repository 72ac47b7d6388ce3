"""Examples over several seeds, next to the best simple baseline of each.

    python -m benchmarks.workloads.seeds weather-lstm.yaml timeframes.yaml
    python -m benchmarks.workloads.seeds weather-lstm.yaml --seeds 0 1 2 --set recipe.highway=0

Trains them in a home of its own that is gone afterwards. The test part is scored once, with the
checkpoint that is best on the validation part; baselines are scored on the same rows.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from app.cli.specs.specfile import read_request, with_assignments
from benchmarks.examples import EXAMPLES, own_service, samples_of, stoker
from stoker import Client

Document = dict[str, Any]


def trained(client: Client, request: Document) -> Document:
    """Submits a run and waits for its end; returns its result."""
    run_id = client.submit(request)["id"]
    for _ in client.watch(run_id):
        pass
    run = client.run(run_id)
    if run["state"] != "succeeded":
        raise SystemExit(f"run {run_id} ({request['name']}) {run['state']}: {run['message']}")
    result: Document = run["result"]
    return result


def scores_of(result: Document) -> dict[str, float]:
    """Returns the metrics of the held-out parts, those of the test part last."""
    parts = {**result["best"], **(result["test"] or {})}
    return {name: value for name, value in parts.items() if name.startswith(("val_", "test_"))}


def table(name: str, results: list[Document]) -> str:
    """Returns a row for each metric: every seed, mean and spread, and the best baseline."""
    rows = [name]
    scores = [scores_of(one) for one in results]
    for metric in scores[0]:
        values = [one[metric] for one in scores]
        naive = (results[0]["naive"] or {}).get(metric)
        if naive is None:
            continue
        named = [
            one["name"]
            for one in results[0]["baselines"]
            if one["metric"] == metric and one["value"] == naive
        ]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        each = " ".join(f"{value:.4g}" for value in values)
        rows.append(
            f"  {metric}: {statistics.mean(values):.4g} ± {spread:.2g} ({each}); "
            f"best baseline {naive:.4g} ({named[0]})"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("examples", nargs="+", help="names of files in examples/")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    given = parser.parse_args()
    requests = {
        name: read_request(str(EXAMPLES / name), given.assignments) for name in given.examples
    }
    with own_service() as environment:
        for sample in samples_of(EXAMPLES / name for name in requests):
            if stoker(environment, "data", "sample", sample):
                return 1
        with Client(home=Path(environment["STOKER_HOME"])) as client:
            for name, request in requests.items():
                results = [
                    trained(client, with_assignments(request, [f"training.seed={seed}"]))
                    for seed in given.seeds
                ]
                print(table(name, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
