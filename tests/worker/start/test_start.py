"""What is said of an attempt before its trainer says anything."""

from app.store.records import RestorePoint
from worker.start.starting import _warnings

POINTS = (RestorePoint(7, "full", None),)


def test_a_restart_that_finds_nothing_to_go_on_from_says_so():
    (warning,) = _warnings(POINTS, restore=[])
    assert warning.kind == "warning"
    assert warning.data["code"] == "nothing_to_restore"
    assert "Run 7" in warning.data["message"]


def test_there_is_nothing_to_say_of_a_fresh_run_and_of_one_that_goes_on():
    assert _warnings((), restore=[]) == []
    assert _warnings(POINTS, restore=[{"path": "x"}]) == []
