"""Whose folder a run's folder is."""

import pytest

from worker.launch.locks import take_lock
from worker.start.preparation import NotHere
from worker.start.run_folder import settle_in


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "7").mkdir()
    return tmp_path / "7"


def settle(folder, attempt, created_at=1.5):
    return settle_in(folder, 7, attempt, created_at)


def begin(folder, attempt):
    (folder / f"attempt-{attempt}").mkdir()


def test_a_runs_own_attempts_stay(folder):
    for attempt in (1, 2, 3):
        assert settle(folder, attempt) == []
        begin(folder, attempt)
    assert sorted(path.name for path in folder.glob("attempt-*")) == [
        *("attempt-1", "attempt-2", "attempt-3")
    ]


@pytest.mark.parametrize("attempt", [1, 2])
def test_those_of_another_run_with_its_id_are_moved_aside(folder, attempt):
    settle(folder, 1, created_at=1.25)
    begin(folder, 1)
    (warning,) = settle(folder, attempt)
    assert warning.data["code"] == "other_artifacts_there"
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    (aside,) = folder.parent.glob("7-moved-aside-*")
    assert (aside / "attempt-1").is_dir()
    assert str(aside) in warning.data["message"]
    assert settle(folder, attempt + 1) == []


def test_attempts_from_before_folders_named_their_run(folder):
    begin(folder, 1)
    assert settle(folder, 2) == []
    assert (folder / "attempt-1").exists()
    (folder / "run.json").unlink()
    assert len(settle(folder, 1)) == 1, "a run that has had no attempt has no folder of one"


def test_a_folder_in_use_is_not_moved(folder):
    begin(folder, 1)
    held = take_lock(folder / "lock")
    assert held is not None
    with pytest.raises(NotHere, match="in use"):
        settle(folder, 1)
    assert (folder / "attempt-1").exists()


def test_the_number_of_an_attempt_that_is_there_is_passed_over(folder):
    settle(folder, 1)
    begin(folder, 2)
    with pytest.raises(NotHere, match=r"^Requeued: the folder of attempt 2 already exists"):
        settle(folder, 2)
    assert settle(folder, 3) == []
