"""For each rule a spec that it finds something in, and the nearest one in which it does not."""

from dataclasses import replace

from app.guard.facts import AncestorFacts, FieldFacts
from app.spec.layers import overlay
from tests.guard.changes import (
    ALIKE,
    ATOMS,
    BEGIN,
    BY_PART,
    CARRIED,
    CHUNKED,
    COMPILED,
    CONSTANT,
    ENDED,
    EVEN_ATOMS,
    INSPECTING,
    KINDS,
    LARGE,
    ONE_CYCLE,
    OTHER,
    PARTED,
    PINNED,
    PRETRAINED,
    REBUILT,
    RESIDENT,
    SHORT,
    SLOWLY_READ,
    SORTED,
    SORTED_KINDS,
    SPLIT_BY_DATASET,
    STREAMED,
    STREAMED_PINNED,
    TOO_WIDE,
    TORN,
    TRANSFORMER,
    UNEVEN,
    USUAL,
    WATCHED,
    WIDE,
    WITH_GRAPHS,
    Example,
    by_torch,
    data,
    faster,
    measured_host,
    on_rtx,
    rolled_back,
    runtime,
    training,
    with_host,
    with_mib,
)
from tests.guard.learning_cases import LEARNING
from tests.guard.world import (
    A100,
    FIELDS,
    HISTORY,
    TURING,
    as_measured,
    parent_of,
    point,
    weather,
    with_field,
    world,
)

IN_ORDER = parent_of({"data": {"split": {"gap": 0}}}, 100)
CASES: dict[str, Example] = {
    "correctness.dataset_not_found": Example(data(dataset="wether"), {}),
    "correctness.dataset_invalid": Example(data(dataset="new"), {}, world(TORN)),
    "correctness.dataset_not_ready": Example(data(dataset="new"), {}, world(INSPECTING)),
    "correctness.dataset_changed": Example({}, {}, world(weather(changed=("size",))), world()),
    "correctness.unknown_array": Example(data(inputs=["feature"]), data(inputs=["features"])),
    "correctness.ragged_array": Example(
        data(inputs=["features"], targets=["atoms"]),
        data(inputs=["atoms"], targets=["targets"]),
        world(weather(fields={**FIELDS, "atoms": ATOMS})),
    ),
    "correctness.packed_array": Example(data(inputs=["graphs"]), {}, WITH_GRAPHS),
    "speed.mostly_filling": Example(
        data(inputs=["atoms"]),
        data(inputs=["atoms"]),
        world(weather(fields={**FIELDS, "atoms": ATOMS})),
        world(weather(fields={**FIELDS, "atoms": EVEN_ATOMS})),
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
    "correctness.recipe_does_not_fit": Example({"recipe": {"patch": 7}}, {"recipe": {"patch": 8}}),
    "speed.slow_recipe": REBUILT,
    "correctness.carried_state": Example(
        {**CARRIED, "data": {"loader": {"shuffle": "full"}}},
        {**CARRIED, "data": {"loader": {"shuffle": "lanes"}}},
    ),
    "correctness.unknown_loss_term": Example(
        {"loss_weights": {"los": 2.0}}, {"loss_weights": {"loss": 2.0}}
    ),
    "correctness.unused_weights": Example({"pos_weight": 3.0}, {"pos_weight": None}),
    "correctness.unknown_metric": Example(
        {"evaluation": {"metrics": ["mea"]}}, {"evaluation": {"metrics": ["mae", "rmse"]}}
    ),
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
    "learning.alike_batches": Example(
        data(loader={**STREAMED, "shuffle_group": 640, "shuffle_block": 40}),
        data(loader={**STREAMED, "shuffle_group": 640, "shuffle_block": 4}),
        world(ALIKE),
    ),
    "correctness.init_from_missing": Example(
        BEGIN,
        {**BEGIN, "init_from": {"run": 8, "prefix": "head."}},
        world(source=ENDED),
        world(source=PRETRAINED),
    ),
    "correctness.init_from_matches_nothing": Example(
        {**BEGIN, "init_from": {"run": 7, "prefix": "encode."}},
        {**BEGIN, "init_from": {"run": 7, "prefix": "encoder."}},
        world(source=PRETRAINED),
    ),
    "learning.init_from_other_shape": Example(
        BEGIN, {**BEGIN, "init_from": {"run": 7, "prefix": "head."}}, world(source=PRETRAINED)
    ),
    "learning.weights_saw_held_out": Example(
        data(split={"method": "random", "seed": 1}),
        data(split={"method": "chronological", "gap": 0}),
        world(ancestors=[AncestorFacts(7, IN_ORDER.spec)]),
    ),
    "learning.backbone_lr_above_lr": Example(
        {"optimizer": {"backbone_lr": 1.1e-3}}, {"optimizer": {"backbone_lr": 1e-3}}
    ),
    "learning.pretrained_rate": Example(
        {"init_from": {"run": 7, "prefix": "head."}, "optimizer": {"lr": 5e-4}},
        {"init_from": {"run": 7, "prefix": "head."}, "optimizer": {"lr": 4.9e-4}},
        world(source=PRETRAINED),
    ),
    "correctness.split_field": Example(
        data(split={"method": "field", "field": "parts"}), data(**BY_PART), world(PARTED)
    ),
    "correctness.split_groups": Example(
        data(split={"method": "groups", "field": "games"}),
        data(split={"method": "groups", "field": "game"}),
        world(weather(groups={"game": [42] * 100})),
    ),
    "learning.parts_ignored": Example(
        data(split={"method": "random"}), data(**BY_PART), world(PARTED)
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
    "learning.constant_target": Example(
        {}, data(targets=["others"]), world(weather(fields={**FIELDS, **CONSTANT}))
    ),
    "learning.class_lacking": Example(
        KINDS, overlay(KINDS, data(split={"method": "random"})), world(SORTED_KINDS)
    ),
    "learning.hang_timeout": Example(
        {"policy": {"hang_timeout_seconds": 9.0}},
        {"policy": {"hang_timeout_seconds": 10.0}},
        world(history=replace(HISTORY, checkpoint_seconds=2.0)),
    ),
    "learning.rollback_undoes_much": Example(rolled_back(14), rolled_back(13)),
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
    "correctness.nothing_to_recompute": Example(
        runtime(activation_checkpointing=True),
        {**runtime(activation_checkpointing=True), **TRANSFORMER},
    ),
    "speed.needless_recomputing": Example(
        {**runtime(activation_checkpointing=True), **TRANSFORMER},
        {**runtime(activation_checkpointing=True), **TRANSFORMER},
        as_measured(TRANSFORMER, world(), point(128, 100)),
        as_measured(TRANSFORMER, world(), point(128, 100 * 1024)),
    ),
    "correctness.attention_kind": Example(
        {**runtime(attention="flash"), "recipe": {"encoder": "transformer"}},
        {**runtime(attention="math"), "recipe": {"encoder": "transformer"}},
        world(devices=(TURING,)),
    ),
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
    "speed.mixed_on_cpu": Example(
        {**TRANSFORMER, **runtime(precision="bf16-mixed")},
        {**TRANSFORMER, **runtime(precision="fp32")},
    ),
    "learning.fp16_beside_bf16": Example(
        {**TRANSFORMER, **runtime(precision="fp16-mixed"), **PINNED},
        {**TRANSFORMER, **runtime(precision="bf16-mixed"), **PINNED},
        world(devices=(A100,)),
    ),
    "speed.uneven_sizes": Example(
        {**UNEVEN, **runtime(precision="bf16-mixed"), **PINNED},
        {**UNEVEN, **runtime(precision="tf32"), **PINNED},
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
    "correctness.step_not_capturable": Example(
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
        {"training": {"batch_size": 3217, "epochs": 50}, "schedule": {"kind": "cosine_warmup"}},
        {"training": {"batch_size": 3216, "epochs": 50}, "schedule": {"kind": "cosine_warmup"}},
    ),
    "learning.drop_last_drops": Example(
        {"training": {"batch_size": 1100, "drop_last": True}},
        {"training": {"batch_size": 100, "drop_last": True}},
    ),
    "learning.accumulation_beyond_epoch": Example(
        training(batch_size=128, gradient_accumulation_steps=27),
        training(batch_size=128, gradient_accumulation_steps=26),
    ),
    **LEARNING,
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
        as_measured({}, on_rtx(), point(32, 300)),
    ),
    "speed.batch_too_small": Example(
        training(batch_size=32), training(batch_size=32), faster(1_350.0), faster(1_340.0)
    ),
    "speed.reading_slower_than_step": Example(STREAMED_PINNED, PINNED, SLOWLY_READ),
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
        {**WIDE, **training(batch_size=512)}, {**WIDE, **training(batch_size=128)}, TOO_WIDE
    ),
    "memory.resident_does_not_fit": Example(RESIDENT, RESIDENT, with_mib(825), with_mib(845)),
    "memory.host_over_budget": Example(PINNED, PINNED, measured_host(1), measured_host(2)),
    "memory.checkpoints_fill_disk": Example(
        {}, {}, with_host(disk_free_bytes=2_000_000), with_host(disk_free_bytes=3_600_000)
    ),
    "memory.loader_over_budget": Example(
        by_torch(num_workers=4, prefetch_factor=5),
        by_torch(num_workers=4, prefetch_factor=4),
        with_host(available_bytes=1579 * 2**20, cores=4),
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
        data(loader={"residency": "stream", "chunk_size": "33MiB", "shuffle": "full"}),
        data(loader={"residency": "stream", "chunk_size": "34MiB", "shuffle": "full"}),
        world(CHUNKED),
    ),
    "speed.network_full_shuffle": Example(
        data(loader={**STREAMED, "shuffle": "full"}),
        data(loader={**STREAMED, "shuffle": "full"}),
        world(weather(network=True)),
        world(weather(network=False)),
    ),
}
