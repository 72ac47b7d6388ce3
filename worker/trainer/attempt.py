"""What an attempt is told: spec.json, as the agent wrote it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from app.lifecycle import Reason
from app.planning.ladder import Rung
from app.planning.rollback import Rollback
from app.spec.run import RunSpec
from app.spec.stored import read_stored
from worker.trainer.errors import TrainerError


@dataclass(frozen=True)
class RestoreCandidate:
    """A checkpoint to start from; `own`: of this run, not of the run it was restarted from. `init`
    carries the weights that `init_from` asks for.
    """

    path: Path
    carry: Literal["full", "weights", "init"]
    own: bool


@dataclass(frozen=True)
class DataCache:
    """Where what recipes prepare of data is kept, and how much of it."""

    folder: Path
    most_bytes: int


@dataclass(frozen=True)
class TrainerAttempt:
    """`restore` has the newest candidate first; `device` is cpu or cuda:N; `rung` bounds what the
    attempt takes of memory, since others before it ran out; `rollback` says past what it goes on,
    since the loss of one before it was not finite. `beside_bytes`: what the memory plan
    has beside the data; None: nobody could plan it. Without a `data_cache` nothing is kept of
    what the recipe prepares.
    """

    folder: Path
    run_dir: Path
    run_id: int
    number: int
    spec: RunSpec
    datasets: Mapping[str, Mapping[str, Any]]
    device: str
    threads: int
    restore: tuple[RestoreCandidate, ...]
    rung: Rung
    rollback: Rollback | None = None
    beside_bytes: int | None = None
    data_cache: DataCache | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises TrainerError spec_error when spec.json does not say what an attempt needs."""
        try:
            document = json.loads((folder / "spec.json").read_bytes())
            return cls(
                folder=folder,
                run_dir=Path(document["run_dir"]),
                run_id=document["run_id"],
                number=document["attempt"],
                spec=read_stored(document["spec"]),
                datasets=document["datasets"],
                device=document["device"],
                threads=document["threads"],
                restore=tuple(
                    RestoreCandidate(Path(entry["path"]), entry["carry"], entry["own"])
                    for entry in document.get("restore", ())
                ),
                rung=Rung.from_json(document.get("memory_rung")),
                rollback=Rollback.from_json(document.get("rollback")),
                beside_bytes=document.get("memory_beside_data"),
                data_cache=_data_cache(document.get("data_cache")),
            )
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
                for problem in error.errors()
            )
            raise TrainerError(
                Reason.spec_error, f"The run spec is not valid: {problems}. Mend it and restart."
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainerError(
                Reason.spec_error,
                f"spec.json of this attempt cannot be used ({error!r}): the agent and the trainer "
                "seem to be of different versions. Restart the worker, then the run.",
            ) from error


def _data_cache(document: Mapping[str, Any] | None) -> DataCache | None:
    if document is None:
        return None
    return DataCache(Path(document["folder"]), document["most_bytes"])
