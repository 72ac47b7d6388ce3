"""What holds beside the rules: by construction, found before them, and to come with an option."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from app.guard.registry import RULES
from app.guard.rule import Severity
from app.spec.layers import Document


@dataclass(frozen=True)
class Impossible:
    """Something wrong that no spec can say, or that no run can do."""

    what: str
    how: str
    """What makes it impossible."""
    shown_by: str
    """The test that shows it."""


@dataclass(frozen=True)
class Early:
    """A code that is found before the rules: in the request, not in a complete spec."""

    code: str
    summary: str
    """What holds where it is not found, in one sentence."""
    severity: Severity = "error"


@dataclass(frozen=True)
class ToCome:
    """An option that is not there yet, and the rules that come with it."""

    option: str
    """Place in the spec with the values that are refused as not available yet, or a command."""
    rules: tuple[str, ...]

    @property
    def pointer(self) -> str:
        """JSON Pointer of the option."""
        return "/" + self.option.split(":")[0].replace(".", "/")


IMPOSSIBLE = (
    Impossible(
        "Two values for one setting, in two layers or two places.",
        "Each setting has one field; default, preset and request are joined once, and the spec "
        "that is stored is the one that is trained.",
        "tests/guard/test_provenance.py::test_every_setting_has_one_value_and_one_source",
    ),
    Impossible(
        "A setting from the environment.",
        "STOKER_ settings are those of the service; a name that is none of them is refused.",
        "tests/guard/test_provenance.py::test_the_environment_cannot_set_a_value_of_a_spec",
    ),
    Impossible(
        "A warm-up in steps and as a fraction at once.",
        "Given steps take the place of the default fraction; both given are refused, and of two "
        "layers the upper one counts.",
        "tests/guard/test_provenance.py::test_fields_for_one_thing_never_both_hold",
    ),
    Impossible(
        "Fields that mean nothing beside each other: a warm-up of a constant schedule, betas of "
        "SGD, workers of the chunked loader.",
        "A block's `kind` decides which fields it has, and a changed kind replaces its block.",
        "tests/guard/test_provenance.py::test_a_block_has_the_fields_of_its_kind_and_no_other",
    ),
    Impossible(
        "An aliased or misspelt field that is ignored.",
        "Unknown fields are refused, with the field that was meant and a fix that moves the value.",
        "tests/guard/test_provenance.py::test_an_alias_never_becomes_a_second_value",
    ),
    Impossible(
        "A field without bounds, text where a number belongs, 5.5 epochs.",
        "Types are strict, and every number has a least and a largest value.",
        "tests/spec/test_run_spec.py::test_every_field_has_a_description_and_every_number_has_bounds",
    ),
    Impossible(
        "Nesterov without momentum; a shuffle group without blocks; a switch of a second kind; "
        "batches ahead, or processes that stay, of a loader without processes.",
        "The schema checks the fields of a block against each other.",
        "tests/spec/test_run_spec.py::test_what_the_schema_makes_impossible_to_say",
    ),
    Impossible(
        "A first step at a learning rate of 0.",
        "A warm-up begins one step up, and one cycle at lr over div_factor.",
        "tests/planning/test_schedule.py::test_no_schedule_begins_at_a_rate_of_0",
    ),
    Impossible(
        "SWA over a schedule that ends at zero.",
        "From averaging.start_epoch on the rate is averaging.lr.",
        "tests/planning/test_schedule.py::test_swa_has_a_rate_of_its_own_as_torchs_swalr",
    ),
    Impossible(
        "The best chosen on raw weights while averaged ones are delivered.",
        "Evaluations look at the averaged weights, and a checkpoint's model part has the weights "
        "that its scores are of.",
        "tests/trainer/test_averaging.py::test_what_is_evaluated_is_what_a_checkpoint_delivers",
    ),
    Impossible(
        "Norms over a batch, which a last batch of 1 or small micro-batches spoil.",
        "The models of Stoker's recipes have norms of layers and of groups of channels.",
        "tests/trainer/recipes/test_recipe_contract.py::test_no_recipe_has_norms_over_a_batch",
    ),
    Impossible(
        "A graph of a panel that knows what comes.",
        "Each graph looks back from the first of its dates.",
        "tests/trainer/recipes/test_panel_graph.py::test_a_graph_knows_nothing_of_what_comes",
    ),
    Impossible(
        "Dates of a panel that differ in size, because entities are absent.",
        "Each date has all entities, and masks say who is there.",
        "tests/trainer/recipes/test_panel_graph.py::test_what_is_masked_changes_nothing",
    ),
    Impossible(
        "Fractions of a split that leave nothing to train on.",
        "validation_fraction + test_fraction is below 1.",
        "tests/spec/test_parse.py::test_a_part_of_a_split_that_leaves_nothing_is_refused",
    ),
    Impossible(
        "Processes of the chunked loader that share an open HDF5 file, leak its pages or crowd out "
        "the cores.",
        "It has none: one thread reads at most its slots ahead.",
        "tests/trainer_data/test_reader.py::test_the_reader_never_runs_more_than_its_slots_ahead",
    ),
    Impossible(
        "Processes of the PyTorch loader that share an open file, or compute with threads.",
        "Each is started without the trainer's files, opens what it reads, and computes with one "
        "thread.",
        "tests/trainer_data/test_dataloader.py"
        "::test_each_process_opens_the_file_for_itself_and_computes_with_one_thread",
    ),
    Impossible(
        "Loader processes that have nothing to read.",
        "They are given batches, not files, and there are no more than a part has batches, or the "
        "trainer cores.",
        "tests/trainer_data/test_loader.py::test_what_the_pytorch_loader_really_uses_is_said",
    ),
    Impossible(
        "Prefetched batches that fill /dev/shm.",
        "What they may take is compared with what is free there before the first is read.",
        "tests/trainer_data/test_dataloader.py"
        "::test_batches_that_shared_memory_has_no_room_for_are_refused",
    ),
    Impossible(
        "Input fields of other lengths.",
        "The inspection of a file, and its opening, refuse arrays of different length.",
        "tests/trainer_data/formats/test_hdf5.py::test_arrays_of_different_length_are_refused",
    ),
    Impossible(
        "A shape that changes from batch to batch.",
        "Samples have the one shape of their array, or are filled up to that of the longest.",
        "tests/trainer_data/test_ragged_batches.py::test_every_loader_gives_the_same_batches",
    ),
    Impossible(
        "Compile or CUDA graphs over unbounded shapes.",
        "Graphs are packed, and the nodes and edges of a batch rounded up to one of eight totals.",
        "tests/trainer_data/test_packed.py::test_batches_have_few_shapes_whatever_the_epoch",
    ),
    Impossible(
        "A last batch of 1, or micro-batches under 8, with batch norm.",
        "No recipe of Stoker's has one: norms are of an atom, of a step or of groups of channels.",
        "tests/trainer/recipes/test_molecule.py::test_what_a_batch_is_filled_up_with_changes_nothing",
    ),
    Impossible(
        "An evaluation that keeps all forecasts in memory.",
        "Scores are sums over batches, weighed by their samples.",
        "tests/trainer/test_evaluation.py::test_an_evaluation_weighs_every_sample_the_same",
    ),
    Impossible(
        "A hang timeout that ends a first, slow batch.",
        "The watchdog counts single batches, not epochs, and a phase's first one has as long as "
        "the start of a run.",
        "tests/worker/agent/test_watchdog.py::test_the_first_batch_of_a_phase_has_as_much_time_as_the_start",
    ),
    Impossible(
        "A hang timeout that ends a compilation.",
        "Steps are compiled in a phase of their own, before the first; it has an hour for each "
        "shape of a batch.",
        "tests/worker/agent/test_watchdog.py::test_compiling_has_its_own_time_however_small_the_users_value",
    ),
    Impossible(
        "A CUDA graph over batches of another size, or of any loader whose memory moves.",
        "Micro-batches of full steps are copied to places that stay; other steps are launched.",
        "tests/trainer/speed/test_capture.py::test_full_steps_come_from_their_places",
    ),
    Impossible(
        "A CUDA graph that trains otherwise than launched steps.",
        "Before the first step a few are tried both ways, and the graph is used if they agree.",
        "tests/trainer/speed/test_proof.py::test_a_step_that_goes_wrong_is_found_out",
    ),
    Impossible(
        "A run that waits for itself, or in a circle, for first weights.",
        "init_from means a run that is there already, by a name the newest: all that a run waits "
        "for are older.",
        "tests/store/runs/test_first_weights.py::test_a_run_only_waits_for_those_before_it",
    ),
    Impossible(
        "Dropout between the layers of a one-layer encoder.",
        "Dropout always stands before the head, and between layers where there are several.",
        "tests/guard/test_documentation.py::test_dropout_of_one_layer_is_before_the_head",
    ),
    Impossible(
        "A transformer that needs a warm-up.",
        "Its layers are normalized before attention and hidden layer, not after: such train "
        "without (Xiong et al., On layer normalization in the transformer architecture, 2020).",
        "tests/trainer/recipes/test_timeframes.py::test_a_transformer_is_that_of_pytorch",
    ),
    Impossible(
        "Few positives among many labels that are drowned for want of weights.",
        "The recipe board begins each logit at the rate of rare labels, so the loss begins near "
        "what that rate allows.",
        "tests/trainer/recipes/test_board.py::test_rare_labels_are_begun_at_their_rate",
    ),
)

EARLY = (
    Early("unknown_field", "Every field is one of the spec's."),
    Early("wrong_value", "Every value has the type and the bounds of its field."),
    Early("missing_field", "recipe.kind and data.dataset are given."),
    Early("not_finite", "Every number is finite."),
    Early("not_available_yet", "Every option is one that this version has."),
    Early("shape_changed", "A restart that carries weights has the parent's shape of model."),
    Early("init_from_changed", "A restart that carries weights begins with no others."),
    Early("correctness.unknown_preset", "The preset that is asked for is there."),
    Early(
        "correctness.broken_preset",
        "The preset that is asked for can be read, and sets nothing that is a run's own.",
    ),
    Early(
        "learning.preset_batch_size",
        "A batch size is chosen by the request; one that a preset brings is said aloud.",
        "warning",
    ),
    Early(
        "learning.preset_setting",
        "What a run does is said by the request; what a preset sets beside how it is computed is "
        "said aloud.",
        "warning",
    ),
    Early("correctness.unknown_risk", "accept_risks names codes and groups of rules."),
    Early(
        "correctness.risk_not_overridable", "accept_risks names only rules that may be overridden."
    ),
)

TO_COME = (
    ToCome(
        "runtime.gpus: 2 or more for a recipe",
        (
            "more GPUs than any worker has",
            "a global batch that the GPUs cannot share evenly",
            "a dataset smaller than GPUs × batch",
        ),
    ),
)


@cache
def examples() -> dict[str, Document]:
    """By code: a request that its rule finds something in, the issue, and the request mended.

    Generated from the rules' own tests with `python -m docs.rules`.
    """
    found: dict[str, Document] = json.loads(
        files("app.guard").joinpath("examples.json").read_text("utf-8")
    )
    return found


def describe_rules() -> list[dict[str, Any]]:
    """Every rule as a document, in the order in which findings are shown."""
    return [
        {
            "code": rule.code,
            "topic": rule.topic,
            "severity": rule.severity,
            "overridable": rule.overridable,
            "summary": rule.summary,
            "stands_on": rule.stands_on,
            "measured_by": rule.measured_by,
            "example": examples().get(rule.code),
        }
        for rule in RULES
    ]
