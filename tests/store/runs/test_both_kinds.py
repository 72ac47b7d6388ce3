"""A worker with slots of both kinds: each is for its own, and GPUs' runs share out the cores."""

from dataclasses import replace

import pytest

from app.planning.requirements import Requirements, cores_shared_by
from tests.store.conftest import World
from tests.store.runs.test_claims import SMALL, cpu


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cuda"])
def test_each_slot_of_a_worker_that_has_both_kinds_is_for_its_own(
    world: World, wanted: str
) -> None:
    world.submit(device=wanted, requirements=Requirements())
    own, other = (cpu(8), SMALL) if wanted == "cpu" else (SMALL, cpu(8))
    assert world.claim(replace(own, is_taken=True), other) is None
    lease = world.claim(own, other)
    assert lease is not None
    assert lease.slots == (own.name,)


def test_the_cores_are_shared_out_among_gpus_where_there_are_any() -> None:
    assert cores_shared_by(["cuda:0", "cuda:1", "cpu"]) == 2
    assert cores_shared_by(["cpu", "cpu"]) == 2
