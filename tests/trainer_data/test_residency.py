"""How much of the data is on the device at once, and in which order it is shuffled."""

import pytest

from app.spec.data import ChunkedLoader
from worker.trainer.data.residency import GIB, MIB, Memory, Need, choose_residency
from worker.trainer.data.shuffle import Shuffle, resolve_shuffle

REFERENCE_SAMPLE = 360 * 167 * 4  # bytes of a row of the reference table
REFERENCE = Need(REFERENCE_SAMPLE, 51_779 * REFERENCE_SAMPLE, 16_384)


def test_the_reference_table_stays_on_a_large_device_and_streams_through_a_small_one():
    large = choose_residency(ChunkedLoader(), REFERENCE, Memory(79 * GIB, 39 * GIB))
    small = choose_residency(ChunkedLoader(), REFERENCE, Memory(10 * GIB, 5 * GIB))
    assert (large.kind, small.kind) == ("resident", "stream")
    assert small.chunk_samples * REFERENCE_SAMPLE <= 2.5 * GIB


def test_chunks_are_whole_shuffle_groups_where_they_fit():
    need = Need(1_000, 10**12, 16_384)
    chunk = choose_residency(ChunkedLoader(), need, Memory(10 * GIB, 5 * GIB)).chunk_samples
    assert chunk % 16_384 == 0
    assert 0.9 * GIB < chunk * 1_000 <= GIB


@pytest.mark.parametrize(
    ("size", "samples"), [("512MiB", 512 * MIB // 1_000), ("1.5GiB", 3 * GIB // 2_000)]
)
def test_a_chunk_is_as_large_as_asked(size, samples):
    loader = ChunkedLoader(residency="stream", chunk_size=size)
    chosen = choose_residency(loader, Need(1_000, 10**12, 1), Memory(10 * GIB, 5 * GIB))
    assert chosen.chunk_samples == samples


def test_a_share_is_that_of_both_slots_together():
    loader = ChunkedLoader(residency="stream", chunk_size="50%")
    chosen = choose_residency(loader, Need(1_000, 10**12, 1), Memory(10 * GIB, 5 * GIB))
    assert chosen.chunk_samples == 10 * GIB * 50 // 100 // 2 // 1_000


@pytest.mark.parametrize(
    ("samples", "sample_bytes", "expected"),
    [
        (4_020, 23_184, Shuffle("full")),
        (51_779, REFERENCE_SAMPLE, Shuffle("block", 16_384, 17)),
        (10**9, 100, Shuffle("block", 16_384, 1_024)),
    ],
)
def test_auto_shuffles_small_sets_fully_and_large_ones_by_blocks(samples, sample_bytes, expected):
    assert resolve_shuffle(ChunkedLoader(), samples, sample_bytes) == expected
