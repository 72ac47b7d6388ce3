"""What the store takes and gives: frozen records. Times are unix seconds, sizes bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from app.lifecycle import Intent, Reason, ReasonPolicy, RunState
from app.planning.profile import Measured
from app.planning.requirements import NOTHING_KNOWN, Owner, Requirements, Waiting
from app.planning.rollback import Rollback
from app.spec.run import SPEC_VERSION

Document = dict[str, Any]
T = TypeVar("T")
CarryKind = Literal["full", "weights", "scratch"]
DatasetState = Literal["inspecting", "ready", "invalid"]
# By name: points of (step, unix seconds, value), in the order of steps; not finite is NaN.
MetricSeries = dict[str, list[tuple[int, float, float]]]


@dataclass(frozen=True)
class StoredPage(Generic[T]):
    """A piece of a list; `next_cursor` is None at the end."""

    data: list[T]
    next_cursor: str | None


@dataclass(frozen=True)
class NewRun:
    """A run that has passed the guard."""

    request: Document
    spec: Document
    provenance: Document
    issues: list[Document]
    name: str
    notes: str
    labels: dict[str, str]
    priority: int
    recipe: str
    mode: str
    dataset: str | None  # None: it reads none that is registered, as a script
    device: Literal["auto", "cpu", "cuda"]
    gpus: int
    max_retries: int
    memory: Document | None = None  # the memory plan; None where a fact for it was missing
    created_by: str | None = None  # name of the token; None where none was asked for
    requirements: Requirements = NOTHING_KNOWN
    spec_version: int = SPEC_VERSION
    recipe_version: str | None = None  # None: any will do
    shape: Document | None = None  # what gives the model its shape; None where it is not known
    owner: Owner | None = None
    code: Document | None = None  # of a script, as it was when it was submitted


@dataclass(frozen=True)
class Restart:
    """What a child takes from its parent: `carry` compares the specs, `from_` may be an id."""

    parent_id: int
    from_: Literal["latest", "best", "scratch"] | int
    carry: Document
    force: bool = False


@dataclass(frozen=True)
class Idempotency:
    """A client's key; within a scope, the same key and body mean the same run."""

    key: str
    body_hash: str
    scope: str


@dataclass(frozen=True)
class RunFilter:
    """`label` is `key` or `key=value`; `q` is looked for in name and notes. `statuses`: one of
    them; none: any. Times in unix seconds, from the first to before the second.
    """

    state: RunState | None = None
    statuses: tuple[str, ...] = ()
    recipe: str | None = None
    dataset: str | None = None
    label: str | None = None
    q: str | None = None
    parent_id: int | None = None
    created_after: float | None = None
    created_before: float | None = None
    created_by: str | None = None


@dataclass(frozen=True)
class RunRecord:
    """A run without its documents."""

    id: int
    name: str
    notes: str
    labels: dict[str, str]
    priority: int
    recipe: str
    mode: str
    dataset: str | None
    state: RunState
    intent: Intent
    reason: Reason | None
    message: str | None
    version: int
    parent_id: int | None
    child_ids: tuple[int, ...]
    attempt: int
    worker: str | None
    devices: list[str]
    environment: Document | None
    created_by: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    progress: Document | None
    result: Document | None
    diagnosis: Document | None
    retry_at: float | None
    retries_used: int
    losses: int
    waits_for: int | None
    init_from_run: int | None
    waiting: Waiting | None  # why a queued run is not taken
    carry: Document | None
    restart_from: str | None
    accepted_risks: list[str]
    argv: list[str] | None  # of a script, as much as LONGEST_ARGV characters hold


@dataclass(frozen=True)
class StoredDocuments:
    """The documents of a run; `applied` holds one per attempt, None before it is known.

    `memory` is the plan beside the peak that the newest attempt has told: see guard.memory.
    """

    request: Document
    spec: Document
    provenance: Document
    issues: list[Document]
    shape: Document | None
    code: Document | None
    applied: list[Document | None]
    memory: Document


class WatchMark(NamedTuple):
    """Differs from an earlier mark when there is something new to read about the run."""

    version: int
    last_event_seq: int
    log_bytes: int
    progress_at: float | None


@dataclass(frozen=True)
class AttemptRecord:
    """One execution of a run; `state` is running, or how it ended (`retried`: queued again)."""

    run_id: int
    number: int
    worker: str
    state: str
    reason: Reason | None
    message: str | None
    devices: list[str]
    started_at: float
    finished_at: float | None
    exit_code: int | None
    applied: Document | None
    environment: Document | None
    resumed_from_step: int | None
    log_read: int | None
    """Bytes of its log file that the store has; None if an earlier version wrote it."""
    events_read: int | None
    """The same of its file of events."""


@dataclass(frozen=True)
class EventRecord:
    run_id: int
    seq: int
    t: float
    attempt: int | None
    kind: str
    data: Document


@dataclass(frozen=True)
class LogChunk:
    """Text of one attempt's log; `dropped_bytes` before it were not kept."""

    text: str
    next_offset: int
    dropped_bytes: int


@dataclass(frozen=True)
class CheckpointRecord:
    """`path` is relative to ARTIFACT_ROOT; `pinned`: by a person, or because a child needs it."""

    id: int
    run_id: int
    attempt: int
    step: int
    epoch: int | None  # of a script nobody knows it
    path: str
    bytes: int
    metrics: Document
    is_best: bool
    is_latest: bool
    pinned: bool
    created_at: float
    state: Literal["saved", "damaged", "removing"]
    damage: str | None = None  # why it cannot be used


@dataclass(frozen=True)
class DamagedCheckpoint:
    """One that was read and is wrong, or is gone; `path` is relative to ARTIFACT_ROOT."""

    path: str
    why: str


@dataclass(frozen=True)
class NewEvent:
    kind: str
    t: float
    data: Document


@dataclass(frozen=True)
class MetricPoint:
    name: str
    step: int
    t: float
    value: float
    keep: bool = False  # however near it is to the point before


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint that is safe on disk; `path` is relative to ARTIFACT_ROOT."""

    step: int
    epoch: int
    path: str
    bytes: int
    metrics: Document
    created_at: float


@dataclass(frozen=True)
class Beat:
    """What an agent has learned since its last beat; None leaves what was said before.

    `number`: how many beats of the run were stored before it, so that a beat of which it is not
    known whether it was stored can be sent again; None: it is stored in any case.
    """

    number: int | None = None
    progress: Document | None = None
    events: Sequence[NewEvent] = ()
    metric_points: Sequence[MetricPoint] = ()
    log_text: str = ""
    checkpoints: Sequence[NewCheckpoint] = ()
    damaged_checkpoints: Sequence[DamagedCheckpoint] = ()
    removed_checkpoints: Sequence[str] = ()
    applied: Document | None = None
    environment: Document | None = None
    devices: list[str] | None = None
    resumed_from_step: int | None = None
    result: Document | None = None
    log_read: int | None = None
    """Bytes of the attempt's log file up to the end of `log_text`."""
    events_read: int | None = None
    """Bytes of its file of events up to the last of `events`."""


@dataclass(frozen=True)
class Unsent:
    """Output of an attempt that its agent did not send, because the agent was killed.

    It is read from the attempt's files later: the log from `log_from` to `log_to`, the events from
    `events_from` to `events_to`, in bytes.
    """

    attempt: int
    log_from: int
    log_to: int
    events_from: int
    events_to: int
    log_text: str
    events: Sequence[NewEvent]
    metric_points: Sequence[MetricPoint]

    @classmethod
    def from_json(cls, document: Document) -> "Unsent":
        events = [NewEvent(**one) for one in document["events"]]
        points = [MetricPoint(**one) for one in document["metric_points"]]
        return cls(**{**document, "events": events, "metric_points": points})


@dataclass(frozen=True)
class NextRung:
    """What later attempts use, as `sentence` says, since memory ran out (`ran_out`: how much)."""

    rung: Document
    ran_out: Document
    sentence: str


@dataclass(frozen=True)
class Finish:
    """The end of an attempt. `policy`: in place of the reason's own."""

    reason: Reason
    message: str
    exit_code: int | None = None
    final: Beat = field(default_factory=Beat)
    retry_delay_seconds: float = 0.0
    policy: ReasonPolicy | None = None
    next_rung: NextRung | None = None
    rollback: Rollback | None = None
    needs: Requirements = NOTHING_KNOWN
    """What the next attempt needs at least, as this one has found; the run's own needs rise."""
    measured: Measured | None = None  # what it took of memory, as far as it can be said
    untold: bool = False  # its folders may hold what no beat told, or were not looked at


@dataclass(frozen=True)
class Holder:
    """A lease and the process that holds it, as one read saw them."""

    token: str
    run_id: int
    beat: int
    worker_id: int
    host: str
    boot_id: str
    pid: int
    start_time: float
    beat_seconds: float | None


@dataclass(frozen=True)
class DatasetRecord:
    """A registered dataset; `path` is relative to DATA_ROOT."""

    id: int
    name: str
    path: str
    state: DatasetState
    fields: Document | None
    samples: int | None
    layout: Document | None
    size_bytes: int | None
    fingerprint: Document | None
    problems: list[Any]
    read_probe: Document | None
    message: str | None
    created_at: float
    updated_at: float


@dataclass(frozen=True)
class Inspection:
    """What was found in a dataset."""

    state: Literal["ready", "invalid"]
    fields: Document | None = None
    samples: int | None = None
    layout: Document | None = None
    size_bytes: int | None = None
    fingerprint: Document | None = None
    problems: Sequence[Any] = ()
    read_probe: Document | None = None
    message: str | None = None


@dataclass(frozen=True)
class RestorePoint:
    """A run that a restart may go on from, and what is carried from its checkpoints.

    `path` (relative to ARTIFACT_ROOT) names the only checkpoint meant, when one was asked for by
    its id or as the best; None means the newest, for which the disk is the truth.
    """

    run_id: int
    carry: Literal["full", "weights", "init"]
    path: str | None


@dataclass(frozen=True)
class Lease:
    """An agent's right to one attempt of a run, in `slots`: several GPUs, or one slot. `token` is
    its fence, `beats` its next number. `restore_points`: from the parent on, as long as those
    before them have saved nothing. `memory_rung`: of the attempts before that ran out of memory,
    the last one's `NextRung.rung`; `rollback`: of those whose loss was not finite, the last one's.
    """

    token: str
    run_id: int
    attempt: int
    spec: Document
    request: Document
    slots: tuple[str, ...]
    restore_points: tuple[RestorePoint, ...]
    max_retries: int
    beats: int
    memory_rung: Document | None
    rollback: Document | None
    host_bytes: int | None  # of the host's memory, which it needs in its slot; None: not known
    datasets: Mapping[str, DatasetRecord]  # all that it reads, by name; none of a script


@dataclass(frozen=True)
class TokenRecord:
    """A token of the API; its secret is known to its holder alone."""

    id: int
    name: str
    created_at: float
    revoked_at: float | None
