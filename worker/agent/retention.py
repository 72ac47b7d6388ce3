"""Removes the checkpoints that a run's spec does not keep, beside the agent's loop."""

from functools import partial

from app.spec.script import ScriptCheckpoints
from app.spec.training import Checkpointing
from app.store.records import Lease
from worker.agent.checkpoint_folders import beyond_retention, remove_all
from worker.agent.errand import Errand, PatientLook
from worker.protocol import boottime
from worker.start.starting import Workshop

# The end of an attempt waits so long for that of old checkpoints.
REMOVAL_SECONDS = 10.0


class Retention:
    """Of one run. A disk that does not answer holds up the removal, and nobody else.

    `is_owed`: a removal that could not begin when it was asked for, and has to be asked for again.
    """

    def __init__(self, shop: Workshop, lease: Lease) -> None:
        self._shop = shop
        self._lease = lease
        self._look = PatientLook(shop.artifacts)
        self._removal: Errand[list[str]] | None = None
        self._wait_until: float | None = None
        self.is_owed = False

    @property
    def is_busy(self) -> bool:
        return self._removal is not None and not self._removal.is_done()

    def holds_up(self, now: float) -> bool:
        """Whether the end of the attempt still waits for a removal; it does so for a while only."""
        self._wait_until = self._wait_until or now + REMOVAL_SECONDS
        return now < self._wait_until and (self.is_busy or self.is_owed)

    def begin(self, policy: Checkpointing | ScriptCheckpoints, wait_until: float) -> None:
        """Have removed what is too many by now, and what an earlier removal left; only after the
        rows of newer checkpoints are committed. `wait_until`: for the locks of others (boottime).
        """
        self.is_owed = True
        if self._removal is not None or not self._look.is_here():
            return
        kept_in_store = self._shop.store.checkpoints
        rows = kept_in_store.list(self._lease.run_id)
        saved = [row for row in rows if row.state == "saved"]
        doomed = [row.path for row in beyond_retention(saved, policy)]
        if doomed:  # asked first, so that no restart chooses what is vanishing
            patience = max(0.0, wait_until - boottime())
            doomed = list(kept_in_store.begin_removal(self._lease.token, doomed, patience))
        doomed += [row.path for row in rows if row.state == "removing"]
        if doomed:
            root = self._shop.settings.artifact_root
            self._removal = Errand(partial(remove_all, root, doomed))
            self._removal.is_done()
        self.is_owed = False

    def take_removed(self) -> list[str]:
        """What has gone since the last call, for the store to forget."""
        if self._removal is None or self.is_busy:
            return []
        is_here = self._look.is_here()  # else what was not found is not gone
        if self._look.is_under_way:
            return []
        removed, self._removal = self._removal.result(), None
        return removed if is_here else []
