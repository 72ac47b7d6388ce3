"""Rules about memory: slots of chunks, and what may be left out where a host is too small."""

from dataclasses import replace
from typing import Any

import pytest

from app.planning.imports import IMPORTS
from tests.guard.changes import LARGE
from tests.guard.world import CPU, GIB, HOST, RTX, codes, plan_of, world


@pytest.mark.parametrize(("chunk", "found"), [("7.2GiB", True), ("6.5GiB", False)])
def test_slots_have_what_the_trainer_gives_to_data(chunk, found):
    """A tenth of what is free stays for the model; the trainer refuses to begin with more."""
    asked = {"data": {"loader": {"residency": "stream", "chunk_size": chunk}}}
    host = replace(HOST, available_bytes=16 * GIB)
    plan = plan_of(asked, world(LARGE, devices=(replace(CPU, host=host),)))
    assert codes(plan) == ["memory.over_budget"] * found
    for issue in plan.issues:
        assert issue.loc == ["data", "loader", "chunk_size"]
        assert "may be used for them" in issue.message
        assert [op.path for op in issue.fix] == ["/data/loader/chunk_size"]


def host_of(change: dict[str, Any]) -> int:
    plan = plan_of(change, world(devices=(RTX,)))
    assert plan.memory is not None
    return int(plan.memory["host"]["least_bytes"])


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        (("compile",), {"/runtime/compile/mode"}),
        (("stream",), {"/data/loader/residency"}),
        (("compile", "stream"), {"/runtime/compile/mode", "/data/loader/residency"}),
        ((), set()),
    ],
)
def test_a_host_that_is_too_small_is_spared_what_can_be_left_out(changes, fix):
    """Each run takes a byte more than there is; the fix is what takes the rest below it."""
    parts = {
        "compile": {"runtime": {"compile": {"mode": "default"}}},
        "stream": {"data": {"loader": {"residency": "stream", "chunk_size": "4MiB"}}},
    }
    batch: dict[str, Any] = {"training": {"batch_size": 128}, "recipe": {"hidden_size": 2048}}
    asked = {**batch, **{key: value for name in changes for key, value in parts[name].items()}}
    least = min(host_of({**batch, **parts[name]}) for name in changes) if len(changes) > 1 else None
    free = (least or host_of(asked)) - 1 + IMPORTS["cpu"].trainer
    host = replace(HOST, available_bytes=free)
    plan = plan_of(asked, world(devices=(replace(RTX, host=host),)))
    (issue,) = [one for one in plan.issues if one.code == "memory.host_over_budget"]
    assert {op.path for op in issue.fix} == fix
