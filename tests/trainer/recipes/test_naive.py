"""The naive forecast: what it scores, and that a run that is no better says so."""

import h5py
import numpy as np
import pytest

from app.lifecycle import Reason
from tests.trainer.lab import Lab, StopAtPoll
from worker.trainer.report.naive import no_better

NAMES = ["wave", "a", "b"]
VALIDATION, TEST = slice(42, 54), slice(54, 60)


def name_features(lab: Lab, features=NAMES, target="wave") -> None:
    with h5py.File(lab.data, "a") as file:
        file.attrs.update({"feature_names": features, "target_name": target})


def expected(lab: Lab, part: slice) -> np.ndarray:
    with h5py.File(lab.data) as file:
        last, targets = file["features"][part, -1, 0], file["targets"][part]
    return np.asarray(np.abs(targets.astype(np.float64) - last[:, None]))


@pytest.mark.parametrize("loader", [{"kind": "chunked"}, {"kind": "dataloader", "num_workers": 0}])
def test_it_is_measured_where_the_data_holds_the_past_of_its_target(lab: Lab, loader) -> None:
    name_features(lab)
    outcome = lab.run(patch={"data": {"loader": loader}})
    naive = outcome.result["naive"]
    for name, part in (("val", VALIDATION), ("test", TEST)):
        error = expected(lab, part)
        assert naive[f"{name}_mae"] == pytest.approx(error.mean(), rel=1e-6)
        assert naive[f"{name}_rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)


def test_a_run_that_is_no_better_says_so(lab: Lab) -> None:
    name_features(lab)
    with h5py.File(lab.data, "a") as file:  # waves that stand still
        file["targets"][:] = file["features"][:, -1:, 0]
    outcome = lab.run(patch={"training": {"epochs": 1}})
    assert outcome.result["naive"]["val_mae"] == pytest.approx(0.0, abs=1e-6)
    assert outcome.end is not None
    assert "no better than the naive forecast, which repeats the last value: val_mae" in (
        outcome.end.message
    )


def test_what_is_no_better_is_told_with_both_figures() -> None:
    assert no_better({"val_mae": 2.0, "step": 3}, {"val_mae": 2.5}) == ""
    assert "val_mae 2.5, and 2.5 of the naive one." in no_better({"val_mae": 2.5}, {"val_mae": 2.5})
    assert "test_mae 3, and 2 of" in no_better(
        {"val_mae": 1.0, "test_mae": 3.0}, {"val_mae": 2.0, "test_mae": 2.0}
    )
    assert no_better({}, {"val_mae": 2.0}) == ""


def test_max_batches_limits_it_as_it_limits_evaluations(lab: Lab) -> None:
    name_features(lab)
    outcome = lab.run(patch={"evaluation": {"max_batches": 1}})
    middle = expected(lab, slice(47, 52))
    assert outcome.result["naive"]["val_mae"] == pytest.approx(middle.mean(), rel=1e-6)
    assert outcome.result["naive"]["test_mae"] == pytest.approx(expected(lab, TEST).mean())


@pytest.mark.parametrize(
    ("features", "target"), [(NAMES, "another"), (["wave", "a"], "wave"), ([], "wave")]
)
def test_it_is_not_measured_where_the_file_does_not_say_which_feature_it_is(
    lab: Lab, features, target
) -> None:
    name_features(lab, features, target)
    assert "naive" not in lab.run().result


def test_nor_of_a_run_that_was_stopped(lab: Lab) -> None:
    name_features(lab)
    outcome = lab.run(stop=StopAtPoll(8))
    assert outcome.end is not None
    assert outcome.end.reason is Reason.interrupted
    assert "naive" not in (outcome.result or {})
