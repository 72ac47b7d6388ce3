"""First weights from another run: those under a prefix whose names and shapes match."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from app.lifecycle import Reason
from app.spec.run import InitFromCheckpoint, InitFromRun
from worker.trainer.checkpoints import matching
from worker.trainer.checkpoints.format import Snapshot
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Task


@dataclass(frozen=True)
class InitialWeights:
    """What a model was begun with; `left` says of each parameter under the prefix that was not
    taken why.
    """

    step: int
    prefix: str
    parameters: int
    matched: int
    left: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def take_first_weights(
    model: nn.Module, task: Task, snapshot: Snapshot, wanted: InitFromCheckpoint | InitFromRun
) -> InitialWeights:
    """Put what matches into the model: parameters and buffers, but those that describe the data.

    Raises TrainerError carry_mismatch when too few of the parameters match.
    """
    prefix = wanted.prefix
    there = _under(prefix, snapshot.parts["model"])
    here = _under(prefix, dict(model.named_parameters()))
    buffers = _under(prefix, dict(model.named_buffers()))
    left = tuple(matching.between(here, {n: t for n, t in there.items() if n not in buffers}))
    matched = _matching(here, there)
    if not matched or len(matched) < wanted.min_matched * len(here):
        raise _too_few(wanted, sorted(here), matched, left)
    own = {name: tensor for name, tensor in buffers.items() if name not in task.data_buffers}
    taken = [*matched, *_matching(own, there)]
    model.load_state_dict({name: there[name] for name in taken}, strict=False)
    step = int(snapshot.body["step"])
    return InitialWeights(step, prefix, len(here), len(matched), left)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _matching(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> list[str]:
    return [name for name in here if name in there and here[name].shape == there[name].shape]


def _too_few(
    wanted: InitFromCheckpoint | InitFromRun,
    here: list[str],
    matched: list[str],
    left: tuple[str, ...],
) -> TrainerError:
    which = f"whose names begin with {wanted.prefix!r}" if wanted.prefix else "of this model"
    if not here:
        counted = f"This model has no parameters {which}"
    else:
        counted = (
            f"Of the {len(here)} parameters {which} the checkpoint has {len(matched)} of the same "
            f"shape, and init_from.min_matched asks for {wanted.min_matched:.0%}"
        )
    told = f": {matching.listed(left)}" if left else ""
    same = f" These match: {matching.listed(matched)}." if matched else ""
    return TrainerError(
        Reason.carry_mismatch,
        f"{counted}, so nothing was trained{told}.{same} Give the recipe the shapes of the run "
        "that init_from names, another prefix, or a lower min_matched, and submit it again.",
    )
