"""Any order of calls: a run's store never leaves the table, loses an event, or forgets a stop."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from app.errors import ActionNotAllowed, LeaseLost
from app.lifecycle import REASON_POLICY, TERMINAL, TRANSITIONS, Intent, Reason, RunState
from app.settings import load_settings
from app.store.engine.database import Database
from app.store.records import Beat, Finish, NewEvent, Restart
from tests.store.conftest import World, new_run

LEGAL = {(None, "queued"), *((t.source, t.target) for t in TRANSITIONS)}
WISHES = st.sampled_from([Intent.pause, Intent.stop, Intent.kill])


@dataclass
class Known:
    """What must hold of a run from now on."""

    is_over: RunState | None = None
    was_stopped: bool = False


class Lifecycle(RuleBasedStateMachine):
    """Users, agents and observers in any order, on SQLite."""

    runs = Bundle("runs")
    tokens = Bundle("tokens")
    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        home = load_settings(home=Path(self.folder.name))
        shutil.copy(self.template, home.home / "stoker.db")
        self.world = World(home, Database(home))
        self.known: dict[int, Known] = {}

    def teardown(self) -> None:
        self.world.store.close()
        self.folder.cleanup()

    @rule(target=runs, retries=st.integers(0, 2))
    def submit(self, retries: int) -> int:
        run_id = self.world.submit(max_retries=retries).id
        self.known[run_id] = Known()
        return run_id

    @rule(target=runs, parent=runs, force=st.booleans())
    def restart(self, parent: int, force: bool) -> int:
        order = Restart(parent, "latest", {"kind": "full"}, force)
        child = self.world.store.runs.restart(order, new_run())[0].id
        self.known[child] = Known()
        return child

    @rule(target=tokens)
    def claim(self) -> str:
        self.world.clock.now += 100
        lease = self.world.claim()
        if lease is None:
            return "none"
        ancestor = self.world.store.runs.get(lease.run_id).parent_id
        while ancestor is not None:
            run = self.world.store.runs.get(ancestor)
            assert run.state in TERMINAL
            ancestor = run.parent_id
        return lease.token

    @rule(run=runs, intent=WISHES)
    def wish(self, run: int, intent: Intent) -> None:
        try:
            self.world.store.runs.set_intent(run, intent)
        except ActionNotAllowed:
            return
        if intent is not Intent.pause:
            self.known[run].was_stopped = True

    @rule(run=runs)
    def resume(self, run: int) -> None:
        with suppress(ActionNotAllowed):
            self.world.store.runs.resume(run)

    @rule(token=tokens)
    def beat(self, token: str) -> None:
        try:
            self.world.store.leases.beat(token, Beat(events=[NewEvent("phase", 0.0, {})]))
        except LeaseLost:
            assert token not in self.holders()

    @rule(token=tokens, reason=st.sampled_from(list(REASON_POLICY)))
    def finish(self, token: str, reason: Reason) -> None:
        held = token in self.holders()
        try:
            self.world.store.leases.finish(token, Finish(reason, ""))
        except LeaseLost:
            assert not held
        else:
            assert held
            assert token not in self.holders()

    @rule(token=tokens)
    def lose(self, token: str) -> None:
        beat = self.holders().get(token)
        assert self.world.store.leases.declare_lost(token, beat or 0) is (beat is not None)

    def holders(self) -> dict[str, int]:
        return {holder.token: holder.beat for holder in self.world.store.leases.holders()}

    @invariant()
    def every_history_is_legal_and_whole(self) -> None:
        held = {holder.run_id for holder in self.world.store.leases.holders()}
        for run_id, known in self.known.items():
            run = self.world.store.runs.get(run_id)
            events = self.world.store.events.list(run_id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            moves = [e.data for e in events if e.kind == "state"]
            assert {(m["from"], m["to"]) for m in moves if m["from"] != m["to"]} <= LEGAL
            assert (moves[-1]["to"], moves[-1]["intent"]) == (run.state, run.intent)
            assert (run.state is RunState.running) == (run_id in held)
            assert known.is_over in (None, run.state)
            if known.was_stopped:
                assert run.state not in (RunState.queued, RunState.paused)
            known.is_over = run.state if run.state in TERMINAL else None


@pytest.fixture(autouse=True, scope="module")
def _template(empty_database: Path) -> None:
    Lifecycle.template = empty_database


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
