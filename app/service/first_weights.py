"""What is known of the run or checkpoint that `init_from` names, before a run begins with it."""

import json
from contextlib import ExitStack
from typing import Any

from app.errors import Conflict, NotFound, Unavailable
from app.guard.facts import SourceFacts
from app.lifecycle import TERMINAL
from app.service.checkpoint_files import CheckpointFiles
from app.service.services import Services
from app.spec.imported import IMPORTED

Document = dict[str, Any]
WEIGHTS = "model.safetensors"
# The format has the length of its header first, and bounds it.
LENGTH_BYTES, MOST_HEADER_BYTES = 8, 100_000_000


def source_facts(services: Services, init_from: Document, parent_id: int | None) -> SourceFacts:
    """As the rules know it. `parent_id`: of a restart, which means the same run by a name."""
    found = services.store.runs.first_weights(init_from, parent_id)
    if found is None:
        return SourceFacts(missing=_why_missing(init_from))
    run = services.store.runs.get(found.run_id)
    if found.checkpoint_id is None and run.state in TERMINAL:
        ended = f"Run {run.id} is {run.state.value} and has saved no checkpoint"
        advice = f"`stoker restart {run.id}` trains it again"
        return SourceFacts(missing=f"{ended} to begin with; {advice}.")
    return SourceFacts(
        run_id=run.id,
        recipe=None if run.recipe == IMPORTED else run.recipe,
        shape=services.store.runs.documents(run.id).shape,
        tensors=_tensor_names(services, found.checkpoint_id),
    )


def _why_missing(init_from: Document) -> str:
    if "checkpoint" in init_from:
        named = init_from["checkpoint"]
        return f"There is no checkpoint {named}, or it was removed, or is damaged."
    run = init_from["run"]
    if isinstance(run, int):
        return f"There is no run {run}, or it was deleted."
    as_id = f" Its id would be {int(run)}, without quotes." if run.isdecimal() else ""
    return f"There is no run with the name {run!r}.{as_id}"


def _tensor_names(services: Services, checkpoint_id: int | None) -> tuple[str, ...] | None:
    """From the header of the weights' file; None where it cannot be read now."""
    if checkpoint_id is None:
        return None
    try:
        record = services.store.checkpoints.get(checkpoint_id)
        with ExitStack() as opened:
            file = CheckpointFiles(services.artifacts, record).open(opened, WEIGHTS)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header = json.loads(file.read(min(length, MOST_HEADER_BYTES)))
    except (NotFound, Conflict, Unavailable, OSError, ValueError):
        return None
    return tuple(name for name in header if name != "__metadata__")
