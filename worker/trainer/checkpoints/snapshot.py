"""Between a live training and a snapshot on the CPU: everything that a bit-exact resume needs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from worker.trainer.checkpoints import matching
from worker.trainer.checkpoints.format import TRAINED, Snapshot, Tensors
from worker.trainer.data.feed.cuda import pinning
from worker.trainer.randomness import RandomState
from worker.trainer.recipes.base import Task, put_back
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep

OF_THE_TASK: Final = "task."
CARRIED: Final = "carried."
# Of the pinned buffer, which checkpoints of a GPU go through. A power of two, since PyTorch rounds
# pinned memory up to one.
PINNED_BYTES: Final = 64 * 2**20


def capture(
    step: TrainingStep,
    state: TrainState,
    facts: dict[str, Any],
    before: Mapping[str, Tensors] | None = None,
    *,
    in_place: bool = False,
) -> Snapshot:
    """A stable copy: later steps do not change it. Synchronizes with the device.

    `facts` go into the manifest as they are. `before`: the parts of a snapshot that is not needed
    any more; their memory is used again. `in_place`, when there are no later steps: a training on
    the CPU is not copied, and `before` is not used.
    """
    average = step.average
    live: dict[str, Tensors] = {
        "model": step.delivered(),
        "optimizer": {f"{name}.{key}": value for name, key, value in _optimizer_tensors(step)},
        "state": {
            **RandomState.now(step.precision.device).tensors(),
            "loss_sums": step.loss_sums,
            **{f"{OF_THE_TASK}{name}": value for name, value in step.task.state_dict().items()},
            **{f"{CARRIED}{name}": one for name, one in step.task.carried(step.model).items()},
            **{f"{TRAINED}{n}": one for n, one in (average.trained() if average else {}).items()},
        },
    }
    on_host = step.device.type == "cpu"
    if in_place and on_host:
        parts = {name: on_cpu(part) for name, part in live.items()}
    else:
        parts = _copied(live, before or {})
    body = {
        **facts,
        "step": state.step,
        "epoch": state.running_epoch(),
        "position": state.position,
        "metrics": state.metrics(),
        "state": state.to_json(),
        "scaler": step.precision.scaler.state_dict(),
        "average": average.place() if average else None,
    }
    return Snapshot(parts, body)


def restore(step: TrainingStep, snapshot: Snapshot) -> TrainState:
    """Put everything back, and give the state as it was at the snapshot.

    Raises TrainerError carry_mismatch when the checkpoint is of another training.
    """
    weights, moments = snapshot.parts["model"], snapshot.parts["optimizer"]
    extra, body = snapshot.parts["state"], snapshot.body
    carried, trained = _named(extra, CARRIED), _named(extra, TRAINED)
    matching.require_none(
        [
            *matching.of_the_recipe(step.task, snapshot.body),
            *matching.of_the_weights(step.model, weights),
            *matching.of_the_optimizer(step, moments),
            *matching.of_the_carried(step, carried),
            *matching.of_the_average(step, trained, body.get("average")),
        ]
    )
    step.model.load_state_dict(weights)
    if step.average is not None and (place := body.get("average")):
        step.average.restore(trained, place)
    _restore_optimizer(step, moments)
    device = step.precision.device
    RandomState.now(device).restored(extra).put_back(device)
    step.task.load_state_dict(_named(extra, OF_THE_TASK))
    put_back(step.task, step.model, carried)
    _restore_losses(step, extra["loss_sums"], body.get("loss_samples"))
    if body["scaler"] and step.precision.scaler.is_enabled():
        step.precision.scaler.load_state_dict(body["scaler"])
    return TrainState.from_json(body["state"])


def carry_weights(model: nn.Module, task: Task, snapshot: Snapshot) -> None:
    """All parameters and buffers, but those that describe the data.

    Raises TrainerError carry_mismatch when the checkpoint is of another model.
    """
    weights = snapshot.parts["model"]
    matching.require_none(
        [*matching.of_the_recipe(task, snapshot.body), *matching.of_the_weights(model, weights)]
    )
    new = {name: tensor for name, tensor in weights.items() if name not in task.data_buffers}
    model.load_state_dict(new, strict=False)


def restore_weights(model: nn.Module, weights: Tensors) -> None:
    """Raises TrainerError carry_mismatch when they are of another model."""
    matching.require_none(matching.of_the_weights(model, weights))
    model.load_state_dict(weights)


def _named(state: Tensors, prefix: str) -> Tensors:
    """Those with this prefix, without it."""
    return {n.removeprefix(prefix): one for n, one in state.items() if n.startswith(prefix)}


def _optimizer_tensors(step: TrainingStep) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in step.model.named_parameters():
        for key, value in step.optimizer.state[parameter].items():
            if value is not None:  # momentum_buffer is None in SGD without momentum
                yield name, key, value


def _restore_optimizer(step: TrainingStep, tensors: Tensors) -> None:
    groups = step.optimizer.param_groups
    place = {p: i for i, p in enumerate(p for group in groups for p in group["params"])}
    index = {name: place[parameter] for name, parameter in step.model.named_parameters()}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, key = full_name.rsplit(".", 1)
        state.setdefault(index[name], {})[key] = tensor
    document = step.optimizer.state_dict() | {"state": state}
    step.optimizer.load_state_dict(document)


def _restore_losses(step: TrainingStep, sums: Tensor, samples: list[int] | None) -> None:
    """Earlier versions divided all losses by the samples, which they kept in the manifest."""
    if samples is not None:
        sums = torch.cat((sums.view(2, -1), torch.tensor(samples).view(2, 1)), 1)
    step.loss_sums.copy_(sums.view_as(step.loss_sums))


def on_cpu(tensors: Tensors) -> Tensors:
    """Themselves where they are there already; contiguous and each in memory of its own, as they
    are in a file: weights that are tied, or one view of many, have names of their own there.
    """
    found: Tensors = {}
    storages = set[int]()
    for name, tensor in tensors.items():
        there = tensor.detach().cpu().contiguous()
        storage = there.untyped_storage().data_ptr()
        found[name] = there.clone() if storage in storages else there
        storages.add(storage)
    return found


def _copied(live: Mapping[str, Tensors], before: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Copies on the host, by part, in the memory of those of the same name before.

    New memory each time would be slower, and would leave holes in the heap.
    """
    parts: dict[str, Tensors] = {part: {} for part in live}
    on_device: list[tuple[Tensor, Tensor]] = []
    for part, tensors in live.items():
        for name, tensor in tensors.items():
            there = before.get(part, {}).get(name)
            if there is None or (there.shape, there.dtype) != (tensor.shape, tensor.dtype):
                there = torch.empty(tensor.shape, dtype=tensor.dtype)
            parts[part][name] = there
            # Others would need memory of the device for a contiguous copy, which may have run out.
            if tensor.is_cuda and tensor.is_contiguous():
                on_device.append((tensor.detach(), there))
            else:
                there.copy_(tensor.detach())
    if on_device:
        # PyTorch keeps pinned memory that is freed, so the next checkpoint gets the same buffer.
        room = min(PINNED_BYTES, max(1, sum(target.nbytes for _, target in on_device)))
        with pinning(room):
            buffer = torch.empty(room, dtype=torch.uint8, pin_memory=True)
        copy_through(buffer, on_device)
    return parts


def copy_through(buffer: Tensor, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each source to its target on the host, both contiguous, through a buffer of bytes.

    From a GPU to pinned memory, copies are queued without a wait. Waits for the device here, once
    each time the buffer is full and once at the end; pageable memory waits once a tensor.
    """
    queued: list[tuple[Tensor, Tensor]] = []
    used = 0
    for source, target in pairs:
        coming, going = _as_bytes(source), _as_bytes(target)
        while len(coming):
            count = min(len(coming), len(buffer) - used)
            place = buffer[used : used + count]
            place.copy_(coming[:count], non_blocking=True)
            queued.append((place, going[:count]))
            coming, going, used = coming[count:], going[count:], used + count
            if used == len(buffer):
                _drain(queued, source.device)
                used = 0
    if queued:
        _drain(queued, source.device)


def _drain(queued: list[tuple[Tensor, Tensor]], device: torch.device) -> None:
    """Wait for the copies that are queued, and take them out of the buffer."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    for place, target in queued:
        # By one thread: those of torch wait for each other where another process has a core.
        target.numpy()[:] = place.numpy()
    queued.clear()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
