"""A split by groups: its sizes, and what is told of a field or a part that is none."""

from app.guard.facts import Facts
from tests.guard.world import plan_of, weather, world

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
