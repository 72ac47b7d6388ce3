"""The recipe `molecule`: what its losses weigh, what its evaluations ask, what scores are worth."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from app.lifecycle import Reason
from app.planning.ladder import NO_RUNG, Rung
from tests.trainer.lab import Lab, merged, step_of
from tests.trainer.recipes.molecules import (
    FIELDS,
    TASKS,
    batch_of,
    batches_of,
    loss_of,
    run_of,
    spec_of,
    write,
)
from tests.trainer.test_ladder import losses, without_losses
from tests.trainer_data.test_packed import graphs_of
from worker.trainer.data.batch import Batch
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.data.source import Field
from worker.trainer.errors import DataError
from worker.trainer.recipes.molecule import MoleculeTask, fixed_draws


def hidden_by_row(task: MoleculeTask, model: torch.nn.Module, batch: Batch) -> dict[int, Any]:
    """By the number of the molecule, which its targets say: whether each of its atoms is hidden."""
    _, hides, _ = task._masked(model, batch)
    ends = batch.arrays["molecules/counts"][:, 0].cumsum(0).tolist()
    rows = batch.arrays["targets"].int().tolist()
    begins = [0, *ends[:-1]]
    return {
        row: hides[begin:end].tolist() for row, begin, end in zip(rows, begins, ends, strict=True)
    }


def test_an_evaluation_hides_the_same_atoms_whenever_and_in_whatever_batch(tmp_path: Path) -> None:
    """The training hides others each time. Nothing is drawn of its random numbers."""
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["targets"][:] = np.arange(200)
    # Read with numbers beside the molecules, as no run of this task does.
    batches = [
        batch_of(path, spec_of("regression", training={"batch_size": 64, "seed": seed}))
        for seed in (1, 2)
    ]
    task = MoleculeTask.for_run(spec_of("masked", training={"seed": 3}), FIELDS)
    model = task.build_model({}, task.made_up_tables()).eval()
    before = torch.get_rng_state()
    first, second = (hidden_by_row(task, model, batch) for batch in batches)
    assert torch.equal(torch.get_rng_state(), before)
    shared = first.keys() & second.keys()
    assert shared
    assert shared != first.keys()
    assert all(first[row] == second[row] for row in shared)
    other = MoleculeTask.for_run(spec_of("masked", training={"seed": 4}), FIELDS)
    assert hidden_by_row(other, model, batches[0]) != first
    model.train()
    assert hidden_by_row(task, model, batches[0]) != hidden_by_row(task, model, batches[0])


def test_what_an_evaluation_hides_is_a_fair_share_of_each_element_and_place() -> None:
    """By chance a share of 2,000 is off by 0.008; here four times that is allowed."""
    random = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 30, (4_000,), generator=random)
    atoms = torch.randint(0, 4, (int(counts.sum()), 8), generator=random)
    of = torch.repeat_interleave(torch.arange(4_000), counts)
    nothing = torch.zeros(0, 2, dtype=torch.int64)
    graphs = atoms, nothing, nothing, of, torch.stack([counts, counts], 1)
    draws = fixed_draws(graphs, seed=7)
    places = torch.arange(len(of)) - (counts.cumsum(0) - counts)[of]
    hidden = (draws < 0.15).double()
    for some in (*(atoms[:, 0] == kind for kind in range(4)), *(places == n for n in range(15))):
        assert len(hidden[some]) > 1_900
        assert hidden[some].mean().item() == pytest.approx(0.15, abs=0.032)
    assert (hidden[1:] * hidden[:-1]).mean().item() == pytest.approx(0.15**2, abs=0.005)


@pytest.mark.parametrize("standardized", [True, False])
def test_targets_are_as_exact_as_their_file(tmp_path: Path, *, standardized: bool) -> None:
    """Of 1,000,000.05 float32 keeps 1,000,000.0625: errors here would all be off by a half."""
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["targets"]
        file["targets"] = 1e6 + 0.01 * np.arange(200)
    standardize = {"inputs": False, "targets": standardized}
    spec = spec_of("regression", data={"standardize": standardize}, training={"batch_size": 16})
    batch = batch_of(path, spec)
    task = MoleculeTask.for_run(spec, {**FIELDS, "targets": Field((), np.dtype("f8"))})
    scale = {"mean": torch.tensor([1e6]).double(), "std": torch.tensor([0.01]).double()}
    model = task.build_model({}, scale)
    answers = model(*task._graphs(batch))[:, 0].double()
    off = (answers - batch.arrays["targets"]).abs().sum()
    assert task.measure(model, batch)["absolute"].item() == pytest.approx(off.item(), rel=1e-8)
    assert loss_of(task, model, batch).dtype == torch.float32


WEIGHTED = {"class_weights": [1.0, 3.0]}


class HostData(TorchDispatchMode):
    """Counts tensors that are made of Python's numbers: to a GPU each is a copy, which waits."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made += func is torch.ops.aten.lift_fresh.default
        return func(*args, **(kwargs or {}))


def test_class_weights_lie_with_the_model_and_no_step_makes_them_anew(tmp_path: Path) -> None:
    """So a step with them can be captured; checkpoints have none, for the spec has them."""
    spec = spec_of("classification", training={"batch_size": 16}, **WEIGHTED)
    batch = batch_of(write(tmp_path / "a.h5", classes=True), spec)
    task = MoleculeTask.for_run(spec, FIELDS)
    model = task.build_model({}, task.made_up_tables())
    with HostData() as seen:
        loss = loss_of(task, model, batch)
        task.measure(model, batch)
    assert seen.made == 0
    logits, target, _ = task._classes(model, batch)
    logits, target = logits[:, 0], target[:, 0]
    weights = torch.tensor(WEIGHTED["class_weights"])
    torch.testing.assert_close(
        loss, torch.nn.functional.cross_entropy(logits, target, weights), rtol=1e-6, atol=0.0
    )
    assert torch.equal(model.get_buffer("class_weights"), weights)
    assert "class_weights" not in model.state_dict()
    assert model.to("meta").get_buffer("class_weights").is_meta


@pytest.mark.parametrize("task", TASKS)
def test_equal_weights_get_equal_scores(molecules: Lab, task: str) -> None:
    """To the bit, or the best one, early stopping and a plateau would follow chance; but for
    rounding on a rung with smaller batches.
    """
    write(molecules.data, classes=task == "classification")
    still = {"optimizer": {"kind": "sgd", "lr": 1e-30, "weight_decay": 0.0}}
    patch = run_of(task, epochs=3, **merged(still, {"recipe": {"dropout": 0.2}}))
    straight = molecules.run(patch=patch)
    cut = molecules.run(patch=patch, rung=Rung(1, evaluation_batch=3))
    scores = [
        [event["values"] for event in one.of_kind("metrics") if "val_loss" in event["values"]]
        for one in (straight, cut)
    ]
    assert len(scores[0]) == 3
    assert scores[0][0] == scores[0][1] == scores[0][2]
    assert scores[1][0] == pytest.approx(scores[0][0], rel=1e-5)


def test_a_validation_part_of_which_nothing_is_asked_ends_the_run(molecules: Lab) -> None:
    """Its molecules have no atoms. A loss of 0 would be the best there is."""
    with h5py.File(molecules.data, "w") as file:
        write_packed(file, "molecules", graphs_of([5] * 70 + [0] * 20 + [5] * 10))
    split: dict[str, Any] = {
        "data": {"split": {"method": "chronological"}},
        "recipe": {"values": 256},
    }
    with pytest.raises(DataError) as caught:
        molecules.run(patch=run_of("masked", **split))
    told = "In the validation part no atom of 'molecules' is hidden, so there is nothing to score"
    assert told in caught.value.message
    assert "max_batches" not in caught.value.message, "all of it was looked at"
    few = split | {"evaluation": {"max_batches": 1}}
    with pytest.raises(DataError) as caught:
        molecules.run(patch=run_of("masked", **few))
    assert "max_batches" in caught.value.message


def test_a_test_part_of_which_nothing_is_asked_has_no_score(molecules: Lab) -> None:
    with h5py.File(molecules.data, "w") as file:
        write_packed(file, "molecules", graphs_of([5] * 70 + [5] * 20 + [0] * 10))
    split: dict[str, Any] = {
        "data": {"split": {"method": "chronological"}},
        "recipe": {"values": 256},
    }
    done = molecules.run(patch=run_of("masked", **split))
    assert done.end is not None
    assert done.end.reason is Reason.completed
    assert done.result["test"] is None
    assert done.result["best"]["val_loss"] > 0
    (warning,) = [one for one in done.of_kind("warning") if one["code"] == "test_not_scored"]
    told = "In the test part no atom of 'molecules' is hidden, so there is nothing to score"
    assert warning["message"].startswith(told)
    assert warning["message"].endswith("No test score is in the result.")


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
@pytest.mark.parametrize("task", ["masked", "classification"])
def test_micro_batches_have_the_gradient_of_their_batch(
    tmp_path: Path, task: str, precision: str
) -> None:
    """Also where the rare class, or the hidden atoms, are all in one of them."""
    spec = spec_of(task, training={"batch_size": 16}, **(WEIGHTED if "class" in task else {}))
    path = write(tmp_path / "a.h5", classes=True)
    [whole], parts = batches_of(path, spec, NO_RUNG), batches_of(path, spec, Rung(1, batch=6))
    made = MoleculeTask.for_run(spec, FIELDS)
    # In evaluation mode atoms are hidden by what they are, in whatever batch.
    model = made.build_model({}, made.made_up_tables()).eval()
    if task == "classification":
        for batch in (whole, *parts):
            batch.arrays["targets"].zero_()
        whole.arrays["targets"][15] = parts[-1].arrays["targets"][-1] = 1.0
    loss, gradients = step_of(made, model, [whole], precision)
    summed, accumulated = step_of(made, model, parts, precision)
    close = 1e-6 if precision == "fp32" else 1e-3
    assert gradients.abs().max() > 0.01
    torch.testing.assert_close(accumulated, gradients, rtol=0.0, atol=close)
    assert summed == pytest.approx(loss, rel=close)
    assert loss == pytest.approx(loss_of(made, model, whole).item(), rel=1e-2)
    _, of_the_last = step_of(made, model, parts[-1:], precision)
    assert (of_the_last - gradients).abs().max() > 0.01, "the parts differ"


def test_a_step_in_which_nothing_counts_changes_nothing(tmp_path: Path) -> None:
    spec = spec_of("masked", training={"batch_size": 16}, recipe={"mask_fraction": 1e-9})
    batch = batch_of(write(tmp_path / "a.h5"), spec)
    made = MoleculeTask.for_run(spec, FIELDS)
    loss, gradients = step_of(
        made, made.build_model({}, made.made_up_tables()).eval(), [batch, batch]
    )
    assert loss == 0.0
    assert not gradients.any()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(
    ("task", "weights", "alike"),
    [
        ("regression", None, True),
        ("classification", None, True),
        ("classification", [1.0, 3.0], True),
        ("masked", None, False),
    ],
)
def test_a_cut_batch_trains_as_the_whole_unless_atoms_are_hidden_by_chance(
    molecules: Lab, task: str, weights: list[float] | None, accumulation: int, *, alike: bool
) -> None:
    """On a rung of the memory ladder, also in an epoch's last step, of fewer batches."""
    write(molecules.data, classes=task == "classification")
    training = {"gradient_accumulation_steps": accumulation}
    patch = run_of(task, class_weights=weights, training=training)
    straight, cut = (molecules.run(patch=patch, rung=one) for one in (NO_RUNG, Rung(1, batch=6)))
    assert cut.of_kind("applied")[0]["applied"]["batch_size"] == 6
    assert without_losses(cut) == without_losses(straight)
    assert losses(cut) != losses(straight)
    assert (losses(cut) == pytest.approx(losses(straight), rel=1e-4)) is alike


def test_a_class_that_weighs_more_is_told_more_often(molecules: Lab) -> None:
    """One in ten is of the second class, and the molecules say nothing of it: which one is told
    follows from the weights alone.
    """
    with h5py.File(molecules.data, "r+") as file:
        file["targets"][:] = np.arange(200) % 10 == 0
    right = []
    for weights in (None, [1.0, 1.0], [1.0, 90.0]):
        outcome = molecules.run(patch=run_of("classification", class_weights=weights))
        right.append(outcome.result["last"]["val_accuracy"])
    assert right[0] == right[1] > 0.8
    assert right[2] < 0.3
