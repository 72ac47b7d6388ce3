"""`python -m benchmarks.gpu`: measures a GPU in under 8 minutes and writes JSON.

Every workload is trained in bf16 with the steps of a run: its rate and the share of batches that
lie in memory already, utilization, peak memory, launches and waits a step, and whether the step is
captured or why not. Then come recomputed activations, a checkpoint's copy to the host, compilation,
the cards and slots that an agent sees (MIG, MPS) and the GPU tests. Each part has a process and a
time limit of its own, and the JSON is written after each one. Parts can be named. `--device cpu
--quick` tries the script without a GPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from app.container import usable_cores
from app.planning.ladder import NO_RUNG
from app.settings import load_settings
from app.spec.run import RunSpec
from benchmarks.figures import environment
from benchmarks.heap import OF_TRAINERS
from benchmarks.loading import files as windows
from benchmarks.loading.arms import settle
from benchmarks.steps import unstopped
from benchmarks.training.gpu import SYNCHRONIZED
from worker.agent.devices import Devices
from worker.agent.slots import AgentIndex
from worker.launch.local import OWNERS_MEMORY
from worker.trainer.build import build_step
from worker.trainer.checkpoints.snapshot import PINNED_BYTES, copy_through
from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.device import configure_torch, open_device
from worker.trainer.recipes import task_of
from worker.trainer.report.preparing import Preparing
from worker.trainer.speed.compiled import CompilePlan, compile_step
from worker.trainer.speed.cuda_graph import CaptureOutcome, NotCaptured, capture_step, why_not
from worker.trainer.speed.whole_cache import FOLDERS
from worker.trainer.step import Precision, TrainingStep
from worker.trainer.tools.panel import sample_panel

BUDGET_SECONDS, LEAST_SECONDS = 460.0, 10.0
# The tests are ended so long before the limit of their part, so that it can say how far they came.
STOP_SECONDS = 5.0
ENDINGS = ("PASSED", "FAILED", "ERROR", "SKIPPED")
NO_CUDA = (
    "PyTorch sees no CUDA device here, so nothing can be measured on one. `stoker doctor` says "
    "what is missing. `python -m benchmarks.gpu --device cpu --quick` tries the script on the CPU."
)
PRECISION, RATE = "bf16-mixed", 1e-4
KEPT_BATCHES, PROFILED_STEPS = 16, 20
# The calls of the CUDA runtime and driver by which the host gives the GPU something to do.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync",
            "cudaMemsetAsync")  # fmt: skip
# Of the state whose copy to the host is timed, as that of a model with many small layers.
STATE_TENSORS, STATE_NUMBERS, COPIES = 300, 2**18, 5
TRANSFORMER = {"kind": "sequence", "encoder": "transformer", "hidden_size": 64, "patch": 12}
EXAMPLES = Path(__file__).parents[1] / "examples"
ROOT = Path(__file__).parents[1]

Arrays = dict[str, NDArray[Any]]
Found = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Says where a part measures, and how much. `quick`: small data and half a second."""

    device: str
    quick: bool
    limit_seconds: float = BUDGET_SECONDS

    @property
    def seconds(self) -> float:
        return 0.5 if self.quick else 6.0

    def samples(self, usual: int) -> int:
        return usual // 16 if self.quick else usual


def weather(path: Path, bench: Bench) -> None:
    """Windows as the weather sample has them."""
    windows.write(path.parent, "contiguous", bench.samples(4_096), 16).path.rename(path)
    with h5py.File(path, "a") as file:
        name_features(file, 16)


def name_features(file: h5py.File, count: int) -> None:
    """The first feature is the target's past, so that forecasts start from it."""
    names = [f"feature {number}" for number in range(count)]
    file.attrs.update({"feature_names": names, "target_name": names[0]})


def bars(path: Path, bench: Bench) -> None:
    """Five timeframes, as plain arrays."""
    draw, samples = np.random.default_rng(0), bench.samples(4_096)
    steps = {"h1": 96, "h3": 72, "h6": 48, "h12": 24, "d1": 12}
    with h5py.File(path, "w") as file:
        for name, length in steps.items():
            file[name] = draw.normal(size=(samples, length, 8)).astype(np.float32)
        file["targets"] = draw.normal(size=(samples, 36)).astype(np.float32)
        name_features(file, 8)


def board(path: Path, bench: Bench) -> None:
    """Packed bits, of which a tenth are set; the move that was played is legal."""
    draw, samples, moves = np.random.default_rng(0), bench.samples(16_384), 4_672
    legal = draw.random((samples, moves), np.float32) < 0.01
    move = draw.integers(0, moves, samples)
    legal[np.arange(samples), move] = True
    with h5py.File(path, "w") as file:
        file["planes"] = np.packbits(draw.random((samples, 18 * 64)) < 0.1, axis=1)
        file["legal"] = np.packbits(legal, axis=1)
        file["move"] = move.astype(np.int16)
        file["value"] = draw.integers(-1, 2, samples).astype(np.int8)


def molecules(path: Path, bench: Bench) -> None:
    """Chains of 2 to 60 atoms."""
    draw, graphs = np.random.default_rng(0), list[Arrays]()
    for length in draw.integers(2, 61, bench.samples(4_992)):
        ends = np.arange(length - 1)
        graphs.append(
            {
                "nodes": draw.integers(0, 8, (length, 6)).astype(np.uint8),
                "edges": np.stack([ends, ends + 1], 1).astype(np.uint16),
                "edge_values": draw.integers(0, 4, (length - 1, 2)).astype(np.uint8),
            }
        )
    with h5py.File(path, "w") as file:
        write_packed(file, "molecules", graphs)
        file["targets"] = draw.normal(size=len(graphs)).astype(np.float32)


def panel(path: Path, bench: Bench) -> None:
    """Made prices."""
    size = (12, 300) if bench.quick else (64, 2_520)
    sample_panel.make(path, sample_panel.MadeSize(*size))


@dataclass(frozen=True)
class Workload:
    """An example's spec, and data of its shapes: samples themselves may need packages."""

    example: str
    write: Callable[[Path, Bench], None]
    dataset: str


WORKLOADS = {
    one.example: one
    for one in (
        Workload("weather-lstm", weather, "weather"),
        Workload("weather-gru", weather, "weather"),
        Workload("weather-long", weather, "weather"),
        Workload("timeframes", bars, "bars"),
        Workload("board-legal", board, "board"),
        Workload("board-play", board, "board"),
        Workload("molecule-pretrain", molecules, "molecules"),
        Workload("molecule-finetune", molecules, "solubility"),
        Workload("panel-graph", panel, "panel"),
    )
}


class Opened:
    """A workload's data and its step in bf16, as a run builds them."""

    def __init__(
        self, workload: Workload, bench: Bench, held: ExitStack, change: Mapping[str, Any]
    ) -> None:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="stoker-bench-")))
        path = folder / f"{workload.dataset}.h5"
        workload.write(path, bench)
        request = {**_request(workload.example), **change}
        self.spec = RunSpec.model_validate_json(json.dumps(request))
        self.device = open_device("cuda:0" if bench.device == "cuda" else "cpu")
        configure_torch(self.spec.runtime, PRECISION, usable_cores())
        self.preparing: Preparing = held.enter_context(unstopped())
        datasets = {workload.dataset: {"path": str(path), "fingerprint": fingerprint(path)}}
        self.data: DataSet = open_data(self.spec, datasets, self.device, self.preparing, 2**40)
        held.callback(self.data.close)
        self.step = self.new_step()

    def new_step(self) -> TrainingStep:
        task = task_of(self.spec.recipe.kind).for_run(self.spec, self.data.fields)
        tables = dict(task.prepare(self.data.for_recipe(self.preparing)))
        precision = Precision(PRECISION, self.device)
        return build_step(self.spec, task, {}, precision, tables=tables)

    def capture(self) -> CaptureOutcome:
        """Captures as a run with `runtime.cuda_graphs: auto` does."""
        reason = why_not(self.step, self.spec, self.data, NO_RUNG)
        if reason is None:
            try:
                return capture_step(self.step, self.spec, self.data, self.preparing)
            except NotCaptured as error:
                reason = str(error)
        return CaptureOutcome(False, reason)

    def train(self, batches: Iterable[Batch]) -> int:
        """The number of steps."""
        steps = 0
        self.step.begin_epoch()
        for batch in batches:
            self.step.accumulate(batch, 1.0)
            self.step.apply(RATE)
            steps += 1
        return steps

    def rate(self, batches: Iterable[Batch]) -> float:
        """Steps a second."""
        settle()
        began = time.perf_counter()
        steps = self.train(batches)
        settle()  # waits for the device
        return steps / (time.perf_counter() - began)


def _request(example: str) -> dict[str, Any]:
    """The example's, for as many epochs as are measured, with a split that any data have."""
    from ruamel.yaml import YAML  # late, for this alone

    document = YAML(typ="safe").load(EXAMPLES / f"{example}.yaml")
    request: dict[str, Any] = json.loads(json.dumps(document))
    request.pop("init_from", None)
    request["optimizer"].pop("backbone_lr", None)
    split = request["data"].get("split", {})
    method = "random" if split.get("method") == "field" else "chronological"
    request["data"]["split"] = {"method": method, "validation_fraction": 0.1}
    request["training"]["epochs"] = 10_000
    return request


def workload(name: str, bench: Bench) -> Found:
    """Trains it by turns on the loader's batches and on batches that lie on the device already."""
    with ExitStack() as held:
        opened = Opened(WORKLOADS[name], bench, held, {})
        captured, train = opened.capture(), opened.data.train
        epochs: Iterator[int] = iter(range(10_000))
        kept = [
            Batch({name: array.clone() for name, array in batch.arrays.items()}, batch.size)
            for batch in islice(train.iterate(next(epochs)), KEPT_BATCHES)
        ]
        opened.train(train.iterate(next(epochs)))  # warms up
        peak_bytes = _peak_bytes(opened, partial(train.iterate, next(epochs)))
        rates, shares, used = list[float](), list[float](), list[float | None]()
        until = time.monotonic() + bench.seconds
        while not rates or time.monotonic() < until:
            limit = opened.rate(islice(cycle(kept), train.plan.num_batches))
            rates.append(opened.rate(train.iterate(next(epochs))))
            shares.append(rates[-1] / limit)
            used.append(_utilization(bench))
        known = [one for one in used if one is not None]
        return {
            "iterations_per_second": statistics.median(rates),
            "share_of_memory_speed": statistics.median(shares),
            "rounds": len(rates),
            "batch_size": train.plan.batch_size,
            "utilization": statistics.mean(known) if known else None,
            "peak_bytes": peak_bytes,
            "cuda_graphs": asdict(captured),
            "launches_per_step": _launches(opened, train.iterate(next(epochs))),
            "syncs_per_step": _syncs(opened, train.iterate(next(epochs))),
        }


def _peak_bytes(opened: Opened, epoch: Callable[[], Iterator[Batch]]) -> int | None:
    if opened.device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    opened.train(epoch())
    settle()
    return torch.cuda.max_memory_allocated()


def _utilization(bench: Bench) -> float | None:
    """Percent, as NVML has it; None where there is no GPU or no NVML."""
    if bench.device != "cuda":
        return None
    try:
        return float(torch.cuda.utilization())
    except (ImportError, RuntimeError):
        return None


def _launches(opened: Opened, batches: Iterator[Batch]) -> dict[str, float] | None:
    """Calls of a step, by name, those of gathering its batch among them."""
    if opened.device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        steps = opened.train(islice(batches, PROFILED_STEPS))
        settle()
    counts = {event.key: event.count / steps for event in profile.key_averages()}
    return {key: count for key, count in counts.items() if key.startswith(LAUNCHES)}


def _syncs(opened: Opened, batches: Iterator[Batch]) -> float | None:
    """Waits for the device in the steps of an epoch, over their number."""
    if opened.device.type != "cuda":
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            steps = opened.train(batches)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(SYNCHRONIZED in str(warning.message) for warning in caught) / steps


def recomputed(bench: Bench) -> Found:
    """Says if a step that recomputes activations is captured, without dropout and with it."""
    found: Found = {}
    for dropout in (0.0, 0.1):
        change = {
            "recipe": TRANSFORMER | {"num_layers": 4, "dropout": dropout},
            "runtime": {"activation_checkpointing": True},
        }
        with ExitStack() as held:
            opened = Opened(WORKLOADS["weather-lstm"], bench, held, change)
            captured = asdict(opened.capture())
            opened.train(islice(opened.data.train.iterate(0), 2))
            found[f"dropout {dropout:g}"] = captured
    return found


def pinned(bench: Bench) -> Found:
    """Seconds to copy a state to the host: a tensor at a time, and through the pinned buffer."""
    device = torch.device(bench.device)
    state = [torch.randn(bench.samples(STATE_NUMBERS), device=device) for _ in range(STATE_TENSORS)]
    copies = [torch.empty(one.shape) for one in state]
    on_gpu = device.type == "cuda"
    buffer = torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=on_gpu)

    def singly() -> None:
        for one, copied in zip(state, copies, strict=True):
            copied.copy_(one)

    def buffered() -> None:
        copy_through(buffer, zip(state, copies, strict=True))

    found: Found = {"bytes": sum(one.nbytes for one in state), "tensors": len(state)}
    for name, copy in (("singly_seconds", singly), ("buffered_seconds", buffered)):
        copy()
        for copied in copies:
            copied.zero_()
        found[name] = statistics.median(_seconds(copy) for _ in range(COPIES))
        same = (torch.equal(one.cpu(), copied) for one, copied in zip(state, copies, strict=True))
        found["equal"] = found.get("equal", True) and all(same)
    return found


def _seconds(work: Callable[[], None]) -> float:
    settle()
    began = time.perf_counter()
    work()
    settle()
    return time.perf_counter() - began


def compilation(bench: Bench) -> Found:
    """Seconds to compile a transformer's steps with nothing in the cache, and with everything."""
    change = {"recipe": TRANSFORMER, "runtime": {"compile": {"mode": "default"}}}
    found: Found = {}
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="stoker-bench-"))
        for variable in FOLDERS:
            os.environ[variable] = str(Path(folder, variable))
        opened = Opened(WORKLOADS["weather-lstm"], bench, held, change)
        for cache in ("cold", "warm"):
            step = opened.new_step()
            plan = CompilePlan.of(step, opened.spec, opened.data)
            done = compile_step(step, opened.spec, opened.data, opened.preparing)
            plan.keep(done)
            found[cache] = asdict(done) | {"shapes": plan.shapes, "earlier": plan.earlier}
            _forget_compiled()
    return found


def _forget_compiled() -> None:
    """Forgets graphs as a new process does, which finds what is in the cache's folder."""
    torch.compiler.reset()
    from torch._dynamo.utils import counters  # late, as in worker.trainer.speed.compiler

    counters.clear()


def devices(bench: Bench) -> Found:
    """Returns the cards and slots that an agent sees here. `error` if it counts the server of MPS
    as foreign work, or offers a card that MIG has divided.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as home:
        settings = load_settings(home=Path(home))
        with closing(AgentIndex(settings.locks_dir)) as agent:
            with closing(Devices(settings, agent.number)) as seen:
                seen.refresh()
                gpus, why_none = seen.telemetry.gpus or (), seen.telemetry.why_absent
            slots = [
                {"device": slot.device, "uuid": slot.uuid, "waiting": slot.waiting}
                for slot in seen.slots
            ]
    servers = _mps_servers() if gpus else {}
    cards = [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "driver": gpu.driver,
            "is_divided_by_mig": gpu.is_divided,
            "mps_servers": servers.get(gpu.uuid, []),
            "computing": [pid for pid, _ in gpu.processes],
        }
        for gpu in gpus
    ]
    found: Found = {"cards": cards, "why_none": why_none, "slots": slots}
    faults = device_faults(cards, slots)
    return found | ({"error": " ".join(faults)} if faults else {})


def _mps_servers() -> dict[str, list[int]]:
    """Returns the processes of MPS servers by the UUID of their GPU; lost GPUs are left out."""
    import pynvml  # late, since a host without a driver has no need of it

    from worker.telemetry.nvml import is_mps_server, listed

    pynvml.nvmlInit()
    servers = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pids = [one["pid"] for one in listed(handle) if is_mps_server(one["pid"])]
            servers[pynvml.nvmlDeviceGetUUID(handle)] = pids
    return servers


def device_faults(cards: Sequence[Found], slots: Sequence[Found]) -> list[str]:
    """Returns a sentence for each card that the agent sees otherwise than it should."""
    waiting = {slot["uuid"]: slot["waiting"] for slot in slots}
    faults = []
    for card in cards:
        if counted := set(card["mps_servers"]) & set(card["computing"]):
            pids = ", ".join(map(str, sorted(counted)))
            faults.append(f"GPU {card['index']}: the MPS server ({pids}) counts as foreign work.")
        if card["is_divided_by_mig"] and waiting.get(card["uuid"], "no slot") is None:
            faults.append(f"GPU {card['index']} is divided by MIG, and its slot takes runs.")
    return faults


def gpu_tests(bench: Bench) -> Found:
    """Counts how the tests marked gpu ended, as far as they came in the time."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    limit = max(1.0, bench.limit_seconds - STOP_SECONDS)
    code: int | None = None
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        out.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
    ended = {word: [line for line in lines if f" {word} " in line] for word in ENDINGS}
    return {
        "exit_code": code,
        "timed_out": code is None,
        **{word.lower(): len(each) for word, each in ended.items()},
        "bad": [line.split(" ")[0] for word in ("FAILED", "ERROR") for line in ended[word]],
        "last_line": lines[-1] if lines else None,
    }


CHECKS: Mapping[str, Callable[[Bench], Found]] = {
    "recomputed": recomputed,
    "pinned": pinned,
    "compile": compilation,
    "devices": devices,
    "tests": gpu_tests,
}
PARTS = (*WORKLOADS, *CHECKS)
# Each of them at most; the tests take what is left.
MOST_SECONDS = dict.fromkeys(PARTS, 60.0) | {"compile": 100.0, "tests": BUDGET_SECONDS}
QUICK_PARTS = ("weather-gru", "molecule-pretrain", "recomputed", "pinned", "devices")


def measure(part: str, bench: Bench) -> Found:
    """Runs one part in this process and returns its figures."""
    return CHECKS[part](bench) if part in CHECKS else workload(part, bench)


def in_a_process(part: str, bench: Bench, limit_seconds: float) -> Found:
    """Returns the figures of the part, or `error`: the reason why it has none."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--one", part, "--device", bench.device]
    command += ["--limit", str(limit_seconds)]
    settings = {} if os.environ.keys() & set(OWNERS_MEMORY) else OF_TRAINERS
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, *(["--quick"] if bench.quick else [])],
            cwd=ROOT,
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            found = {"error": f"It was ended after {limit_seconds:.0f} s, its limit."}
        else:
            errors.seek(0)
            found = _found(process.returncode, told, errors.read())
            with suppress(ProcessLookupError):  # what it started may still hold the GPU
                os.killpg(process.pid, signal.SIGKILL)
    return found | {"seconds": round(time.monotonic() - began, 1)}


def _found(code: int, told: bytes, errors: bytes) -> Found:
    if code == 0:
        found: Found = json.loads(told.splitlines()[-1])
        return found
    last = errors.decode(errors="replace").strip().splitlines()[-8:]
    return {"error": "\n".join([f"It ended with exit code {code}.", *last])}


def measure_all(parts: Sequence[str], bench: Bench, out: Path, budget_seconds: float) -> int:
    """Measure the parts while there is time, and write what there is after each; the exit code is 1
    if one failed or was left out.
    """
    until = time.monotonic() + budget_seconds
    report: Found = {
        "environment": environment({}) | _device(bench),
        "quick": bench.quick,
        "budget_seconds": budget_seconds,
        "parts": {},
        "left_out": list(parts),
    }
    _write(report, out)
    for part in parts:
        remaining = until - time.monotonic()
        if remaining < LEAST_SECONDS:
            print(f"The time is up. Left out: {', '.join(report['left_out'])}")
            break
        found = in_a_process(part, bench, min(MOST_SECONDS[part], remaining))
        report["parts"][part] = found
        report["left_out"].remove(part)
        _write(report, out)
        print(f"{part}: {found.get('error') or json.dumps(found)}", flush=True)
    failed = [
        one for one in report["parts"].values() if "error" in one or one.get("exit_code", 0) != 0
    ]
    print(f"Written to {out}.")
    return int(bool(failed or report["left_out"]))


def _write(report: Found, out: Path) -> None:
    with whole_file(out) as file:
        file.write_text(json.dumps(report, indent=1) + "\n")


def _device(bench: Bench) -> Found:
    """The GPU and the libraries on it."""
    if bench.device != "cuda":
        return {"device": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "device_memory_bytes": properties.total_memory,
        "capability": [properties.major, properties.minor],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK_PARTS)}")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), metavar="PATH")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--one", choices=PARTS, help="measure one part in this process")
    parser.add_argument("--limit", type=float, default=BUDGET_SECONDS, help="of that part, seconds")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error(NO_CUDA)
    bench = Bench(asked.device, asked.quick, asked.limit)
    if asked.one:
        print(json.dumps(measure(asked.one, bench)))
        return 0
    parts = asked.parts or (QUICK_PARTS if asked.quick else PARTS)
    return measure_all(parts, bench, asked.json, asked.budget)


if __name__ == "__main__":
    sys.exit(main())
