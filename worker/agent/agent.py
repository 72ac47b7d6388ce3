"""The agent: one event loop that claims runs, supervises them, and tells what they do."""

import selectors
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import structlog

import app
from app.codestate import checkout
from app.container import available_memory
from app.errors import NotFound
from app.logs import configure_logging
from app.planning.requirements import SlotOffer
from app.service.liveness import Observer
from app.service.notify import Notifier
from app.settings import Settings
from app.store.artifact_root import ArtifactRoot
from app.store.engine.doorbell import Doorbell
from app.store.engine.migrate import upgrade
from app.store.identity import this_process
from app.store.offers import offers_of
from app.store.store import Store, open_store
from app.store.worker_records import NewWorker
from worker.agent.admission import AdmissionSocket
from worker.agent.boundary import Boundary
from worker.agent.classify import Asked
from worker.agent.devices import Devices
from worker.agent.errand import WatchedRoot
from worker.agent.home_id import home_id
from worker.agent.preemption import may_give_way, preempt
from worker.agent.registration import FreeNow, describe_devices, describe_slots
from worker.agent.signals import Signals
from worker.agent.slots import AgentIndex, AgentSlot, HeldSlots
from worker.agent.supervisor import Stage, Supervision
from worker.jobs.jobs import JobRunner
from worker.jobs.submissions import Submissions
from worker.launch.compile_cache import trim_caches
from worker.launch.launcher import PR_SET_CHILD_SUBREAPER, prctl
from worker.launch.lease_term import BUSY_SECONDS
from worker.launch.local import PACKAGES, trainer_environment
from worker.launch.orphans import Orphans, end_abandoned
from worker.launch.standby import Standby
from worker.protocol import boottime
from worker.start.preparation import threads_of
from worker.start.starting import Workshop
from worker.telemetry.exporter import TelemetrySnapshot, WorkerCollector, start_exporter
from worker.telemetry.host import host_setup

log = structlog.get_logger("stoker.worker")

LOOK_GAP_SECONDS = 0.02  # rings of the doorbell that are closer together are one look


class Agent:
    """Everything one agent process owns; `close` lets go of it."""

    def __init__(
        self, settings: Settings, store: Store, trainer_command: Sequence[str] | None = None
    ) -> None:
        self._settings = settings
        self._store = store
        self._selector = selectors.DefaultSelector()
        self._owned = ExitStack()
        own = self._owned.enter_context
        self._signals = own(closing(Signals()))
        self._index = own(closing(AgentIndex(settings.locks_dir)))
        self._bell = own(closing(Doorbell(settings).listener()))
        self._devices = own(closing(Devices(settings, self._index.number)))
        self._telemetry = self._devices.telemetry
        code = checkout(PACKAGES)
        threads = threads_of("auto", self._devices.cores_shared_by)
        usual = trainer_environment(settings.home, gpu=None, threads=threads)
        self._standby = own(closing(Standby(settings.standby, usual, trainer_command)))
        self._artifacts = WatchedRoot(ArtifactRoot(store.database, settings.artifact_root))
        if self._artifacts.look() is None:
            end_abandoned(settings.artifact_root)
        self._shop = Workshop(settings, store, self._artifacts, self._devices, code, self._standby)
        self._collector = WorkerCollector(
            home=settings.home, data=settings.data_root, artifacts=settings.artifact_root
        )
        exporter, served = start_exporter(self._collector, settings)
        if exporter is not None:
            own(closing(exporter))
        self._facts = host_setup() | served | {"home": home_id(settings.home)}
        self._free = FreeNow(settings.artifact_root)
        self._worker_id = self._register()
        self._jobs = own(
            closing(JobRunner(settings, store, self._devices, self._artifacts, self._worker_id))
        )
        own(closing(Submissions(settings, store)))
        own(closing(AdmissionSocket(settings, store, self._index.number)))
        own(closing(Notifier(settings, store))).start()
        self._observer = Observer(store, settings.beat_seconds)
        self._supervisions: list[Supervision] = []
        self._checkpoint_failures: Counter[str] = Counter()
        self._next_beat = time.monotonic()
        self._beat_at: float | None = None
        self._boundary = Boundary(database_is_on_one_host=store.database.is_on_one_host())
        self._orphans = Orphans()
        self._look_due: float | None = self._next_beat
        self._looked_at = 0.0
        self._probe_fd: int | None = None
        self._watch(self._signals, "signals")
        self._watch(self._bell, "bell")

    def close(self) -> None:
        """Let go of everything, in the reverse order."""
        self._selector.close()
        self._owned.close()

    def _watch(self, source: Any, kind: str, supervision: Supervision | None = None) -> None:
        self._selector.register(source, selectors.EVENT_READ, (kind, supervision))

    def _register(self) -> int:
        process = this_process()
        return self._store.workers.register(
            NewWorker(
                name=f"{process.host}-{self._index.number}",
                host=process.host,
                boot_id=process.boot_id,
                pid=process.pid,
                start_time=process.start_time,
                version=app.__version__,
                beat_seconds=self._settings.beat_seconds,
                slots=describe_slots(self._devices.slots, {}, self._artifacts.away),
                devices=describe_devices(self._telemetry.gpus),
                facts=self._host_facts(),
            )
        )

    def _host_facts(self) -> dict[str, Any]:
        return self._facts | self._free.now() | {"artifacts_away": self._artifacts.away}

    def run(self) -> int:
        """Work until drained; the exit code of the process."""
        log.info("agent ready", worker=self._worker_id, slots=[s.name for s in self._devices.slots])
        while not self._is_drained():
            for key, _ in self._selector.select(self._timeout()):
                self._take_in(*key.data)
            self._act(time.monotonic())
        with self._boundary.store():
            self._store.workers.set_state(self._worker_id, "gone")
        log.info("agent ends")
        return 0

    def _is_drained(self) -> bool:
        """Nothing is left to do; after a second signal, nothing that can be stored soon."""
        if self._signals.seen < 2:
            return self._signals.seen > 0 and not self._supervisions
        is_late = self._signals.is_overdue()
        return all(s.may_be_left(is_late=is_late) for s in self._supervisions)

    def _timeout(self) -> float:
        now = time.monotonic()
        due = [self._next_beat, self._look_due, *(s.due(now) for s in self._supervisions)]
        return max(0.0, min(at for at in due if at is not None) - now)

    def _take_in(self, kind: str, supervision: Supervision | None) -> None:
        """Read what one descriptor has to say."""
        if kind == "signals":
            self._drain()
        elif kind == "bell":
            self._bell.drain()
            self._look_soon()
        elif kind == "probe":
            self._telemetry.read(time.monotonic())
        elif kind == "job":
            self._end_job()
        elif supervision is not None and supervision.launched is not None:
            with self._boundary.outage(), self._boundary.attempt(supervision):
                if kind == "launcher":
                    self._end_launcher(supervision)
                elif not supervision.heard():
                    self._selector.unregister(supervision.launched.control)

    def _act(self, now: float) -> None:
        """Everything that is due now, in the order in which one thing leads to the next."""
        self._tend_probe(now)
        for supervision in self._supervisions:
            self._tend(supervision, now)
        if now >= self._next_beat:
            self._next_beat = now + self._settings.beat_seconds
            self._beat(now)
            self._bell.drain()  # of this beat's own ring too: what follows looks anyway
            self._look_due = now
        if self._look_due is not None and now >= self._look_due:
            self._look_due, self._looked_at = None, now
            if not self._boundary.is_away:
                self._look(now)
        for supervision in self._supervisions:
            is_new = supervision.stage is Stage.ended and not supervision.finish_tried
            if is_new and not self._boundary.is_away:
                with self._boundary.outage(), self._boundary.attempt(supervision):
                    supervision.finish(now)  # if this cannot be stored, each beat tries again
        self._forget_finished()

    def _look(self, now: float) -> None:
        with self._boundary.store():
            self._read_intents()
        if not self._signals.seen:
            with self._boundary.store():
                self._claim(now)

    def _look_soon(self) -> None:
        """Have intents and queue read, at once unless that was done a moment ago."""
        if self._look_due is None:
            self._look_due = self._looked_at + LOOK_GAP_SECONDS

    def _tend(self, supervision: Supervision, now: float) -> None:
        if self._boundary.is_away and supervision.stage is Stage.waiting:
            return  # to start takes the store
        before = supervision.launched
        with self._boundary.outage(), self._boundary.attempt(supervision):
            supervision.tick(now)
        launched = supervision.launched
        if launched is not None and before is None:
            self._watch(launched.control, "control", supervision)
            self._watch(launched.pidfd, "launcher", supervision)

    def _tend_probe(self, now: float) -> None:
        self._telemetry.tick(now)
        fd = self._telemetry.fileno()
        if fd != self._probe_fd:
            if self._probe_fd is not None:
                self._selector.unregister(self._probe_fd)
            if fd is not None:
                self._watch(fd, "probe")
            self._probe_fd = fd

    def _beat(self, now: float) -> None:
        """Tell the store that this agent and its runs live, and what is new of each."""
        with self._boundary.store():
            self._tell(now)
        for supervision in self._supervisions if self._boundary.is_file_locked else ():
            supervision.hold_on()
        if not self._signals.seen and not any(s.starts for s in self._supervisions):
            self._standby.refill()  # not beside a start, which would last longer
        self._publish()

    def _tell(self, now: float) -> None:
        self._artifacts.look()
        for supervision in self._supervisions:
            with self._boundary.attempt(supervision):
                if supervision.stage is Stage.clearing:
                    self._clear(supervision)
                if supervision.stage is Stage.ended:
                    supervision.finish(now)
                else:
                    supervision.beat(now)
        self._devices.refresh()
        self._say_alive()
        self._beat_at = time.time()
        self._jobs.beat(now)
        self._observer.observe()

    def _say_alive(self) -> None:
        views = [view for s in self._supervisions if (view := s.view()) is not None]
        try:
            self._store.workers.beat(
                self._worker_id,
                "draining" if self._signals.seen else "alive",
                slots=describe_slots(
                    self._devices.slots,
                    {v.run_id: v.progress.get("host_memory_bytes") for v in views},
                    self._artifacts.away,
                ),
                devices=describe_devices(self._telemetry.gpus),
                facts=self._host_facts() | {"why_no_gpus": self._telemetry.why_absent},
            )
        except NotFound:  # it was out of reach for so long that it was forgotten
            self._worker_id = self._jobs.worker_id = self._register()
            log.warning("this worker was forgotten, and is registered anew", worker=self._worker_id)

    def _publish(self) -> None:
        views = [supervision.view() for supervision in self._supervisions]
        failures = self._checkpoint_failures.copy()
        for supervision in self._supervisions:
            failures.update(supervision.checkpoint_failures)
        self._collector.publish(
            TelemetrySnapshot(
                runs=tuple(view for view in views if view is not None),
                gpus=self._telemetry.gpus,
                beat_at=self._beat_at,
                checkpoint_failures=failures,
            )
        )

    def _claim(self, now: float) -> None:
        """Fill the free slots, or have one freed for a run of higher priority; take a job when none
        is under way.
        """
        self._devices.refresh()
        away = self._artifacts.look()
        while away is None and (free := self._devices.free_slots()):
            claimed_at = boottime()
            lease = self._store.leases.claim(self._worker_id, self._offers(free))
            if lease is None:
                break
            slots = HeldSlots([s for s in free if s.name in lease.slots], lease.run_id)
            supervision = Supervision(self._shop, lease, slots, now, claimed_at)
            self._supervisions.append(supervision)
            self._tend(supervision, now)
        if away is None and (able := may_give_way(self._supervisions)):
            offers = self._offers(self._devices.free_slots())
            preempt(self._store, self._worker_id, able, offers, self._devices)
        if self._jobs.claim(now):
            self._watch(self._jobs.pidfd, "job")

    def _offers(self, free: Sequence[AgentSlot]) -> list[SlotOffer]:
        """What runs find in these slots, and in those that others have taken: of the host what is
        left beside runs that have yet to take what they need.
        """
        slots = [*free, *(slot for slot in self._devices.slots if slot.run_id is not None)]
        gpus = [gpu for slot in slots if (gpu := self._devices.as_offered(slot)) is not None]
        promised = sum(supervision.memory_to_come for supervision in self._supervisions)
        now = {"available_memory_bytes": max(0, available_memory() - promised)}
        told = describe_slots(slots, {}, None)
        return offers_of("", told, describe_devices(gpus), self._host_facts() | now)

    def _read_intents(self) -> None:
        """After the doorbell: obey what users want of our runs, without waiting for the beat."""
        ids = [supervision.lease.run_id for supervision in self._supervisions]
        marks = self._store.runs.watch_marks(ids) if ids else {}
        for supervision in self._supervisions:
            mark = marks.get(supervision.lease.run_id)
            if mark is not None and mark.version != supervision.version:
                with self._boundary.attempt(supervision):
                    run = self._store.runs.get(supervision.lease.run_id)
                    supervision.version = run.version
                    supervision.obey(run.intent)

    def _end_launcher(self, supervision: Supervision) -> None:
        launched = supervision.launched
        assert launched is not None  # noqa: S101 - it is what has ended
        for source in (launched.control, launched.pidfd):
            if source in self._selector.get_map():
                self._selector.unregister(source)
        self._clear(supervision)

    def _clear(self, supervision: Supervision) -> None:
        """End what a killed launcher leaves behind; the slot is held while something lives."""
        launchers = {s.launched.pid for s in self._supervisions if s.launched is not None}
        others = self._telemetry.pids() | self._jobs.pids() | self._standby.pids()
        left = self._orphans.end(launchers | others)
        if left:
            supervision.hold(left)
        else:
            supervision.launcher_ended()

    def _end_job(self) -> None:
        pidfd = self._jobs.pidfd
        assert pidfd is not None  # noqa: S101 - it is what has ended
        self._selector.unregister(pidfd)
        with self._boundary.store():
            self._jobs.ended()
        self._look_soon()

    def _forget_finished(self) -> None:
        finished = [s for s in self._supervisions if s.stage is Stage.over]
        if not finished:
            return
        for supervision in finished:
            self._checkpoint_failures.update(supervision.checkpoint_failures)
            self._supervisions.remove(supervision)
        self._look_soon()
        self._publish()

    def _drain(self) -> None:
        """First signal: stop every run with a checkpoint. Second: kill."""
        first = not self._signals.seen
        self._signals.read()
        do: Asked = "stop" if self._signals.seen == 1 else "kill"
        log.info("draining", runs=len(self._supervisions), how=do)
        for supervision in self._supervisions:
            supervision.ask(do, drained=True)
        if first:
            with self._boundary.store():
                self._store.workers.set_state(self._worker_id, "draining")


def run_agent(settings: Settings, trainer_command: Sequence[str] | None = None) -> int:
    """Run an agent until SIGTERM or SIGINT; returns the process's exit code.

    `trainer_command` replaces the trainer in tests. Raises StokerError when it cannot start.
    """
    configure_logging(settings.log_level)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for folder in (settings.home, settings.data_root, settings.locks_dir):
        folder.mkdir(parents=True, exist_ok=True)
    trim_caches(settings.home, time.time())
    upgrade(settings)
    with (
        closing(open_store(settings, busy_seconds=BUSY_SECONDS)) as store,
        closing(Agent(settings, store, trainer_command)) as agent,
    ):
        return agent.run()
