"""Rules that stand on what like runs were measured to make: small batches, and slow reading."""

from typing import Any

import pytest

from app.guard.plan import RunPlan
from app.spec.issue import Issue
from tests.guard.changes import PINNED
from tests.guard.world import RTX, as_measured, paced, plan_of, weather, world

SMALL, SLOW = "speed.batch_too_small", "speed.reading_slower_than_step"
ON_RTX = world(devices=(RTX,))
STREAM: dict[str, Any] = {
    **PINNED,
    "data": {"loader": {"residency": "stream", "chunk_size": "16MiB"}},
}


def found(code: str, plan: RunPlan) -> Issue | None:
    return next((issue for issue in plan.issues if issue.code == code), None)


def with_batch(batch: int, steps: int = 1) -> dict[str, Any]:
    return {"training": {"batch_size": batch, "gradient_accumulation_steps": steps}}


def test_a_larger_batch_is_named_with_both_rates_and_what_it_would_take():
    facts = as_measured({}, ON_RTX, *paced(32, 900.0), *paced(64, 1_700.0), *paced(256, 2_700.0))
    issue = found(SMALL, plan_of(with_batch(32), facts))
    assert issue is not None
    assert issue.severity == "warning"
    assert "Batches of 256 were measured to make 3.0 times as many samples" in issue.message
    assert issue.why.startswith("2,700 a second and not 900, in 1.")
    assert "another training" in issue.why
    assert [(op.path, op.value) for op in issue.fix] == [("/training/batch_size", 256)]


def test_where_steps_are_accumulated_what_is_learned_stays():
    facts = as_measured({}, ON_RTX, *paced(32, 900.0), *paced(256, 2_700.0))
    issue = found(SMALL, plan_of(with_batch(32, 16), facts))
    assert issue is not None
    assert {op.path: op.value for op in issue.fix} == {
        "/training/batch_size": 256, "/training/gradient_accumulation_steps": 2,
    }  # fmt: skip
    assert "what is learned stays" in issue.why


@pytest.mark.parametrize(
    "facts",
    [
        as_measured({}, world(), *paced(32, 900.0), *paced(256, 2_700.0)),
        as_measured({}, ON_RTX, *paced(32, 900.0)),
        as_measured({}, ON_RTX, *paced(256, 2_700.0)),
        as_measured({}, ON_RTX, *paced(32, 900.0), *paced(256, 1_349.0)),
        as_measured({}, ON_RTX, *paced(32, 900.0), *paced(256, 2_700.0, mib=6_000)),
        as_measured({}, ON_RTX, *paced(32, 900.0), *paced(4_000, 2_700.0, mib=1)),
        ON_RTX,
    ],
    ids=["a CPU", "one alone", "another", "not so much", "half full", "above the part", "unknown"],
)
def test_no_larger_batch_is_named_where_it_was_not_measured_to_be_better(facts):
    assert found(SMALL, plan_of(with_batch(32), facts)) is None


@pytest.mark.parametrize(
    ("rate", "epochs", "is_slow"),
    # 3,216 samples of 21,744 bytes at 2 MB a second: 35 s an epoch.
    [(5_000.0, 2, True), (5_000.0, 1, False), (80.0, 40, False), (100.0, 40, True)],
)
def test_steps_that_use_up_more_than_the_file_gives_are_told_how_long_they_wait(
    rate, epochs, is_slow
):
    facts = as_measured(PINNED, world(), *paced(128, rate))
    training = {"training": {"batch_size": 128, "epochs": epochs}}
    issue = found(SLOW, plan_of({**STREAM, **training}, facts))
    assert (issue is not None) == is_slow
    if issue is not None:
        assert "and the file gives 1.9 MiB." in issue.message
        assert [op.path for op in issue.fix] == ["/data/loader/residency"]


def test_data_that_stays_on_the_device_is_read_once():
    facts = as_measured(PINNED, world(), *paced(128, 5_000.0))
    assert found(SLOW, plan_of(PINNED, facts)) is None


def test_what_fits_nowhere_gets_no_fix_but_what_would_help():
    large = weather(samples=2_000_000, size_bytes=43_000_000_000)
    facts = as_measured(PINNED, world(large), *paced(128, 5_000.0))
    issue = found(SLOW, plan_of(PINNED, facts))
    assert issue is not None
    assert issue.fix == []
    assert "stoker data convert" in issue.why


def test_where_nobody_has_measured_nothing_is_said():
    assert found(SLOW, plan_of(STREAM)) is None
    without_rate = as_measured(PINNED, world(), *paced(64, 5_000.0))
    assert found(SLOW, plan_of(STREAM, without_rate)) is None


def test_by_the_pytorch_loader_it_is_the_loader_that_is_changed():
    facts = as_measured(PINNED, world(), *paced(128, 5_000.0))
    asked = {**PINNED, "data": {"loader": {"kind": "dataloader"}}}
    issue = found(SLOW, plan_of(asked, facts))
    assert issue is not None
    assert issue.loc == ["data", "loader", "kind"]
