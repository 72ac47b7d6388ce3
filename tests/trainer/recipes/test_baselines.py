"""Simple baselines: each is what it is called, scored on the rows of the run's evaluations."""

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, Ridge

from app.lifecycle import Reason
from app.spec.recipe import Mode
from tests.trainer.lab import Lab, StopAtPoll, merged
from tests.trainer.recipes import molecules, panels
from tests.trainer.recipes.regressions import one_strength, plain_ridge
from tests.trainer.recipes.test_board import LEGAL, MOVES, PLAY, positions
from worker.trainer.data import dataset
from worker.trainer.recipes.fitting import STRENGTHS, is_quick, log_shares, ridge
from worker.trainer.recipes.molecule import fixed_draws
from worker.trainer.recipes.sequence import SequenceTask, _a_season_ago
from worker.trainer.report import baselines
from worker.trainer.report.baselines import best_of, no_better
from worker.trainer.tools.panel.panel_cut import PanelCut, write_panel

__all__ = ["one_strength"]  # a fixture

NAMES = ["wave", "a", "b"]
TRAINING, VALIDATION, TEST = slice(42), slice(42, 54), slice(54, 60)
SHORT = {"training": {"epochs": 1}}
Array = NDArray[Any]


def name_features(lab: Lab, features=NAMES, target="wave") -> None:
    with h5py.File(lab.data, "a") as file:
        file.attrs.update({"feature_names": features, "target_name": target})


def arrays_of(lab: Lab, *names: str) -> list[Array]:
    with h5py.File(lab.data) as file:
        return [file[name][:].astype(np.float64) for name in names]


def by_name(result: dict[str, Any], metric: str) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result["baselines"] if one["metric"] == metric}


@pytest.mark.parametrize("loader", [{"kind": "chunked"}, {"kind": "dataloader", "num_workers": 0}])
def test_forecasts_are_compared_with_means_last_values_and_a_ridge(lab: Lab, loader) -> None:
    name_features(lab)
    result = lab.run(patch=merged(SHORT, {"data": {"loader": loader}})).result
    features, targets = arrays_of(lab, "features", "targets")
    past = features[:, :, 0]
    for prefix, part in (("val", VALIDATION), ("test", TEST)):
        scores = by_name(result, f"{prefix}_mae")
        mean = targets[TRAINING].mean(0)
        assert scores["training mean"] == pytest.approx(np.abs(targets[part] - mean).mean())
        last = np.abs(targets[part] - past[part, -1:]).mean()
        assert scores["last value"] == pytest.approx(last)
        (k,) = (int(name.split()[4]) for name in scores if name.startswith("mean of the last"))
        error = np.abs(targets[part] - past[part, -k:].mean(1, keepdims=True)).mean()
        assert scores[f"mean of the last {k} steps"] == pytest.approx(error)
        rmse = by_name(result, f"{prefix}_rmse")
        expected = np.sqrt(((targets[part] - past[part, -1:]) ** 2).mean())
        assert rmse["last value"] == pytest.approx(expected)
    # Waves are linear in their past, so a ridge is by far the best of them.
    scores = by_name(result, "val_mae")
    best = min(scores, key=lambda name: scores[name])
    assert best.startswith("ridge on the last ")
    assert scores[best] < 0.5 * scores["last value"]
    assert result["naive"]["val_mae"] == by_name(result, "val_mae")[best]


@pytest.mark.usefixtures("one_strength")
def test_ridges_of_windows_are_those_of_scikit_learn(lab: Lab) -> None:
    name_features(lab)
    scores = by_name(lab.run(patch=SHORT).result, "val_mae")
    features, targets = arrays_of(lab, "features", "targets")
    last = features[:, -1:, 0]
    (own,) = (name for name in scores if re.fullmatch(r"ridge on the last \d+ values", name))
    (every,) = (name for name in scores if name.startswith("ridge on all features of the last "))
    changes = targets - last
    for name, inputs, steps in (
        (own, (features[:, :-1, 0] - last)[..., None], int(own.split()[4]) - 1),
        (every, features, int((re.findall(r"\d+", every) or ["1"])[0])),
    ):
        forecast = last + plain_ridge(inputs[TRAINING], changes[TRAINING], steps)(inputs)
        expected = np.abs(targets[VALIDATION] - forecast[VALIDATION]).mean()
        assert scores[name] == pytest.approx(expected, rel=1e-6)


def test_a_ridge_on_one_step_is_named_in_the_singular(lab: Lab) -> None:
    random = np.random.default_rng(0)
    with h5py.File(lab.data, "a") as file:
        walk = random.normal(size=(60, 12)).cumsum(1)
        file["features"][:, :, 0] = walk
        file["features"][:, :, 1:] = random.normal(size=(60, 12, 2))
        file["targets"][:] = 0.5 * walk[:, -1:] + file["features"][:, -1, 1:2]
    name_features(lab)
    names = set(by_name(lab.run(patch=SHORT).result, "val_mae"))
    assert "ridge on all features of the last step" in names


def test_where_the_file_says_its_step_the_day_before_is_a_baseline(lab: Lab) -> None:
    name_features(lab)
    with h5py.File(lab.data, "a") as file:
        file["features"].attrs["step_seconds"] = 4 * 3_600  # six a day, in windows of twelve
    result = lab.run(patch=SHORT).result
    features, targets = arrays_of(lab, "features", "targets")
    a_day_ago = features[VALIDATION, -6:-2, 0]
    scores = by_name(result, "val_mae")
    assert scores["value a day ago"] == pytest.approx(
        np.abs(targets[VALIDATION] - a_day_ago).mean()
    )
    assert "value a week ago" not in scores


def test_a_forecast_beyond_a_season_repeats_it() -> None:
    weights = _a_season_ago(3.0, 1.0, 5, 7)
    assert weights is not None
    assert (torch.arange(5.0).double() @ weights).tolist() == [2, 3, 4, 2, 3, 4, 2]
    for length, seconds, steps in ((3.0, None, 5), (3.0, 2.0, 5), (3.0, 1.0, 2), (1.0, 1.0, 5)):
        assert _a_season_ago(length, seconds, steps, 7) is None


def test_a_ridge_without_noise_is_the_regression_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(5, 2, (400, 2, 3))
    targets = inputs.reshape(400, 6) @ random.normal(size=(6, 3)) + 7
    fitted = ridge(torch.from_numpy(inputs), torch.from_numpy(targets))
    plain = LinearRegression().fit(inputs.reshape(400, 6), targets)
    assert fitted.steps == 2
    weights = fitted.weights.flatten(0, 1).numpy()
    np.testing.assert_allclose(weights, plain.coef_.T, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fitted.intercept.numpy(), plain.intercept_, rtol=1e-3)


def test_the_penalty_of_a_ridge_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(80, 1, 40)), random.normal(size=(80, 2))
    fitted = ridge(torch.from_numpy(inputs), torch.from_numpy(targets))
    scaled = (inputs[:, 0] - inputs.mean((0, 1))) / inputs[:, 0].std(0, ddof=1)
    plain = Ridge(alpha=STRENGTHS[-1] * 80).fit(scaled, targets)  # nothing is to be learned
    weights = fitted.weights[0].numpy() * inputs[:, 0].std(0, ddof=1)[:, None]
    np.testing.assert_allclose(weights, plain.coef_.T, atol=1e-9)


def test_a_ridge_looks_at_no_more_steps_than_help() -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 16, 2))
    targets = inputs[:, -1:, 0] - 2 * inputs[:, -2:-1, 1] + 0.5 * random.normal(size=(300, 1))
    assert ridge(torch.from_numpy(inputs), torch.from_numpy(targets)).steps in (2, 4)


def test_a_run_that_is_no_better_says_so_with_the_baselines_name(lab: Lab) -> None:
    name_features(lab)
    with h5py.File(lab.data, "a") as file:  # waves that stand still
        file["targets"][:] = file["features"][:, -1:, 0]
    outcome = lab.run(patch=SHORT)
    assert by_name(outcome.result, "val_mae")["last value"] == pytest.approx(0.0, abs=1e-6)
    assert outcome.end is not None
    assert "no better than a simple baseline (" in outcome.end.message


def test_arrays_without_names_are_compared_with_the_mean(lab: Lab) -> None:
    outcome = lab.run(patch=SHORT)
    assert set(by_name(outcome.result, "val_mae")) == {"training mean"}
    (targets,) = arrays_of(lab, "targets")
    expected = np.abs(targets[VALIDATION] - targets[TRAINING].mean(0)).mean()
    assert outcome.result["naive"]["val_mae"] == pytest.approx(expected)


def test_rows_of_features_are_compared_with_a_ridge_on_all_of_them(lab: Lab) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(200, 4))
    with h5py.File(lab.data, "a") as file:
        del file["targets"]
        file["rows"] = rows.astype(np.float32)
        file["targets"] = rows @ np.ones((4, 2)) + np.cos(3 * rows[:, :1])
        del file["features"], file["flat"], file["cube"]
    patch = {"recipe": {"patch": 1}, "data": {"inputs": ["rows"]}}
    result = lab.run(patch=merged(SHORT, patch)).result
    rows, targets = arrays_of(lab, "rows", "targets")
    training, part = slice(140), slice(140, 180)
    fitted = Ridge(alpha=1e-3).fit(rows[training], targets[training])
    scores = by_name(result, "val_mae")
    assert set(scores) == {"training mean", "ridge on all features"}
    expected = np.abs(fitted.predict(rows[part]) - targets[part]).mean()
    assert scores["ridge on all features"] == pytest.approx(expected, rel=0.02)
    assert result["naive"]["val_mae"] == scores["ridge on all features"]


def test_the_best_is_taken_by_the_direction_of_its_metric() -> None:
    rows = [
        ("a", "val_mae", 2.0),
        ("b", "val_mae", 3.0),
        ("a", "val_f1", 0.2),
        ("b", "val_f1", 0.4),
    ]
    each = [{"name": name, "metric": metric, "value": value} for name, metric, value in rows]
    modes: dict[str, Mode | None] = {"mae": "min", "f1": "max", "coverage": None}
    each.append({"name": "a", "metric": "val_coverage", "value": 0.9})
    best = best_of(each, modes)
    assert {metric: one["name"] for metric, one in best.items()} == {"val_mae": "a", "val_f1": "b"}
    assert no_better({"val_mae": 1.5, "val_f1": 0.5}, best, modes) == ""
    sentence = no_better({"val_mae": 2.0}, best, modes)
    assert "(a), which has a val_mae of 2; the model has 2." in sentence
    sentence = no_better({"val_mae": 1.0, "val_f1": 0.3}, best, modes)
    assert "(b), which has a val_f1 of 0.4; the model has 0.3." in sentence
    assert no_better({}, best, modes) == ""


def test_they_are_scored_on_the_rows_of_the_runs_evaluation(lab: Lab) -> None:
    name_features(lab)
    patch = merged(SHORT, {"evaluation": {"max_batches": 1}})
    result = lab.run(patch=patch).result
    features, targets = arrays_of(lab, "features", "targets")
    middle = slice(47, 52)
    expected = np.abs(targets[middle] - features[middle, -1:, 0]).mean()
    assert by_name(result, "val_mae")["last value"] == pytest.approx(expected)


def test_a_run_that_was_stopped_has_none(lab: Lab) -> None:
    name_features(lab)
    outcome = lab.run(stop=StopAtPoll(8))
    assert outcome.end is not None
    assert outcome.end.reason is Reason.interrupted
    assert "baselines" not in (outcome.result or {})


def test_what_would_take_too_long_is_left_out_with_a_warning(lab: Lab, monkeypatch) -> None:
    monkeypatch.setattr(baselines, "LEAST_SECONDS", -1.0)
    monkeypatch.setattr(baselines, "MOST_SHARE", 0.0)
    outcome = lab.run(patch=SHORT)
    assert "baselines" not in outcome.result
    assert [one["code"] for one in outcome.of_kind("warning")] == ["baselines_left_out"]


def test_a_baseline_that_fails_does_not_take_the_training_with_it(lab: Lab, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("it is singular")

    monkeypatch.setattr(SequenceTask, "baselines", broken)
    outcome = lab.run(patch=SHORT)
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed
    assert "baselines" not in outcome.result
    (warning,) = outcome.of_kind("warning")
    assert "RuntimeError: it is singular" in warning["message"]


def test_samples_to_fit_are_spaced_over_the_training_part(lab: Lab, monkeypatch) -> None:
    monkeypatch.setattr(dataset, "MOST_SAMPLES", 16)
    result = lab.run(patch=SHORT).result
    (targets,) = arrays_of(lab, "targets")
    rows = np.unique(np.linspace(0, 41, 16).astype(int))
    expected = np.abs(targets[VALIDATION] - targets[rows].mean(0)).mean()
    assert result["naive"]["val_mae"] == pytest.approx(expected)


def test_few_samples_are_read_where_they_are_huge(lab: Lab, monkeypatch) -> None:
    monkeypatch.setattr(dataset, "MOST_BYTES", 700)
    result = lab.run(patch=SHORT).result
    (targets,) = arrays_of(lab, "targets")
    expected = np.abs(targets[VALIDATION] - targets[:4].mean(0)).mean()
    assert result["naive"]["val_mae"] == pytest.approx(expected)


def test_a_ridge_that_would_take_long_is_left_out() -> None:
    few, wide = torch.zeros(2, 5, 768), torch.zeros(2, 5, 769)
    assert is_quick(few, 36)
    assert not is_quick(wide, 36)
    assert not is_quick(torch.zeros(100_000, 4), 100), "80 MB of forecasts"
    assert not is_quick(few, 769)


@pytest.mark.usefixtures("one_strength")
def test_panels_are_compared_with_least_squares_on_their_own_features(lab: Lab) -> None:
    write_panel(lab.data, panels.made_panel(), PanelCut(panels.WINDOW, (1, 3), "own"))
    result = lab.run(patch=merged(panels.SPEC, SHORT)).result
    scores, ranks = by_name(result, "val_mae"), by_name(result, "val_rank_correlation")
    last = "least squares on the last step"
    (past,) = (name for name in scores if name.endswith(" and date means"))
    # The own value is the last one of what is forecast, and a wave goes on from there.
    assert scores[past] < scores["training mean"]
    assert scores[last] < 0.9 * scores["training mean"]
    assert ranks["training mean"] == 0.0
    assert ranks[last] > 0.3
    assert result["naive"]["val_rank_correlation"] == max(ranks.values())
    with h5py.File(lab.data) as file:
        series, there = file["features/series"][:], file["present/series"][:].astype(bool)
        ends, targets = file["date"][:], file["targets"][:].astype(np.float64)
        known = file["known"][:].astype(bool)
    tested, validated = round(0.1 * len(ends)), round(0.2 * len(ends))
    training = slice(len(ends) - tested - validated)
    held_out = slice(training.stop, len(ends) - tested)
    seen = series[: ends[training.stop - 1] + 1][there[: ends[training.stop - 1] + 1]]
    scaled = np.where(there[..., None], (series - seen.mean(0)) / seen.std(0), 0.0)
    means = scaled.sum(1, keepdims=True) / there.sum(1).clip(1)[:, None, None]
    both = np.concatenate((scaled, np.broadcast_to(means, scaled.shape)), -1)

    def mae(forecasts: Array) -> float:
        off, counts = np.abs(targets - forecasts)[held_out], known[held_out]
        each = (off * counts).sum((1, 2)) / counts.sum((1, 2)).clip(1)
        return float(each.sum() / counts.any((1, 2)).sum())

    mean = (targets * known)[training].sum((0, 1)) / known[training].sum((0, 1))
    assert scores["training mean"] == pytest.approx(mae(mean), rel=1e-5)
    dates, entities = known[training].all(-1).nonzero()
    steps = int((re.findall(r"\d+", past) or ["1"])[0])
    for name, values, window, used in ((last, scaled, 1, 1), (past, both, panels.WINDOW, steps)):
        windows = np.stack([values[end + 1 - window : end + 1] for end in ends])
        by_entity = np.moveaxis(windows, 2, 1)  # samples, entities, dates, features
        forecast = plain_ridge(by_entity[dates, entities], targets[dates, entities], used)
        answers = forecast(by_entity.reshape(-1, *by_entity.shape[2:])).reshape(targets.shape)
        assert scores[name] == pytest.approx(mae(answers), rel=1e-4)


@pytest.mark.usefixtures("one_strength")
@pytest.mark.parametrize("task", ["regression", "classification", "masked"])
def test_molecules_are_compared_with_means_and_the_counts_of_their_atoms(
    lab: Lab, task: str
) -> None:
    molecules.write(lab.data, classes=task == "classification")
    request = molecules.request_of(task, evaluation={"metrics": molecules.METRICS[task]})
    request["data"].pop("dataset")
    result = lab.run(patch=merged(request, SHORT)).result
    metric = "val_mae" if task == "regression" else "val_accuracy"
    scores = by_name(result, metric)
    with h5py.File(lab.data) as file:
        targets, nodes = file["targets"][:], file["molecules/nodes"][:]
        offsets = file["molecules/node_offsets"][:].astype(np.int64)
    train, validation = slice(140), slice(140, 180)
    lengths = np.diff(offsets)
    of = np.repeat(np.arange(200), lengths)
    counts = np.bincount(of * 8 + nodes[:, 0], minlength=1_600).reshape(200, 1, 8)
    if task != "masked":
        answers = plain_ridge(counts[train], targets[train])(counts[validation])
    if task == "regression":
        mean = np.abs(targets[validation] - targets[train].mean()).mean()
        assert scores["training mean"] == pytest.approx(mean, rel=1e-5)
        expected = np.abs(targets[validation] - answers).mean()
        assert scores["ridge on atom counts"] == pytest.approx(expected, rel=1e-4)
        assert expected < mean
    elif task == "classification":
        usual = np.bincount(targets[train].astype(int)).argmax()
        share = (targets[validation] == usual).mean()
        assert scores["most common class"] == pytest.approx(share)
        right = ((answers > 0.5) == targets[validation]).mean()
        assert scores["ridge on atom counts"] == pytest.approx(right)
        assert right > share
        no_metrics = lab.run(patch=merged(request, merged(SHORT, {"evaluation": {"metrics": []}})))
        chances = np.where(targets[validation] == 1, answers, 1 - answers).clip(1e-3, 1 - 1e-3)
        loss = by_name(no_metrics.result, "val_loss")["ridge on atom counts"]
        assert loss == pytest.approx(-np.log(chances).mean(), rel=1e-4)
    else:
        assert set(scores) == {"most common element"}
        usual = counts[train].sum((0, 1)).argmax()
        atoms, none = torch.from_numpy(nodes), torch.empty(0)
        graphs = atoms, none, none, torch.from_numpy(of), torch.from_numpy(lengths)[:, None]
        draws = fixed_draws(graphs, seed=7).numpy()
        hidden = (draws < 0.15) & (of >= validation.start) & (of < validation.stop)
        expected = (nodes[hidden, 0] == usual).mean()
        assert scores["most common element"] == pytest.approx(expected)
        assert 0 < expected < 1


@pytest.mark.parametrize("stage", [LEGAL, PLAY], ids=["legal", "play"])
def test_boards_are_compared_with_legal_moves_and_the_most_common_ones(
    lab: Lab, stage: dict[str, Any]
) -> None:
    made = positions()
    write_positions(lab.data, made)
    result = lab.run(patch=merged(stage, SHORT)).result
    legal = np.unpackbits(made["legal"], axis=1)[:, :MOVES].astype(bool)
    if stage is LEGAL:
        share = (legal[TRAINING].sum(0) + 1) / (len(legal[TRAINING]) + 2)

        def f1(guess: Array, part: slice, mean: bool = True) -> float:
            guess = np.broadcast_to(guess, legal[part].shape)
            both, either = (guess & legal[part]).sum(1), guess.sum(1) + legal[part].sum(1)
            if not mean:
                return float(2 * both.sum() / either.sum())
            return float(np.where(either > 0, 2 * both / either.clip(1), 1.0).mean())

        best = max(np.unique(share), key=lambda least: f1(share >= least, TRAINING, mean=False))
        assert by_name(result, "val_f1") == {
            "moves as often legal as in training": pytest.approx(f1(share > 0.5, VALIDATION)),
            "moves that are legal most often": pytest.approx(f1(share >= best, VALIDATION)),
        }
        return
    losses, moves = by_name(result, "val_policy_loss"), made["move"]
    uniform = np.log(legal[VALIDATION].sum(1)).mean()
    assert losses["uniform over legal moves"] == pytest.approx(uniform, rel=1e-5)
    common = log_shares(torch.from_numpy(np.bincount(moves[TRAINING], minlength=MOVES))).numpy()
    masked = np.where(legal[VALIDATION], common, -np.inf)
    chosen = masked[np.arange(len(masked)), moves[VALIDATION]]
    expected = (np.log(np.exp(masked).sum(1)) - chosen).mean()
    assert losses["most common moves"] == pytest.approx(expected, rel=1e-5)
    results = by_name(result, "val_value_mae")
    mean = made["value"][TRAINING].mean()
    assert results["most common moves"] == pytest.approx(
        np.abs(made["value"][VALIDATION] - mean).mean(), rel=1e-5
    )


def write_positions(path: Path, made: dict[str, Array]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in made.items():
            file[name] = array


@pytest.mark.parametrize(("stage", "metric"), [(LEGAL, "f1"), (PLAY, "policy_loss")])
def test_a_board_model_beats_every_baseline_of_a_toy_game(
    lab: Lab, stage: dict[str, Any], metric: str
) -> None:
    """A stone may make its own move, and the first legal move is played."""
    write_positions(lab.data, positions(900))
    patch = {
        "training": {"epochs": 8, "batch_size": 32, "gradient_accumulation_steps": 1},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "schedule": {"kind": "onecycle"},
        "evaluation": {"every_steps": 80, "batch_size": 128},
        "checkpoint": {"every_seconds": None, "every_steps": 1_000, "monitor": f"val_{metric}"},
    }
    result = lab.run(patch=merged(stage, patch)).result
    for scores, name in ((result["best"], f"val_{metric}"), (result["test"], f"test_{metric}")):
        best = result["naive"][name]
        if metric == "f1":
            assert 1 - scores[name] < 0.6 * (1 - best)
        else:
            assert scores[name] < 0.6 * best
