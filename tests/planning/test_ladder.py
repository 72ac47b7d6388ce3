"""The out-of-memory ladder: each rung is smaller than the one before, the cheapest comes first."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.planning.ladder import NO_RUNG, RanOut, Rung, Step, Use, next_step
from app.planning.residency import GIB, MIB, DataMemory, Need, settle_residency
from app.spec.data import ChunkedLoader

SAMPLE = 240_488  # bytes of a row of the reference table, and of its place
ON_GPU = Use("cuda", "stream", 60 * GIB, SAMPLE, 2, 128, 128, 32 * MIB)
ON_CPU = replace(ON_GPU, device="cpu", staging_bytes=0)
PHASES = ("building", "training", "evaluating", "checkpointing", "testing")


def device(phase="training", wanted=None, free=None):
    return RanOut("device", phase, wanted, free)


def step_below(use: Use, ran_out: RanOut, rung: Rung = NO_RUNG) -> Step:
    step = next_step(rung, use, ran_out)
    assert step is not None
    return step


def test_data_comes_first_and_at_least_half_of_it_goes():
    step = step_below(ON_GPU, device(wanted=2 * GIB, free=GIB))
    assert step.rung == Rung(1, data_bytes=30 * GIB, changed=step.rung.changed)
    assert step.sentence == (
        "Rung 1 of the memory ladder: at most 30.00 GiB of data at once, read in chunks, instead "
        "of 60.00 GiB; every result stays the same."
    )


def test_more_than_half_goes_where_more_was_lacking():
    step = step_below(ON_GPU, device(wanted=41 * GIB, free=GIB))
    assert step.rung.data_bytes == 20 * GIB


def test_where_less_data_cannot_give_back_what_was_lacking_the_batch_is_cut():
    little = replace(ON_GPU, residency="resident", data_bytes=GIB)
    step = step_below(little, device(wanted=2 * GIB, free=GIB // 2))
    assert (step.rung.batch, step.rung.evaluation_batch, step.rung.data_bytes) == (64, 64, None)
    assert "micro-batches of 64 instead of 128" in step.sentence
    assert "the number of steps and the schedule stay the same" in step.sentence


def test_as_much_as_was_lacking_is_all_that_was_wanted_where_it_was_free_in_pieces():
    assert device(wanted=GIB, free=2 * GIB).lacking_bytes == GIB
    assert device(wanted=GIB, free=None).lacking_bytes == GIB
    assert device(wanted=3 * GIB, free=GIB).lacking_bytes == 2 * GIB


def test_an_evaluation_that_ran_out_leaves_the_training_as_it_is():
    little = replace(ON_GPU, data_bytes=GIB)
    step = step_below(little, device("evaluating", wanted=4 * GIB))
    assert (step.rung.batch, step.rung.evaluation_batch) == (None, 64)
    assert "the training stays the same" in step.sentence


def test_before_the_first_step_smaller_batches_give_back_their_samples_alone():
    """A model that does not fit is not tried with batch after batch."""
    little = replace(ON_GPU, data_bytes=MIB)
    half = 64 * SAMPLE
    assert next_step(NO_RUNG, little, device("building", wanted=half + 1)) is None
    step = step_below(little, device("building", wanted=half))
    assert step.rung.batch == 64


def test_a_batch_of_one_sample_is_the_end():
    last = replace(ON_GPU, data_bytes=MIB, batch=1)
    assert next_step(NO_RUNG, last, device(wanted=GIB)) is None
    assert step_below(replace(last, batch=3), device(wanted=GIB)).rung.batch == 2


def test_the_host_of_a_run_on_a_gpu_has_smaller_pieces_on_the_way_there():
    ran_out = RanOut("host", "training")
    first = step_below(ON_GPU, ran_out)
    assert (first.rung.staging_bytes, first.rung.data_bytes) == (8 * MIB, None)
    second = step_below(replace(ON_GPU, staging_bytes=8 * MIB), ran_out, first.rung)
    assert second.rung.staging_bytes == 2 * MIB
    assert next_step(second.rung, replace(ON_GPU, staging_bytes=2 * MIB), ran_out) is None
    assert next_step(NO_RUNG, ON_GPU, replace(ran_out, wanted_bytes=GIB)) is None


def test_resident_data_needs_its_pieces_only_until_it_is_there():
    resident = replace(ON_GPU, residency="resident")
    assert next_step(NO_RUNG, resident, RanOut("host", "training")) is None
    assert next_step(NO_RUNG, resident, RanOut("host", "building")) is not None


def test_the_host_of_a_run_on_a_cpu_is_its_device():
    step = step_below(ON_CPU, RanOut("host", "training"))
    assert step.rung.data_bytes == 30 * GIB


BY_PROCESSES = Use(
    "cpu", "batches", 0, SAMPLE, 2, 128, 128, 0, workers=8, prefetch_factor=4,
    process_bytes=158 * MIB,
)  # fmt: skip


def host(phase="training", wanted=None):
    return RanOut("host", phase, wanted, 0 if wanted else None)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_loader_processes_are_less_far_ahead_first_and_then_fewer(device):
    """One after the other, as if each rung ran out as well; and then no results have changed."""
    use, rung, told = replace(BY_PROCESSES, device=device), NO_RUNG, []
    for _ in range(5):
        step = step_below(use, host(), rung)
        rung = step.rung
        told.append((rung.prefetch_factor, rung.workers))
        assert step.sentence.endswith("; every result stays the same.")
        workers = use.workers if rung.workers is None else rung.workers
        use = replace(use, prefetch_factor=1, workers=workers)
    assert told == [(1, None), (1, 4), (1, 2), (1, 1), (1, 0)]
    assert rung.changed[:2] == (
        "loader processes 1 batch ahead, not 4",
        "4 loader processes for each part",
    )
    assert rung.changed[-1] == "no loader processes"
    after = next_step(rung, use, host())
    assert (after is None) == (device == "cuda")
    assert after is None or after.rung.batch == 64


def test_as_many_processes_go_as_give_back_what_was_lacking():
    batch = 128 * SAMPLE
    step = step_below(BY_PROCESSES, host(wanted=8 * 3 * batch + 1))
    assert (step.rung.prefetch_factor, step.rung.workers) == (None, 4)
    step = step_below(BY_PROCESSES, host(wanted=7 * (4 * batch + 158 * MIB)))
    assert step.rung.workers == 1
    assert "1 loader process for each part instead of 8" in step.sentence
    step = step_below(BY_PROCESSES, host(wanted=8 * (4 * batch + 158 * MIB) + 1))
    assert (step.rung.workers, step.rung.batch) == (None, 64)


def test_processes_that_are_not_there_yet_and_those_of_a_full_gpu_are_left_alone():
    assert step_below(BY_PROCESSES, host("building")).rung.batch == 64
    on_gpu = replace(BY_PROCESSES, device="cuda")
    assert step_below(on_gpu, device(wanted=GIB)).rung.batch == 64


uses = st.builds(
    Use,
    device=st.sampled_from(["cpu", "cuda"]),
    residency=st.sampled_from(["resident", "stream", "batches"]),
    data_bytes=st.integers(0, 2**42),
    workers=st.integers(0, 256),
    prefetch_factor=st.integers(1, 64),
    process_bytes=st.just(158 * MIB),
    sample_bytes=st.integers(16, 2**24),
    parts=st.integers(1, 3),
    batch=st.integers(1, 2**20),
    evaluation_batch=st.integers(1, 2**20),
    staging_bytes=st.just(32 * MIB),
)
sizes = st.none() | st.integers(1, 2**42)


@given(use=uses, where=st.sampled_from(["device", "host"]), data=st.data())
def test_wherever_memory_runs_out_the_ladder_ends_and_always_goes_down(use, where, data):
    rung, rungs = NO_RUNG, 0
    while True:
        ran_out = RanOut(where, data.draw(st.sampled_from(PHASES)), data.draw(sizes), None)
        step = next_step(rung, use, ran_out)
        if step is None:
            break
        names = ("data_bytes", "batch", "evaluation_batch", "staging_bytes", "workers",
                 "prefetch_factor")  # fmt: skip
        bounds = tuple(getattr(step.rung, name) for name in names)
        used = tuple(getattr(use, name) for name in names)
        now = tuple(u if b is None else min(u, b) for b, u in zip(bounds, used, strict=True))
        assert now != used
        use = replace(use, **dict(zip(names, now, strict=True)))
        if step.rung.data_bytes is not None:
            use = replace(use, residency="stream")
        assert step.rung.number == rung.number + 1 == len(step.rung.changed)
        rung, rungs = step.rung, rungs + 1
    assert rungs < 150


@given(
    samples=st.integers(10, 10**6),
    held_out=st.lists(st.integers(1, 10**5), max_size=2),
    sample_bytes=st.integers(16, 10**5),
    group=st.sampled_from([1, 100, 16_384]),
    residency=st.sampled_from(["auto", "resident", "stream"]),
    batch=st.integers(1, 256),
)
def test_what_a_rung_leaves_for_data_is_kept(
    samples, held_out, sample_bytes, group, residency, batch
):
    need = Need(sample_bytes, group, samples, tuple(held_out))
    loader, memory = ChunkedLoader(residency=residency), DataMemory(80 * GIB, 40 * GIB)
    before = settle_residency(loader, need, memory)
    use = Use("cuda", before.kind, before.needed_bytes, need.slot_sample_bytes,
              1 + len(held_out), batch, batch, 32 * MIB)  # fmt: skip
    step = next_step(NO_RUNG, use, device("building", wanted=1))
    if step is None or step.rung.data_bytes is None:
        return  # so little data that nothing of it can be left out
    smaller, room = step.rung.of_data(loader, memory)
    after = settle_residency(smaller, need, room)
    assert after.kind == "stream"
    assert after.needed_bytes <= step.rung.data_bytes < before.needed_bytes
    assert after.chunk_samples > min(4 * batch, samples) - group  # whole groups, where one fits


def test_a_rung_is_the_same_after_it_was_stored():
    step = step_below(ON_GPU, device())
    stored = json.loads(json.dumps(step.rung.as_json()))
    assert Rung.from_json(stored) == step.rung
    assert Rung.from_json(None) == NO_RUNG


@pytest.mark.parametrize("residency", ["auto", "resident", "stream"])
def test_without_a_rung_data_is_kept_as_the_spec_has_it(residency):
    loader, memory = ChunkedLoader(residency=residency), DataMemory(GIB, GIB // 2)
    assert NO_RUNG.of_data(loader, memory) == (loader, memory)


@pytest.mark.parametrize("phase", PHASES)
def test_lanes_that_carry_a_state_are_never_cut(phase):
    use = replace(ON_GPU, data_bytes=0, whole_batches=True)
    step = next_step(NO_RUNG, use, device(phase))
    assert (step is not None) == (phase in ("evaluating", "testing"))
    assert step is None or (step.rung.batch, step.rung.evaluation_batch) == (None, 64)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("last", [{"batch": 1}, {"whole_batches": True}])
def test_activations_are_computed_anew_where_no_smaller_batch_is_left(phase, last):
    """Once: an attempt that does says that it has nothing to compute anew."""
    use = replace(ON_GPU, data_bytes=0, evaluation_batch=1, recomputable=True, **last)
    step = next_step(NO_RUNG, use, device(phase, wanted=100 * GIB))
    assert (step is not None) == (phase in ("training", "checkpointing"))
    if step is not None:
        assert step.rung == Rung(1, activation_checkpointing=True, changed=step.rung.changed)
        assert "every result stays the same" in step.sentence
        assert next_step(step.rung, replace(use, recomputable=False), device(phase)) is None
    assert step_below(replace(use, batch=2, whole_batches=False), device()).rung.batch == 1
