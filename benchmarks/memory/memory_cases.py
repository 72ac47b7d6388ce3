"""Fixed CPU specs whose plan of memory is held against what training them takes."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from app.guard.case import Case
from app.guard.facts import DatasetFacts, DeviceFacts, Facts, FieldFacts, HostFacts, LengthFacts
from app.guard.memory.measuring import measured
from app.guard.memory.memory_plan import probe_order
from app.lifecycle import Reason
from app.planning.imports import build_of
from app.planning.profile import Measured, Point, Profile, ProfileKey, points_of_probe
from app.spec.layers import Document, overlay
from app.spec.run import RunSpec
from app.store.telemetry.measured_memory import compared
from benchmarks import steps
from worker.agent.beat_report import BeatReport
from worker.agent.measured import taken_by
from worker.launch.local import memory_settings
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats.ragged_files import write_ragged

THREADS = 2
BUILD = build_of(torch.__version__)
Profiles = Mapping[ProfileKey, Profile]
IN_ONE_PIECE = FieldFacts((), "", "contiguous")
AVAILABLE_BYTES = 4 * 2**30  # for the plan; none of these specs comes near it


class CaseData(Protocol):
    """A dataset that is written where it is needed."""

    @property
    def name(self) -> str: ...

    def write(self, folder: Path) -> Path: ...

    def facts(self, path: Path) -> DatasetFacts: ...


@dataclass(frozen=True)
class Shape:
    """Of a dataset of samples (window, features) with 36 targets each."""

    samples: int
    window: int
    features: int
    dtype: str = "float32"
    stored: FieldFacts = IN_ONE_PIECE
    """How the inputs lie in the file."""

    @property
    def name(self) -> str:
        packed = self.stored.compression or "plain"
        return f"d{self.samples}x{self.window}x{self.features}-{self.dtype}-{packed}"

    def facts(self, path: Path) -> DatasetFacts:
        inputs = replace(self.stored, shape=(self.window, self.features), dtype=self.dtype)
        fields = {"features": inputs, "targets": FieldFacts((36,), "float32", "contiguous")}
        return DatasetFacts(
            self.name, "ready", self.samples, fields, size_bytes=path.stat().st_size
        )

    def write(self, folder: Path) -> Path:
        """The file, made once: all values the same but one in each feature."""
        path = folder / f"{self.name}.h5"
        if not path.exists():
            with h5py.File(path, "w") as file:
                shape = self.samples, self.window, self.features
                stored = self.stored
                chunks = (stored.chunk_rows, *shape[1:]) if stored.chunk_rows else None
                array = file.create_dataset(
                    "features", shape, self.dtype, chunks=chunks, compression=stored.compression
                )
                block = np.arange(self.window * self.features).reshape(shape[1:]) % 7
                rows = np.broadcast_to(block, (100, *shape[1:])).astype(self.dtype)
                for start in range(0, self.samples, 100):
                    array[start : start + 100] = rows[: self.samples - start]
                file["targets"] = np.ones((self.samples, 36), np.float32)
                file["targets"][0, 0] = 0.0
        return path


@dataclass(frozen=True)
class RaggedShape(Shape):
    """Of samples that differ in length: each tenth of `window` steps, the others of a fifth."""

    @property
    def name(self) -> str:
        return f"ragged-{super().name}"

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.where(np.arange(self.samples) % 10, self.window // 5, self.window)

    def facts(self, path: Path) -> DatasetFacts:
        facts, lengths = super().facts(path), self.lengths
        known = LengthFacts(int(lengths.min()), float(lengths.mean()), int(lengths.max()))
        inputs = replace(facts.fields["features"], lengths=known)
        return replace(facts, fields={**facts.fields, "features": inputs})

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.name}.h5"
        if not path.exists():
            block = np.arange(self.window * self.features).reshape(self.window, -1) % 7
            with h5py.File(path, "w") as file:
                write_ragged(file, "features", [block[:n].astype(self.dtype) for n in self.lengths])
                file["targets"] = np.ones((self.samples, 36), np.float32)
                file["targets"][0, 0] = 0.0
        return path


SMALL, WIDE, NARROW = Shape(1_000, 360, 16), Shape(9_000, 96, 128), Shape(20_000, 96, 16)
BYTES = Shape(20_000, 360, 16, "uint8")
# Chunks of 1.5 MiB, unpacked past HDF5 and by HDF5 alone.
GZIP = replace(NARROW, stored=FieldFacts((), "", "chunked", 256, "gzip"))
BY_HDF5 = replace(NARROW, stored=FieldFacts((), "", "chunked", 256, "szip"))
RAGGED = RaggedShape(20_000, 120, 96)  # 242 MiB of values, which filled up would be 879


@dataclass(frozen=True)
class MemoryCase:
    name: str
    data: CaseData
    recipe: dict[str, Any]
    """Of `sequence`, unless it has another kind."""
    batch: int
    more: dict[str, Any] = field(default_factory=dict)

    def spec(self) -> Document:
        """The spec as JSON: two steps with a checkpoint after each, of which the first is written
        during the second, and an evaluation."""
        base: Document = {
            "recipe": {"kind": "sequence", **self.recipe},
            "data": {
                "dataset": self.data.name,
                "loader": {"kind": "chunked"},
                "split": {"method": "chronological", "validation_fraction": 0.05},
            },
            "training": {"epochs": 1, "max_steps": 2, "batch_size": self.batch},
            "evaluation": {"every_steps": 2},
            "checkpoint": {"every_seconds": None, "every_steps": 1},
            "schedule": {"kind": "constant"},
            "runtime": {"precision": "fp32"},
        }
        return overlay(base, self.more)


def loader(**values: Any) -> dict[str, Any]:
    return {"data": {"loader": {"kind": "chunked", **values}}}


def by_torch(**values: Any) -> dict[str, Any]:
    """With steps enough for each slot of the loader to be in use once, and for the heap to have the
    holes that it gets.
    """
    return {
        "data": {"loader": {"kind": "dataloader", **values}},
        "training": {"max_steps": 60, "epochs": 10},
        "evaluation": {"every_steps": 12},
        "checkpoint": {"every_steps": 6},
    }


SGD = {"optimizer": {"kind": "sgd"}}
PLAIN_SGD = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
ADAM = {"optimizer": {"kind": "adam"}}
CASES = (
    MemoryCase("the defaults, small data", SMALL, {}, 128,
         {"training": {"max_steps": 40, "epochs": 10}, "evaluation": {"every_steps": 12}}),
    MemoryCase("LSTM, plain SGD, resident uint8", BYTES, {"hidden_size": 32}, 64, PLAIN_SGD),
    MemoryCase("LSTM, resident 420 MiB", WIDE, {"patch": 8}, 64, loader(residency="resident")),
    MemoryCase("PyTorch's loader, by the trainer", WIDE, {"patch": 8}, 256, by_torch()),
    MemoryCase("PyTorch's loader, 2 processes 4 ahead", WIDE, {"patch": 8}, 256,
               by_torch(num_workers=2, prefetch_factor=4, persistent_workers=True)),
    MemoryCase("LSTM, 48 MiB chunks", WIDE, {"patch": 8}, 64,
               loader(residency="stream", chunk_size="48MiB")),
    MemoryCase("LSTM, one chunk of all", NARROW, {}, 128,
               loader(residency="stream", chunk_size="1GiB")),
    MemoryCase("GRU, 16 MiB chunks, SGD", NARROW, {"encoder": "gru"}, 128,
               {**loader(residency="stream", chunk_size="16MiB"), **SGD}),
    MemoryCase("GRU, the same, szip", BY_HDF5, {"encoder": "gru"}, 128,
               {**loader(residency="stream", chunk_size="16MiB"), **SGD}),
    MemoryCase("GRU, the same, gzip", GZIP, {"encoder": "gru"}, 128,
               {**loader(residency="stream", chunk_size="16MiB"), **SGD}),
    MemoryCase("LSTM, ragged, resident 242 MiB", RAGGED, {"patch": 8}, 64,
               loader(residency="resident")),
    MemoryCase("LSTM, ragged, 48 MiB chunks", RAGGED, {"patch": 8}, 64,
               loader(residency="stream", chunk_size="48MiB")),
    MemoryCase("LSTM, ragged, PyTorch's loader", RAGGED, {"patch": 8}, 256,
               overlay(by_torch(), {"training": {"max_steps": 24}})),
    MemoryCase("LSTM of 3 layers, Adam", SMALL, {"hidden_size": 128, "num_layers": 3}, 128, ADAM),
    MemoryCase("LSTM, 25 million weights, AdamW", SMALL,
               {"hidden_size": 1152, "num_layers": 2, "patch": 120}, 16),
    MemoryCase("LSTM, 25 million weights, SGD", SMALL,
               {"hidden_size": 1152, "num_layers": 2, "patch": 120}, 16, SGD),
    MemoryCase("GRU, 19 million weights, AdamW", SMALL,
               {"encoder": "gru", "hidden_size": 1152, "num_layers": 2, "patch": 120}, 16),
    MemoryCase("LSTM, every step, batch 256", SMALL, {"hidden_size": 96, "patch": 1}, 256),
    MemoryCase("GRU, every step, batch 256", SMALL, {"encoder": "gru", "patch": 1}, 256),
    MemoryCase("GRU of 2 layers, batch 256", SMALL,
               {"encoder": "gru", "hidden_size": 96, "num_layers": 2, "patch": 2}, 256, SGD),
)  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A training of a spec: the plan that was made before, its peak, and what it says of others."""

    plan: dict[str, Any]
    peak: dict[str, Any]
    measured: Measured

    @property
    def compared(self) -> dict[str, Any]:
        """`{planned_bytes, measured_bytes, ratio}`; planned is None where nothing like it was."""
        return compared(self.plan, self.peak)


def train(case: MemoryCase, folder: Path, profiles: Profiles | None = None) -> Trained:
    """A spec, trained in a process of its own; planned by what others took."""
    path = case.data.write(folder)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        run_dir = Path(made)
        attempt = run_dir / "attempt-1"
        attempt.mkdir()
        document = {
            "run_id": 1,
            "attempt": 1,
            "spec": case.spec(),
            "datasets": {case.data.name: dataset_of(path)},
            "device": "cpu",
            "threads": THREADS,
            "run_dir": str(run_dir),
        }
        (attempt / "spec.json").write_text(json.dumps(document))
        command = [sys.executable, "-P", "-m", "worker.trainer", str(attempt)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=_as_worker()
        )
        if done.returncode != 0:
            raise RuntimeError(f"{case.name} was not trained: {done.stderr[-2_000:]}")
        report = BeatReport(run_dir, attempt)
        told = (attempt / "events.jsonl").read_text().splitlines()
        report.take([json.loads(line) for line in told])
    facts = facts_of(case, path)
    taken = taken_by(Reason.completed, report)
    found = measured(Case(spec_of(case), facts), taken) if taken else None
    if found is None or report.progress is None:
        raise RuntimeError(f"{case.name} did not tell what it took")
    return Trained(planned(case, path, profiles), report.progress["peak_memory"], found)


def profiles_of(*found: Measured, by_probe: bool = False) -> Profiles:
    """As the store gives them, the newest first."""
    points: dict[ProfileKey, list[Point]] = {}
    for one in reversed(found):
        known = (replace(p, run_id=None if by_probe else 1) for p in reversed(one.points))
        points.setdefault(one.key, []).extend(known)
    return {key: Profile(tuple(some)) for key, some in points.items()}


def dataset_of(path: Path) -> dict[str, Any]:
    """A dataset as spec.json has it."""
    return {"path": str(path), "fingerprint": fingerprint(path)}


def planned(case: MemoryCase, path: Path, profiles: Profiles | None = None) -> dict[str, Any]:
    """The plan as it is stored with a run."""
    facts = replace(facts_of(case, path), profiles=profiles or {})
    return Case(spec_of(case), facts).memory.as_json()


def spec_of(case: MemoryCase) -> RunSpec:
    return steps.spec_of(case.spec())


def facts_of(case: MemoryCase, path: Path) -> Facts:
    host = HostFacts(torch_build=BUILD, available_bytes=AVAILABLE_BYTES)
    return Facts({case.data.name: case.data.facts(path)}, (DeviceFacts("cpu", "cpu", host=host),))


def probed(case: MemoryCase, folder: Path) -> Measured:
    """One real step, as the child of an agent makes it."""
    spec, facts = spec_of(case), facts_of(case, case.data.write(folder))
    planned = Case(spec, facts)
    order = {**probe_order(planned.workload, planned.device), "threads": THREADS}
    command = [sys.executable, "-P", "-m", "worker.trainer.tools.probe"]
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True,
                          check=True, env=_as_worker())  # fmt: skip
    result, asked = {**json.loads(done.stdout), "device": "cpu"}, order["profile"]
    points = points_of_probe(result, asked["model_bytes"], asked["sample_bytes"])
    return Measured(ProfileKey(**asked["key"]), points)


def _as_worker() -> dict[str, str]:
    return {**os.environ, **memory_settings(platform.libc_ver()), "OMP_NUM_THREADS": str(THREADS)}
