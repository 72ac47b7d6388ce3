"""Scripts: whose agents claim them, and that those are tried again that can resume."""

from typing import Any

import pytest

from app.lifecycle import Reason, RunState
from app.planning.requirements import Owner, SlotOffer
from app.spec.run import SPEC_VERSION
from app.spec.script import ScriptSpec
from app.store.identity import this_process
from app.store.records import Beat, Finish, Lease, NewEvent, RunFilter
from app.store.runs.rows import LONGEST_ARGV
from app.store.worker_records import NewWorker
from tests.store.conftest import World

SAVED = NewEvent("checkpoint", 1.0, {"action": "saved", "step": 5, "by_stoker": True})
BY_PATTERN = NewEvent("checkpoint", 1.0, {"action": "saved", "step": 5, "by_stoker": False})
RESTORED = NewEvent("restored", 1.0, {"step": 5, "by_stoker": True})


def of_script(max_retries: int | str) -> dict[str, Any]:
    """What nothing is said of how it resumes."""
    recipe, policy = {"kind": "script", "argv": ("true",)}, {"max_retries": max_retries}
    spec = ScriptSpec.model_validate({"recipe": recipe, "policy": policy}).model_dump(mode="json")
    column = 0 if max_retries == "auto" else max_retries
    return {"spec": spec, "recipe": "script", "dataset": None, "max_retries": column}


def ends(
    world: World, lease: Lease, *events: NewEvent, reason: Reason = Reason.crashed
) -> RunState:
    """The state after an attempt that told this, and then ended so."""
    world.store.leases.beat(lease.token, Beat(number=lease.beats, events=list(events)))
    world.store.leases.finish(lease.token, Finish(reason, "It broke."))
    assert message_of(world, lease).startswith("It broke.")
    return world.store.runs.get(lease.run_id).state


def message_of(world: World, lease: Lease) -> str:
    return world.store.runs.get(lease.run_id).message or ""


@pytest.mark.parametrize("told", [SAVED, RESTORED], ids=["saved", "restored"])
def test_one_that_knows_by_itself_how_to_resume_is_tried_again(world: World, told: NewEvent):
    assert ends(world, world.running(**of_script("auto")), told) == RunState.queued


@pytest.mark.parametrize("told", [(), (BY_PATTERN,)], ids=["nothing", "by a pattern"])
def test_one_that_does_not_is_not_and_that_is_said(world: World, told: tuple[NewEvent, ...]):
    lease = world.running(**of_script("auto"))
    assert ends(world, lease, *told) == RunState.failed
    message = message_of(world, lease)
    assert "It is not tried again: it has no retries" in message
    assert "--retries N" in message


def test_what_the_spec_says_stays(world: World):
    lease = world.running(**of_script(0))
    assert ends(world, lease, SAVED) == RunState.failed
    assert message_of(world, lease) == "It broke.", "whoever said 0 knows"


def test_an_end_that_is_never_retried_says_nothing_of_retries(world: World):
    lease = world.running(**of_script("auto"))
    assert ends(world, lease, reason=Reason.spec_error) == RunState.failed
    assert message_of(world, lease) == "It broke."
    recipe = world.running(max_retries=0)
    assert ends(world, recipe) == RunState.failed
    assert message_of(world, recipe) == "It broke."


@pytest.mark.parametrize(("told", "state"), [((SAVED,), "queued"), ((), "failed")])
def test_it_is_the_same_when_its_worker_is_lost(
    world: World, told: tuple[NewEvent, ...], state: str
):
    """As by a crash of the host, or its reboot."""
    lease = world.running(**of_script("auto"))
    world.store.leases.beat(lease.token, Beat(number=lease.beats, events=list(told)))
    assert world.store.leases.declare_lost(lease.token, lease.beats + 1)
    run = world.store.runs.get(lease.run_id)
    assert (run.state, run.reason) == (state, Reason.worker_lost)
    assert ("It is not tried again" in (run.message or "")) is (state == "failed")


HOME, OTHER_HOME = "/home/me/.stoker#0123456789abcdef", "/srv/stoker#0123456789abcdee"
TAKEN_BY = Owner("box", 1000, HOME)


def agent_of(owner: Owner | None) -> SlotOffer:
    return SlotOffer("cpu-0-0", "cpu", "cpu", owner=owner)


@pytest.mark.parametrize(
    ("owner", "is_given"),
    [
        (Owner("box", 1000, HOME), True),
        (Owner("box", 1000, OTHER_HOME), False),
        (Owner("box", 1000), False),
        (Owner("box", 1001, HOME), False),
        (Owner("other", 1000, HOME), False),
        (None, False),
    ],
    ids=["its home", "another home", "an old agent", "another user", "another host", "silent"],
)
def test_a_command_of_ones_own_is_claimed_by_the_home_that_took_it(
    world: World, owner: Owner | None, is_given: bool
) -> None:
    run = world.submit(owner=TAKEN_BY)
    lease = world.claim(agent_of(owner))
    assert (lease is not None and lease.run_id == run.id) is is_given
    assert world.store.runs.get(run.id).state == ("running" if is_given else "queued")


@pytest.mark.parametrize(
    ("owner", "is_given"),
    [
        (Owner("box", 1000), True),
        (Owner("box", 1000, OTHER_HOME), True),
        (Owner("box", 1001), False),
        (Owner("other", 1000), False),
        (None, False),
    ],
)
def test_a_command_of_an_earlier_version_is_claimed_by_any_home_of_its_owner(
    world: World, owner: Owner | None, is_given: bool
) -> None:
    run = world.submit(owner=Owner("box", 1000))
    lease = world.claim(agent_of(owner))
    assert (lease is not None and lease.run_id == run.id) is is_given


def have_worker(world: World, facts: dict[str, Any]) -> None:
    """Register a worker with one idle slot."""
    me = this_process()
    process = (me.host, me.boot_id, me.pid, me.start_time)
    slot = {"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}
    facts = {"spec_version": SPEC_VERSION, **facts}
    new = NewWorker("agent", *process, "0.1", slots=[slot], facts=facts)
    world.store.workers.register(new)


def test_the_next_attempt_waits_for_its_home_too(world: World) -> None:
    world.submit(**of_script(1), owner=TAKEN_BY)
    lease = world.claim(agent_of(TAKEN_BY))
    assert lease is not None
    assert ends(world, lease) == RunState.queued
    world.clock.now += 3600
    assert world.claim(agent_of(Owner("box", 1000, OTHER_HOME))) is None
    assert world.claim(agent_of(TAKEN_BY)) is not None


@pytest.mark.parametrize("others", [True, False], ids=["other home", "no worker"])
def test_a_command_whose_home_has_no_worker_says_so(world: World, others: bool) -> None:
    facts = {"host": "box", "uid": 1000, "home": OTHER_HOME}
    if others:
        have_worker(world, facts)
    run = world.submit(owner=TAKEN_BY)
    for record in (world.store.runs.get(run.id), world.store.runs.queue().data[0]):
        assert record.waiting is not None
        assert "which the home /home/me/.stoker took" in record.waiting.why
        assert "`stoker up --home /home/me/.stoker` starts one there" in record.waiting.why
    have_worker(world, {**facts, "home": HOME})
    assert world.store.runs.get(run.id).waiting is None


def test_lists_have_what_a_command_was_given_as_far_as_people_read(world: World):
    first, second = of_script(0), of_script(0)
    first["spec"]["recipe"]["argv"] = ["/bin/python", "train.py", "--lr", "1e-3"]
    second["spec"]["recipe"]["argv"] = ["/bin/python", "x" * 2_000, "--lr"]
    world.submit()
    ids = [world.submit(**spec).id for spec in (first, second)]
    store = world.store.runs
    known = {run.id: run.argv for run in (*store.list(RunFilter(), 10).data, *store.queue().data)}
    assert known[ids[0]] == ["/bin/python", "train.py", "--lr", "1e-3"]
    long = known[ids[1]] or []
    assert [len(word) for word in long] == [11, LONGEST_ARGV - 11 + 1]
    assert long[-1].endswith("x…")
    assert known[min(known)] is None, "of what is no script"
    assert store.get(ids[0]).argv == known[ids[0]]
