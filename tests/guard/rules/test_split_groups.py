"""A split by groups: its sizes, and what is told of a field or a part that is none."""

from collections.abc import Sequence
from random import Random

import pytest

from app.guard.facts import Facts
from app.guard.gap import held_out_beside_training, stretches_of_groups
from app.guard.plan import RunPlan
from app.spec.data import GroupSplit
from tests.guard.world import plan_of, weather, world

LEAK = "correctness.leaking_split"

BY_GAME = {"data": {"split": {"method": "groups", "field": "game", "validation_fraction": 0.3}}}


def in_groups(*buckets: int) -> Facts:
    return world(weather(samples=sum(buckets), groups={"game": buckets}))


def test_a_split_by_groups_has_the_samples_of_their_buckets():
    plan = plan_of(BY_GAME, in_groups(*[10] * 30, *[90] * 70))
    assert plan.errors == []
    assert plan.estimate is not None
    assert [plan.estimate[f"{one}_samples"] for one in ("training", "validation")] == [6300, 300]


def test_a_part_that_no_group_falls_into_is_told():
    (issue,) = plan_of(BY_GAME, in_groups(*[0] * 30, *[90] * 70)).errors
    assert issue.code == "correctness.empty_part"
    assert issue.message.startswith("No group falls into the validation part, which 30%")


def test_a_field_of_words_can_be_split_by_as_groups():
    (issue,) = plan_of(
        {"data": {"split": {"method": "field", "field": "game"}}}, in_groups(*[90] * 100)
    ).errors
    assert issue.code == "correctness.split_field"
    fix = {"method": "groups", "field": "game"}
    assert [(op.path, op.value) for op in issue.fix] == [("/data/split", fix)]


def of_windows(begins: Sequence[tuple[int, int]] | None, breaks: Sequence[int] = ()) -> RunPlan:
    """4,020 windows of 360 steps, with 36 that follow, in two groups; each is moved on by a step.
    Bucket 0 is held out, bucket 90 trained on.
    """
    counts = [0] * 100
    counts[0], counts[90] = 2_000, 2_020
    dataset = weather(
        groups={"game": counts},
        group_changes={"game": begins},
        window_steps={"features": 1},
        breaks={"features": breaks},
    )
    return plan_of(BY_GAME, world(dataset))


def leaks(plan: RunPlan) -> list[str]:
    return [issue.message for issue in plan.issues if issue.code == LEAK]


@pytest.mark.parametrize(
    ("begins", "shared"),
    [
        ([(0, 0), (2_000, 90)], "395 of 2,000"),
        ([(0, 90), (1_000, 0), (3_000, 90)], "790 of 2,000"),
        ([(at, 0 if at % 200 else 90) for at in range(0, 4_020, 100)], "2,000 of 2,000"),
        (None, "Some of 2,000"),
    ],
)
def test_windows_of_two_groups_that_share_steps_are_counted(begins, shared):
    plan = of_windows(begins)
    told = " samples that are held out share steps of a series with training samples."
    assert leaks(plan) == [shared + told]
    assert plan.errors == []


def test_groups_that_are_series_of_their_own_share_nothing():
    assert leaks(of_windows([(0, 0), (2_000, 90)], breaks=[2_000])) == []
    by_halves = of_windows([(0, 0), (2_000, 90)], breaks=[1_950])
    assert leaks(by_halves) == [f"50{leaks(of_windows(None))[0].removeprefix('Some')}"]


def test_what_an_earlier_version_inspected_is_not_guessed():
    dataset = weather(groups={"game": [40] * 100}, window_steps={"features": 1}, samples=4_000)
    assert leaks(plan_of(BY_GAME, world(dataset))) == []


def test_the_count_is_that_of_every_pair():
    random, split = Random(0), GroupSplit(method="groups", field="game", validation_fraction=0.5)
    for _ in range(200):
        samples, neighbours = random.randint(1, 40), random.randint(1, 8)
        buckets = [random.choice((0, 90)) for _ in range(samples)]
        begins = [(at, b) for at, b in enumerate(buckets) if at == 0 or b != buckets[at - 1]]
        breaks = {at for at in range(1, samples) if random.random() < 0.1}
        series = [sum(at <= one for at in breaks) for one in range(samples)]
        expected = sum(
            any(
                buckets[other] == 90
                and series[other] == series[one]
                and abs(other - one) <= neighbours
                for other in range(samples)
            )
            for one in range(samples)
            if buckets[one] == 0
        )
        stretches = stretches_of_groups(split, begins, breaks, samples)
        assert held_out_beside_training(stretches, neighbours) == expected
