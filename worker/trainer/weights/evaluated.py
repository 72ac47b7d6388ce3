"""A checkpoint's model as evaluations use it, on the CPU, with the data that it is measured on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from app.lifecycle import Reason
from app.planning.ladder import NO_RUNG
from app.spec.data import ChunkedLoader, DataLoaderLoader
from app.spec.run import RunSpec
from app.spec.stored import read_stored
from worker.reporting import Pulse
from worker.trainer.attempt import DataCache, TrainerAttempt
from worker.trainer.checkpoints.format import Tensors
from worker.trainer.checkpoints.snapshot import restore_weights
from worker.trainer.data.batch import Batch, Batches
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.device import configure_torch
from worker.trainer.errors import TrainerError
from worker.trainer.prepared import prepared_tables
from worker.trainer.recipes import task_of
from worker.trainer.recipes.base import Task
from worker.trainer.recipes.contract import model_of
from worker.trainer.report.preparing import Preparing
from worker.trainer.stop import StopFlag

CPU = torch.device("cpu")
Forward = Callable[..., Any]


@dataclass(frozen=True)
class Evaluated:
    """`part`: the batches of the part that is called `name`; `tables`: what the recipe prepared."""

    spec: RunSpec
    task: Task
    model: nn.Module
    name: str
    part: Batches
    tables: Mapping[str, Tensor]

    def batches(self) -> Iterator[Batch]:
        """Those that an evaluation of the run looks at; of another part as many, the first ones."""
        for batch in islice(self.part.iterate(0), self.spec.evaluation.max_batches):
            yield replace(batch, tables=self.tables)

    def first(self) -> Batch:
        """In memory of its own."""
        with closing(self.part.iterate(0)) as batches:
            batch = next(batches)
            arrays = {name: array.clone() for name, array in batch.arrays.items()}
        return Batch(arrays, batch.size, self.tables)

    @contextmanager
    def called_as(self, forward: Forward) -> Iterator[None]:
        """The model answers by this function meanwhile; all else of it is as it was."""
        self.model.forward = forward
        try:
            yield
        finally:
            del self.model.forward


@contextmanager
def opened(order: Mapping[str, Any], weights: Tensors, scratch: Path) -> Iterator[Evaluated]:
    """What an order names (worker.jobs.export_work). TrainerError: data or weights do not fit."""
    spec = _on_cpu(read_stored(order["spec"]))
    configure_torch(spec.runtime, "fp32", order["threads"])
    with ExitStack() as resources:
        pulse = Pulse(scratch / "pulse")
        resources.callback(pulse.close)
        preparing = Preparing(pulse, StopFlag())
        kind = task_of(spec.recipe.kind)
        make = partial(kind.dataset, spec)
        data = open_data(spec, order["datasets"], CPU, preparing, make_dataset=make)
        resources.callback(data.close)
        task = kind.for_run(spec, data.fields)
        tables = prepared_tables(task, _attempt(order, spec), data, preparing)
        # Means and deviations come with the weights.
        model = model_of(task, {}, tables)
        restore_weights(model, weights)
        model.eval().requires_grad_(False)
        name, part = _part_of(data)
        with torch.inference_mode():
            task.begin("evaluation", model)
        yield Evaluated(spec, task, model, name, part, tables)


def _on_cpu(spec: RunSpec) -> RunSpec:
    """The same model and the same parts of the data, without what a training asks of its device."""
    loader: ChunkedLoader | DataLoaderLoader = ChunkedLoader(shuffle="none")
    if isinstance(spec.data.loader, DataLoaderLoader):  # a recipe's own dataset needs it
        loader = DataLoaderLoader(kind="dataloader", shuffle="none")
    plain = {"attention": "auto", "deterministic": False}
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"loader": loader}),
            "runtime": spec.runtime.model_copy(update=plain),
        }
    )


def _attempt(order: Mapping[str, Any], spec: RunSpec) -> TrainerAttempt:
    """What prepared tables are found by."""
    cache = order["data_cache"]
    return TrainerAttempt(
        folder=Path(order["run_dir"]),
        run_dir=Path(order["run_dir"]),
        run_id=order["run_id"],
        number=0,
        spec=spec,
        datasets=order["datasets"],
        device="cpu",
        threads=order["threads"],
        restore=(),
        rung=NO_RUNG,
        data_cache=DataCache(Path(cache["folder"]), cache["most_bytes"]),
    )


def _part_of(data: DataSet) -> tuple[str, Batches]:
    """The part that evaluations look at, or the next best."""
    if data.validation is not None:
        return "validation", data.validation
    if data.test is not None:
        return "test", data.test
    return "training", data.train


def tensors_of(found: Any) -> list[Tensor]:
    """What a model's forward gives, without what is None. TrainerError where it is other things."""
    given = found if isinstance(found, tuple | list) else [found]
    tensors = [one for one in given if one is not None]
    if not tensors or not all(isinstance(one, Tensor) for one in tensors):
        kinds = ", ".join(sorted({type(one).__name__ for one in given}))
        raise TrainerError(
            Reason.trainer_error,
            f"The recipe's model gives {kinds}, and an export is of tensors, one or a tuple of "
            "them. Mend the recipe's package: have forward give these, or Task.exported name "
            "what is called.",
        )
    return tensors


def in_place_of(found: Any, tensors: list[Tensor]) -> Any:
    """These tensors in the form in which the model's forward gives its own."""
    if isinstance(found, Tensor):
        return tensors[0]
    rest = iter(tensors)
    return type(found)(None if one is None else next(rest) for one in found)
