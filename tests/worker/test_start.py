"""What is said of an attempt before its trainer says anything."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.lifecycle import Reason
from app.store.records import RestorePoint
from tests.worker.test_preparation import WAVES, lease
from worker.preparation import parse_spec
from worker.slots import Slot
from worker.start import NotHere, _require_fit_here, _warnings

SPEC = {"recipe": {"kind": "sequence"}, "data": {"dataset": "waves"}}

POINTS = (RestorePoint(7, "full", None),)


def test_a_restart_that_finds_nothing_to_go_on_from_says_so():
    (warning,) = _warnings(POINTS, restore=[])
    assert warning.kind == "warning"
    assert warning.data["code"] == "nothing_to_restore"
    assert "Run 7" in warning.data["message"]


def test_there_is_nothing_to_say_of_a_fresh_run_and_of_one_that_goes_on():
    assert _warnings((), restore=[]) == []
    assert _warnings(POINTS, restore=[{"path": "x"}]) == []


def test_a_run_whose_dataset_is_inspected_again_waits_and_does_not_fail():
    inspected = replace(WAVES, state="inspecting")
    claimed = replace(lease(1), spec=SPEC, dataset=inspected)
    slot = Slot("cpu-0-0", "cpu", Path("unused"))
    with pytest.raises(NotHere, match="'waves' is being inspected again") as refused:
        _require_fit_here(claimed, parse_spec(claimed), slot, None)
    assert refused.value.reason is Reason.slot_busy
