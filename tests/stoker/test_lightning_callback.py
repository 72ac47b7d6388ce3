"""What the callback for Lightning does at each hook; tests/script_libraries has the real one."""

import importlib
import json
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NAME = "stoker.callbacks.lightning"


class SIGTERMException(SystemExit):
    """Lightning's."""


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """In a run of Stoker."""
    modules: dict[str, dict[str, Any]] = {
        "lightning": {},
        "lightning.pytorch": {"Callback": object},
        "lightning.pytorch.utilities": {},
        "lightning.pytorch.utilities.exceptions": {"SIGTERMException": SIGTERMException},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("STOKER_RUN_ID", "1")
    monkeypatch.setenv("STOKER_ATTEMPT", "1")
    monkeypatch.setenv("STOKER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("STOKER_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("STOKER_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setenv("STOKER_STOP_SIGNAL", "SIGUSR2")
    yield importlib.import_module(NAME).LightningCallback()
    sys.modules.pop(NAME, None)


def trainer_at(step: int, log_every: int = 1, ranks: int = 1) -> Any:
    return SimpleNamespace(
        global_step=step,
        log_every_n_steps=log_every,
        world_size=ranks,
        callback_metrics={"train_loss": 0.5},
        save_checkpoint=lambda path: path.write_text(str(step)),
    )


def logged_steps(folder: Path) -> list[int]:
    file = folder / "metrics.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_each_step_is_logged_once_however_many_batches_it_has(callback: Any, tmp_path: Path):
    callback.on_train_start(trainer_at(4, log_every=2), None)
    for step in (4, 4, 5, 5, 6, 6, 7, 7, 8, 8):
        callback.on_train_batch_end(trainer_at(step, log_every=2))
    assert logged_steps(tmp_path) == [6, 8]


def test_a_trainer_that_never_logs_trains(callback: Any, tmp_path: Path):
    callback.on_train_start(trainer_at(0, log_every=0), None)
    callback.on_train_batch_end(trainer_at(1, log_every=0))
    assert not (tmp_path / "metrics.jsonl").exists()


class LightningStops(Exception):
    """What Lightning's own handler of the signal would lead to."""


@pytest.mark.parametrize(("ranks", "is_taken"), [(1, False), (2, True)])
def test_several_ranks_leave_the_signal_to_asking(callback: Any, ranks: int, is_taken: bool):
    def handler(number: int, frame: object) -> None:
        raise LightningStops

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        callback.on_train_start(trainer_at(0, ranks=ranks), None)
        if is_taken:
            signal.raise_signal(signal.SIGUSR2)
        else:
            with pytest.raises(LightningStops):
                signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(("ranks", "saved"), [(1, ["step-7"]), (2, [])])
def test_where_lightning_ends_by_itself_one_process_saves_and_of_several_none(
    callback: Any, tmp_path: Path, ranks: int, saved: list[str]
):
    callback.on_exception(trainer_at(7, ranks=ranks), None, SIGTERMException())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == saved
