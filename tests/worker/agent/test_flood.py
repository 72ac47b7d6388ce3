"""A trainer that tells and prints without measure costs its agent neither memory nor a word."""

import signal
from pathlib import Path

from app.lifecycle import RunState
from app.store.telemetry.logs import TAIL_BYTES
from tests.worker.eventually import eventually

COUNT = 80_000


def memory_kib(pid, name):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def test_the_end_of_a_flood_is_told_in_pieces_and_in_order(make_farm):
    farm = make_farm(beat_seconds=1.0)  # the load of other tests is no part of this one
    agent = farm.start_agent(STOKER_SLOTS="2")
    beside = farm.submit(steps=10**6, pace=0.02)
    farm.wait_for_step(beside, 2)
    before = memory_kib(agent.pid, "VmRSS")
    run_id = farm.submit(steps=3, flood=COUNT)
    run = farm.wait_for_end(run_id)
    assert run.state is RunState.succeeded, run
    assert run.message == "All steps are done."
    assert memory_kib(agent.pid, "VmHWM") - before < 96 * 2**10
    assert farm.run(beside).attempt == 1, "the run beside it kept its lease"

    codes, after = [], 0
    while events := farm.store.events.list(run_id, after=after, limit=10_000):
        codes += [event.data["code"] for event in events if event.kind == "warning"]
        after = events[-1].seq
    assert codes == [f"flood-{number}" for number in range(COUNT)]
    log, offset = "", 0
    while (chunk := farm.store.logs.read(run_id, 1, offset)).text:
        log, offset = log + chunk.text, chunk.next_offset
    assert log.startswith("fake trainer starts\n")
    assert "left out" in log
    kept = [line for line in log[-TAIL_BYTES + 1000 :].splitlines() if line.startswith("flood ")]
    numbers = [int(line.split()[1]) for line in kept[1:]]
    assert numbers == list(range(numbers[0], COUNT))


def test_after_a_second_signal_a_flood_is_read_to_its_end(make_farm):
    farm = make_farm(beat_seconds=1.0)
    agent = farm.start_agent(STOKER_SLOTS="1")
    run_id = farm.submit(steps=3, flood=COUNT)

    def is_told():
        return any(event.kind == "warning" for event in farm.store.events.list(run_id))

    eventually(is_told, "its flood is being read")
    eventually(lambda: not farm.processes("fake_trainer.py"), "its trainer has ended")
    agent.send_signal(signal.SIGTERM)
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=60) == 0
    assert farm.run(run_id).state is RunState.succeeded
    assert farm.left_running() == []
