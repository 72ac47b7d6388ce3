"""For each rule a spec that it finds something in, and the nearest one in which it does not."""

from dataclasses import dataclass, replace
from typing import Any

from app.guard.facts import DatasetFacts, DeviceFacts, Facts, FieldFacts, Lengths
from tests.guard.world import (
    A100,
    CPU,
    FIELDS,
    GIB,
    HISTORY,
    HOST,
    RTX,
    TURING,
    parent_of,
    weather,
    with_field,
    world,
)

Change = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """What is put on top of the good request, and the worlds in which they are judged."""

    found: Change
    missed: Change
    facts: Facts = world()  # noqa: RUF009  facts are frozen
    missed_facts: Facts | None = None


def training(**values: Any) -> Change:
    return {"training": values}


def data(**values: Any) -> Change:
    return {"data": values}


def runtime(**values: Any) -> Change:
    return {"runtime": values}


def on_rtx(**more: Any) -> Facts:
    return world(devices=(RTX,), **more)


def with_host(device: DeviceFacts = CPU, **changes: Any) -> Facts:
    """The world in which the device's host has other facts."""
    return world(devices=(replace(device, host=replace(HOST, **changes)),))


PINNED = {"training": {"batch_size": 128}}  # so that no preset brings a batch size
OTHER = replace(weather(), name="winter", samples=900)
SHORT = replace(OTHER, fields={**FIELDS, "targets": replace(FIELDS["targets"], shape=(24,))})
SORTED = with_field("targets", sorted=True)
SPLIT_BY_DATASET = {"data": {"split": {"method": "datasets", "validation": "winter"}}}
USUAL = {"batch_size": 128, "gradient_accumulation_steps": 1, "drop_last": False}
ONE_CYCLE: Change = {
    "schedule": {"kind": "onecycle", "warmup_fraction": 0.3, "warmup_steps": None},
    "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}
WATCHED: Change = {
    "early_stopping": {},
    "schedule": {"kind": "constant"},
    "training": {"epochs": 35},
}
COMPILED = runtime(compile={"mode": "default"})
STREAMED = {"residency": "stream", "chunk_size": "4MiB"}
CHUNKED = with_field("features", storage="chunked", chunk_rows=64, compression="gzip")


def by_torch(**values: Any) -> Change:
    """The PyTorch loader, with settings of it."""
    return data(loader={"kind": "dataloader", **values})


ATOMS = replace(FIELDS["features"], shape=(41, 4), lengths=Lengths(0, 7.5, 41))
LARGE = weather(samples=2_000_000, size_bytes=43_000_000_000)

CASES: dict[str, Example] = {
    "correctness.dataset_not_found": Example(data(dataset="wether"), {}),
    "correctness.dataset_invalid": Example(
        data(dataset="new"), {}, world(DatasetFacts("new", "invalid", problems=("It is torn.",)))
    ),
    "correctness.dataset_not_ready": Example(
        data(dataset="new"), {}, world(DatasetFacts("new", "inspecting"))
    ),
    "correctness.unknown_array": Example(data(inputs=["feature"]), data(inputs=["features"])),
    "correctness.ragged_array": Example(
        data(inputs=["features"], targets=["atoms"]),
        data(inputs=["atoms"], targets=["targets"]),
        world(weather(fields={**FIELDS, "atoms": ATOMS})),
    ),
    "speed.mostly_filling": Example(
        data(inputs=["atoms"]),
        data(inputs=["atoms"]),
        world(weather(fields={**FIELDS, "atoms": ATOMS})),
        world(weather(fields={**FIELDS, "atoms": replace(ATOMS, lengths=Lengths(0, 10.25, 41))})),
    ),
    "correctness.array_mismatch": Example(
        SPLIT_BY_DATASET, SPLIT_BY_DATASET, world(SHORT), world(OTHER)
    ),
    "correctness.array_shape": Example(
        {},
        {},
        world(weather(fields={**FIELDS, "features": FieldFacts((3, 8, 8), "uint8", nonfinite=0)})),
        world(),
    ),
    "correctness.patch_size": Example({"recipe": {"patch": 7}}, {"recipe": {"patch": 8}}),
    "correctness.nonfinite_values": Example(
        {}, {}, world(with_field("features", nonfinite=3)), world(with_field("features", mean=3.0))
    ),
    "learning.unscaled": Example(
        data(standardize={"targets": False}),
        data(standardize={"targets": True}),
        world(with_field("targets", std=11.0)),
    ),
    "correctness.leaking_split": Example(
        data(split={"method": "random"}),
        data(split={"method": "chronological"}),
        world(weather(window_steps={"features": 6})),
    ),
    "correctness.target_is_input": Example(data(targets=["features"]), data(targets=["targets"])),
    "learning.sorted_blocks": Example(
        data(split={"method": "random"}, loader={"shuffle": "block"}),
        data(split={"method": "random"}, loader={"shuffle": "full"}),
        world(SORTED),
    ),
    "learning.sorted_split": Example(
        data(split={"method": "chronological"}), data(split={"method": "random"}), world(SORTED)
    ),
    "correctness.empty_part": Example(
        data(split={"test_fraction": 0.0001}), data(split={"test_fraction": 0.0002})
    ),
    "correctness.no_training_steps": Example(
        {"training": {"batch_size": 3217, "drop_last": True}, **data()},
        {"training": {"batch_size": 3216, "drop_last": True}},
    ),
    "learning.small_part": Example(
        data(split={"validation_fraction": 0.0316}), data(split={"validation_fraction": 0.0319})
    ),
    "learning.hang_timeout": Example(
        {"policy": {"hang_timeout_seconds": 9.0}},
        {"policy": {"hang_timeout_seconds": 10.0}},
        world(history=replace(HISTORY, checkpoint_seconds=2.0)),
    ),
    "correctness.no_validation": Example(
        {
            "data": {"split": {"validation_fraction": 0.0}},
            "early_stopping": {},
            "schedule": {"kind": "constant"},
        },
        {"data": {"split": {"validation_fraction": 0.0}}, "schedule": {"kind": "constant"}},
    ),
    "correctness.never_evaluated": Example(
        {**WATCHED, "evaluation": {"every_epochs": None}},
        {**WATCHED, "evaluation": {"every_epochs": 5}},
    ),
    "correctness.unknown_monitor": Example(
        {"checkpoint": {"monitor": "val_rmse"}},
        {"checkpoint": {"monitor": "val_rmse"}, "evaluation": {"metrics": ["rmse"]}},
    ),
    "learning.monitor_upside_down": Example(
        {"checkpoint": {"mode": "max"}}, {"checkpoint": {"mode": "min"}}
    ),
    "speed.no_worker": Example(
        {"runtime": {"device": "cuda", "precision": "bf16-mixed"}, **PINNED},
        {"runtime": {"device": "cuda", "precision": "bf16-mixed"}, **PINNED},
        world(),
        on_rtx(),
    ),
    "memory.preset_too_large": Example(
        {"preset": "rtx-24g", "training": {"batch_size": 128}, **runtime(precision="fp16-mixed")},
        {"preset": "rtx-8g", "training": {"batch_size": 128}, **runtime(precision="fp16-mixed")},
        world(devices=(TURING,)),
    ),
    "speed.threads_above_cores": Example(runtime(threads=3), runtime(threads=2)),
    "correctness.precision_needs_gpu": Example(
        runtime(precision="tf32"), runtime(precision="fp32")
    ),
    "correctness.precision_not_supported": Example(
        {**runtime(precision="bf16-mixed"), **PINNED},
        {**runtime(precision="fp16-mixed"), **PINNED},
        world(devices=(TURING,)),
    ),
    "speed.tf32_off": Example(
        {**runtime(precision="fp32"), **PINNED},
        {**runtime(precision="tf32"), **PINNED},
        world(devices=(A100,)),
    ),
    "speed.recurrence_not_in_bf16": Example(
        {**runtime(precision="bf16-mixed"), **PINNED},
        {**runtime(precision="tf32"), **PINNED},
        world(devices=(A100,)),
    ),
    "correctness.cannot_compile": Example(
        COMPILED,
        COMPILED,
        with_host(missing_tools={"cpu": ["a C++ compiler (Debian: apt-get install g++)"]}),
        with_host(missing_tools={"cpu": [], "cuda": ["Triton (pip install triton)"]}),
    ),
    "speed.compiled_recurrence": Example(COMPILED, runtime(compile={"mode": "none"})),
    "speed.compilation_outlasts_steps": Example(
        {**COMPILED, **training(epochs=46, **USUAL)},
        {**COMPILED, **training(epochs=47, **USUAL)},
        world(history=replace(HISTORY, compiling_seconds=61.0)),
    ),
    "correctness.graphs_need_gpu": Example(
        runtime(cuda_graphs="always"), runtime(cuda_graphs="auto")
    ),
    "correctness.step_not_recordable": Example(
        {**runtime(cuda_graphs="always"), **training(batch_size=8, gradient_accumulation_steps=9)},
        {**runtime(cuda_graphs="always"), **training(batch_size=8, gradient_accumulation_steps=8)},
        on_rtx(),
    ),
    "speed.launched_steps": Example(
        {**runtime(cuda_graphs="never"), **training(epochs=231, **USUAL)},
        {**runtime(cuda_graphs="never"), **training(epochs=230, **USUAL)},
        on_rtx(history=replace(HISTORY, iterations_per_second=100.0)),
    ),
    "learning.batch_above_samples": Example(
        {"training": {"batch_size": 3217}, "schedule": {"kind": "cosine_warmup"}},
        {"training": {"batch_size": 3216}, "schedule": {"kind": "cosine_warmup"}},
    ),
    "learning.drop_last_drops": Example(
        {"training": {"batch_size": 1100, "drop_last": True}},
        {"training": {"batch_size": 100, "drop_last": True}},
    ),
    "learning.accumulation_beyond_epoch": Example(
        training(batch_size=128, gradient_accumulation_steps=27),
        training(batch_size=128, gradient_accumulation_steps=26),
    ),
    "learning.no_warmup": Example(
        {"training": {"batch_size": 1024}, "schedule": {"kind": "constant"}},
        {"training": {"batch_size": 1023}, "schedule": {"kind": "constant"}},
    ),
    "learning.rate_beyond_batch": Example(
        {"optimizer": {"lr": 0.011}}, {"optimizer": {"lr": 0.01}}
    ),
    "learning.rate_too_low": Example({"optimizer": {"lr": 9.9e-7}}, {"optimizer": {"lr": 1e-6}}),
    "learning.few_steps": Example(
        {"training": {"batch_size": 1600, "epochs": 16}},
        {"training": {"batch_size": 1600, "epochs": 17}},
    ),
    "learning.warmup_never_ends": Example(
        {"schedule": {"kind": "cosine_warmup", "warmup_steps": 130}},
        {"schedule": {"kind": "cosine_warmup", "warmup_steps": 129}},
    ),
    "learning.adam_weight_decay": Example(
        {"optimizer": {"kind": "adam", "weight_decay": 0.01}}, {"optimizer": {"kind": "adam"}}
    ),
    "learning.never_anneals": Example(
        {"early_stopping": {"patience": 16}, "training": {"epochs": 20}},
        {"early_stopping": {"patience": 17}, "training": {"epochs": 20}},
    ),
    "learning.ends_before_its_epochs": Example(
        {"policy": {"max_duration_seconds": 6.6}, **training(epochs=5, **USUAL)},
        {"policy": {"max_duration_seconds": 6.8}, **training(epochs=5, **USUAL)},
    ),
    "correctness.nothing_left": Example(
        {},
        {},
        world(parent=parent_of({}, 130, succeeded=True)),
        world(parent=parent_of({}, 130)),
    ),
    "learning.rate_jumps_at_restart": Example(
        {**training(epochs=10, **USUAL), **ONE_CYCLE},
        {**training(epochs=5, **USUAL), **ONE_CYCLE},
        world(parent=parent_of({}, 100)),
    ),
    "speed.evaluation_share": Example(
        {"evaluation": {"every_steps": 5, "every_epochs": None}, **training(epochs=200, **USUAL)},
        {"evaluation": {"every_steps": 98, "every_epochs": None}, **training(epochs=200, **USUAL)},
        world(history=replace(HISTORY, evaluation_seconds=0.002)),
    ),
    "speed.needless_accumulation": Example(
        training(batch_size=32, gradient_accumulation_steps=4),
        training(batch_size=1024, gradient_accumulation_steps=4),
        on_rtx(),
    ),
    "speed.frequent_checkpoints": Example(
        {"checkpoint": {"every_steps": 49, "keep_best": 0}, **training(epochs=4000, **USUAL)},
        {"checkpoint": {"every_steps": 50, "keep_best": 0}, **training(epochs=4000, **USUAL)},
        world(history=replace(HISTORY, evaluation_seconds=0.0)),
    ),
    "learning.rare_checkpoints": Example(
        {"checkpoint": {"every_seconds": 601.0}, **training(epochs=500, **USUAL)},
        {"checkpoint": {"every_seconds": 600.0}, **training(epochs=500, **USUAL)},
    ),
    "memory.expanded_windows": Example(
        {},
        {},
        world(weather(samples=50_000, window_steps={"features": 1})),
        world(
            weather(
                samples=50_000,
                window_steps={"features": 1},
                fields={**FIELDS, "features": replace(FIELDS["features"], series_steps=50_359)},
            )
        ),
    ),
    "memory.over_budget": Example(
        {"recipe": {"hidden_size": 512, "patch": 1}, "training": {"batch_size": 512}},
        {"recipe": {"hidden_size": 512, "patch": 1}, "training": {"batch_size": 128}},
        with_host(available_bytes=2 * GIB),
    ),
    "memory.resident_does_not_fit": Example(
        data(loader={"residency": "resident"}),
        data(loader={"residency": "resident"}),
        with_host(available_bytes=825 * 2**20),
        with_host(available_bytes=845 * 2**20),
    ),
    "memory.host_over_budget": Example(
        PINNED, PINNED, with_host(RTX, available_bytes=GIB), with_host(RTX, available_bytes=2 * GIB)
    ),
    "memory.checkpoints_fill_disk": Example(
        {}, {}, with_host(disk_free_bytes=2_000_000), with_host(disk_free_bytes=2_100_000)
    ),
    "memory.loader_over_budget": Example(
        by_torch(num_workers=4, prefetch_factor=5),
        by_torch(num_workers=4, prefetch_factor=4),
        with_host(available_bytes=1637 * 2**20, cores=4),
    ),
    "correctness.pin_memory_needs_gpu": Example(
        by_torch(pin_memory=True), by_torch(pin_memory=False)
    ),
    "speed.workers_above_cores": Example(
        by_torch(num_workers=3, persistent_workers=True),
        by_torch(num_workers=2, persistent_workers=True),
    ),
    "speed.workers_start_anew": Example(
        {**by_torch(num_workers=2), **training(epochs=24, **USUAL)},
        {**by_torch(num_workers=2), **training(epochs=23, **USUAL)},
    ),
    "speed.no_loader_processes": Example(
        {**by_torch(), **PINNED}, {**by_torch(num_workers=1), **PINNED}, on_rtx()
    ),
    "speed.batches_not_pinned": Example(
        {**by_torch(), **PINNED}, {**by_torch(pin_memory=True), **PINNED}, on_rtx()
    ),
    "memory.chunk_size_unused": Example(
        data(loader={"residency": "resident", "chunk_size": "64MiB"}),
        data(loader={"residency": "stream", "chunk_size": "64MiB"}),
    ),
    "speed.chunked_is_faster": Example(
        by_torch(shuffle="none"),
        by_torch(shuffle="none"),
        world(),
        world(replace(LARGE, name="weather")),
    ),
    "speed.chunk_below_batch": Example(
        data(loader={"residency": "stream", "chunk_size": "2MiB"}),
        data(loader={"residency": "stream", "chunk_size": "3MiB"}),
    ),
    "speed.random_reads_of_chunks": Example(
        data(loader={"residency": "stream", "chunk_size": "33MiB"}),
        data(loader={"residency": "stream", "chunk_size": "34MiB"}),
        world(CHUNKED),
    ),
    "speed.network_full_shuffle": Example(
        data(loader={**STREAMED, "shuffle": "full"}),
        data(loader={**STREAMED, "shuffle": "full"}),
        world(weather(network=True)),
        world(weather(network=False)),
    ),
}
