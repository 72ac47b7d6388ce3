"""What the rules know of the world: datasets, devices, the host. Unknown is None, never a guess."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

DTYPE_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class FieldFacts:
    """One named array; `shape` is that of a single sample."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return prod(self.shape) * DTYPE_BYTES.get(self.dtype, 8)


@dataclass(frozen=True)
class DatasetFacts:
    name: str
    state: Literal["inspecting", "ready", "invalid"]
    samples: int | None = None
    fields: Mapping[str, FieldFacts] = field(default_factory=dict)
    size_bytes: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceFacts:
    """A device of a registered worker."""

    kind: Literal["cpu", "cuda"]
    name: str
    total_memory_bytes: int | None = None
    free_memory_bytes: int | None = None
    bf16: bool | None = None


@dataclass(frozen=True)
class Facts:
    """`devices` of all workers alive at submission, or of one slot at claim; empty: no worker."""

    datasets: Mapping[str, DatasetFacts] = field(default_factory=dict)
    devices: tuple[DeviceFacts, ...] = ()
    host_memory_bytes: int | None = None
    cores: int | None = None

    def best_device(self, wanted: str) -> DeviceFacts | None:
        """The device a run would get: a GPU before the CPU, the one with most memory first."""
        fitting = [d for d in self.devices if wanted in ("auto", d.kind)]
        return max(
            fitting, key=lambda d: (d.kind == "cuda", d.total_memory_bytes or 0), default=None
        )
