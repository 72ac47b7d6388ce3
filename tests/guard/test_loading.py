"""Rules of loading: chunks that hold what is shuffled together, and what makes them do so."""

import pytest

from tests.guard.cases import CHUNKED, LARGE, Change
from tests.guard.world import GIB, codes, plan_of, weather, world

CODE = "speed.random_reads_of_chunks"
SQUEEZED = weather(
    samples=LARGE.samples, size_bytes=LARGE.size_bytes, fields=CHUNKED.fields
)  # of 2,000,000 samples; 16,384 of them are shuffled together in blocks


def loader(**values: object) -> Change:
    return {"data": {"loader": {"residency": "stream", **values}}}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"shuffle": "full", "chunk_size": "1GiB"}, True),
        ({"shuffle": "block", "chunk_size": "16MiB"}, True),
        ({"shuffle": "block", "chunk_size": "1GiB"}, False),
        ({"shuffle": "none", "chunk_size": "16MiB"}, False),
    ],
)
def test_blocks_are_read_in_order_only_by_chunks_that_hold_a_whole_group(asked, found):
    assert (CODE in codes(plan_of(loader(**asked), world(SQUEEZED)))) == found


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        # All of a small file fits a chunk, and the order stays as it is.
        ({"shuffle": "full", "chunk_size": "4MiB"}, {"/data/loader/chunk_size"}),
        ({"shuffle": "block", "chunk_size": "4MiB"}, {"/data/loader/chunk_size"}),
    ],
)
def test_larger_chunks_mend_what_they_can(asked, changed):
    (issue,) = [i for i in plan_of(loader(**asked), world(CHUNKED)).issues if i.code == CODE]
    assert {op.path for op in issue.fix} == changed
    assert issue.loc == ["data", "loader", "chunk_size"]


def test_a_file_that_no_chunk_holds_is_shuffled_in_blocks():
    asked = loader(shuffle="full", chunk_size="1GiB")
    (issue,) = [i for i in plan_of(asked, world(SQUEEZED)).issues if i.code == CODE]
    assert {op.path: op.value for op in issue.fix}["/data/loader/shuffle"] == "block"
    assert issue.loc == ["data", "loader", "shuffle"]


def test_the_time_of_reading_is_told_where_the_inspection_measured_it():
    asked = loader(shuffle="full", chunk_size="1GiB")

    def why(rate: float | None) -> str:
        data = weather(**{**vars(SQUEEZED), "read_bytes_per_second": rate})
        return next(i.why for i in plan_of(asked, world(data)).issues if i.code == CODE)

    assert "At the 2.0 GiB a second that its inspection read" in why(2.0 * GIB)
    assert "its inspection read" not in why(None)
