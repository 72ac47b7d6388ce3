"""`make bench`: measures this machine and prints a table; `--json FILE` keeps the figures too.

Parts can be named (`python -m benchmarks api stop`). Ends with 1 when a bound is missed.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks import (
    agent_figures,
    api_figures,
    checkpoint_figures,
    claims_figures,
    compile_figures,
    demo_figures,
    restart_figures,
    rules_figures,
    script_figures,
    stop_figures,
)
from benchmarks.bench_service import bench_service
from benchmarks.figures import Figure, as_json, print_table
from benchmarks.loading import figures as loading_figures
from benchmarks.loading import windows as windows_figures
from benchmarks.training import figures as training_figures

PARTS = (
    "rules", "loading", "windows", "arrow", "training", "compile", "checkpoint", "api", "stop",
    "restart", "script", "agent", "claims", "demo",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    figures = measure(arguments.parts or PARTS)
    print_table(figures)
    if arguments.json is not None:
        arguments.json.write_text(as_json(figures) + "\n")
    return int(any(figure.holds is False for figure in figures))


def measure(parts: tuple[str, ...]) -> list[Figure]:
    figures: list[Figure] = []
    if "rules" in parts:
        figures += rules_figures.measure()
    if "loading" in parts:
        figures += loading_figures.measure()
    if "windows" in parts:
        figures += windows_figures.measure()
    if "arrow" in parts:
        figures += _of_arrow()
    if "training" in parts:
        figures += training_figures.measure()
    if "compile" in parts:
        figures += compile_figures.measure()
    if "checkpoint" in parts:
        figures += checkpoint_figures.measure()
    if set(parts) & {"api", "stop", "restart", "script", "agent", "claims"}:
        figures += _of_the_service(parts)
    if "demo" in parts:
        figures += demo_figures.measure()
    return figures


def _of_arrow() -> list[Figure]:
    if find_spec("pyarrow") is None:
        sys.stderr.write("arrow is left out: it needs pip install 'stoker[tables]'.\n")
        return []
    from benchmarks.loading import arrow  # needs that extra

    return arrow.measure()


def _of_the_service(parts: tuple[str, ...]) -> list[Figure]:
    figures: list[Figure] = []
    with bench_service() as service:
        with service.worker():
            service.prepare_data()
        if "api" in parts:
            figures += api_figures.measure(service)
        with service.worker() as agent:
            if "stop" in parts:
                figures += stop_figures.measure(service)
            if "restart" in parts:
                figures += restart_figures.measure(service)
            if "agent" in parts:
                figures += agent_figures.measure(service, agent)
            if "claims" in parts:
                figures += claims_figures.measure(service)
            if "script" in parts:  # the last, since it pins the agent to one core
                figures += script_figures.measure(service, agent)
    return figures


if __name__ == "__main__":
    sys.exit(main())
