"""`make bench`: measures this machine and prints a table; `--json PATH` keeps the figures too.

They stand with the commit, the day, the machine and all versions; those in benchmarks/results are
committed. Parts can be named (`python -m benchmarks api stop`). Ends with 1 when a bound is missed.
`--quick` takes about 4 minutes and judges ratios only, each by half of what is asked for, or of
what a full run had where it missed that; a part that misses one is measured once more. What loads
or trains does it with a trainer's memory settings, if the environment has no others. `--device
cuda` has loading and training bring their batches to a GPU.
"""

import argparse
import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from app.container import usable_cores
from benchmarks import (
    checkpoint_figures,
    compile_figures,
    demo_figures,
    rules_figures,
    script_figures,
)
from benchmarks.effort import FULL, QUICK, Effort
from benchmarks.figures import Figure, as_json, not_measured, place_for, print_table
from benchmarks.loading import batches
from benchmarks.loading import figures as loading_figures
from benchmarks.loading import windows as windows_figures
from benchmarks.loading.neighbours import versions
from benchmarks.memory import memory_figures
from benchmarks.service import (
    agent_figures,
    api_figures,
    claims_figures,
    restart_figures,
    scripts_figures,
    stop_figures,
)
from benchmarks.service.bench_service import bench_service
from benchmarks.training import figures as training_figures
from benchmarks.training import sorted_data
from benchmarks.workloads import board, molecules, panel, timeframes

MEASURED: Mapping[str, Callable[[Effort, str], list[Figure]]] = {
    "rules": lambda effort, device: rules_figures.measure(),
    "loading": loading_figures.measure,
    "windows": lambda effort, device: windows_figures.measure(effort),
    "batches": lambda effort, device: batches.measure(effort),
    "arrow": lambda effort, device: _of_arrow(effort),
    "training": training_figures.measure,
    "sorted": lambda effort, device: sorted_data.measure(effort),
    "compile": lambda effort, device: compile_figures.measure(),
    "checkpoint": lambda effort, device: checkpoint_figures.measure(),
    "memory": lambda effort, device: memory_figures.measure(),
    "workloads": lambda effort, device: [
        *board.measure(effort),
        *panel.measure(effort),
        *timeframes.measure(effort),
        *molecules.measure(effort),
    ],
    "demo": lambda effort, device: demo_figures.measure(),
}
OF_THE_SERVICE = ("api", "stop", "restart", "script", "scripts", "agent", "claims")
PARTS = (*MEASURED, *OF_THE_SERVICE)
# Those that ask for ratios which show within seconds; the others have no quick form.
QUICK_PARTS = ("loading", "windows", "training")
GPU_PARTS = ("loading", "training")
NO_CUDA = (
    "--device cuda: PyTorch sees no CUDA device here, so nothing can be measured on one; leave "
    "--device out to measure the CPU, or ask `stoker doctor` what the driver lacks."
)


def main() -> int:
    torch.set_num_threads(usable_cores())  # as a trainer; PyTorch's own are those of the host
    gc.freeze()  # as trainers do: a search through all that PyTorch has takes 0.1 s
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK_PARTS)}")
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="write the figures to this file or folder"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help=f"of {' and '.join(GPU_PARTS)}; all else is measured on a CPU",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    possible = [
        part
        for part in PARTS
        if (part in QUICK_PARTS or not arguments.quick)
        and (part in GPU_PARTS or arguments.device == "cpu")
    ]
    parts = arguments.parts or possible
    if others := [part for part in parts if part not in possible]:
        parser.error(
            f"not in this form: {', '.join(others)}. --quick measures {', '.join(QUICK_PARTS)}; "
            f"--device cuda {', '.join(GPU_PARTS)}; all else is measured on a CPU, at full length"
        )
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error(NO_CUDA)
    if arguments.quick:
        figures = measure_quickly(parts, arguments.device)
    else:
        figures = measure(parts, FULL, arguments.device)
    left_out = [part for part in PARTS if part not in parts]
    path = None if arguments.json is None else place_for(arguments.json, arguments.parts or ["all"])
    show(figures, left_out, path)
    return int(bool(missed(figures)))


def missed(figures: Sequence[Figure]) -> list[str]:
    """The names of those whose bound does not hold."""
    return [figure.name for figure in figures if figure.holds is False]


def show(figures: list[Figure], left_out: Sequence[str], path: Path | None) -> None:
    print_table(figures)
    if left_out:
        print(f"Left out: {', '.join(left_out)}")
    if names := missed(figures):
        print(f"Missed: {'; '.join(names)}")
    if path is not None:
        path.write_text(as_json(figures, left_out, versions()) + "\n")


def measure(parts: Collection[str], effort: Effort, device: str) -> list[Figure]:
    chosen = [of_part for part, of_part in MEASURED.items() if part in parts]
    figures = [figure for of_part in chosen for figure in of_part(effort, device)]
    if set(parts) & set(OF_THE_SERVICE):
        figures += _of_the_service(parts)
    return figures


def measure_quickly(parts: Collection[str], device: str) -> list[Figure]:
    """Each part in its quick form; a ratio that is low only since other work took the cores is so
    once, one that fell apart is so twice.
    """
    figures: list[Figure] = []
    for part in parts:
        found = _measure_quickly(part, device)
        if names := missed(found):
            print(f"{part} is measured once more, for it missed: {'; '.join(names)}", flush=True)
            again = {figure.name: figure for figure in _measure_quickly(part, device)}
            found = [again.get(one.name, one) if one.name in names else one for one in found]
        figures += found
    return figures


def _measure_quickly(part: str, device: str) -> list[Figure]:
    return [figure.of_quick_form() for figure in measure([part], QUICK, device)]


def _of_arrow(effort: Effort) -> list[Figure]:
    if find_spec("pyarrow") is None:
        why = "needs pyarrow: pip install 'stoker[worker]'"
        return [not_measured("Arrow folders", why, "python -m benchmarks arrow")]
    from benchmarks.loading import arrow  # needs that extra

    return arrow.measure(effort)


def _of_the_service(parts: Collection[str]) -> list[Figure]:
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
            if "scripts" in parts:
                figures += scripts_figures.measure(service)
            if "script" in parts:  # the last, since it pins the agent to one core
                figures += script_figures.measure(service, agent)
    return figures
