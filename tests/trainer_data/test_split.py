"""Which samples train, validate and test."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_data.factories import make_spec
from worker.trainer.data.split import Part, parts_by_number, split_samples
from worker.trainer.errors import DataError, SpecMismatch


def split(samples, seed=0, **split):
    if split["method"] == "random":
        split = {**split, "seed": seed}
    return split_samples(make_spec({"split": split}).data, {"numbers": samples})


def test_chronological_cuts_in_the_order_of_the_file():
    parts = split(100, method="chronological", validation_fraction=0.2, test_fraction=0.1)
    assert [part.rows for part in parts.non_empty] == [range(70), range(70, 90), range(90, 100)]


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        ((0.2, 0.0), (range(65), range(80, 100), range(100, 100))),
        ((0.2, 0.1), (range(40), range(55, 75), range(90, 100))),
        ((0.0, 0.1), (range(75), range(90, 90), range(90, 100))),
        ((0.0, 0.0), (range(100), range(100, 100), range(100, 100))),
    ],
)
def test_a_gap_lies_at_each_border_and_is_taken_from_the_training_part(fractions, expected):
    validation, test = fractions
    asked = {
        "method": "chronological",
        "validation_fraction": validation,
        "test_fraction": test,
        "gap": 15,
    }
    parts = split(100, **asked)
    assert [list(part.rows) for part in (parts.train, parts.validation, parts.test)] == [
        list(rows) for rows in expected
    ]


def test_a_gap_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(SpecMismatch, match="gap"):
        split(100, method="chronological", validation_fraction=0.2, gap=80)


def test_a_spec_that_was_stored_before_there_were_gaps_is_split_without():
    parts = split(100, method="chronological", validation_fraction=0.2, test_fraction=0.1)
    assert [len(part) for part in parts.non_empty] == [70, 20, 10]


@pytest.mark.parametrize(
    ("samples", "most", "begins"),
    [
        (100, None, range(0, 100, 10)),
        (100, 10, range(0, 100, 10)),
        (95, 10, range(0, 100, 10)),
        (95, 9, range(0, 90, 10)),
        (100, 1, [50]),
        (100, 2, [20, 70]),
        (100, 4, [10, 30, 60, 80]),
        (109, 3, [10, 50, 80]),
        (5, 3, [0]),
        (0, 3, []),
    ],
)
def test_the_batches_of_a_limited_evaluation_are_spaced_evenly(samples, most, begins):
    part = Part("numbers", range(7, 7 + samples))
    rows = part.spaced(10, most).all_rows()
    whole = [one for begin in begins for one in range(begin, min(begin + 10, samples))]
    assert rows.tolist() == [7 + place for place in whole]


def test_scattered_rows_are_spaced_by_their_places():
    part = Part("numbers", np.arange(0, 300, 3))
    assert part.spaced(10, 2).all_rows().tolist() == [*range(60, 90, 3), *range(210, 240, 3)]


def test_the_weather_sample_is_cut_at_the_end_of_september():
    parts = split(4020, method="chronological", validation_fraction=0.2545)
    assert parts.train.rows == range(2997)
    assert parts.validation.rows == range(2997, 4020)


@given(st.integers(10, 500), st.integers(0, 2**53 - 1))
def test_random_parts_share_nothing_and_miss_nothing(samples, seed):
    parts = split(samples, seed, method="random", validation_fraction=0.2, test_fraction=0.1)
    rows = [row for part in parts.non_empty for row in list(part.rows)]
    assert sorted(rows) == list(range(samples))
    assert len(parts.validation) == round(0.2 * samples)
    assert all(list(part.rows) == sorted(part.rows) for part in parts.non_empty)


def test_random_parts_follow_the_seed():
    def rows(seed):
        return list(split(50, seed, method="random").train.rows)

    assert rows(1) == rows(1) != rows(2)


def test_other_datasets_are_taken_whole():
    data = make_spec({"split": {"method": "datasets", "validation": "later"}}).data
    parts = split_samples(data, {"numbers": 30, "later": 7})
    assert (parts.train.rows, parts.validation.dataset) == (range(30), "later")
    assert parts.validation.rows == range(7)
    assert parts.test is None


@pytest.mark.parametrize(
    ("samples", "fractions", "sentence"),
    [
        (2, {"validation_fraction": 0.2}, "raise the fraction"),
        (1, {"validation_fraction": 0.6}, "nothing to train on"),
    ],
)
def test_an_empty_part_is_refused(samples, fractions, sentence):
    with pytest.raises(SpecMismatch, match=sentence):
        split(samples, method="chronological", **fractions)


def test_validation_may_be_left_out():
    assert split(3, method="chronological", validation_fraction=0.0).non_empty[0].rows == range(3)


def by_field(numbers):
    data = make_spec({"split": {"method": "field", "field": "part"}}).data
    return split_samples(data, {"numbers": len(numbers)}, np.array(numbers, np.int8))


def test_a_field_puts_each_sample_into_its_part_in_the_order_of_the_file():
    parts = by_field([1, 0, 2, 0, 0, 1])
    assert [list(part.rows) for part in parts.non_empty] == [[1, 3, 4], [0, 5], [2]]


def test_a_field_may_leave_validation_and_test_empty():
    parts = by_field([0, 0, 0])
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [3, 0, 0]


def test_a_field_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(SpecMismatch, match="'part' is 0 for no sample"):
        by_field([1, 1, 2])


@pytest.mark.parametrize(
    ("dtype", "stray"), [("int64", 3), ("int16", -1), ("uint16", 256), ("int32", 65536)]
)
def test_the_first_sample_that_is_in_no_part_is_named(dtype, stray):
    values = np.array([0, 1, 2, stray, 7], dtype)
    with pytest.raises(DataError, match=rf"Sample 1,003 has {stray} in 'part'"):
        parts_by_number("part", 1000, values)


def test_a_boolean_says_what_is_held_out():
    assert parts_by_number("held_out", 0, np.array([True, False])).tolist() == [1, 0]
