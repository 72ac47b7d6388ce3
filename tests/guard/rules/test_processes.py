"""The PyTorch loader before the guard: what its processes take, and what becomes of too many."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import Facts, LengthFacts
from app.guard.plan import RunPlan
from app.planning.imports import IMPORTS
from app.spec.issue import Issue
from benchmarks.memory import process_memory
from benchmarks.memory.memory_cases import BUILD
from tests.guard.changes import LARGE, USUAL, by_torch, training, with_host
from tests.guard.world import (
    CPU,
    FIELDS,
    GIB,
    HISTORY,
    HOST,
    RTX,
    as_measured,
    codes,
    plan_of,
    point,
    weather,
    with_field,
    world,
)

MIB = 2**20
CPU_BUILD = IMPORTS["cpu"]
BATCH = 128 * (360 * 15 + 36) * 4
EVALUATED = BATCH  # of 804 samples
MANY = with_host(cores=64)


def items(change: dict[str, Any], facts: Facts = MANY, place: str = "host") -> dict[str, int]:
    memory = plan_of(change, facts).memory
    assert memory is not None
    found: dict[str, int] = memory[place]["items"]
    return found


def issue(plan: RunPlan, code: str) -> Issue:
    return next(found for found in plan.issues if found.code == code)


def fix_of(plan: RunPlan, code: str) -> dict[str, Any]:
    return {op.path: op.value for op in issue(plan, code).fix}


@pytest.mark.minutes
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_process_takes_what_the_plan_says(context):
    """On any machine within a factor; `python -m benchmarks memory` looks how near."""
    imports = IMPORTS[BUILD]
    planned = {"spawn": imports.spawned, "forkserver": imports.forked}[context]
    found = process_memory.loader_processes(context)
    assert len(found.own) == 2
    assert all(planned / 2 < own < planned * 2 for own in found.own)
    if context == "forkserver":
        assert found.fork_server is not None
        assert imports.fork_server / 2 < found.fork_server < imports.fork_server * 2


def test_a_loader_without_processes_has_a_batch_and_one_to_sort_small_samples_in():
    """On the host that is the device: the batch in use is counted with the step."""
    found = items(by_torch())
    assert found["batch"] == BATCH
    assert found["loader_batches"] == EVALUATED
    assert "loader_processes" not in found
    assert "resident_data" not in found
    small, batch = world(with_field("features", shape=(12, 15))), 128 * (12 * 15 + 36) * 4
    assert items(by_torch(), small)["loader_batches"] == 2 * batch
    assert items(by_torch(shuffle="none"), small)["loader_batches"] == batch


def test_each_part_has_its_processes_and_as_many_batches_as_they_are_ahead():
    found = items(by_torch(num_workers=3, prefetch_factor=4))
    assert found["loader_processes"] == 3 * CPU_BUILD.spawned
    assert found["evaluation_processes"] == 3 * CPU_BUILD.spawned
    # 12 ahead; all 7 batches of the validation part.
    assert found["loader_batches"] == 12 * BATCH + 7 * EVALUATED


@pytest.mark.parametrize(("stay", "parts"), [(False, 1), (True, 2)])
def test_processes_of_a_part_that_is_not_read_are_there_only_if_they_stay(stay, parts):
    split = {"split": {"validation_fraction": 0.2, "test_fraction": 0.2}}
    loader = by_torch(num_workers=2, persistent_workers=stay)
    change = {"data": {**split, **loader["data"]}}
    assert items(change)["evaluation_processes"] == parts * 2 * CPU_BUILD.spawned
    memory = plan_of(change, MANY).memory
    assert memory is not None
    beside = memory["host"]["phases"]["training"] - memory["host"]["phases"]["checkpointing"]
    without = plan_of({"data": {**split, **by_torch()["data"]}}, MANY).memory
    assert without is not None
    assert beside == (
        without["host"]["phases"]["training"] - without["host"]["phases"]["checkpointing"]
    )


@pytest.mark.parametrize("ragged", [True, False])
def test_each_process_has_a_copy_of_where_ragged_samples_begin(ragged):
    lengths = LengthFacts(1, 200.0, 360) if ragged else None
    facts = world(with_field("features", lengths=lengths))
    facts = replace(facts, devices=MANY.devices)
    found = items(by_torch(num_workers=3), facts)
    samples = facts.datasets["weather"].samples
    assert samples is not None
    each = CPU_BUILD.spawned + ragged * samples * 8
    assert found["loader_processes"] == found["evaluation_processes"] == 3 * each


def test_copies_of_a_fork_server_share_what_it_has_imported():
    found = items(by_torch(num_workers=4, multiprocessing_context="forkserver"))
    assert found["loader_processes"] == CPU_BUILD.fork_server + 4 * CPU_BUILD.forked
    assert found["evaluation_processes"] == 4 * CPU_BUILD.forked


def test_no_more_processes_are_planned_than_the_trainer_starts():
    assert items(by_torch(num_workers=64), with_host(cores=3))["loader_processes"] == (
        3 * CPU_BUILD.spawned
    )


def test_on_a_gpu_batches_wait_on_the_host_and_nothing_is_staged():
    facts = world(devices=(RTX,))
    change = {**by_torch(num_workers=2), **training(**USUAL)}
    host, device = items(change, facts), items(change, facts, "device")
    assert host["loader_batches"] == (2 * 2 + 1) * BATCH + 5 * EVALUATED
    assert not {"staging", "page_locked_order"} & host.keys()
    assert device["next_batch"] == BATCH
    assert not {"resident_data", "chunk_slots"} & device.keys()


@pytest.mark.parametrize(("device", "fitting"), [(CPU, 8), (RTX, 4)], ids=["cpu", "gpu"])
def test_too_many_processes_become_fewer_and_the_rest_stays(device, fitting):
    """8 × 4 × 128 prefetched samples filled 32 GB in a reference report."""
    host = replace(HOST, available_bytes=4 * GIB, cores=16)
    facts = world(weather(samples=40_000), devices=(replace(device, host=host),))
    change = {
        **by_torch(num_workers=16, prefetch_factor=8, persistent_workers=True),
        **training(**USUAL),
    }
    plan = plan_of(change, as_measured(change, facts, point(128, 100)))
    found = issue(plan, "memory.loader_over_budget")
    assert found.severity == "error"
    assert found.message.startswith("The loader would take 5.")
    assert "Up to 32 processes have 4.9 GiB of their own" in found.why
    fix = fix_of(plan, "memory.loader_over_budget")
    assert fix == {"/data/loader/num_workers": fitting, "/data/loader/prefetch_factor": 1}
    assert not {"memory.over_budget", "memory.host_over_budget"} & set(codes(plan))


def test_where_no_process_fits_the_trainer_reads_by_itself():
    facts = with_host(available_bytes=600 * MIB, cores=4)
    loader = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}
    plan = plan_of(by_torch(**loader), facts)
    assert fix_of(plan, "memory.loader_over_budget") == {
        "/data/loader/num_workers": 0,
        "/data/loader/prefetch_factor": None,
        "/data/loader/persistent_workers": False,
    }


def test_what_does_not_fit_without_processes_either_is_not_the_loaders_fault():
    change = {
        "recipe": {"hidden_size": 512, "patch": 1},
        **training(batch_size=512),
        **by_torch(num_workers=2),
    }
    facts = as_measured(change, with_host(available_bytes=2 * GIB), point(512, 1800))
    plan = plan_of(change, facts)
    assert "memory.over_budget" in codes(plan)
    assert "memory.loader_over_budget" not in codes(plan)


@pytest.mark.parametrize(("slots", "found"), [(1, False), (2, True)])
def test_the_cores_of_the_runs_beside_are_theirs(slots, found):
    plan = plan_of(by_torch(num_workers=8), with_host(cores=8, slots=slots))
    assert ("speed.workers_above_cores" in codes(plan)) == found
    if found:
        assert fix_of(plan, "speed.workers_above_cores") == {"/data/loader/num_workers": 4}
        assert "8 cores, shared by 2 runs" in issue(plan, "speed.workers_above_cores").message


@pytest.mark.parametrize(
    ("change", "pace", "found"),
    [
        ({}, 20.0, True),  # 60 epochs and as many evaluations, 156 s beside 78 s of steps
        ({"persistent_workers": True}, 20.0, False),
        ({"multiprocessing_context": "forkserver"}, 20.0, False),
        ({}, 0.5264, True),  # 5 % of the time
        ({}, 0.5262, False),
    ],
)
def test_processes_that_begin_anew_matter_by_their_share_of_the_time(change, pace, found):
    facts = replace(MANY, history=replace(HISTORY, iterations_per_second=pace))
    asked = {**by_torch(num_workers=2, **change), **training(epochs=60, **USUAL)}
    assert ("speed.workers_start_anew" in codes(plan_of(asked, facts))) == found


@pytest.mark.parametrize(
    ("loader", "facts", "reason"),
    [
        (
            {},
            world(),
            "keep all 83.4 MiB on the device and read them once, not in each of 5 epochs",
        ),
        ({}, world(LARGE), "which is 2 to 4 times as fast"),
        ({"shuffle": "none"}, world(LARGE), None),
        (
            {},
            world(
                replace(
                    LARGE,
                    fields={**FIELDS, "features": replace(FIELDS["features"], shape=(360, 50))},
                )
            ),
            None,  # samples of 70 KiB come as fast by either
        ),
    ],
)
def test_the_chunked_loader_is_pointed_to_where_it_is_faster(loader, facts, reason):
    plan = plan_of(by_torch(**loader), facts)
    assert ("speed.chunked_is_faster" in codes(plan)) == (reason is not None)
    if reason is not None:
        assert reason in issue(plan, "speed.chunked_is_faster").why
        assert plan.errors == []


def test_a_chunked_loader_that_would_not_fit_is_not_pointed_to():
    """Its slots take more than the one batch that the trainer reads by itself."""
    plan = plan_of(by_torch(), with_host(available_bytes=430 * MIB))
    assert plan.errors == []
    assert "speed.chunked_is_faster" not in codes(plan)
    fixed = plan_of({"data": {"loader": {"kind": "chunked"}}}, with_host(available_bytes=430 * MIB))
    assert fixed.errors != []


def test_one_epoch_is_read_once_by_any_loader():
    plan = plan_of({**by_torch(shuffle="none"), **training(epochs=1)})
    assert "speed.chunked_is_faster" not in codes(plan)


@pytest.mark.parametrize(
    ("loader", "rows", "times"),
    [
        ({"shuffle": "none"}, 64, None),
        ({"shuffle": "none"}, 128, None),
        ({"shuffle": "none"}, 512, "5.0"),  # (512 + 127) / 128
        ({"shuffle": "full"}, 64, "60.5"),  # nearly each row from a chunk of its own
    ],
)
def test_batches_read_compressed_chunks_again_and_again(loader, rows, times):
    stored = with_field("features", storage="chunked", chunk_rows=rows, compression="gzip")
    plan = plan_of(by_torch(**loader), world(replace(stored, samples=100_000)))
    assert ("speed.random_reads_of_chunks" in codes(plan)) == (times is not None)
    if times is not None:
        found = issue(plan, "speed.random_reads_of_chunks")
        assert found.message == f"Every epoch would read the file about {times} times over."
        assert found.loc == ["data", "loader", "kind"]
        fix = fix_of(plan, "speed.random_reads_of_chunks")["/data/loader"]
        assert fix["kind"] == "chunked"


def test_rows_that_are_shuffled_cost_a_round_trip_each():
    plan = plan_of(by_torch(), world(replace(LARGE, network=True)))
    assert fix_of(plan, "speed.network_full_shuffle")["/data/loader"]["kind"] == "chunked"
    in_order = plan_of(by_torch(shuffle="none"), world(replace(LARGE, network=True)))
    assert "speed.network_full_shuffle" not in codes(in_order)


@pytest.mark.parametrize(
    ("loader", "needed"),
    [
        ({"num_workers": 2}, 7.0),
        ({"num_workers": 2, "persistent_workers": True}, None),
        ({"num_workers": 2, "multiprocessing_context": "forkserver"}, None),
        ({}, None),
    ],
)
def test_the_start_of_processes_in_mid_run_is_no_hang(loader, needed):
    change = {**by_torch(**loader), "policy": {"hang_timeout_seconds": 6.0}}
    plan = plan_of(change)
    assert ("learning.hang_timeout" in codes(plan)) == (needed is not None)
    if needed is not None:
        fix = fix_of(plan, "learning.hang_timeout")
        assert fix == {"/policy/hang_timeout_seconds": needed}
        assert "the start of the loader's processes" in issue(plan, "learning.hang_timeout").why


def test_sorted_data_in_its_order_is_found_with_every_loader():
    sorted_targets = with_field("targets", sorted=True)
    change = {"data": {"split": {"method": "random"}, **by_torch(shuffle="none")["data"]}}
    plan = plan_of(change, world(sorted_targets))
    assert fix_of(plan, "learning.sorted_blocks") == {"/data/loader/shuffle": "full"}


def test_on_a_gpu_page_locked_batches_are_as_they_are_asked_for():
    plan = plan_of({**by_torch(pin_memory=True), **training(**USUAL)}, world(devices=(RTX,)))
    assert "correctness.pin_memory_needs_gpu" not in codes(plan)


def test_a_file_in_one_piece_is_read_about_once_whatever_the_order():
    assert "speed.random_reads_of_chunks" not in codes(plan_of(by_torch(), world(LARGE)))


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_a_plan_has_what_the_hosts_build_of_pytorch_imports(build):
    facts, imports = with_host(cores=64, torch_build=build), IMPORTS[build]
    found = items(by_torch(num_workers=3), facts)
    assert found["loader_processes"] == 3 * imports.spawned
    memory = plan_of({}, facts).memory
    assert memory is not None
    left = (HOST.available_bytes or 0) - imports.trainer
    assert memory["host"]["budget_bytes"] == left
    assert any(f"{imports.trainer // MIB} MiB" in line for line in memory["assumed"])


def test_no_process_is_asked_for_that_the_host_has_no_memory_for():
    """One takes 158 MiB of its own, and what it has ready."""

    def found(mib: int) -> list[int]:
        facts = world(devices=(replace(RTX, host=replace(HOST, available_bytes=mib * 2**20)),))
        asked = {**by_torch(), "training": {"batch_size": 128}}
        plan = plan_of(asked, as_measured(asked, facts, point(128, 100)))
        issues = [one for one in plan.issues if one.code == "speed.no_loader_processes"]
        return [op.value for one in issues for op in one.fix if op.path.endswith("num_workers")]

    assert found(8000) == [2]
    assert found(1500) == []
