"""JSON Patches of a request: applied in order, refused with the operation that does not fit."""

from typing import Any

import pytest

from app.errors import InvalidRequest
from app.guard.patching import MAX_DEPTH, MAX_VALUES, apply_json_patch


def test_operations_are_applied_in_order_and_leave_their_input_as_it_was():
    request: dict[str, Any] = {"training": {"epochs": 3}}
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": "/data", "value": {}},
        {"op": "add", "path": "/data/dataset", "value": "weather"},
        {"op": "replace", "path": "/training/epochs", "value": 5},
    ]
    assert apply_json_patch(request, operations) == {
        "training": {"epochs": 5},
        "data": {"dataset": "weather"},
    }
    assert request == {"training": {"epochs": 3}}
    assert operations[0]["value"] == {}


def test_the_operation_that_does_not_fit_is_named():
    with pytest.raises(InvalidRequest, match="Operation 1 of the patch does not apply"):
        apply_json_patch(
            {}, [{"op": "add", "path": "/a", "value": 1}, {"op": "remove", "path": "/b"}]
        )


@pytest.mark.parametrize(
    ("start", "copied"),
    [
        ([0] * 10, {"op": "copy", "from": "/x", "path": "/x/-"}),
        ({"a": 0}, {"op": "copy", "from": "/x", "path": "/x/b"}),
    ],
    ids=["lists", "objects"],
)
def test_copies_that_double_a_request_are_refused_before_it_is_too_large(start, copied):
    with pytest.raises(InvalidRequest) as refused:
        apply_json_patch({"x": start}, [copied] * 100)
    assert f"over {MAX_VALUES:,} values" in refused.value.detail
    assert f"deeper than {MAX_DEPTH} levels" in refused.value.detail


def test_a_large_list_is_not_too_many():
    request = {"accept_risks": ["speed.*"] * (MAX_VALUES - 2)}
    added = [{"op": "add", "path": "/name", "value": "many"}]
    assert apply_json_patch(request, added)["name"] == "many"
