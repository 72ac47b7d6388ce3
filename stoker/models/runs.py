"""Runs as the API shows them, and the bodies that create and change them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from stoker.models.base import (
    LONGEST_FILTER,
    Answer,
    Body,
    Id,
    Labels,
    Priority,
    RunName,
    Text,
    Time,
)
from stoker.models.issue import Issue
from stoker.states import Intent, Reason, RunState

Status = Literal[
    "queued", "waiting_for_parent", "waiting_for_memory", "retrying", "starting", "running",
    "pausing", "stopping", "killing", "paused", "succeeded", "failed", "stopped",
]  # fmt: skip
StateName = Literal["queued", "running", "paused", "succeeded", "failed", "stopped"]
Verb = Literal["stop", "kill", "pause", "resume"]
BulkVerb = Literal["stop", "kill", "pause", "resume", "delete"]
Which = Literal["latest", "best"]
Document = dict[str, Any]


class Environment(Answer):
    """The software that trained the run."""

    stoker: str | None = None
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    git_sha: str | None = None
    git_dirty: bool | None = None


class Progress(Answer):
    """Where the current attempt is; the trainer's own further figures follow."""

    model_config = ConfigDict(extra="allow")

    phase: str | None = None
    phase_step: int | None = None
    phase_steps: int | None = None
    phase_rate: float | None = None
    phase_eta_seconds: float | None = None
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    ratio: float | None = None
    """The share that is done, from 0 to 1, where a script says it; step of steps goes first."""
    samples_per_second: float | None = None
    iterations_per_second: float | None = None
    """Of training, over its last second or more; evaluations and checkpoints do not count."""
    mean_samples_per_second: float | None = None
    mean_iterations_per_second: float | None = None
    """The same over the whole attempt."""
    eta_seconds: float | None = None
    loss: float | None = None
    best: Any = None


class BaselineScore(Answer):
    """A simple predictor's score."""

    name: str
    """A last value, a mean, a ridge regression, the most common class, …"""
    metric: str
    """The run's own name of it, such as val_mae."""
    value: float


class Result(Answer):
    """What the run delivered: metrics of the last and best evaluation, and of the test. Of a run
    that was killed or crashed, the step that it was last known to have made, and the best so far.
    """

    model_config = ConfigDict(extra="allow")

    last: Document | None = None
    best: Document | None = None
    test: Document | None = None
    naive: Document | None = None
    """The score of the best baseline, by metric of the run; null where the recipe has none. A run
    that is no better has learned nothing.
    """
    baselines: list[BaselineScore] | None = None
    """Scores of every baseline on the rows that the run was evaluated and tested on. Baselines are
    fitted on at most 100,000 samples of the training part, or 64 MiB of them. The warning
    `baselines_left_out` names those that would take too long.
    """
    caveats: list[str] = Field(default_factory=list)
    """Sentences that say why the scores may look better than they are, for risks that the run
    accepted. For a script: signs of a failure despite its exit code 0.
    """


class Difference(Answer):
    """A field of a restart's spec that is not as its parent's."""

    pointer: str
    before: Any
    """The parent's value, cut at 200 characters; null: not set. Of a dataset both values may be
    the same: its file is another one by now."""
    after: Any
    """The value of the restart."""


class Carry(Answer):
    """What a restarted run takes over from its parent."""

    kind: Literal["full", "weights", "scratch"]
    """The whole training state, the weights alone, or nothing."""
    starts_anew: tuple[str, ...] = ()
    """What begins from the start."""
    changed: tuple[str, ...] = ()
    """JSON Pointers of every change, into the spec."""
    why: str = ""
    """Why this is expected, as a sentence; the trainer compares the checkpoint with the model."""
    step: int | None = None
    """Step of the checkpoint that was chosen for it; null: none is saved, or it was removed since.

    The event `restored` says which was really read.
    """
    waits_for_parent: bool = False
    """Whether a run that it stems from still trains; `latest` and `best` are chosen at its end."""


class RanCode(Answer):
    """The code that an attempt of a script ran, where it differs from the submitted code."""

    attempt: int
    git_sha: str | None
    """The commit; null: its folder was in no repository."""
    diff: str | None
    """From the commit; the first 65,536 characters. The event `code_changed` has it whole."""
    message: str
    """The difference as a sentence."""


class Code(Answer):
    """The code of a script as it was when it was submitted, in short; `/spec` has it whole."""

    git_sha: str | None
    """The commit; null: its folder is in no repository, or git was not there."""
    dirty: bool | None
    """Whether something in it was changed, or not known to git."""
    diff: str | None
    """From the commit, of what git knows; the first 65,536 characters."""
    diff_bytes: int | None
    """Size of the whole diff."""
    argv: list[str]
    """The command, as it was typed."""
    untracked: int
    """Files that git does not know."""
    ran: RanCode | None = None
    """What the newest attempt ran, if the code was edited after the run was submitted."""


class CommandProfile(Answer):
    """What runs of the same command were measured to take at their peaks: the most of the newest
    three on each kind of device. What is null was not measured.
    """

    runs: list[int]
    """Who was measured, the newest first."""
    device_bytes: int | None
    """Of a GPU's memory."""
    host_bytes: int | None
    """Of the host's memory, beside a GPU."""
    cpu_bytes: int | None
    """Of the host's memory, without a GPU."""
    message: str
    """The same as a sentence."""


class Run(Answer):
    """One immutable spec and everything that happened to it."""

    id: int
    name: str
    notes: str
    labels: dict[str, str]
    priority: int
    recipe: str
    mode: Literal["train", "probe"]
    dataset: str | None
    """The dataset that it trains on; null: a script, which reads what it likes."""
    state: RunState
    intent: Intent
    status: Status
    """The word for people: the state, or what is under way."""
    reason: Reason | None
    """Why it is in this state."""
    message: str | None
    """The reason as a sentence; of a queued run that no idle slot can take, why that is so."""
    version: int
    """Rises with every transition and change; the ETag."""
    waits_for: int | None
    """The run that has to be over before this queued one starts: that which it was restarted from,
    or whose weights it begins with.
    """
    init_from_run: int | None = None
    """The run that its `init_from` means, be it by a name or by a checkpoint; null: it has none."""
    parent_id: int | None
    child_ids: list[int]
    attempt: int
    """Number of the current attempt; 0 before the first."""
    worker: str | None
    devices: list[str]
    environment: Environment | None
    created_at: Time
    created_by: str | None
    """Name of the token that asked for it; null: none was needed, or it was not kept yet."""
    started_at: Time | None
    finished_at: Time | None
    retry_at: Time | None = None
    """When the next automatic attempt may start."""
    progress: Progress | None
    result: Result | None
    diagnosis: Document | None
    carry: Carry | None = None
    """For a restarted run: what it takes over."""
    differences: tuple[Difference, ...] | None = None
    """For a restarted run: every change of `carry.changed` with both values; null: no restart, or
    one of an earlier version."""
    accepted_risks: list[str]
    """Codes of the rules that found something and that the run's `accept_risks` overrides."""
    allowed_actions: list[str]
    """The verbs that the run accepts now."""
    argv: list[str] | None = None
    """Of a script: its program and arguments, the first 1,000 characters of them; the spec has
    all. Null: no script.
    """
    code: Code | None = None
    """Of a script; null in lists."""
    config: Document | None = None
    """What a script gave to `stoker.init(config=)`; null in lists, and where it gave nothing."""
    profile: CommandProfile | None = None
    """Of a script: what other runs like it took; null in lists, and where none was measured."""
    links: dict[str, str]
    """Paths of what belongs to the run."""


class Unchecked(Answer):
    """A rule that could not judge."""

    code: str
    """The rule's code."""
    missing: str
    """The fact that it lacks."""


class Plan(Answer):
    """What a request would become; no run is created."""

    accepted: bool
    """Whether it would be accepted as it is: none of the issues is an error."""
    spec: Document
    """The complete spec."""
    provenance: Document
    """By JSON Pointer: each value and the layer it comes from."""
    issues: list[Issue]
    """Errors would refuse the run; warnings would not."""
    unchecked: list[Unchecked]
    """Rules that could not judge, and the fact that each lacks."""
    memory: Document | None
    """The memory plan in bytes, by place, phase and item; null while a fact for it is missing.

    With `probe`, its `measured` says what one real step took, on which worker and when.
    """
    queue_position: int
    """Its place in the queue if it were submitted now; 1 is the next to be claimed."""
    estimate: Document | None
    """Samples and steps that the spec comes to, and `seconds` from the start of an attempt to its
    end, as the runs of `from_runs` needed them; `seconds` is null where no run was like it, and all
    is null while the dataset is unknown. `batch_worth`: the `samples` of a step, and how many
    `independent` ones of a `target` say as much; null where the inspection did not compare rows.
    """
    profile: CommandProfile | None
    """Of a script: what runs like it took; null: none was measured."""
    computes_in: Document | None
    """By part of the model, the number format of its products; null while the device is unknown."""
    carry: Carry | None
    """Of a restart: what it would take over; null where it would be refused, and of a new run."""


class Memory(Answer):
    """What was planned, and the peak that the trainer measured where model and data were."""

    planned_bytes: int | None
    measured_bytes: int | None
    """Above the imports on a host, by PyTorch on a GPU; null before an attempt has said it."""
    ratio: float | None
    """Planned over measured."""
    plan: Document | None
    """That of the submission; null where a fact for it was missing."""


class RunDocuments(Answer):
    """What was posted, what it became, and what each attempt really used."""

    code: Document | None = None
    """Of a script, the code as it was when it was submitted: `git_sha`, `dirty`, `diff`,
    `diff_bytes`, `untracked`, `argv`, `repository`, `folder`, and `sources`: the texts of code
    that git does not know, by path.
    """

    request: Document
    spec: Document
    provenance: Document
    applied: list[Document | None]
    memory: Memory


class RunChanges(Body):
    """Columns of a run that may change; the spec may not."""

    name: RunName = ""
    """A name for people."""
    notes: Text = ""
    """Free text."""
    labels: Labels = Field(default_factory=dict)
    """All labels; replaces those there are."""
    priority: Priority = 0
    """Higher is claimed first, -1000 to 1000."""

    @model_validator(mode="after")
    def _changes_something(self) -> "RunChanges":
        if not self.model_fields_set:
            raise ValueError("give at least one of name, notes, labels, priority")
        return self


class QueueMove(Body):
    """Where in the queue a run goes; it takes over the priority that is needed there."""

    to: Literal["first", "last"] | None = None
    """To this end of the queue."""
    before: Id | None = None
    """Before this run, which has to wait as well."""
    after: Id | None = None
    """Behind this run, which has to wait as well."""

    @model_validator(mode="after")
    def _says_where(self) -> "QueueMove":
        if [self.to, self.before, self.after].count(None) != 2:
            raise ValueError("give one of to, before and after")
        return self


class PatchOperation(Body):
    """One operation of a JSON Patch (RFC 6902)."""

    op: Literal["add", "remove", "replace", "move", "copy", "test"]
    path: str
    """JSON Pointer into the parent's request."""
    from_: str | None = Field(default=None, alias="from")
    """Where move and copy take the value from."""
    value: Any = None
    """For add, replace and test."""


class RestartBody(Body):
    """How the new run differs from its parent, and what it starts from."""

    patch: Document | None = None
    """Merge patch (RFC 7396) of the parent's request; null takes a value back to its default."""
    patch_ops: list[PatchOperation] | None = Field(default=None, max_length=100)
    """JSON Patch (RFC 6902) of the parent's request, instead of `patch`."""
    patch_from: Literal["diagnosis"] | None = None
    """Take the patch from the parent's diagnosis; not available yet."""
    from_: Literal["latest", "best", "scratch"] | Id = Field(default="latest", alias="from")
    """The parent's latest or best checkpoint, none, or a checkpoint's id; default latest."""
    force: bool = False
    """Kill an active parent instead of letting it save; default false."""

    @model_validator(mode="after")
    def _one_kind_of_patch(self) -> "RestartBody":
        if self.patch is not None and self.patch_ops is not None:
            raise ValueError("give patch or patch_ops, not both")
        return self


FilterText = Annotated[str, Field(max_length=LONGEST_FILTER)]


class BulkFilter(Body):
    """The filters of GET /runs."""

    state: StateName | None = None
    status: Status | None = None
    recipe: FilterText | None = None
    label: FilterText | None = None
    """`key=value`, or `key` for any value."""
    q: FilterText | None = None
    """Part of the name or the notes."""
    parent_id: Id | None = None


class BulkBody(Body):
    """The runs to act on: by id, by filter, or all (at most 1000 at once)."""

    ids: list[Id] | None = Field(default=None, max_length=1000)
    filter: BulkFilter | None = None
    all: bool = False
    """Really all runs; a filter that filters nothing is refused."""

    @model_validator(mode="after")
    def _one_selection(self) -> "BulkBody":
        filters = self.filter is not None and any(self.filter.model_dump().values())
        if self.filter is not None and not filters and not self.all:
            raise ValueError('the filter is empty; send "all": true if every run is meant')
        if (self.ids is not None) + filters + self.all != 1:
            raise ValueError("give exactly one of ids, filter, all")
        return self


class BulkResult(Answer):
    """What the action came to for one run."""

    id: int
    status: int
    """The HTTP status that the single call would have answered."""
    run: Run | None = None
    problem: Document | None = None


class BulkAnswer(Answer):
    results: list[BulkResult]
    has_more: bool
    """More matched than were handled, the newest; ask again, by a filter that leaves those out."""
