"""A model as an ONNX file, if asked for with weights of 8 bits, and run by ONNX Runtime."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxscript
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxscript.optimizer import optimize
from torch import Tensor, nn

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Exported
from worker.trainer.weights.evaluated import tensors_of

MODEL = "model.onnx"
# However large they are, weights that PyTorch puts in another order are computed once: what each
# batch would compute anew could not be quantized.
NO_LIMIT = 2**62
# Layers with weights that dynamic quantization passes over.
NOT_QUANTIZED = ("GRU", "RNN")


class _Flat(nn.Module):
    """A model whose forward gives tensors alone, in a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_of(self.model(*inputs)))


def write_onnx(model: nn.Module, wanted: Exported, path: Path) -> None:
    """For any batch size. TrainerError where PyTorch cannot write it."""
    axes = {0: torch.export.Dim.DYNAMIC}
    inputs = tuple(wanted.inputs.values())
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of PyTorch's own code
            program = torch.onnx.export(
                _Flat(model).eval(),
                inputs,
                input_names=list(wanted.inputs),
                output_names=list(wanted.outputs),
                dynamic_shapes={"inputs": tuple(axes for _ in inputs)},
                dynamo=True,
                verbose=False,
            )
            optimize(program.model, input_size_limit=NO_LIMIT, output_size_limit=NO_LIMIT)
            _without_traces(program.model)
            program.save(path)
    except Exception as error:
        raise TrainerError(
            Reason.trainer_error,
            f"PyTorch cannot write this model as ONNX: {_first_cause(error)}. Export it as "
            "safetensors; or change the model's forward, or Task.exported, in the recipe's "
            "package.",
        ) from error


def _first_cause(error: BaseException) -> str:
    """Of a chain, where what came last only says that something went wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300].rstrip('.') if lines else 'no reason'}"


def _without_traces(model: Any) -> None:
    """Where in whose files each operation was written is nobody's business elsewhere."""
    for node in model.graph.all_nodes():
        for one in (node, *node.outputs):
            one.metadata_props.clear()
    model.graph.metadata_props.clear()


def write_int8(source: Path, path: Path) -> None:
    """The same model with weights of 8 bits. TrainerError where it has layers that would stay."""
    found = {node.op_type for node in onnx.load(source, load_external_data=False).graph.node}
    if left := sorted(found.intersection(NOT_QUANTIZED)):
        raise TrainerError(
            Reason.spec_error,
            f"This model has {' and '.join(left)} layers, and ONNX Runtime's dynamic quantization "
            "knows LSTM layers, convolutions and matrix products alone: it would stay as it is. "
            "Export it as onnx, or train it with an LSTM.",
        )
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)  # it advises steps that are of no use here
    try:
        quantize_dynamic(source, path, weight_type=QuantType.QUInt8)
    finally:
        logging.getLogger().setLevel(level)


class Session:
    """A file, loaded by ONNX Runtime on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._names = [one.name for one in self._session.get_inputs()]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """TrainerError where these are not its inputs."""
        arrays = [one.numpy() for one in inputs]
        try:
            found = self._session.run(None, dict(zip(self._names, arrays, strict=True)))
        except Exception as error:
            raise TrainerError(
                Reason.trainer_error,
                "The exported model cannot be run with what the recipe's measure gives its model: "
                f"{str(error).strip().splitlines()[0][:300]}. Mend Task.exported in the recipe's "
                "package: it has to name what forward is called with.",
            ) from error
        return [torch.from_numpy(one) for one in found]


def described(named: Mapping[str, Tensor], axes: Mapping[str, str]) -> list[dict[str, Any]]:
    """Inputs or outputs, as the manifest tells of them. `axes`: those of `Exported`."""
    return [
        {
            "name": name,
            "dtype": str(one.dtype).removeprefix("torch."),
            "shape": [axes.get(name, "batch"), *one.shape[1:]],
        }
        for name, one in named.items()
    ]


def versions() -> dict[str, str]:
    packages = onnx, onnxruntime, onnxscript
    return {package.__name__: package.__version__ for package in packages}


def require_names(wanted: Exported, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """The outputs by their names. TrainerError where there are not as many."""
    if len(outputs) != len(wanted.outputs):
        raise TrainerError(
            Reason.trainer_error,
            f"The recipe's model gives {len(outputs)} tensors, and Task.exported names "
            f"{len(wanted.outputs)}: {', '.join(wanted.outputs)}. Mend the recipe's package.",
        )
    return dict(zip(wanted.outputs, outputs, strict=True))
