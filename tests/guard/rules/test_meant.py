"""What a newcomer writes in place of what is meant: a path, another case, a kind for its block."""

from dataclasses import replace
from typing import Any

import pytest

from app.spec.layers import overlay
from tests.guard.world import FIELDS, WEATHER, plan_of, weather, world

HOURLY = replace(WEATHER, name="hourly", path="raw/2021.h5")


def fixed(change: dict[str, Any], *datasets: Any) -> dict[str, Any]:
    """The request after the fixes of all its errors; which make it one that is accepted."""
    plan = plan_of(change, world(*datasets))
    assert plan.errors
    for error in plan.errors:
        for operation in error.fix:
            block, name = operation.path.strip("/").split("/")
            change = overlay(change, {block: {name: operation.value}})
    assert not plan_of(change, world(*datasets)).errors
    return change


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Weather", "weather"), ("weather.h5", "weather"), ("/home/me/data/weather.h5", "weather"),
        ("raw/2021.h5", "hourly"), ("/srv/data/raw/2021.h5", "hourly"),
        ("../raw/2021.h5", "hourly"),
    ],
)  # fmt: skip
def test_a_path_or_another_case_is_told_with_the_registered_name(given: str, meant: str) -> None:
    assert fixed({"data": {"dataset": given}}, HOURLY)["data"]["dataset"] == meant


@pytest.mark.parametrize("given", ["2021.h5", "elsewhere.h5", "/", "..", "raw/2022.h5"])
def test_a_path_that_leads_to_no_dataset_names_none(given: str) -> None:
    plan = plan_of({"data": {"dataset": given}}, world(HOURLY))
    assert [(error.code, error.fix) for error in plan.errors] == [
        ("correctness.dataset_not_found", [])
    ]


def test_a_dataset_of_a_sample_is_told_with_what_makes_it() -> None:
    (error,) = plan_of({"data": {"dataset": "solubility"}}, world(HOURLY)).errors
    assert "`stoker data sample molecules` makes it" in error.why


@pytest.mark.parametrize(
    ("change", "path", "block"),
    [
        ({"optimizer": "adamw"}, "/optimizer", {"kind": "adamw"}),
        ({"optimizer": "AdamW"}, "/optimizer", {"kind": "adamw"}),
        ({"schedule": "cosine"}, "/schedule", {"kind": "cosine_warmup"}),
        ({"data": {"dataset": "weather", "split": "random"}}, "/data/split", {"method": "random"}),
    ],
)
def test_a_kind_alone_is_shown_as_its_block(
    change: dict[str, Any], path: str, block: dict[str, str]
) -> None:
    (error,) = plan_of(change).errors
    assert [(op.op, op.path, op.value) for op in error.fix] == [("replace", path, block)]
    assert "it should be an object. Did you mean {" in error.message


def test_a_block_that_is_neither_is_no_kind() -> None:
    (error,) = plan_of({"optimizer": 3}).errors
    assert (error.message, error.fix) == ("optimizer = 3: it should be an object.", [])


def test_one_array_of_another_name_is_known_by_its_shape() -> None:
    odd = replace(weather(), fields={"x": FIELDS["features"], "y": FIELDS["targets"]})
    for change in ({"inputs": ["features"]}, {"targets": ["label"]}):
        named = {"data": {"inputs": ["x"], "targets": ["y"], **change}}
        assert fixed(named, odd)["data"] == {"inputs": ["x"], "targets": ["y"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"x": FIELDS["features"], "y": FIELDS["features"]},
        {"x": FIELDS["features"], "y": FIELDS["targets"], "z": FIELDS["targets"]},
        {"x": FIELDS["features"]},
    ],
)
def test_arrays_that_could_be_either_are_left_to_the_author(fields: dict[str, Any]) -> None:
    plan = plan_of({}, world(replace(weather(), fields=fields)))
    assert {(error.code, len(error.fix)) for error in plan.errors} == {
        ("correctness.unknown_array", 0)
    }


def test_the_only_metric_that_is_left_is_meant_whatever_was_written():
    (issue,) = plan_of({"evaluation": {"metrics": ["mae", "mse", "xyz"]}}).issues
    assert issue.message.endswith("Did you mean rmse?")
    assert [op.value for op in issue.fix] == [["mae", "mse", "rmse"]]
