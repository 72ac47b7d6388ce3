"""How many slots an agent has, on which devices, and how agents of one host differ."""

from contextlib import closing
from dataclasses import replace

import pytest

from tests.worker.telemetry.test_exporter import GPU
from worker.agent.slots import AgentIndex, make_slots, why_waiting
from worker.launch.locks import lock_is_free, take_lock

TWO_GPUS = (GPU, replace(GPU, index="1", uuid="GPU-1"))


def names(slots):
    return [slot.name for slot in slots]


def test_a_cpu_host_has_one_slot_named_after_its_agent(tmp_path):
    assert names(make_slots(None, (), 3, tmp_path)) == ["cpu-3-0"]


def test_a_gpu_host_has_a_slot_a_gpu_and_one_for_the_cpu(tmp_path):
    slots = make_slots(None, TWO_GPUS, 0, tmp_path)
    assert names(slots) == ["gpu-GPU-0", "gpu-GPU-1", "cpu-0-0"]
    assert [slot.device for slot in slots] == ["cuda:0", "cuda:1", "cpu"]
    assert slots[0].lock_path == tmp_path / "gpu-GPU-0.lock", "agents of one host share the lock"


def test_the_number_of_slots_can_be_set(tmp_path):
    assert names(make_slots(1, TWO_GPUS, 0, tmp_path)) == ["gpu-GPU-0"]
    assert names(make_slots(3, TWO_GPUS, 0, tmp_path))[2:] == ["cpu-0-0"]
    assert names(make_slots(2, (), 0, tmp_path)) == ["cpu-0-0", "cpu-0-1"]


def test_agents_take_the_smallest_free_number(tmp_path):
    with closing(AgentIndex(tmp_path)) as first:
        with closing(AgentIndex(tmp_path)) as second:
            assert (first.number, second.number) == (0, 1)
        with closing(AgentIndex(tmp_path)) as third:
            assert third.number == 1


def test_a_lock_is_free_when_nobody_holds_it(tmp_path):
    path = tmp_path / "slot.lock"
    assert lock_is_free(path)
    assert take_lock(path) is not None
    assert not lock_is_free(path)


def test_a_gpu_of_which_nothing_is_known_is_waited_for(tmp_path):
    gpu, cpu = make_slots(2, TWO_GPUS[:1], 0, tmp_path)
    assert "nvidia-smi" in (why_waiting(gpu, None) or "none")
    assert why_waiting(gpu, GPU) is None
    assert why_waiting(cpu, None) is None


@pytest.mark.parametrize("share", [False, True])
def test_a_gpu_that_mig_divides_takes_no_run_and_says_what_to_do(tmp_path, share):
    (slot,) = make_slots(1, TWO_GPUS, 0, tmp_path)
    sentence = why_waiting(slot, replace(GPU, is_divided=True), share=share) or "none"
    assert "`sudo nvidia-smi -i 0 -mig 0`" in sentence
    assert "CUDA_VISIBLE_DEVICES" in sentence
    assert why_waiting(slot, GPU, share=share) is None


def test_a_sample_from_before_the_slot_was_free_is_of_our_own_run(tmp_path):
    (slot,) = make_slots(1, TWO_GPUS, 0, tmp_path)
    ours = replace(GPU, memory_used_bytes=90, seen_at=1.0)
    slot.release()
    assert why_waiting(slot, ours) is None
    assert why_waiting(slot, replace(ours, seen_at=slot.free_since + 1)) is not None
