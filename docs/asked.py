"""The troubles that the guard was asked to keep away, and what keeps each of them away."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """`kept_by` names rules, options to come, or tests that show that it cannot be."""

    topic: str
    trouble: str
    kept_by: tuple[str, ...]


def _about(topic: str, *troubles: tuple[str, ...]) -> tuple[Asked, ...]:
    return tuple(Asked(topic, trouble, tuple(kept_by)) for trouble, *kept_by in troubles)


NORMS = "test_no_recipe_has_norms_over_a_batch"
RARE = "test_rare_labels_are_begun_at_their_rate"
PLACES = "test_full_steps_come_from_their_places"
RECOMPUTE = "speed.needless_recomputing"
OWN_RATE = "test_swa_has_a_rate_of_its_own_as_torchs_swalr"
DELIVERED = "test_what_is_evaluated_is_what_a_checkpoint_delivers"
GPUS = "runtime.gpus"
NO_WORKERS = "test_the_reader_never_runs_more_than_its_slots_ahead"
OWN_FILE = "test_each_process_opens_the_file_for_itself_and_computes_with_one_thread"
NO_IDLE = "test_what_the_pytorch_loader_really_uses_is_said"
ONE_SIZE = "test_every_loader_gives_the_same_batches"

ASKED: tuple[Asked, ...] = (
    *_about(
        "loading",
        (
            "prefetch_factor or persistent_workers without workers",
            "test_what_the_schema_makes_impossible_to_say",
        ),
        ("workers with chunked HDF5", NO_WORKERS, "speed.random_reads_of_chunks"),
        (
            "the PyTorch loader on a GPU without workers, or without page-locked batches",
            "speed.no_loader_processes",
            "speed.batches_not_pinned",
        ),
        ("a chunk size of data that is resident", "memory.chunk_size_unused"),
        ("workers, or threads × workers, above the cores", "speed.workers_above_cores", OWN_FILE),
        ("threads above the cores", "speed.threads_above_cores"),
        ("workers above the files of a folder dataset", NO_IDLE),
        (
            "prefetched samples beyond the host's budget or /dev/shm",
            "memory.loader_over_budget",
            "test_batches_that_shared_memory_has_no_room_for_are_refused",
        ),
        ("pin_memory without CUDA", "correctness.pin_memory_needs_gpu"),
        ("an epoch shorter than the start of the workers", "speed.workers_start_anew"),
        (
            "a chunk above 75 % of device memory, or slots above the budget",
            "memory.resident_does_not_fit",
            "memory.over_budget",
        ),
        ("a chunk smaller than a batch", "speed.chunk_below_batch"),
        ("random reads of rows from compressed chunks", "speed.random_reads_of_chunks"),
        ("network storage with a full shuffle", "speed.network_full_shuffle"),
        ("overlapping windows stored expanded", "memory.expanded_windows"),
    ),
    *_about(
        "data",
        ("a random split of overlapping windows", "correctness.leaking_split"),
        ("windows that reach over the border of two parts", "correctness.leaking_split"),
        ("a random split of groups or entities", "learning.parts_ignored"),
        ("shuffling with a carried state", "correctness.carried_state"),
        (
            "data sorted by its label",
            "learning.sorted_blocks",
            "learning.sorted_split",
        ),
        ("an empty validation or test part", "correctness.empty_part"),
        ("a validation or test part smaller than a batch", "learning.small_part"),
        ("a batch above the training samples", "learning.batch_above_samples"),
        ("drop_last that drops more than 1 %", "learning.drop_last_drops"),
        ("a last batch of 1, or micro-batches under 8, with batch norm", NORMS),
        ("positives under 5 % without weights", RARE),
        ("NaN or unscaled targets", "correctness.nonfinite_values", "learning.unscaled"),
        ("input fields of other length", "test_arrays_of_different_length_are_refused"),
    ),
    *_about(
        "graphs",
        ("graphs rebuilt for each batch of training or evaluation", "speed.slow_recipe"),
        ("variable sizes without buckets", "speed.mostly_filling", ONE_SIZE),
        ("compile or CUDA graphs over unbounded shapes", ONE_SIZE, PLACES),
    ),
    *_about(
        "precision",
        ("fp16 where bf16 is supported", "learning.fp16_beside_bf16"),
        ("bf16 on a device that emulates it", "correctness.precision_not_supported"),
        ("TF32 on a device without it", "correctness.precision_not_supported"),
        ("TF32 off on a device that has it", "speed.tf32_off"),
        ("mixed precision on a CPU that slows it", "speed.mixed_on_cpu"),
        ("fp16 with unscaled targets and a squared loss", "learning.unscaled"),
        ("sizes that are no multiples of 8 in half precision", "speed.uneven_sizes"),
    ),
    *_about(
        "compilation",
        (
            "max-autotune for a run shorter than its compilation",
            "speed.compilation_outlasts_steps",
        ),
        ("compile around an LSTM", "speed.compiled_recurrence"),
        (
            "CUDA graphs with activation checkpointing and dropout, or the dataloader loader",
            PLACES,
            "correctness.step_not_capturable",
        ),
        ("neither for a long run bound by launches", "speed.launched_steps"),
        (
            "CUDA graphs of steps that cannot be captured",
            "correctness.graphs_need_gpu",
            "correctness.step_not_capturable",
            "test_a_step_that_goes_wrong_is_found_out",
        ),
    ),
    *_about(
        "learning",
        ("no warm-up with a large batch", "learning.no_warmup"),
        ("no warm-up with a transformer", "test_a_transformer_is_that_of_pytorch"),
        ("a warm-up as long as the run", "learning.warmup_never_ends"),
        ("a first step at a rate of 0", "test_no_schedule_begins_at_a_rate_of_0"),
        ("a rate far too low", "learning.rate_too_low"),
        ("a batch so large that a run has a few steps", "learning.few_steps"),
        ("early stopping that can never act", "correctness.never_evaluated"),
        (
            "a schedule with early stopping or max_duration",
            "learning.never_anneals",
            "learning.ends_before_its_epochs",
        ),
        (
            "SWA after the end, or over a schedule that ends at zero",
            "learning.averages_nothing",
            OWN_RATE,
        ),
        ("an EMA decay too slow for the steps", "learning.average_of_first_weights"),
        ("a rate scaled with the batch beyond reason", "learning.rate_beyond_batch"),
        ("a plateau without evaluation", "correctness.plateau_never_acts"),
        ("patience of early stopping not above the plateau's", "learning.stops_before_plateau"),
        ("backbone_lr above lr", "learning.backbone_lr_above_lr"),
        ("pretrained weights under one high rate", "learning.pretrained_rate"),
        (
            "init_from that matches under 90 % of the keys",
            "correctness.init_from_matches_nothing",
            "learning.init_from_other_shape",
        ),
        ("adam with weight decay", "learning.adam_weight_decay"),
        ("accumulation beyond the epoch", "learning.accumulation_beyond_epoch"),
        (
            "dropout between the layers of a one-layer LSTM",
            "test_dropout_of_one_layer_is_before_the_head",
        ),
        (
            "a monitor that nobody computes, or the wrong way round",
            "correctness.unknown_monitor",
            "learning.monitor_upside_down",
        ),
        ("the best chosen on raw weights while averaged ones are delivered", DELIVERED),
        ("a restart that makes the rate jump", "learning.rate_jumps_at_restart"),
    ),
    *_about(
        "cost",
        ("activation checkpointing when it is not needed", RECOMPUTE),
        (
            "checkpoints too frequent or too rare",
            "speed.frequent_checkpoints",
            "learning.rare_checkpoints",
        ),
        ("checkpoints so many that the disk fills", "memory.checkpoints_fill_disk"),
        ("more than the host has", "memory.host_over_budget"),
        ("evaluation over 25 % of the time", "speed.evaluation_share"),
        ("accumulation where the whole batch fits", "speed.needless_accumulation"),
        (
            "evaluation that keeps a whole large set in memory",
            "test_an_evaluation_weighs_every_sample_the_same",
        ),
        (
            "a hang timeout below the compilation or an epoch",
            "learning.hang_timeout",
            "test_the_first_batch_of_a_phase_has_as_much_time_as_the_start",
            "test_compiling_has_its_own_time_however_small_the_users_value",
        ),
        ("max_duration below the estimate", "learning.ends_before_its_epochs"),
        (
            "a rollback that undoes much, or has nothing to go back to",
            "learning.rollback_undoes_much",
        ),
    ),
    *_about(
        "scale",
        ("more GPUs than any worker has", GPUS),
        ("a global batch that the GPUs cannot share evenly", GPUS),
        ("a dataset smaller than GPUs × batch", GPUS),
    ),
    *_about(
        "the request",
        ("presets that do not fit the device", "memory.preset_too_large"),
        (
            "presets that change what is learned without a word",
            "learning.preset_batch_size",
            "learning.preset_setting",
        ),
        (
            "unknown or broken presets",
            "correctness.unknown_preset",
            "correctness.broken_preset",
        ),
        (
            "accept_risks that names what is unknown or firm",
            "correctness.unknown_risk",
            "correctness.risk_not_overridable",
        ),
        ("one setting with two values", "test_every_setting_has_one_value_and_one_source"),
    ),
)
