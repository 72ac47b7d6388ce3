"""Runs of molecule specs in this process, without a service."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.planning.ladder import NO_RUNG
from benchmarks.steps import spec_of
from worker.reporting import EventLog, Pulse
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.run import execute
from worker.trainer.stop import StopFlag


def dataset_of(name: str, path: Path) -> dict[str, Any]:
    return {name: {"path": str(path), "fingerprint": fingerprint(path)}}


class Runs:
    """Trains specs to their ends, one after another in this process."""

    def __init__(self, folder: Path, paths: Mapping[str, Path]) -> None:
        self._folder, self._paths, self._number = folder, paths, 0

    def train(self, request: Mapping[str, Any], first: Path | None = None) -> dict[str, Any]:
        """The result; `first`: the checkpoint that its weights are begun with."""
        self._number += 1
        folder = self._folder / str(self._number) / "attempt-1"
        folder.mkdir(parents=True)
        name = request["data"]["dataset"]
        begun = [] if first is None else [{"path": str(first), "carry": "init", "own": False}]
        document = {
            "run_id": self._number,
            "attempt": 1,
            "spec": spec_of(request).model_dump(mode="json"),
            "datasets": dataset_of(name, self._paths[name]),
            "device": "cpu",
            "threads": 1,
            "restore": begun,
            "run_dir": str(folder.parent),
            "memory_rung": NO_RUNG.as_json(),
        }
        (folder / "spec.json").write_text(json.dumps(document))
        events, pulse = EventLog(folder / "events.jsonl"), Pulse(folder / "pulse")
        try:
            end = execute(folder, StopFlag(), events, pulse)
        finally:
            events.close()
            pulse.close()
        if end.result is None:
            raise RuntimeError(end.message)
        return end.result
