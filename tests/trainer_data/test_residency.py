"""How much of the data is on the device at once, and in which order it is shuffled."""

import pytest
import torch

from app.planning.residency import GIB, MIB, SLOTS, DataMemory, Need, slots_for
from app.planning.shuffle import Shuffle, stored_shuffle
from app.spec.data import ChunkedLoader
from worker.trainer.data.feed import residency
from worker.trainer.data.feed.residency import choose_residency, device_memory
from worker.trainer.errors import SpecMismatch

REFERENCE_SAMPLE = 360 * 167 * 4  # bytes of a row of the reference table
REFERENCE = Need(REFERENCE_SAMPLE, 16_384, 41_423, (10_356,))
SMALL = DataMemory(10 * GIB, 5 * GIB)


def endless(group=1, held_out=()):
    return Need(992, group, 10**9, held_out)  # a sample and its place are 1,000 bytes


def test_the_reference_table_stays_on_a_large_device_and_streams_through_a_small_one():
    large = choose_residency(ChunkedLoader(), REFERENCE, DataMemory(79 * GIB, 39 * GIB))
    small = choose_residency(ChunkedLoader(), REFERENCE, SMALL)
    assert (large.kind, small.kind) == ("resident", "stream")
    assert small.chunk_samples * REFERENCE_SAMPLE <= 2.5 * GIB


def test_chunks_are_whole_shuffle_groups_where_they_fit():
    chunk = choose_residency(ChunkedLoader(), endless(16_384), SMALL).chunk_samples
    assert chunk % 16_384 == 0
    assert 0.9 * GIB < chunk * 1_000 <= GIB


@pytest.mark.parametrize(
    ("size", "samples"), [("512MiB", 512 * MIB // 1_000), ("1.5GiB", 3 * GIB // 2_000)]
)
def test_a_chunk_is_as_large_as_asked(size, samples):
    loader = ChunkedLoader(residency="stream", chunk_size=size)
    assert choose_residency(loader, endless(), SMALL).chunk_samples == samples


@pytest.mark.parametrize("held_out", [(), (10**6,), (10**6, 10**4)])
@pytest.mark.parametrize("size", ["auto", "1%", "50%", "100%"])
@pytest.mark.parametrize("limit", [10 * MIB, 700 * MIB, 10 * GIB])
def test_a_share_is_that_of_all_slots_together_and_holds(held_out, size, limit):
    need = endless(held_out=held_out)
    loader = ChunkedLoader(residency="stream", chunk_size=size)
    chosen = choose_residency(loader, need, DataMemory(limit, limit // 2))
    taken = need.stream_bytes(chosen.chunk_samples, chosen.evaluation_chunk_samples)
    share = int(size[:-1]) if size != "auto" else 50
    allowed = limit * share // 100
    assert taken <= allowed
    single = [n for n in held_out if slots_for(chosen.evaluation_chunk_samples, n) == 1]
    if size != "auto":  # less a sample of each slot, and the second slots that are not needed
        assert taken > allowed - SLOTS * 3 * 1_000 - sum(single) * 1_000


def test_a_part_that_is_one_chunk_has_one_slot():
    assert (slots_for(10, 10), slots_for(9, 10)) == (1, 2)
    need = Need(992, 1, 10, (4,))
    assert need.stream_bytes(10, 4) == 14 * 1_000
    assert need.stream_bytes(5, 3) == 2 * (5 + 3) * 1_000


def test_slots_of_evaluations_are_part_of_what_must_fit():
    loader = ChunkedLoader(residency="stream", chunk_size="400MiB")
    memory = DataMemory(900 * MIB, 450 * MIB)
    assert choose_residency(loader, endless(), memory).kind == "stream"
    told = r"0\.39 GiB.*0\.25 GiB.*1 held-out.*0\.88 GiB are free"
    with pytest.raises(SpecMismatch, match=told):
        choose_residency(loader, endless(held_out=(10**6,)), memory)


def test_data_never_gets_what_is_kept_for_the_model(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (80 * GIB, 80 * GIB))
    memory = device_memory(torch.device("cuda"), None)
    assert (memory.limit_bytes, memory.budget_bytes) == (72 * GIB, 40 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GIB // 4, 80 * GIB))
    assert device_memory(torch.device("cuda"), None) == DataMemory(0, 0)
    with pytest.raises(SpecMismatch, match=r"0\.00 MiB are free for it"):
        choose_residency(ChunkedLoader(residency="resident"), endless(), DataMemory(0, 0))


def test_on_a_gpu_data_may_have_what_the_memory_plan_leaves(monkeypatch):
    """The reference table streamed in every epoch on a card of 16 GB, where it fits."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (15 * GIB, 16 * GIB))
    blind = device_memory(torch.device("cuda"), None)
    assert choose_residency(ChunkedLoader(), REFERENCE, blind).kind == "stream"
    for beside, kind in ((GIB, "resident"), (2 * GIB, "resident"), (4 * GIB, "stream")):
        planned = device_memory(torch.device("cuda"), None, beside)
        assert choose_residency(ChunkedLoader(), REFERENCE, planned).kind == kind
    # What is planned may be wrong: an eighth more of it has to have its place, too.
    assert device_memory(torch.device("cuda"), None, 8 * GIB).budget_bytes < 7 * GIB * 9 // 10
    assert device_memory(torch.device("cuda"), None, 20 * GIB).budget_bytes == 0


def test_of_a_hosts_memory_data_has_half_whatever_is_planned(monkeypatch):
    monkeypatch.setattr(residency, "available_memory", lambda: 20 * GIB)
    for beside in (None, GIB):
        assert device_memory(torch.device("cpu"), None, beside).budget_bytes == 10 * GIB


@pytest.mark.parametrize(
    ("loader", "samples", "sample_bytes", "expected"),
    [
        ({}, 4_020, 23_184, Shuffle("full")),
        ({}, 51_779, REFERENCE_SAMPLE, Shuffle("block", 16_384, 17)),
        ({}, 10**9, 100, Shuffle("block", 16_384, 1_024)),
        ({"shuffle_group": 64}, 100, 100, Shuffle("block", 64, 4)),
        ({"shuffle": "block", "shuffle_group": 64}, 10**9, 2**20, Shuffle("block", 64, 4)),
        (
            {"shuffle": "block", "shuffle_group": 64, "shuffle_block": 3},
            9,
            9,
            Shuffle("block", 64, 3),
        ),
    ],
)
def test_a_stored_spec_means_what_the_version_did_that_wrote_it(
    loader, samples, sample_bytes, expected
):
    """Earlier ones had blocks of 4 MiB, 16 in a group at least, and none up to 1 GiB."""
    assert stored_shuffle(ChunkedLoader(**loader), samples, sample_bytes) == expected
