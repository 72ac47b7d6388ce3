"""A data file is there as a whole or not at all, and stays there: after a crash too."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.checkpoints.crashes import Operation, Recorder, crash_states
from worker.trainer.checkpoints.whole_file import whole_file


def test_after_a_crash_a_finished_file_is_there_below_folders_that_were_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    out, recorder = root / "years" / "2024" / "weather.h5", Recorder(monkeypatch)
    with whole_file(out) as partial:
        partial.write_bytes(b"all of it")
    recorder.note("announced", out)
    # Folders and contents were made without `worker.trainer.checkpoints.disk`.
    made = [Operation("make_folder", root / "years"), Operation("make_folder", out.parent)]
    written = Operation("write_file", partial, b"all of it")
    found = set()
    for state in crash_states([*made, written, *recorder.operations]):
        shutil.rmtree(root)
        root.mkdir()
        state.produce(root)
        found.add(out.read_bytes() if out.exists() else None)
        assert out.exists() or not state.announced, [op.named for op in state.lost]
    assert found == {None, b"all of it"}


def fail_halfway(out: Path) -> None:
    with whole_file(out) as partial:
        partial.write_bytes(b"half of")
        raise ValueError("in the middle")


def test_a_file_that_failed_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in the middle"):
        fail_halfway(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []
