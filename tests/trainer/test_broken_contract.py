"""A recipe that gives something else than the loop takes ends its run with what to change."""

import inspect
from functools import partial
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from app.lifecycle import Reason
from app.spec.installed import INSTALLED
from app.spec.plugins import TASKS
from tests.trainer.lab import Lab
from worker.trainer import recipes
from worker.trainer.errors import TrainerError
from worker.trainer.failure import explain
from worker.trainer.recipes.base import Batch, Task, WeightedLoss
from worker.trainer.recipes.contract import require_terms
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.tools.one_step import measure_step
from worker.trainer.weights.exporting import _answer


def with_method(method: str, make: Any) -> type[Task]:
    """A task whose method gives what `make` makes of what it should have given."""

    def other(self: Task, *given: Any) -> Any:
        return make(getattr(SequenceTask, method)(self, *given))

    return type("Broken", (SequenceTask,), {method: other})


@pytest.mark.parametrize(
    ("method", "make", "told"),
    [
        ("loss", lambda given: given["loss"], 'gave a tensor of shape (): it has to give a dict '
         'with the mean over the batch of each loss term: {"loss": …}'),
        ("loss", lambda given: {"mae": given["loss"]}, "gave a dict of 'mae' without 'loss'"),
        ("loss", lambda given: {"loss": given["loss"].expand(8)}, "for 'loss' a tensor of shape "
         "(8,): it has to be a tensor of one number, such as the .mean()"),
        ("loss", lambda given: {"loss": given["loss"].item()}, "for 'loss' a float"),
        ("loss", lambda given: {"loss": given["loss"].detach()}, "does not depend on the model's"),
        ("loss", lambda given: None, "gave nothing (None)"),
        ("loss", lambda given: WeightedLoss(given["loss"], torch.ones(())), "a tensor of shape ()"),
        ("loss", lambda given: WeightedLoss(given, torch.ones(8)), "the weight a tensor of shape "
         "(8,): it has to be a tensor of one number (.sum())"),
        ("loss", lambda given: WeightedLoss(given, cast("Any", 8)), "the weight a int: it "
         "has to be a tensor"),
        ("measure", lambda given: given["loss"], "shape (): it has to give a dict of sums"),
        ("measure", lambda given: {}, "gave an empty dict"),
        ("measure", lambda given: {"loss": given["loss"].item()}, "for 'loss' a float"),
        ("scores", lambda given: {"loss": given["loss"]}, "gave 'loss' without mae, mse, rmse: it "
         "has to give a dict with a number for each of loss, mae, mse, rmse: the loss, and what "
         "evaluation.metrics asks for of Recipe.metric_modes"),
        ("scores", lambda given: given | {"mae": "small"}, "for 'mae' a str"),
        ("scores", lambda given: given | {"mae": torch.ones(4)}, "a tensor of shape (4,): it has "
         "to give a dict with a number for each of loss, mae, mse, rmse. If measure forgot the "
         ".sum() over its samples, add it there"),
        ("scores", lambda given: given["loss"], "gave a float"),
        ("parameters_json", lambda given: given | {"scale": torch.ones(2)}, "gave what is no JSON "
         "(Object of type Tensor is not JSON serializable): it has to give numbers"),
        ("build_model", lambda given: (given, 3), "gave a tuple: it has to give a torch.nn.Module"),
    ],
)  # fmt: skip
def test_what_was_given_and_what_is_wanted_is_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str, make: Any, told: str
) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: with_method(method, make))
    with pytest.raises(TrainerError) as caught:
        lab.run(patch={"training": {"max_steps": 2, "epochs": 9}})
    assert caught.value.reason is Reason.trainer_error
    assert f"Broken.{method} of the recipe sequence gave " in caught.value.message
    assert told in caught.value.message
    line = inspect.getsourcelines(with_method)[1] + 3
    assert f"Mend it ({__file__}, line {line})" in caught.value.message


def test_a_method_without_code_in_python_is_told_with_its_file() -> None:
    odd: Any = type("Odd", (), {"loss": partial(print), "recipe": SimpleNamespace(kind="odd")})
    with pytest.raises(TrainerError) as caught:
        require_terms(odd(), None, ["loss"])
    assert "Odd.loss of the recipe odd gave nothing (None)" in caught.value.message
    assert f"Mend it ({__file__}) and install" in caught.value.message


class Raising(SequenceTask):
    """Of a package of the user's own, as far as these tests go: `tests`."""

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        forecast: Any = (model(batch.arrays["features"]), None)
        return {"loss": (batch.arrays["label"] - forecast.mean()).mean()}


class Tuple(SequenceTask):
    def measure(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        forecast: Any = (batch.arrays["targets"], None)
        return {"loss": forecast.double().sum()}


class Elsewhere(SequenceTask):
    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        raise RuntimeError(  # as a GPU has it
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            "and cpu!"
        )


class OtherSum(SequenceTask):
    def scores(self, sums: Any, samples: int) -> dict[str, float]:
        stations = dict.fromkeys(range(1021))
        return {"loss": sums["los"] / samples / len(stations)}


class Short(SequenceTask):
    def measure(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return {"loss": tuple(batch.arrays.values())[9]}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """One package that has three recipes, two of them in one module."""
    places = {"walks": f"{__name__}:Raising", "runs": f"{__name__}:Tuple", "rides": "tests.x:Ride"}
    points = [EntryPoint(name, value, TASKS) for name, value in places.items()]
    monkeypatch.setattr("app.spec.plugins.entry_points", lambda group: points)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Raising, ("while training: KeyError: 'label', in Raising.loss (", f"({__file__}, line",
         '`return {"loss": (batch.arrays["label"]', "The batch has, in the types of the file: "
         "features (")),
        (Tuple, ("while evaluating: AttributeError: 'tuple' object has no attribute 'double', in "
         "Tuple.measure (", "give a tuple, whose first part is the tensor.")),
        (Elsewhere, ("devices, cuda:0 and cpu!, in Elsewhere.loss (", "(register_buffer)")),
        (OtherSum, ("KeyError: 'los', in OtherSum.scores (",
         "`sums` has loss, absolute, squared.", "18, 19 and 1,001 more.")),
        (Short, ("IndexError: tuple index out of range, in Short.measure (",)),
    ],
)  # fmt: skip
def test_what_a_plugin_raised_is_told_with_what_it_had_in_hand(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, plugin: None, task: type[Task], told: tuple[str, ...]
) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: task)
    with pytest.raises((LookupError, AttributeError, RuntimeError)) as caught:
        lab.run(patch={"training": {"max_steps": 2, "epochs": 9}})
    phase = "training" if task in (Raising, Elsewhere) else "evaluating"
    reason, message = explain(caught.value, phase)
    assert reason is Reason.trainer_error
    kinds: dict[type[Task], str] = {Raising: "walks", Tuple: "runs"}
    kind = kinds.get(task, "runs or walks")
    assert message.startswith(f"The recipe {kind} failed ")
    for words in told:
        assert words in message
    assert ("nn.LSTM" in message) == (task is Tuple)
    assert message.endswith("install it again. trainer.log of the attempt has the details.")
    assert "trainer.log" not in explain(caught.value, phase, logged=False)[1]
    assert explain(caught.value, "compiling")[1] == message.replace(phase, "compiling")


class Half(Task):
    """Without four of the six methods that have no default."""

    standardized = ()

    def parameters_json(self) -> dict[str, Any]:
        return {}


def test_a_task_that_lacks_methods_is_refused_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [EntryPoint("walks", f"{__name__}:Half", TASKS)]
    monkeypatch.setattr(recipes, "entry_points", lambda group, name: points)
    with pytest.raises(TrainerError, match=r"Half lacks build_model, loss, measure, scores, which"):
        recipes.task_of("walks")


@pytest.mark.parametrize(
    ("answer", "file"),
    [
        (lambda: _answer({"format": "onnx"})["error"], "make.py"),
        (
            lambda: measure_step({"device": "cpu", "batch_size": 8, "evaluation_batch_size": 8}),
            "one_step.py",
        ),
    ],
)
def test_an_export_and_a_probe_name_a_place_and_no_log_that_is_not_there(
    answer: Any, file: str
) -> None:
    told = str(answer())
    assert "trainer.log" not in told
    assert "It was raised in " in told
    assert file in told


def test_a_package_that_was_installed_meanwhile_is_told_of(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = f"{SequenceTask.__module__}:SequenceTask"
    point: Any = EntryPoint("sequence", task, TASKS)
    package = SimpleNamespace(name="walks-recipe", version="0.2.0")
    monkeypatch.setattr(recipes, "entry_points", lambda group, name: [point._for(package)])
    monkeypatch.setitem(INSTALLED.packages, "sequence", "walks-recipe")
    for version, told in (("0.2.0", []), ("0.1.0", ["recipe_version"])):
        outcome = lab.run(patch={"recipe": {"version": version}, "training": {"max_steps": 2}})
        warnings = outcome.of_kind("warning")
        assert [one["code"] for one in warnings] == told
    assert "trains the code of 0.2.0 under the name of 0.1.0" in warnings[0]["message"]


class AsTheyAre(SequenceTask):
    standardized = ()


def test_what_nothing_standardizes_although_the_spec_says_so_is_told_of(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: AsTheyAre)
    asked = {"training": {"max_steps": 1}, "data": {"standardize": {"targets": False}}}
    (warning,) = lab.run(patch=asked).of_kind("warning")
    assert warning["code"] == "not_standardized"
    assert "AsTheyAre.standardized names none of features" in warning["message"]
    other: Any = classmethod(lambda cls, spec, samples: samples)
    monkeypatch.setattr(AsTheyAre, "dataset", other)
    assert lab.run(patch=asked).of_kind("warning") == [], "its own dataset may do it"
