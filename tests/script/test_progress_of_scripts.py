"""What is told of a script's progress, and when it counts as hung."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.script.stage import spec_json
from worker.reporting import EventLog
from worker.script import progress, shim
from worker.script.config import LARGEST_BYTES, ScriptConfig
from worker.script.curves import Curves
from worker.script.progress import ScriptProgress
from worker.script.status import StatusServer
from worker.script.work import SHIM, ScriptWork


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Script:
    """One under way that a test plays."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self.clock = folder, clock
        (folder / "spec.json").write_text(json.dumps(spec_json(folder)))
        self.work = ScriptWork.read(folder)
        self.status = StatusServer(folder, 1)
        self._events = EventLog(folder / "events.jsonl")
        curves = Curves(self.work, 0.0, 0, lambda *_: None)
        counted = shim.Shim(self.work.shim_file)
        self.progress = ScriptProgress(curves, self.status, counted, self._events, 0)

    def looks(self, steps: int = 0, seconds: float = 1.0) -> None:
        """After so many seconds; `steps`: of the shim, in all."""
        self.clock.now += seconds
        with self.work.shim_file.open("r+b") as file:
            file.write(SHIM.pack(steps, 0.0, 1))
        self.progress.read()
        self.progress.tell(1, 1)

    def posts(self, **status: object) -> None:
        request = urllib.request.Request(
            self.status.url,
            data=json.dumps({"trainerStatus": status}).encode(),
            headers={"Authorization": f"Bearer {self.status.token_file.read_text()}"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def told(self, name: str) -> Any:
        """Of the newest progress."""
        lines = (self._folder / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event[name] for event in events if event["kind"] == "progress"][-1]

    def tellings(self) -> int:
        lines = (self._folder / "events.jsonl").read_text().splitlines()
        return sum(json.loads(line)["kind"] == "progress" for line in lines)

    def close(self) -> None:
        self.status.close()
        self._events.close()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(shim, "time", clock)
    script = Script(tmp_path, clock)
    yield script
    script.close()


@pytest.mark.parametrize(
    "text",
    [f'{{"a": "{LARGEST_BYTES * "x"}"}}', '{"a": ' + 500 * "[" + 500 * "]" + "}", "[1]"],
    ids=["large", "deep", "list"],
)
def test_a_config_that_cannot_be_shown_is_told_once(tmp_path: Path, text: str):
    told: list[str] = []
    path = tmp_path / "config.json"
    config = ScriptConfig(path, lambda code, _: told.append(code))
    for written, news in (('{"a": [1', None), ('{"a": [1]}', {"a": [1]}), (text, None)):
        path.write_text(written)
        assert config.news() == news
        assert config.news() is None
    assert told == ["config_not_shown"]


def test_the_time_left_is_by_its_rate_where_it_says_how_many_steps_there_are(script: Script):
    script.posts(metrics=[{"name": "total_steps", "value": "100"}])
    script.looks(10)
    assert script.told("eta_seconds") is None, "no rate is known yet"
    script.looks(30, seconds=10.0)
    assert script.told("mean_iterations_per_second") == 2.0
    assert script.told("eta_seconds") == 35.0
    script.posts(estimatedRemainingSeconds=7)
    script.looks(31)
    assert script.told("eta_seconds") == 7.0, "as it says itself"


def test_it_stands_still_by_its_steps_else_by_its_numbers_else_by_its_output(script: Script):
    def silence() -> tuple[float, str]:
        return script.progress.silence(printed_at=5000.0)

    script.looks()
    assert silence() == (5000.0, "printed nothing")
    script.posts(metrics=[{"name": "loss", "value": "0.5"}])
    script.looks(seconds=10.0)
    assert silence() == (1011.0, "reported no number")
    script.looks(steps=3, seconds=10.0)
    script.posts(metrics=[{"name": "loss", "value": "0.4"}])
    script.looks(steps=3, seconds=10.0)
    assert silence() == (1021.0, "made no step")


def test_a_silent_script_is_told_of_every_minute_and_is_not_taken_for_stalled(script: Script):
    for _ in range(130):
        script.looks()
    assert script.tellings() == 3
