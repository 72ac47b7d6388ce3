"""Supervises one attempt, from the claim to the finish: start, orders, watchdog, beats, end."""

from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import StrEnum
from functools import partial

import structlog

from app.container import oom_kills
from app.errors import LeaseLost, NotFound
from app.lifecycle import Intent, Reason
from app.spec.stored import AnySpec
from app.store.records import Lease
from worker.agent.attempt_folder import AttemptDir
from worker.agent.beat_report import BeatReport
from worker.agent.checkpoint_folders import Unreadable
from worker.agent.classify import Asked, Evidence, Verdict, classify
from worker.agent.devices import HeldGpus
from worker.agent.errand import Errand, PatientLook
from worker.agent.follower import Follower
from worker.agent.measured import measured_by
from worker.agent.recovery import finish_of, retry_delay_seconds
from worker.agent.retention import Retention
from worker.agent.slots import HeldSlots
from worker.agent.watchdog import DUMP_SECONDS, Watchdog, hang_timeout_of
from worker.launch.lease_term import lease_term, lock_patience
from worker.launch.local import LauncherProcess
from worker.protocol import boottime
from worker.start.preparation import NotFit, run_dir
from worker.start.starting import Prepared, Workshop, prepare, verdict_of_completed, why_not_started
from worker.telemetry.exporter import RunView

log = structlog.get_logger("stoker.worker")

# So often locks, a first step (which is beaten at once) and orders that wait are looked at.
POLL_SECONDS = 0.1
# A trainer that said it is done has this long to exit, or the grace time if that is longer.
EXIT_SECONDS = 10.0


class Stage(StrEnum):
    waiting = "waiting"  # for processes of an earlier attempt, which still hold a lock
    training = "training"  # a launcher lives
    clearing = "clearing"  # the launcher has ended, but what it left is alive
    reading = "reading"  # nothing lives any more; what was written last is being read
    ended = "ended"  # the store has to be told
    over = "over"  # told, or not ours any more


class Supervision:
    """One attempt. The agent calls `tick` when it is due, `heard` and `launcher_ended` when a
    descriptor says so, `beat` every beat and `finish` once it has ended.

    Times are monotonic seconds, but `claimed_at`, before which the store had not been asked for the
    run, is boottime. Store errors other than LeaseLost are the caller's.
    """

    def __init__(
        self, shop: Workshop, lease: Lease, slots: HeldSlots, now: float, claimed_at: float
    ) -> None:
        root = shop.settings.artifact_root
        folder = run_dir(root, lease.run_id) / f"attempt-{lease.attempt}"
        self._shop = shop
        self._attempt = AttemptDir(folder)
        self._report = BeatReport(root, folder, shop.checkout, beats=lease.beats)
        self._follower = Follower(self._attempt, self._report)
        self._artifacts = shop.artifacts
        self._seen = Evidence.of(lease.spec, shop.settings.stop_grace_seconds)
        self._oom_kills = 0  # as counted before its trainer was started
        self._claimed_at = now
        self._lease_term = lease_term(claimed_at, shop.settings)
        self._patience = lock_patience(shop.settings, len(shop.devices.slots))
        self._kill_at: float | None = None
        self._abandoned = self._waits_no_longer = False
        self._spec: AnySpec | None = None
        self._prepared: Prepared | None = None
        self._preparation: Errand[Prepared | None] | None = None
        self._look = PatientLook(shop.artifacts)  # as the end is read
        self._doubt = PatientLook(shop.artifacts)  # after an error: the next one finds its answer
        self._retention = Retention(shop, lease)
        self._gpus = HeldGpus(shop.devices)  # what it trains on, which may be less than its slots
        self._watchdog: Watchdog | None = None
        self._verdict: Verdict | None = None
        self.lease = lease
        self.slots = slots
        self.launched: LauncherProcess | None = None
        self.stage = Stage.waiting
        self.finish_tried = False
        self.version = -1  # of the run, as last read after a ring of the doorbell

    def due(self, now: float) -> float | None:
        """When `tick` has to be called next, apart from the beat; None: not before it."""
        if self.stage is Stage.waiting:
            return now + POLL_SECONDS
        if self.stage is Stage.reading:
            waits = self._look.is_under_way or self._follower.is_waiting or self._gpus.is_awaited
            at = now + POLL_SECONDS if waits else now
            return None if self._report.is_unsure or self._artifacts.away else at
        if self.stage is not Stage.training:
            return None
        is_deaf = self.launched is not None and self.launched.has_unsent
        soon = now + POLL_SECONDS if self.starts or is_deaf else None
        end_at = None if self.launched is None else self.launched.end_at
        return min((at for at in (self._kill_at, soon, end_at) if at is not None), default=None)

    def tick(self, now: float) -> None:
        """What time alone brings: a freed lock, a first step, a hang, a trainer that stays."""
        if self.stage is Stage.waiting:
            self._start(now)
        if self.stage is Stage.reading and not self._report.is_unsure:
            self._read_rest(now)  # else the store has yet to take the last piece
        if self.launched is None or self.stage is not Stage.training:
            return
        self.launched.flush()
        self.launched.enforce(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.launched.order("kill")
        elif self._hangs(now):
            self.launched.order("dump")
            self._kill_at = now + DUMP_SECONDS
        if self.starts and self._artifacts.away is None:
            self._follower.read()
            if self._report.has_trained:
                self.beat(now)

    def _start(self, now: float) -> None:
        """Launch once no earlier attempt holds a lock; what cannot start ends here."""
        self._preparation = preparation = self._preparation or Errand(
            partial(prepare, self._shop, self.lease, self.slots, self._attempt)
        )
        if not preparation.is_done():
            self.slots.wait(f"Run {self.lease.run_id} waits: its files are being looked at.")
            return
        self._preparation = None
        try:
            if (prepared := preparation.result()) is None:
                self._wait(now)
            else:
                self._launch(prepared, now)
        except (NotFit, NotFound, Unreadable, OSError) as error:
            if self.launched is not None:
                self.fail(error)  # its trainer is ended first
                return
            self._end(why_not_started(error))

    def _launch(self, prepared: Prepared, now: float) -> None:
        earlier = prepared.earlier
        self._report.learn(earlier.reconciled)
        self._report.outbox.events += [*earlier.warnings, *prepared.warnings]
        self._spec, self._prepared = prepared.spec, prepared
        if prepared.failure is not None:
            self._end(prepared.failure)
            return
        if earlier.completed is not None:
            self._end(verdict_of_completed(self._report, *earlier.completed))
            return
        assert prepared.launch is not None  # noqa: S101 - there is something to train
        self._watchdog = Watchdog(hang_timeout_of(prepared.spec), self._follower.pulse, now)
        self._oom_kills = oom_kills()
        self._seen.grace_seconds = prepared.launch.grace_seconds
        self.launched = self._shop.launcher(prepared.spec, prepared.launch)
        self.launched.begin(prepared.launch, self._lease_term)
        self._gpus = HeldGpus(self._shop.devices, self.slots.gpus if prepared.on_gpu else ())
        self._report.outbox.devices = self._gpus.names
        self.slots.wait(None)
        self.stage = Stage.training
        log.info("run started", run=self.lease.run_id, attempt=self.lease.attempt)

    def _wait(self, now: float) -> None:
        waited = "processes of an earlier attempt are still alive"
        self.slots.wait(f"Run {self.lease.run_id} waits: {waited}.")
        if now - self._claimed_at > self._shop.settings.stop_grace_seconds:
            self._end(Verdict(Reason.slot_busy, f"Requeued: {waited}."))

    def _hangs(self, now: float) -> bool:
        if self._seen.asked is not None or self._kill_at is not None or self._watchdog is None:
            return False
        if self._artifacts.away is not None or self._follower.is_waiting:
            self._watchdog.excuse(now)  # its pulse lies there
            return False
        if not self._watchdog.hangs(self._follower.pulse, now):
            return False
        self._follower.read()  # the last time may be long ago, as while the store is away
        if self._follower.is_waiting or not self._watchdog.hangs(self._follower.pulse, now):
            return False
        self._seen.hang_seconds = self._watchdog.allowed_seconds
        log.warning("trainer hangs", run=self.lease.run_id, seconds=self._seen.hang_seconds)
        return True

    def obey(self, intent: Intent) -> None:
        """Carry out what the user wants of the run."""
        self._seen.intent = intent
        if intent is not Intent.run:
            self.ask("kill" if intent is Intent.kill else "stop")

    def ask(self, do: Asked, *, drained: bool = False, needed_by: int | None = None) -> None:
        """End the attempt, for the run `needed_by`; a stop may become a kill, not the reverse."""
        if self.stage in (Stage.reading, Stage.ended):  # it ended before: how it did so stays
            self._waits_no_longer = True
            return
        if not self._seen.ask(do, drained=drained, needed_by=needed_by):
            return
        if self.launched is not None:
            self.launched.order(do)
        elif self.stage is Stage.waiting:
            self._end(classify(self._seen))

    def abandon(self) -> None:
        """The lease is lost: nothing may be written any more, nothing may go on training."""
        log.warning("lease lost, the trainer is killed", run=self.lease.run_id)
        self._abandoned = True
        self._seen.asked = "kill"
        if self.launched is not None:
            self.launched.order("kill")
        else:
            self._leave()

    def fail(self, error: Exception) -> None:
        """Something went wrong with this attempt alone: end it, with a checkpoint if it can be."""
        if isinstance(error, LeaseLost | NotFound) or self.stage is Stage.ended:
            log.warning("the run cannot be recorded", run=self.lease.run_id, why=repr(error))
            self.abandon()
            return
        went_away = isinstance(error, OSError) and not self._doubt.is_here()
        if went_away and (self.launched is not None or self.stage is Stage.reading):
            log.warning("an attempt cannot be read", run=self.lease.run_id, why=str(error))
            return
        if self._seen.fault is None:
            log.error("an attempt fails here", run=self.lease.run_id, exc_info=error)
            self._seen.fault = error
        if self.launched is None:
            self._end(classify(self._seen))
        else:
            self.ask("stop")

    def heard(self) -> bool:
        """Read the launcher's messages; False when it has closed its side."""
        messages = None if self.launched is None else self.launched.messages()
        for message in messages or ():
            self._seen.hear(message)
        return messages is not None

    def hold(self, pids: AbstractSet[int]) -> None:
        """The launcher was killed, and these processes do not die: their slot is not free yet."""
        self.stage = Stage.clearing
        self.slots.wait_for_deaths(self.lease.run_id, pids)

    def launcher_ended(self) -> None:
        """The last process of the attempt is gone; what is left is to read and to judge."""
        assert self.launched is not None  # noqa: S101 - it has just ended
        self.heard()
        self._seen.launcher_returncode = self.launched.returncode()
        self._seen.oom_kills = oom_kills() - self._oom_kills
        self._follower.is_through = False
        self.launched.close()
        self.launched = self._kill_at = None
        if self._abandoned:
            self._leave()
            return
        self.stage = Stage.reading

    def _read_rest(self, now: float) -> None:
        """One piece more of what the trainer wrote, and a beat for it; after the last one, and once
        its GPUs are free, judge. Who wants the end does not wait for a root that is away.
        """
        if self._artifacts.away is None and not self._follower.is_through:
            self._follower.read()
            if not self._follower.is_through:
                self.slots.wait(f"What run {self.lease.run_id} wrote last is being stored.")
                if not self._follower.is_waiting:
                    self.beat(now)
                return
        if (why := self._gpus.why_held(now)) is not None:
            self.slots.wait(f"Run {self.lease.run_id} has ended, and {why}.")
            return
        self._report.outbox.events += self._gpus.take_warnings()
        is_here = self._look.is_here()  # asked after the reading, which finds nothing in one away
        self._seen.root_was_away = self._look.was_away
        if self._waits_no_longer or self._seen.asked or (is_here and self._follower.is_through):
            self._follower.complete(self._seen, is_here=is_here or self._artifacts.away is None)
            self._end(classify(self._seen))
            return
        self._follower.is_through &= self._look.is_under_way  # else it is read when it is back
        where = self._artifacts.away or "which is being looked at."
        self.slots.wait(f"How run {self.lease.run_id} ended lies in the artifact root: {where}")

    def _end(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.stage = Stage.ended

    def _leave(self) -> None:
        self.stage = Stage.over
        self.slots.release(self._gpus.free_since)

    def beat(self, now: float) -> None:
        """Tell the store what is new, and carry out what it answers."""
        if self.stage is Stage.over or self._abandoned:
            return
        if self.stage is Stage.training and self._artifacts.away is None:
            self._gather(now)
        self._report.outbox.removed_checkpoints += self._retention.take_removed()
        beat = self._report.beat()
        told_at = boottime()
        try:
            intent = self._shop.store.leases.beat(self.lease.token, beat, self._patience)
        except LeaseLost:
            self.abandon()
            return
        self._report.told()
        self._extend(told_at)
        if self._spec is not None and (beat.checkpoints or self._retention.is_owed):
            self._retention.begin(self._spec.checkpoint, told_at + self._patience)
        self.obey(intent)

    def hold_on(self) -> None:
        """Go on although no beat was stored: somebody on this host holds the SQLite file."""
        if not self._abandoned:
            self._extend(boottime())

    def _extend(self, told_at: float) -> None:
        self._lease_term = lease_term(told_at, self._shop.settings)
        if self.launched is not None:
            self.launched.hold(self._lease_term)

    def _gather(self, now: float) -> None:
        self._follower.read()
        if self._gpus.indexes and self.launched is not None:
            self._report.note_gpus(self._gpus.samples(), self.launched.pid)
        if self._report.end is not None and self._kill_at is None:
            self._kill_at = now + max(EXIT_SECONDS, self._seen.grace_seconds)

    def finish(self, now: float) -> None:
        """Record the end. A store error leaves it to be recorded by a later call."""
        self.finish_tried = True
        assert self._verdict is not None  # noqa: S101 - the stage is `ended`
        # The last checkpoint's row goes before the removal of older ones.
        while self._report.is_unsure or self._report.outbox.checkpoints:
            self.beat(now)
            if self.stage is Stage.over:
                return
        if self._retention.holds_up(now):
            self.beat(now)  # the lease is kept meanwhile
            return
        self._report.outbox.removed_checkpoints += self._retention.take_removed()
        reason, delay = self._verdict.reason, self._verdict.retry_seconds
        if self._seen.asked is None or self._seen.fault is not None:
            delay = retry_delay_seconds(self._shop.store, self.lease.run_id, self._verdict)
        is_unseen = self._spec is None and self.lease.attempt > 1  # what earlier ones left
        finish = replace(
            finish_of(self._verdict, self._spec, self.lease, self._report),
            exit_code=self._seen.returncode,
            final=self._report.beat(),
            retry_delay_seconds=delay,
            measured=measured_by(self._prepared, reason, self._report, now - self._claimed_at),
            untold=is_unseen if self._watchdog is None else self._follower.has_untold,
        )
        try:
            run = self._shop.store.leases.finish(self.lease.token, finish, self._patience)
        except LeaseLost:
            log.warning("the lease has ended before this was told", run=self.lease.run_id)
        else:
            log.info("run ended", run=run.id, state=run.state, reason=reason, message=run.message)
        self._leave()

    def view(self) -> RunView | None:
        """What the exporter shows; None before it has started and after it has ended."""
        if self._spec is None or self.stage is not Stage.training:
            return None
        run = self.lease
        return self._report.view(run.run_id, run.attempt, self._spec, gpus=self._gpus.indexes)

    @property
    def may_give_way(self) -> bool:
        """Whether its run allows that, and it is not to end anyway."""
        return self._seen.asked is None and self._report.may_give_way(self.lease.spec)

    @property
    def memory_to_come(self) -> int:
        """Bytes of the host that the run needs and has not taken yet."""
        if self.stage not in (Stage.waiting, Stage.training):
            return 0
        taken = (self._report.progress or {}).get("host_memory_bytes") or 0
        return max(0, (self.lease.host_bytes or 0) - taken)

    def may_be_left(self, *, is_late: bool) -> bool:
        """Where the agent ends at once: nothing of it lives, and its end cannot be stored soon."""
        is_read = self.stage is Stage.reading and (is_late or self._report.is_unsure)
        return is_read or self.stage in (Stage.clearing, Stage.ended)

    @property
    def starts(self) -> bool:
        """Whether it is on the way to its first step."""
        return self.stage in (Stage.waiting, Stage.training) and not self._report.has_trained

    @property
    def checkpoint_failures(self) -> dict[str, int]:
        """Checkpoints of this attempt that failed, by reason."""
        return self._report.checkpoint_failures
