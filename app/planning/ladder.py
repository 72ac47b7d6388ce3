"""The out-of-memory ladder: what the next attempt of a run makes smaller, cheapest first.

Pure arithmetic. The spec stays as it is: a rung only bounds what an attempt takes of memory, so
which samples are in which step, how many steps there are and the schedule are those of the spec.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from app.planning.residency import LEAST_BATCHES_A_CHUNK, MIB, SLOTS, DataMemory, in_gib
from app.spec.data import ChunkedLoader

# Where nobody has said how much was lacking, as of a process that the kernel has killed: a rung
# that gives back less than this would be lost in what the libraries take for themselves.
UNKNOWN_LACK_BYTES = 8 * MIB
# Copies to a GPU in smaller pieces than this would take longer than the copying.
LEAST_STAGING_BYTES = 2 * MIB
STAGING_STEP = 4


@dataclass(frozen=True)
class Use:
    """What of an attempt's memory the ladder can make smaller, as the attempt itself tells it."""

    device: Literal["cpu", "cuda"]
    residency: Literal["resident", "stream", "batches"]
    data_bytes: int
    """Of data on the device: all of it, or the slots of all parts; 0 where batches come singly."""
    sample_bytes: int
    """Of a sample on the device, and of its place in the order."""
    parts: int
    """Of the data: training, and those held out."""
    batch: int
    """Samples of training that are computed at once."""
    evaluation_batch: int
    """The same of an evaluation; 0 without one."""
    staging_bytes: int
    """Of one of the page-locked pieces through which data goes to a GPU; 0 on a CPU."""
    workers: int = 0
    """Processes of the PyTorch loader, for each part."""
    prefetch_factor: int = 0
    """Batches that each of them is ahead."""
    process_bytes: int = 0
    """What each of them takes beside."""
    filling_bytes: int = 0
    """What a sample takes more in a batch, where it is filled up to the longest."""
    whole_batches: bool = False
    """Whether each place of a training batch goes on where the one before it ended."""
    recomputable: bool = False
    """Whether the model has blocks whose activations are kept, and could be computed anew."""

    @property
    def batch_sample_bytes(self) -> int:
        """Of a sample in a batch."""
        return self.sample_bytes + self.filling_bytes

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Whatever else is said there; KeyError where something is missing that has no default."""
        said = [
            field for field in fields(cls) if field.default is MISSING or field.name in document
        ]
        return cls(**{field.name: document[field.name] for field in said})


@dataclass(frozen=True)
class RanOut:
    """Which memory ran out, in which phase, and what was asked for; None: nobody knows."""

    where: Literal["device", "host"]
    phase: str
    wanted_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def lacking_bytes(self) -> int:
        """What has to be given back at least. Where as much was free and still could not be had,
        all that was wanted."""
        if not self.wanted_bytes:
            return UNKNOWN_LACK_BYTES
        if self.free_bytes is None or self.free_bytes >= self.wanted_bytes:
            return self.wanted_bytes
        return self.wanted_bytes - self.free_bytes


@dataclass(frozen=True)
class Rung:
    """The most that an attempt takes; None: as the spec has it. `number` 0 is the spec itself."""

    number: int = 0
    data_bytes: int | None = None
    batch: int | None = None
    evaluation_batch: int | None = None
    staging_bytes: int | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    activation_checkpointing: bool = False
    """Also where the spec has it not."""
    changed: tuple[str, ...] = ()
    """What each rung down to this one has made smaller, in a few words."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> Self:
        """None: the spec itself."""
        if document is None:
            return cls()
        return cls(**{**document, "changed": tuple(document["changed"])})

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "changed": list(self.changed)}

    def of_data(
        self, loader: ChunkedLoader, memory: DataMemory
    ) -> tuple[ChunkedLoader, DataMemory]:
        """How the data is kept on this rung: in chunks, whose slots together keep to the bound."""
        if self.data_bytes is None:
            return loader, memory
        streamed = loader.model_copy(update={"residency": "stream", "chunk_size": "100%"})
        most = min(memory.limit_bytes, self.data_bytes)
        return streamed, DataMemory(most, most)


NO_RUNG = Rung()


@dataclass(frozen=True)
class Step:
    """The next rung, and a sentence: what is changed by it and what stays."""

    rung: Rung
    sentence: str


def next_step(rung: Rung, use: Use, ran_out: RanOut) -> Step | None:
    """What the attempt after one on `rung` does; None where nothing is left that could help.

    Each step makes something smaller, so the ladder ends. First less data on the device, or fewer
    loader processes on the host, which changes no result; where that cannot give back what was
    lacking, smaller batches, and at last activations that are computed anew.
    """
    if ran_out.where == "host" and (step := _smaller_pool(rung, use, ran_out)) is not None:
        return step
    if ran_out.where == "host" and use.device == "cuda":
        return _smaller_staging(rung, use, ran_out)
    return (
        _less_data(rung, use, ran_out)
        or _smaller_batch(rung, use, ran_out)
        or _fewer_activations(rung, use, ran_out)
    )


def _less_data(rung: Rung, use: Use, ran_out: RanOut) -> Step | None:
    """Half at least: chunks of 1 GiB are read as fast as larger ones, and each rung is a start."""
    lacking = ran_out.lacking_bytes
    samples = LEAST_BATCHES_A_CHUNK * use.batch * SLOTS * use.parts
    most = min(use.data_bytes // 2, use.data_bytes - lacking)
    most = max(most, samples * use.sample_bytes)
    if use.data_bytes - most < lacking:
        return None
    told = f"at most {in_gib(most)} of data at once"
    before = "all of it" if use.residency == "resident" else in_gib(use.data_bytes)
    return _step(
        replace(rung, data_bytes=most),
        told,
        f"{told}, read in chunks, instead of {before}; every result stays the same",
    )


def _smaller_pool(rung: Rung, use: Use, ran_out: RanOut) -> Step | None:
    """Of the PyTorch loader: batches ahead first, then processes, half of them and half of these,
    down to none. Only the training's are counted: those of other parts are not always there.
    """
    lacking, batch_bytes = ran_out.lacking_bytes, use.batch * use.batch_sample_bytes
    if not use.workers or ran_out.phase == "building":  # when none is there yet
        return None
    if use.workers * (use.prefetch_factor - 1) * batch_bytes >= lacking:
        told = f"loader processes 1 batch ahead, not {use.prefetch_factor}"
        return _step(replace(rung, prefetch_factor=1), told, f"{told}; every result stays the same")
    each = use.process_bytes + use.prefetch_factor * batch_bytes
    halves = (use.workers >> power for power in range(1, use.workers.bit_length() + 1))
    left = next((count for count in halves if (use.workers - count) * each >= lacking), None)
    if left is None:
        return None
    told = f"{left} loader process{'es' if left > 1 else ''} for each part"
    if not left:
        told = "no loader processes"
    return _step(
        replace(rung, workers=left),
        told,
        f"{told} instead of {use.workers}; every result stays the same",
    )


def _smaller_batch(rung: Rung, use: Use, ran_out: RanOut) -> Step | None:
    """Half of the samples that are computed at once, of what ran out alone."""
    evaluates = ran_out.phase in ("evaluating", "testing")
    if use.whole_batches and not evaluates:
        return None
    now = use.evaluation_batch if evaluates else use.batch
    half = -(-now // 2)
    # Before the first step a batch takes no more than its samples.
    given_back = (now - half) * use.batch_sample_bytes
    if now < 2 or (ran_out.phase == "building" and given_back < ran_out.lacking_bytes):
        return None
    if evaluates:
        told = f"evaluation batches of {half:,}"
        return _step(
            replace(rung, evaluation_batch=half),
            told,
            f"{told} instead of {now:,}; the training stays the same, scores but for rounding",
        )
    evaluated = min(half, use.evaluation_batch) or None
    told = f"micro-batches of {half:,}"
    return _step(
        replace(rung, batch=half, evaluation_batch=evaluated),
        told,
        f"{told} instead of {now:,}, and more of them a step; each step's samples, the number of "
        "steps and the schedule stay the same, results but for rounding and random draws",
    )


def _fewer_activations(rung: Rung, use: Use, ran_out: RanOut) -> Step | None:
    """Where a training step ran out and no smaller batch is left: what blocks keep for the
    gradients is computed anew.
    """
    if not use.recomputable or ran_out.phase in ("building", "evaluating", "testing"):
        return None
    told = "activation checkpointing"
    return _step(
        replace(rung, activation_checkpointing=True),
        told,
        f"{told}: the inputs of the model's blocks are kept, and all else is computed anew for the "
        "gradients, about a third more work; every result stays the same",
    )


def _smaller_staging(rung: Rung, use: Use, ran_out: RanOut) -> Step | None:
    """The host of a run on a GPU: the pieces through which its data goes there."""
    smaller = max(LEAST_STAGING_BYTES, use.staging_bytes // STAGING_STEP, use.sample_bytes)
    # Data that stays on the GPU is through once it is there; what streams has pieces for each part.
    is_resident = use.residency == "resident"
    pieces = 2 * (1 if is_resident else use.parts)
    held = ran_out.phase == "building" or not is_resident
    if not held or (use.staging_bytes - smaller) * pieces < ran_out.lacking_bytes:
        return None
    told = f"page-locked pieces of {in_gib(smaller)}"
    return _step(
        replace(rung, staging_bytes=smaller),
        told,
        f"{told} instead of {in_gib(use.staging_bytes)} on the way to the GPU; every result stays "
        "the same",
    )


def _step(rung: Rung, told: str, sentence: str) -> Step:
    number = rung.number + 1
    return Step(
        replace(rung, number=number, changed=(*rung.changed, told)),
        f"Rung {number} of the memory ladder: {sentence}.",
    )
