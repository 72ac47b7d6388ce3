"""Whether a file that was exported with batches of one size takes those of another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Exported
from worker.trainer.weights.measuring import TOLERANCE, Run, difference_of, largest_of


def of_several(wanted: Exported) -> Exported:
    """With two samples at least: PyTorch would write a size of 1 into the file as a constant."""
    if all(one.shape[:1] != (1,) for one in wanted.inputs.values()):
        return wanted
    return replace(wanted, inputs=wanted.more(wanted.inputs))


def require_any_batch(runs: Mapping[str, Run], example: Exported) -> None:
    """Each file, which was exported with the example, gives the same with more samples.

    One of 8 bits rounds on its way, which may come out otherwise in another batch: by less than it
    differs from the plain file.
    """
    inputs, more = list(example.inputs.values()), list(example.more(example.inputs).values())
    size = len(inputs[0])
    plain = runs["onnx"](*inputs)
    for name, run in runs.items():
        given = run(*inputs)
        pairs = zip(given, _of_more(name, run, more, size), plain, strict=True)
        for output, (own, larger, exact) in zip(example.outputs, pairs, strict=False):
            # An output has the first axis of an input, such as the batch.
            lengths = [(len(one), len(other)) for one, other in zip(inputs, more, strict=True)]
            if (len(own), len(larger)) not in lengths or larger.shape[1:] != own.shape[1:]:
                how = f"has the shape {tuple(larger.shape)} for {len(more[0])}"
                raise _of_one_size(name, size, f"its output {output} {how}")
            expected = torch.cat([own, own[: len(larger) - len(own)]])
            apart = float(difference_of(expected, larger))
            rounding = TOLERANCE * max(float(largest_of(own)), 1e-6)
            if not apart <= max(rounding, float(difference_of(exact, own))):
                how = f"differs by up to {apart:.3g} for the same samples in a larger batch"
                raise _of_one_size(name, size, f"its output {output} {how}")


def _of_more(name: str, run: Run, more: Sequence[Tensor], size: int) -> list[Tensor]:
    try:
        return run(*more)
    except TrainerError as error:
        cause = str(error.__cause__ or error).strip().splitlines()
        raise _of_one_size(name, size, f"with {len(more[0])}: {cause[0][:300]}") from error


def _of_one_size(name: str, size: int, how: str) -> TrainerError:
    many = "1 sample" if size == 1 else f"{size} samples"
    return TrainerError(
        Reason.trainer_error,
        f"The {name.upper()} file computes what the model does for batches of {many} alone "
        f"({how}). Nothing was kept of it. Have forward of the recipe's model take the size of a "
        "batch from its inputs and look at each sample by itself; or export it as safetensors.",
    )
