"""What `stoker run` costs: to type it, to start, a step of the script, and the shim's part of that.

Inside and outside take turns, on whatever cores there are; the service runs beside both.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.figures import Figure
from benchmarks.service.bench_service import BenchService, wait_until

COMMAND = "python -m benchmarks scripts"
SCRIPT = Path(__file__).with_name("own_script.py")
SHIM = Path(__file__).parents[2] / "worker" / "script" / "path" / "sitecustomize.py"
FILES, FOLDERS = 10_000, 100
# Trainings take turns so often that the least of each is near what an idle machine needs.
TYPED, STARTED, TRAINED, SHIM_ROUNDS = 5, 5, 12, 5
# How many steps, and the sizes of the hidden layers: of 0.7 ms, and of about 10 ms as in a training
# that is more than its DataLoader.
SHORT, LONGER = (2_000, 256), (300, 1_024, 1_024)
MOST_SECONDS = 1.0
MOST_OF_CPU = 1.02
MOST_SHIM_MICROSECONDS = 2.0
SHIM_STEPS = 200_000
# Steps and batches as the hooks of the shim see them, and the same without.
SHIM_CODE = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("shim", sys.argv[1])
shim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shim)
open(sys.argv[2], "wb").write(bytes(shim.SIZE))
counter = shim.Counter(sys.argv[2])
class Batches:
    def __next__(self):
        return None
class Optimizer:
    pass
bare, timed, optimizer = Batches.__next__, shim._timed(Batches.__next__, counter), Optimizer()
batches, steps = Batches(), int(sys.argv[3])
def seconds(hooked):
    began = time.perf_counter()
    for _ in range(steps):
        (timed if hooked else bare)(batches)
        if hooked:
            counter.step(optimizer, (), {})
    return time.perf_counter() - began
seconds(True)
print((seconds(True) - seconds(False)) / steps * 1e6)
"""


class Steps(NamedTuple):
    """Seconds of the steps of one script, and the memory settings that it had."""

    cpu: float
    wall: float
    memory: str


def measure(service: BenchService) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        project = Path(folder)
        make_repository(project)
        return [
            of_typing(service, project),
            of_the_start(service, project),
            *of_steps(service, project, "short", SHORT),
            *of_steps(service, project, "longer", LONGER),
            of_the_shim(project),
        ]


def make_repository(project: Path) -> None:
    """A git repository of so many files, of which one was changed since."""
    for number in range(FILES):
        path = project / f"part_{number % FOLDERS}" / f"file_{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"value = {number}\n")
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    for words in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "-m", "all")):
        subprocess.run(["git", *words], cwd=project, check=True)
    (project / "part_0" / "file_0.py").write_text("value = -1\n")


def typed(service: BenchService, project: Path, *command: str) -> int:
    """The run that `stoker run` makes."""
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "run", "--json", "--gpus", "0", "--", *command],
        env=service.environment | {"PYTHONPATH": str(SHIM.parents[3])},
        cwd=project,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(json.loads(done.stdout)["id"])


def log_of(service: BenchService, run_id: int, last: str = "") -> str:
    """Of a run, once it has ended. Until it has said `last` nobody is asked: an API that answers
    all the time would work beside what is measured.
    """
    here = psutil.Process()
    log = service.home / "artifacts" / "runs" / str(run_id) / "attempt-1" / "trainer.log"
    wait_until(lambda: not last or (log.exists() and last in log.read_text()), "it says so", here)
    wait_until(lambda: service.client.run(run_id)["state"] == "succeeded", "it succeeds", here)
    return log.read_text()


def of_typing(service: BenchService, project: Path) -> Figure:
    cpu: list[float] = []

    def seconds() -> float:
        began, cpu_before = time.perf_counter(), cpu_of_children()
        run_id = typed(service, project, "/bin/true")
        took = time.perf_counter() - began
        cpu.append(cpu_of_children() - cpu_before)
        log_of(service, run_id)
        return took

    name = f"`stoker run` returns, in a repository of {FILES:,} files"
    figure = over_rounds(name, seconds, TYPED, MOST_SECONDS)
    return replace(figure, also={"s of a core": statistics.median(cpu)})


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def of_the_start(service: BenchService, project: Path) -> Figure:
    """From the return of `stoker run` to the first line of the script, less what Python takes."""
    code = (sys.executable, "-c", "import time; print('began', time.time())")

    def seconds() -> float:
        began = time.time()
        plain = began_at(run_outside(service, project, code))
        run_id = typed(service, project, *code)
        returned = time.time()
        return began_at(log_of(service, run_id)) - returned - (plain - began)

    return over_rounds("a script's start over the plain one", seconds, STARTED, MOST_SECONDS)


def of_steps(
    service: BenchService, project: Path, kind: str, size: tuple[int, ...]
) -> list[Figure]:
    command = (sys.executable, str(SCRIPT), *map(str, size))
    inside, outside = [], []
    for _ in range(TRAINED):
        outside.append(steps_of(run_outside(service, project, command)))
        inside.append(steps_of(log_of(service, typed(service, project, *command), "took ")))
    if {one.memory for one in inside} != {one.memory for one in outside}:
        raise RuntimeError("inside and outside have other memory settings, and cannot be compared")
    made = size[0] - size[0] // 10
    also = {"ms outside": min(one.cpu for one in outside) / made * 1e3}
    cpu = [one.cpu for one in inside], [one.cpu for one in outside]
    wall = [one.wall for one in inside], [one.wall for one in outside]
    what = f"of a {kind} step inside over outside"
    return [
        least_over(f"processor time {what}", *cpu, MOST_OF_CPU, also),
        least_over(f"seconds {what}", *wall, None, {}),
    ]


def run_outside(service: BenchService, project: Path, command: tuple[str, ...]) -> str:
    """What the plain command prints, in the environment that a run of it gets: this process has a
    trainer's memory settings.
    """
    return subprocess.run(
        command, cwd=project, env=service.environment, capture_output=True, text=True, check=True
    ).stdout


def of_the_shim(project: Path) -> Figure:
    def microseconds() -> float:
        words = [sys.executable, "-c", SHIM_CODE, str(SHIM), str(project / "shim"), str(SHIM_STEPS)]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    return over_rounds(
        "the shim, a step and its batch", microseconds, SHIM_ROUNDS, MOST_SHIM_MICROSECONDS, "µs"
    )


def over_rounds(
    name: str, measured: Callable[[], float], rounds: int, bound: float, unit: str = "s"
) -> Figure:
    values = [measured() for _ in range(rounds)]
    spread = min(values), max(values)
    return Figure(name, statistics.median(values), unit, bound, rounds, COMMAND, spread)


def least_over(
    name: str, ours: list[float], others: list[float], bound: float | None, also: dict[str, float]
) -> Figure:
    """The least over the least: whatever else the machine does adds to both, now here, now there.
    Its spread is of the rounds.
    """
    rounds = [one / other for one, other in zip(ours, others, strict=True)]
    spread = min(rounds), max(rounds)
    return Figure(name, min(ours) / min(others), "", bound, len(rounds), COMMAND, spread, also=also)


def began_at(text: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith("began "))
    return float(line.split()[1])


def steps_of(text: str) -> Steps:
    (line,) = (line for line in text.splitlines() if line.startswith("took "))
    _, cpu, wall, memory = line.split()
    return Steps(float(cpu), float(wall), memory)
