"""What a trainer has said so far: gathered for the next beat, and kept for the exporter."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from app.planning.ladder import Use
from app.spec.script import is_script
from app.spec.stored import AnySpec
from app.store.records import (
    Beat,
    DamagedCheckpoint,
    MetricPoint,
    NewCheckpoint,
    NewEvent,
)
from worker.agent.checkpoint_folders import Reconciled
from worker.agent.watchdog import longest_silence
from worker.telemetry.exporter import FAILED_ENDS, RunView
from worker.telemetry.gpus import GpuSample, memory_of
from worker.telemetry.histogram import CHECKPOINT_DURATIONS, Histogram

log = structlog.get_logger("stoker.worker")

Document = dict[str, Any]

# Events of the trainer that go into the run's history as they are. Progress is a column, metrics
# are points, and the end of an attempt is told by the state event of `finish`.
HISTORY = frozenset(
    {
        *("phase", "applied", "restored", "rollback", "epoch", "checkpoint", "warning"),
        "code_changed",
    }
)
# The phases that a run passes through; it may evaluate and save thousands of times, which its
# progress shows.
STATIONS = frozenset(
    {
        *("starting", "restoring", "building", "preparing", "compiling", "capturing"),
        *("training", "testing", "running"),
    }
)
SPLIT_LOSSES = {"train_loss": "train", "val_loss": "validation", "test_loss": "test"}


@dataclass
class Outbox:
    """What the store has not been told yet; None: nothing new."""

    progress: Document | None = None
    applied: Document | None = None
    environment: Document | None = None
    devices: list[str] | None = None
    resumed_from_step: int | None = None
    events: list[NewEvent] = field(default_factory=list)
    points: dict[tuple[str, int], MetricPoint] = field(default_factory=dict)
    checkpoints: list[NewCheckpoint] = field(default_factory=list)
    damaged_checkpoints: list[DamagedCheckpoint] = field(default_factory=list)
    removed_checkpoints: list[str] = field(default_factory=list)
    log_text: str = ""
    log_read: int | None = None
    events_read: int | None = None
    event_bytes: int = 0  # of the lines from which all this was taken


@dataclass
class BeatReport:
    """The state of one attempt as the trainer tells it.

    `beats`: how many of the run are stored; a beat that the store may or may not have is kept as it
    was, with its number, until it is known.
    """

    artifact_root: Path
    attempt_dir: Path
    checkout: Document = field(default_factory=dict)  # what the trainer cannot know of its code
    progress: Document | None = None
    end: Document | None = None
    phase: str | None = None
    station: str | None = None
    memory_use: Use | None = None
    applied: Document | None = None
    torch: str | None = None
    saved: int = 0
    newest_checkpoint: int | None = None
    """Step of the newest that the run has: the one that was restored, or a later one."""
    by_stoker: bool = False
    """Whether a script has saved, or goes on from a checkpoint, by the calls of `stoker`."""
    peak_on_gpu: int = 0
    """Bytes of a GPU's memory that its processes held, as far as the driver tells."""
    losses: dict[str, float] = field(default_factory=dict)
    iterations: Histogram | None = None
    checkpoints: Histogram = CHECKPOINT_DURATIONS
    checkpoint_failures: Counter[str] = field(default_factory=Counter)
    outbox: Outbox = field(default_factory=Outbox)
    beats: int = 0
    _newest: dict[str, MetricPoint] = field(default_factory=dict)
    """Of each curve."""
    _sent: Beat | None = None

    def take(self, events: list[Document]) -> None:
        """Take in events in their order."""
        for event in events:
            kind = event["kind"]
            self.by_stoker = self.by_stoker or bool(event.get("by_stoker"))
            if kind in HISTORY and not (kind == "phase" and self._is_passing(event)):
                data = {k: v for k, v in event.items() if k not in ("kind", "seq", "t")}
                self.outbox.events.append(NewEvent(kind=kind, t=event["t"], data=data))
            try:
                self._note(kind, event)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("an event cannot be understood", event_kind=kind, why=repr(error))

    def learn(self, reconciled: Reconciled) -> None:
        """What lies on disk of earlier attempts, and the store has yet to be told."""
        self.outbox.checkpoints += reconciled.adopted
        self.outbox.damaged_checkpoints += reconciled.damaged
        self.outbox.removed_checkpoints += reconciled.gone

    def _is_passing(self, event: Document) -> bool:
        """Whether a phase is left again for the one it interrupts, or that one goes on."""
        phase = event.get("phase")
        if phase == self.station or phase not in STATIONS:
            return True
        self.station = phase
        return False

    def _note(self, kind: str, event: Document) -> None:
        match kind:
            case "phase":
                self.phase = event["phase"]
            case "memory":
                self.memory_use = Use.from_json(event)
            case "progress":
                self._progress(event)
            case "metrics":
                self._points(event, event.get("values") or {})
            case "checkpoint":
                self._checkpoint(event)
            case "applied":
                self.applied = self.outbox.applied = event.get("applied")
                self.torch = (event.get("environment") or {}).get("torch")
                self.outbox.environment = (event.get("environment") or {}) | self.checkout
            case "restored":
                self._restored(event)
            case "end":
                self._end(event)

    def beat(self) -> Beat:
        """Everything not told yet, as one beat; the same again until it is `told`."""
        if self._sent is None:
            news, self.outbox = self.outbox, Outbox()
            self._sent = Beat(
                number=self.beats,
                progress=news.progress,
                events=news.events,
                metric_points=list(news.points.values()),
                log_text=news.log_text,
                log_read=news.log_read,
                events_read=news.events_read,
                checkpoints=news.checkpoints,
                damaged_checkpoints=news.damaged_checkpoints,
                removed_checkpoints=news.removed_checkpoints,
                applied=news.applied,
                environment=news.environment,
                devices=news.devices,
                resumed_from_step=news.resumed_from_step,
                result=(self.end or {}).get("result"),
            )
        return self._sent

    def told(self) -> None:
        """The beat is stored."""
        self._sent = None
        self.beats += 1

    @property
    def is_unsure(self) -> bool:
        """Whether a beat was sent of which it is not known that it is stored."""
        return self._sent is not None

    @property
    def has_trained(self) -> bool:
        """Whether the attempt has made a step, or has come to where none is left to make. Of a
        script nobody knows whether it ever makes one.
        """
        totals = (self.progress or {}).get("totals") or {}
        return bool(totals.get("train_iterations")) or self.station in ("testing", "running")

    def may_give_way(self, spec: Document) -> bool:
        """Whether a run of this spec allows to be stopped for another, and will go on afterwards.
        Of a script that does not say how it resumes, that is known once it saves by `stoker`.
        """
        knows_how = self.by_stoker or not is_script(spec) or bool(spec["recipe"]["resume"])
        return knows_how and bool(spec["policy"].get("preemptible"))

    def view(self, run_id: int, attempt: int, spec: AnySpec, gpus: tuple[str, ...]) -> RunView:
        """What the exporter shows of it."""
        return RunView(
            run_id,
            attempt,
            spec.recipe.kind,
            gpus,
            progress_timeout_seconds=longest_silence(spec),
            progress=self.progress or {},
            losses=dict(self.losses),
            iterations=self.iterations,
            checkpoints=self.checkpoints,
        )

    def sample(self, name: str, value: float | None) -> None:
        """A number measured from outside, at the step the trainer is at."""
        if self.progress is not None:
            self._points(self.progress, {name: value})

    def note_gpus(self, gpus: Sequence[GpuSample], launcher: int) -> None:
        """What its GPUs tell of the attempt, whose processes descend from that of its launcher: the
        mean of how busy they are, and the most that one of them holds for it.
        """
        told = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
        self.sample("gpu_utilization", sum(told) / len(told) if told else None)
        for gpu in gpus:
            self.peak_on_gpu = max(self.peak_on_gpu, memory_of(gpu, launcher) or 0)

    def _progress(self, event: Document) -> None:
        left_out = ("kind", "seq", "step_durations")
        self.progress = {k: v for k, v in event.items() if k not in left_out}
        peak = self.progress.get("peak_memory")
        if peak and peak["device_bytes"] is None and self.peak_on_gpu:  # a script, which says none
            self.progress["peak_memory"] = {**peak, "device_bytes": self.peak_on_gpu}
        self.outbox.progress = self.progress
        self.losses.pop("train", None)  # NaN is told as None
        if event.get("loss") is not None:
            self.losses["train"] = event["loss"]
        if "step_durations" in event:
            self.iterations = Histogram.from_json(event["step_durations"])

    def keep_ends(self) -> None:
        """Have the last point of each curve stored: the store thins them, and where one ended must
        be seen all the same, however the attempt did.
        """
        for point in self._newest.values():
            self.outbox.points[point.name, point.step] = replace(point, keep=True)
        loss = self._newest.get("train_loss")
        if self.progress is not None and loss is not None and loss.t > self.progress["t"]:
            # It was killed after it had told the one and before it told the other.
            self.progress = self.outbox.progress = {**self.progress, "loss": loss.value}

    def _points(self, event: Document, values: Document) -> None:
        step = event.get("step")
        if step is None:
            return
        for name, value in values.items():
            if value is None:
                continue
            point = MetricPoint(name, step, event["t"], float(value))
            self.outbox.points[name, step] = self._newest[name] = point
            if name in SPLIT_LOSSES:
                self.losses[SPLIT_LOSSES[name]] = point.value

    def _checkpoint(self, event: Document) -> None:
        action, path = event.get("action"), str(event.get("path"))
        if action == "quarantined":
            self.checkpoint_failures["quarantined"] += 1
            told = DamagedCheckpoint(self._row_path(Path(path)), str(event.get("message")))
            self.outbox.damaged_checkpoints.append(told)
        if action != "saved":
            return
        self.saved += 1
        self.newest_checkpoint = max(self.newest_checkpoint or 0, event["step"])
        self.checkpoints = self.checkpoints.observe(event.get("seconds") or 0.0)
        self.outbox.checkpoints.append(
            NewCheckpoint(
                step=event["step"],
                epoch=event.get("epoch") or 0,
                path=self._row_path(self.attempt_dir / path),
                bytes=event.get("bytes") or 0,
                metrics=event.get("metrics") or {},
                created_at=event["t"],
            )
        )

    def _row_path(self, path: Path) -> str:
        return str(path.relative_to(self.artifact_root))

    def _restored(self, event: Document) -> None:
        if event.get("carry") == "full":
            self.outbox.resumed_from_step = self.newest_checkpoint = event.get("step")

    def _end(self, event: Document) -> None:
        self.end = event
        if event.get("reason") in FAILED_ENDS:
            self.checkpoint_failures[event["reason"]] += 1
