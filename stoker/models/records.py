"""Everything else the API shows: events, logs, checkpoints, datasets, workers, the catalogue."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from stoker.models.base import Answer, Body, DatasetName, Page, Time

Document = dict[str, Any]


# Of stoker.events.KINDS those that are kept, and so can be asked for.
EventKind = Literal[
    "state", "issue", "phase", "applied", "restored", "rollback", "epoch", "checkpoint", "warning",
    "code_changed", "retry",
]  # fmt: skip


class Event(Answer):
    """Something that happened to a run."""

    seq: int
    """Number within the run, from 1, without gaps."""
    t: Time
    attempt: int | None
    kind: str
    """What happened; docs/reference/events.md lists the kinds and their data."""
    data: Document


class EventPage(Answer):
    data: list[Event]
    next_cursor: str | None
    """Give it as `after`; null when there was nothing more."""
    last_seq: int
    """Number of the last event in this answer: the next `after`, also when it is all for now."""


class LogPiece(Answer):
    """A piece of an attempt's log; the first 256 KiB and the last 4 MiB are kept."""

    attempt: int
    text: str
    next_offset: int
    """Bytes up to here: the next `after`."""
    dropped_bytes: int
    """Bytes between the given offset and this text that were not kept."""


Point = Annotated[list[int | float | None], Field(min_length=3, max_length=3)]


class Series(Answer):
    series: dict[str, list[Point]]
    """By name: points of (step, unix seconds, value); a value that is not finite is null."""


class Attempt(Answer):
    """One execution of a run."""

    run_id: int
    number: int
    worker: str | None
    state: str
    """running, or how it ended."""
    reason: str | None
    message: str | None
    devices: list[str]
    started_at: Time
    finished_at: Time | None
    exit_code: int | None
    resumed_from_step: int | None
    environment: Document | None
    applied: Document | None


class Checkpoint(Answer):
    id: int
    run_id: int
    attempt: int
    step: int
    epoch: int | None
    """Null for a script: its epochs are not known."""
    path: str
    """Folder, relative to the artifact root."""
    bytes: int
    metrics: Document
    is_best: bool
    is_latest: bool
    pinned: bool
    """A pinned checkpoint is never removed by retention."""
    state: Literal["saved", "damaged", "removing"]
    """A damaged one is listed, and can be deleted; it is not served and not restored from."""
    damage: str | None
    """Why a damaged one cannot be used."""
    created_at: Time
    links: dict[str, str]


class DatasetBody(Body):
    name: DatasetName = Field(description="Name that specs will use.", examples=["weather"])
    path: str = Field(
        min_length=1,
        max_length=1000,
        description="The file, or the folder of Arrow files, relative to DATA_ROOT.",
        examples=["weather.h5"],
    )


class Lengths(Answer):
    """Of the samples of a ragged array, or of the nodes of graphs."""

    min: int
    mean: float
    max: int
    std: float | None = None
    """Standard deviation; null where an earlier version looked into the file."""


class Edges(Answer):
    """Of the graphs of a packed array: how many edges they have, and what each is."""

    min: int
    mean: float
    max: int
    dtype: str
    """Of the numbers of the nodes that it connects."""
    shape: list[int] | None
    """Of what is said of an edge; null: nothing is."""
    values_dtype: str | None
    std: float | None = None
    """Standard deviation of how many there are; null where an earlier version looked into the file.
    """


class FieldParts(Answer):
    """How many samples a field puts into each part: those that have 0, 1 and 2."""

    training: int
    validation: int
    test: int
    changes: list[int] | None
    """Samples of another part than the one before; null: they are more than 1,000."""


class NotAPart(Answer):
    """The first sample whose value stands for no part."""

    sample: int
    value: int


class Neighbours(Answer):
    """The likeness of rows that lie close together in an array; the lists have one length."""

    distances: list[int]
    """1, 2, 4, … rows."""
    correlations: list[float]
    """The correlation of two rows so far apart."""
    shares: list[float]
    """The variance of the means of blocks of so many rows, over that of one row; 1 / distance for
    independent rows. Files and segments that differ show in long blocks.
    """


class LabelClass(Answer):
    """One class of an array: its samples, and the stretches of the file that lack it."""

    label: int
    samples: int
    absent: list[tuple[int, int]]
    """Stretches of the file without the class, [first sample, end), if they have at least a
    hundredth of all samples."""


class DatasetField(Answer):
    """One array of a dataset, as its inspection saw it. Null is what was not looked at: by an
    earlier version, or because one row alone was too large.
    """

    shape: list[int]
    """Of one sample; of one of its values or nodes where samples have `lengths`."""
    dtype: str
    lengths: Lengths | None = None
    """Of a ragged array, whose samples differ in length: how many values they have; of a packed
    one, whose samples are graphs: how many nodes. Null: all samples have one shape.
    """
    edges: Edges | None = None
    """Of a packed array; null of all others."""
    series_steps: int | None = None
    """Of the series that is kept in place of the windows that slide over it; null: each sample is
    stored by itself.
    """
    horizons: list[int] | None = None
    """Of targets whose file says it: how many steps ahead each reaches."""
    storage: Literal["contiguous", "chunked", "compact", "record_batches"] | None = None
    """`record_batches`: a column of Arrow files; the others are layouts of HDF5."""
    chunks: list[int] | None = None
    """Shape of a chunk, the axis of samples first, or of the largest record batch where they are
    packed; null unless chunked or packed.
    """
    compression: str | None = None
    stored_bytes: int | None = None
    sampled_rows: int | None = None
    """Rows from all over the file, the first and the last among them, that these are of:"""
    nonfinite_count: int | None = None
    """NaN and infinite values."""
    mean: float | None = None
    """Of the finite values."""
    std: float | None = None
    """Standard deviation of the finite values."""
    sorted: bool | None = None
    """Whether the rows never fall, or never rise, along the file; by their mean where they have
    many values.
    """
    parts: FieldParts | None = None
    """Of one whole number a sample that is 0, 1 or 2 throughout, as `data.split.method: field`
    wants it; null: of others, or to look at all samples took too long.
    """
    not_a_part: NotAPart | None = None
    """Why one whole number a sample cannot split the samples; null: it can, or is no such field."""
    class_names: list[str] | None = None
    """The names of the classes, in the order of their numbers; null if the file names none."""
    neighbours: Neighbours | None = None
    """The likeness of its neighbours; null also where no value varies, and for ragged arrays."""
    classes: list[LabelClass] | None = None
    """The classes of an array with at most 64 whole numbers from 0; null if it has others, or if
    reading all samples took too long.
    """


class DatasetRoles(Answer):
    """The arrays that a spec reads where it names none, as the file says."""

    inputs: list[str]
    targets: list[str]


class DatasetLayout(Answer):
    """What the arrays of a dataset are to one another, and where its file lies."""

    kind: Literal["arrays", "overlapping_windows"]
    window_steps: dict[str, int] | None = None
    """Arrays whose rows are windows of one series, and by how many steps each row is moved on from
    the one before; null: an earlier version looked, and for one step alone.
    """
    overlap_ratios: dict[str, float] = Field(default_factory=dict)
    """Of these: the share of the sampled rows that are."""
    breaks: dict[str, list[int] | None] = Field(default_factory=dict)
    """Of these: the rows at which another series begins, which share no step with the row before;
    null: they are too many, or to look at all rows took too long.
    """
    groups: dict[str, list[int]] = Field(default_factory=dict)
    """Fields that `data.split.method: groups` can go by, text as well: samples in each hundredth of
    the groups, by the hash of their names.
    """
    group_changes: dict[str, list[tuple[int, int]] | None] = Field(default_factory=dict)
    """Of these: each sample at which another hundredth begins, and which; null: they are too many.
    """
    network: bool | None = None
    """Whether the file is on network storage; null: its file system is not known."""
    roles: DatasetRoles | None = None
    """Which arrays are inputs and targets; null: the file does not say."""


class Dataset(Answer):
    id: int
    name: str
    path: str
    """Relative to DATA_ROOT."""
    state: Literal["inspecting", "ready", "invalid"]
    fields: dict[str, DatasetField] | None
    """The arrays that can be inputs or targets, by name."""
    samples: int | None
    layout: DatasetLayout | None
    size_bytes: int | None
    fingerprint: Document | None
    problems: list[Any]
    read_probe: Document | None
    """How fast it was read."""
    message: str | None
    created_at: Time
    updated_at: Time


class Worker(Answer):
    """An agent process and its slots."""

    id: int
    name: str
    host: str
    pid: int
    version: str
    state: Literal["alive", "draining", "gone", "lost"]
    slots: list[Document]
    """`{name, device, run_id, waiting}`: what each slot does, or why it waits."""
    devices: list[Document]
    facts: Document
    started_at: Time
    seen_at: Time


class Recipe(Answer):
    kind: str
    description: str
    version: str
    package: str = Field(description="The installed package that it comes from.")
    parameters: Document = Field(description="JSON Schema of the spec's `recipe` block.")
    metrics: dict[str, Literal["min", "max"] | None] | None = Field(
        description="With default parameters, and which is better, or null where the metric has a "
        "nominal value; the first is evaluated unless others are asked for. Null where parameters "
        "have no default."
    )
    loss_terms: list[str] | None = Field(description="What `loss_weights` weighs; as for metrics.")
    parameter_groups: list[str] | None = Field(
        description="Parts that can have a learning rate of their own; as for metrics."
    )


class Preset(Answer):
    name: str
    description: str
    match: Document | None
    """Devices that `preset: auto` gives it to; null: never."""
    spec: Document
    """The layer of defaults."""
    named: Document
    """A layer on top of it, for requests that name the preset."""
    source: Literal["packaged", "user"]


class BrokenPreset(Answer):
    """A preset file that could not be used."""

    name: str
    message: str
    """Which file it is, and what is wrong with it."""


class PresetPage(Page[Preset]):
    model_config = ConfigDict(use_attribute_docstrings=True)

    broken: list[BrokenPreset]
    """Specs cannot name these until their files are mended."""


class Version(Answer):
    version: str
    python: str
    database_id: str | None = None
    """Names the service's database; null while the database is away. `stoker run` compares it
    with the database of the worker on its machine."""


class Health(Answer):
    status: Literal["ok"]


class Readiness(Answer):
    status: Literal["ready"]
    checks: dict[str, str] | None
    """database, migrations, workers, artifacts: each `ok`; null without a token."""
    workers_alive: int | None
