"""Between a live training and a snapshot on the CPU: everything that a bit-exact resume needs."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from app.lifecycle import Reason
from worker.trainer.checkpoint import Snapshot, Tensors
from worker.trainer.errors import TrainerError
from worker.trainer.randomness import RandomState
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep

OF_THE_TASK: Final = "task."


def capture(
    step: TrainingStep,
    state: TrainState,
    facts: dict[str, Any],
    before: Mapping[str, Tensors] | None = None,
) -> Snapshot:
    """A stable copy: later steps do not change it. Synchronizes with the device.

    `facts` go into the manifest as they are. `before`: the parts of a snapshot that is not needed
    any more; their memory is used again.
    """
    live: dict[str, Tensors] = {
        "model": step.model.state_dict(),
        "optimizer": {f"{name}.{key}": value for name, key, value in _optimizer_tensors(step)},
        "state": {
            **RandomState.now(step.precision.device).tensors(),
            "loss_sums": step.loss_sums,
            **{f"{OF_THE_TASK}{name}": value for name, value in step.task.state_dict().items()},
        },
    }
    before = before or {}
    parts = {name: _to_cpu(part, before.get(name, {})) for name, part in live.items()}
    body = {
        **facts,
        "step": state.step,
        "epoch": state.running_epoch(),
        "position": state.position,
        "metrics": state.metrics(),
        "state": state.to_json(),
        "loss_samples": list(step.loss_samples),
        "scaler": step.precision.scaler.state_dict(),
    }
    return Snapshot(parts, body)


def restore(step: TrainingStep, snapshot: Snapshot) -> TrainState:
    """Put everything back, and give the state as it was at the snapshot."""
    restore_weights(step.model, snapshot.parts["model"])
    _restore_optimizer(step, snapshot.parts["optimizer"])
    extra, body = snapshot.parts["state"], snapshot.body
    device = step.precision.device
    RandomState.now(device).restored(extra).put_back(device)
    step.task.load_state_dict(
        {
            name.removeprefix(OF_THE_TASK): value
            for name, value in extra.items()
            if name.startswith(OF_THE_TASK)
        }
    )
    step.loss_sums.copy_(extra["loss_sums"])
    step.loss_samples = list(body["loss_samples"])
    if body["scaler"] and step.precision.scaler.is_enabled():
        step.precision.scaler.load_state_dict(body["scaler"])
    return TrainState.from_json(body["state"])


def restore_weights(model: nn.Module, tensors: Tensors, keep: Collection[str] = ()) -> None:
    """All parameters and buffers, but those to `keep` as they are in the model.

    Raises TrainerError carry_mismatch when the checkpoint is of another model.
    """
    own = {name: tensor for name, tensor in model.state_dict().items() if name not in keep}
    given = {name: tensors[name] for name in own if name in tensors}
    for name, tensor in own.items():
        if name not in given or given[name].shape != tensor.shape:
            there = tuple(given[name].shape) if name in given else "missing"
            raise TrainerError(
                Reason.carry_mismatch,
                f"The checkpoint is of another model: {name} is {there} there and "
                f"{tuple(tensor.shape)} in this run. Restart from scratch, or give the recipe and "
                "the data the shapes they had.",
            )
    model.load_state_dict(given, strict=not keep)


def _optimizer_tensors(step: TrainingStep) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in step.model.named_parameters():
        for key, value in step.optimizer.state[parameter].items():
            if value is not None:  # momentum_buffer is None in SGD without momentum
                yield name, key, value


def _restore_optimizer(step: TrainingStep, tensors: Tensors) -> None:
    index = {name: i for i, (name, _) in enumerate(step.model.named_parameters())}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, key = full_name.rsplit(".", 1)
        state.setdefault(index[name], {})[key] = tensor
    document = step.optimizer.state_dict() | {"state": state}
    step.optimizer.load_state_dict(document)


def _to_cpu(tensors: Tensors, before: Tensors) -> Tensors:
    """Copies, in the memory of those of the same name before.

    To take new memory each time would be slower, and leave holes in the heap.
    """
    copies: Tensors = {}
    for name, tensor in tensors.items():
        there = before.get(name)
        if there is None or (there.shape, there.dtype) != (tensor.shape, tensor.dtype):
            there = torch.empty(tensor.shape, dtype=tensor.dtype)
        copies[name] = there.copy_(tensor.detach())
    return copies
