"""Whole trainings on data that streams in small chunks: they end as those that hold it all."""

from typing import Any

import pytest

from app.lifecycle import Reason
from tests.trainer.lab import Lab, StopAtPoll, merged

RANDOM: dict[str, Any] = {"data": {"split": {"method": "random"}}}
BY_EPOCHS: dict[str, Any] = {"evaluation": {"every_epochs": 1, "every_steps": None}}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "accumulation": {},
    "random split": RANDOM,
    "drop_last, evaluation by epochs": {"training": {"drop_last": True}, **BY_EPOCHS},
    "max_steps in mid-epoch": {"training": {"max_steps": 5}},
    "blocks": {"data": {"loader": {"shuffle": "block", "shuffle_group": 16}}},
    "everything": {
        **RANDOM,
        "training": {"drop_last": True, "max_steps": 7, "gradient_accumulation_steps": 3},
        "evaluation": {"every_steps": 2, "max_batches": 2},
    },
}


def with_residency(patch: dict[str, Any], residency: str) -> dict[str, Any]:
    loader = {"kind": "chunked", "residency": residency, "chunk_size": "1KiB"}
    return merged(patch, {"data": {"loader": loader}})


@pytest.mark.parametrize("patch", COMBINATIONS.values(), ids=COMBINATIONS.keys())
def test_a_streamed_run_is_the_resident_one_and_resumes_bit_exactly(
    lab: Lab, patch: dict[str, Any]
) -> None:
    resident = lab.run(patch=with_residency(patch, "resident"))
    stream = with_residency(patch, "stream")
    stop = StopAtPoll()
    straight = lab.run(patch=stream, stop=stop)
    assert straight.of_kind("applied")[0]["applied"]["data"]["chunk_samples"] < 10
    assert (straight.weights, straight.losses) == (resident.weights, resident.losses)
    interrupted = 0
    for poll in range(1, stop.polls, 4):
        run_dir = lab.new_run()
        first = lab.run(run_dir, stream, stop=StopAtPoll(poll))
        assert first.end is not None
        interrupted += first.end.reason is Reason.interrupted
        resumed = lab.run(run_dir, stream)
        assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
    assert interrupted >= 3
