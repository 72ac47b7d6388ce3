"""What the rules know of the world: datasets, devices, hosts, earlier runs. Unknown is None."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any, Literal, TypeVar

from app.guard.presets.catalog import Match
from app.planning.arithmetic import PartSizes
from app.planning.imports import IMPORTS, Build, Imports
from app.planning.pace import Pace
from app.planning.packing import RowSpread, largest_std
from app.planning.profile import Profile, ProfileKey
from app.planning.shuffle import Neighbours
from app.spec.recipe import Array, Roles
from app.spec.run import RunSpec

DTYPE_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
LENGTH_BYTES = 8  # of how long a sample of a ragged array is, or of where it begins


Fact = TypeVar("Fact")


class UnknownFact(Exception):
    """A rule cannot judge, for nobody has said this; it is reported, never guessed."""


def known(value: Fact | None, what: str) -> Fact:
    """The value; UnknownFact names `what` is missing."""
    if value is None:
        raise UnknownFact(what)
    return value


@dataclass(frozen=True)
class LengthFacts:
    """How many values the samples of a ragged array have; the longest is 1 at least."""

    shortest: int
    mean: float
    longest: int
    std: float | None = None
    """None: an earlier version looked into the file."""

    @property
    def spread(self) -> RowSpread:
        """With the most that the deviation can be, where it is not known."""
        std = largest_std(self.shortest, self.mean, self.longest) if self.std is None else self.std
        return RowSpread(self.mean, std, self.longest)


@dataclass(frozen=True)
class EdgeFacts:
    """How many edges the graphs of a packed array have; `shape` and `values_dtype` are of what is
    said of one, None: nothing. `dtype`: of the numbers of the nodes that it connects.
    """

    mean: float
    longest: int
    dtype: str
    shape: tuple[int, ...] | None = None
    values_dtype: str | None = None
    std: float | None = None
    """Of how many there are; None: an earlier version looked into the file."""

    @property
    def spread(self) -> RowSpread:
        """With the most that the deviation can be, where it is not known."""
        return LengthFacts(0, self.mean, self.longest, self.std).spread


@dataclass(frozen=True)
class PartFacts:
    """What a field says of the parts that samples belong to."""

    sizes: PartSizes
    changes: Collection[int] | None = None
    """Samples of another part than the one before; None: they are too many to be told."""


@dataclass(frozen=True)
class ClassFacts:
    """One class of an array: its samples, and the stretches of the file that lack it."""

    label: int
    samples: int
    absent: Sequence[tuple[int, int]] = ()
    """Stretches without the class, [first sample, end); short ones are not listed."""

    def is_absent_from(self, rows: range) -> bool:
        """True if these samples are known to have none of the class."""
        return any(begin <= rows.start and rows.stop <= end for begin, end in self.absent)


@dataclass(frozen=True)
class FieldFacts:
    """One named array; `shape` is that of a single sample in a batch. Values are those of sampled
    rows.
    """

    shape: tuple[int, ...]
    dtype: str
    storage: Literal["contiguous", "chunked", "compact", "record_batches"] | None = None
    chunk_rows: int | None = None
    """Of a chunk of samples, or of the largest record batch; None where a series is stored
    in place of its windows."""
    compression: str | None = None
    nonfinite: int | None = None
    mean: float | None = None
    std: float | None = None
    sorted: bool | None = None
    """Whether the sampled rows never fall, or never rise, from the first of the file to its last;
    false where all are the same."""
    series_steps: int | None = None
    """Of the series that is stored in place of the windows; None: each sample is stored."""
    horizons: tuple[int, ...] | None = None
    """Of targets whose file says it: how many steps ahead each reaches."""
    target_feature: int | None = None
    """Index of the feature of these windows that is the target's own past; None if not known."""
    lengths: LengthFacts | None = None
    """Of a ragged array, whose `shape` begins with the longest: its samples are filled up to that
    in a batch, and lie one behind another until then. None: all samples have the shape."""
    edges: EdgeFacts | None = None
    """Of a packed array, whose samples are graphs: `shape` is that of a node, and `lengths` says
    how many there are. None: it is not packed."""
    parts: PartFacts | None = None
    """Of a field that says which part each sample belongs to; None: it does not, or is not known
    to."""
    not_a_part: tuple[int, int] | None = None
    """Of one whole number a sample: (sample, value) of the first that stands for no part."""
    named_classes: int | None = None
    """The number of classes that the file names, numbered from 0; None if it names none."""
    neighbours: Neighbours | None = None
    """The likeness of rows that lie close together; None: nobody has looked, or no value varies."""
    classes: Sequence[ClassFacts] | None = None
    """The classes of an array with few whole numbers; None if it has others or is not inspected."""
    not_inspected: Collection[str] = ()
    """The facts above that an earlier version's inspection did not look for."""

    @property
    def is_read_in_batches(self) -> bool:
        """Whether it lies in Arrow files, whose record batches are read whole."""
        return self.storage == "record_batches"

    @property
    def is_read_whole(self) -> bool:
        """Returns whether a row is read with all of its storage chunk or record batch."""
        in_chunks = self.storage == "chunked" and self.series_steps is None
        return in_chunks or self.is_read_in_batches

    @property
    def is_ragged(self) -> bool:
        """Whether its samples are filled up to the longest in a batch."""
        return self.lengths is not None and self.edges is None

    def arrays(self, name: str) -> dict[str, Array]:
        """What a batch has of it, as a recipe is told."""
        if self.edges is None or self.lengths is None:
            array = Array(
                self.shape,
                self.dtype,
                self.is_ragged,
                series_steps=self.series_steps,
                horizons=self.horizons,
                target_feature=self.target_feature,
                classes=self._num_classes,
                names_classes=self.named_classes is not None,
            )
            return {name: array}
        nodes, edges = self.lengths.mean, self.edges.mean
        found = {
            name: Array(self.shape, self.dtype, rows=nodes),
            f"{name}/counts": Array((2,), "int64"),
            f"{name}/samples": Array((), "int64", rows=nodes),
            f"{name}/edges": Array((2,), "int64", rows=edges),
        }
        if self.edges.shape is not None and self.edges.values_dtype is not None:
            values = Array(self.edges.shape, self.edges.values_dtype, rows=edges)
            found[f"{name}/edge_values"] = values
        return found

    def spreads(self, name: str) -> dict[str, RowSpread]:
        """Of a packed array: how the rows of each array that a batch has of it are spread."""
        if self.edges is None or self.lengths is None:
            return {}
        of_edges = {f"{name}/edges", f"{name}/edge_values"}
        return {
            part: self.edges.spread if part in of_edges else self.lengths.spread
            for part, array in self.arrays(name).items()
            if array.rows is not None
        }

    @property
    def _num_classes(self) -> int | None:
        """The number of classes that the values number from 0; None if it is not known."""
        if self.named_classes is not None or not self.classes:
            return self.named_classes
        return 1 + max(one.label for one in self.classes)

    @property
    def _of_graphs(self) -> dict[str, tuple[int, float, int]]:
        """What is stored of a packed array: bytes of one, the mean of a sample, and the most."""
        if self.edges is None or self.lengths is None:
            return {}
        nodes, edges = self.lengths, self.edges
        found = {
            "nodes": (_bytes(self.shape, self.dtype), nodes.mean, nodes.longest),
            "edges": (_bytes((2,), edges.dtype), edges.mean, edges.longest),
        }
        if edges.shape is not None and edges.values_dtype is not None:
            each = _bytes(edges.shape, edges.values_dtype)
            found["edge_values"] = (each, edges.mean, edges.longest)
        return found

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample in a batch; of a packed array on average."""
        if self.edges is not None:
            each_of = self.arrays("").values()
            return sum(
                ceil(_bytes(one.shape, one.dtype) * (1 if one.rows is None else one.rows))
                for one in each_of
            )
        each = prod(self.shape) * DTYPE_BYTES.get(self.dtype, 8)
        return each if self.lengths is None else each + LENGTH_BYTES

    @property
    def longest_bytes(self) -> int:
        """Values of the longest sample of a ragged array, or of the largest graph."""
        if self.edges is not None:
            return sum(each * longest for each, _, longest in self._of_graphs.values())
        return 0 if self.lengths is None else self.sample_bytes - LENGTH_BYTES

    @property
    def kept_bytes(self) -> int:
        """Bytes of one sample where it waits for its batch, on average."""
        if self.edges is not None:
            values = sum(ceil(each * mean) for each, mean, _ in self._of_graphs.values())
            return values + 4 * LENGTH_BYTES
        if self.lengths is None:
            return self.sample_bytes
        value = prod(self.shape[1:]) * DTYPE_BYTES.get(self.dtype, 8)
        return ceil(self.lengths.mean * value) + 2 * LENGTH_BYTES

    def saved_bytes(self, samples: int, parts: int) -> int:
        """Less of so many samples in so many parts on a device, where windows stay a series."""
        if self.series_steps is None:
            return 0
        steps = self.series_steps + (parts - 1) * self.shape[0]
        return samples * (self.sample_bytes - 8) - steps * self.sample_bytes // self.shape[0]


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * DTYPE_BYTES.get(dtype, 8)


@dataclass(frozen=True)
class DatasetFacts:
    name: str
    state: Literal["inspecting", "ready", "invalid"]
    samples: int | None = None
    fields: Mapping[str, FieldFacts] = field(default_factory=dict)
    size_bytes: int | None = None
    window_steps: Mapping[str, int] | None = None
    """Fields whose rows are windows that slide over one series, and by how many steps."""
    breaks: Mapping[str, Collection[int] | None] = field(default_factory=dict)
    """Of these fields: the samples at which another series begins; None: not known."""
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of fields that can say which group a sample is of, text as well: samples by bucket of
    groups."""
    group_changes: Mapping[str, Sequence[tuple[int, int]] | None] = field(default_factory=dict)
    """Of these, from the first sample on: each at which another bucket begins, and which; None:
    they are too many. Not of a dataset that an earlier version inspected."""
    network: bool | None = None
    """Whether the file lies on network storage."""
    read_bytes_per_second: float | None = None
    """What the inspection read in file order; the page cache may have a part in it."""
    roles: Roles | None = None
    """Which arrays are inputs and targets; None: the file does not say."""
    problems: tuple[str, ...] = ()
    path: str | None = None
    """Of its file, within DATA_ROOT."""
    changed: tuple[str, ...] = ()
    """What of its file is seen to be other than at its inspection, where that can be looked at."""


def not_inspected(dataset: DatasetFacts) -> UnknownFact:
    """Says that an earlier version inspected the dataset, and how to have it inspected again."""
    return UnknownFact(
        f"what an inspection by this version finds in the dataset {dataset.name} (`stoker data "
        f"register {dataset.name} {dataset.path}` inspects it again)"
    )


@dataclass(frozen=True)
class HostFacts:
    """The machine of a device; bytes."""

    memory_bytes: int | None = None
    available_bytes: int | None = None
    cores: int | None = None
    slots: int | None = None
    """Runs that train there at once."""
    disk_free_bytes: int | None = None
    """Free below the artifact root."""
    missing_tools: Mapping[str, Sequence[str]] | None = None
    """By the kind of device, what it takes to compile for it and is not there."""
    torch_build: Build | None = None

    @property
    def imports(self) -> Imports:
        """What processes with PyTorch take there; UnknownFact."""
        return IMPORTS[known(self.torch_build, "which PyTorch the host has")]


UNKNOWN_HOST = HostFacts()


@dataclass(frozen=True)
class DeviceFacts:
    """A device of a registered worker."""

    kind: Literal["cpu", "cuda"]
    name: str
    total_memory_bytes: int | None = None
    free_memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    """CUDA compute capability."""
    host: HostFacts = UNKNOWN_HOST

    @property
    def memory_bytes(self) -> int | None:
        """Of the device itself; of its host where it is a CPU."""
        return self.total_memory_bytes if self.kind == "cuda" else self.host.memory_bytes

    @property
    def bf16(self) -> bool | None:
        """Whether it computes in bfloat16 itself; Ampere (8.0) was the first that does."""
        return None if self.capability is None else self.capability >= (8, 0)

    def computes_in(self, precision: str) -> bool | None:
        """Whether it computes so itself, as the trainer asks; None: its capability is not known."""
        if self.kind == "cpu":
            return precision not in ("tf32", "fp16-mixed")
        # TF32 came with Ampere, as bf16 did.
        return self.bf16 if precision in ("tf32", "bf16-mixed") else True

    def settled_precision(self, wanted: str) -> str:
        """`runtime.precision` with auto settled as the trainer settles it here; UnknownFact."""
        if wanted != "auto":
            return wanted
        if self.kind == "cpu":
            return "fp32"
        has_bf16 = known(self.bf16, f"the compute capability of {self.name}")
        return "bf16-mixed" if has_bf16 else "fp32"


@dataclass(frozen=True)
class Carried:
    """A checkpoint whose whole state a restart goes on with."""

    step: int
    """Optimizer steps done."""
    steps: int
    """Optimizer steps that its learning-rate schedule was made for."""
    succeeded: bool = False
    """Whether its run ended well: one that failed at its last step has its evaluation before it."""


@dataclass(frozen=True)
class ParentFacts:
    """The run that is restarted."""

    spec: RunSpec
    carried: Carried | None = None
    """None: nothing is saved yet, or the weights alone are taken."""
    gap_was_settled: bool = True
    """Whether the gap of its split was left to the guard."""


@dataclass(frozen=True)
class AncestorFacts:
    """A run that trained the weights which a run begins with."""

    run_id: int
    spec: RunSpec | None
    """None: its weights were imported, it was deleted, or this version cannot read its spec."""
    other_data: Collection[str] = ()
    """Its datasets that have another file by now than it trained on."""


@dataclass(frozen=True)
class SourceFacts:
    """What `init_from` names; `missing` says in a sentence why it is not there."""

    missing: str | None = None
    run_id: int | None = None
    recipe: str | None = None
    shape: Mapping[str, Any] | None = None
    """What gave its model the shape; None: it was not known then."""
    tensors: Sequence[str] | None = None
    """Names of the weights in the checkpoint that it would begin with; None: not known, as while
    nothing is saved."""
    is_needed: bool = True
    """Not where a restart goes on from its parent."""


@dataclass(frozen=True)
class Facts:
    """`devices` of all workers alive at submission, or of one slot at claim; empty: no worker."""

    datasets: Mapping[str, DatasetFacts] = field(default_factory=dict)
    devices: tuple[DeviceFacts, ...] = ()
    history: Pace | None = None
    history_looked_for: bool = False
    """Whether like runs were looked for, as at submission: then no history means that there were
    none. At claim nobody looks."""
    parent: ParentFacts | None = None
    source: SourceFacts | None = None
    """Of `init_from`; None: there is none, or nobody looked."""
    ancestors: Sequence[AncestorFacts] = ()
    """The runs that trained the weights which this run begins with, the last one first."""
    preset: Match | None = None
    """The devices that the run's preset was made for."""
    profiles: Mapping[ProfileKey, Profile] = field(default_factory=dict)
    """What runs like it were measured to take, on the devices that it could get."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Of names that no dataset has, the file in DATA_ROOT that is called so."""

    def best_device(self, wanted: str, precision: str = "auto") -> DeviceFacts | None:
        """The device a run would get: a GPU before the CPU, of GPUs those that compute as it asks
        before others, and then the one with most memory.
        """
        devices = self.devices
        if not devices:
            return None
        if wanted == "cpu":  # a worker with GPUs does not tell of the CPU beside them
            devices = tuple(DeviceFacts("cpu", "cpu", host=device.host) for device in devices)
        return max(
            (device for device in devices if wanted in ("auto", device.kind)),
            key=lambda device: (
                device.kind == "cuda",
                device.computes_in(precision) is not False,
                device.memory_bytes or 0,
            ),
            default=None,
        )
