"""ONNX and int8: written, compared with PyTorch on the run's data, and timed."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from worker.trainer.checkpoints.format import Tensors
from worker.trainer.recipes.base import Exported
from worker.trainer.weights.any_batch import of_several, require_any_batch
from worker.trainer.weights.evaluated import Evaluated, opened, tensors_of
from worker.trainer.weights.measuring import PYTORCH, Run, compare, time_each
from worker.trainer.weights.onnx_file import (
    MODEL,
    Session,
    described,
    require_names,
    versions,
    write_int8,
    write_onnx,
)


def write_and_measure(order: Mapping[str, Any], weights: Tensors, folder: Path) -> dict[str, Any]:
    """Write the file of the order's format into `folder`; what is told of it. TrainerError."""
    scratch = folder / "scratch"
    scratch.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch)
        evaluated = stack.enter_context(opened(order, weights, scratch))
        example = of_several(evaluated.task.exported(evaluated.first()))
        files = _write(order, evaluated.model, example, folder, scratch)
        runs: dict[str, Run] = {
            name: Session(path, order["threads"]) for name, path in files.items()
        }
        require_any_batch(runs, example)
        return _measure(order, evaluated, files, runs)


def _write(
    order: Mapping[str, Any], model: nn.Module, example: Exported, folder: Path, scratch: Path
) -> dict[str, Path]:
    """The files by format; what was asked for lies in `folder`."""
    is_int8 = order["format"] == "int8"
    plain = (scratch if is_int8 else folder) / MODEL
    write_onnx(model, example, plain)
    if not is_int8:
        return {"onnx": plain}
    write_int8(plain, folder / MODEL)
    return {"onnx": plain, "int8": folder / MODEL}


def _measure(
    order: Mapping[str, Any],
    evaluated: Evaluated,
    files: Mapping[str, Path],
    runs: Mapping[str, Run],
) -> dict[str, Any]:
    batch, forward = evaluated.first(), evaluated.model.forward
    wanted = evaluated.task.exported(batch)
    inputs = list(wanted.inputs.values())
    with torch.inference_mode():
        outputs = require_names(wanted, tensors_of(forward(*inputs)))
    measured, samples = compare(evaluated, runs, list(outputs))
    timed = time_each({PYTORCH: lambda *given: tensors_of(forward(*given)), **runs}, inputs)
    for one in measured:
        name = one["model"]
        one["seconds_per_batch"] = timed[name]
        one["bytes"] = _size(files[name]) if name in files else None
    return {
        "inputs": described(wanted.inputs, wanted.axes),
        "outputs": described(outputs, wanted.axes),
        "part": evaluated.name,
        "samples": samples,
        "batch_size": batch.size,
        "threads": order["threads"],
        "measured": measured,
        "versions": {"torch": torch.__version__, **versions()},
    }


def _size(path: Path) -> int:
    """With its weights, which lie beside it where they are large."""
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))
