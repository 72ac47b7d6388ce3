"""What a plugin's code has raised: where, with what in hand, and what it mostly comes from."""

import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from types import FrameType
from typing import Any

from torch import Tensor

from app.spec.plugins import raised_in_plugin
from worker.trainer.data.batch import Batch

# What PyTorch and Python say, and what that mostly comes from in a recipe. A tuple that is only too
# short is another matter.
MOSTLY = {
    "'tuple'|not tuple": "Modules such as nn.LSTM and nn.MultiheadAttention give a tuple, whose "
    "first part is the tensor.",
    "same device": "What a model holds beside its parameters follows it to the GPU as a buffer "
    "alone (register_buffer), and what is made in a step has to be made on the batch's device.",
}
MOST_KEYS = 20


def told_of_recipe(error: BaseException, phase: str) -> str | None:
    """Which recipe, what was raised, and where in its package; None where it was not in one.

    A sentence or several, without what to do about it.
    """
    raised = raised_in_plugin(error)
    if raised is None:
        return None
    source = linecache.getline(raised.file, raised.line).strip()
    told = (
        f"The recipe {raised.kind} failed while {phase}: {raised.told()} ({raised.file}, line "
        f"{raised.line}: `{source}`)."
    )
    return " ".join([told, *_in_hand(error, raised.frames), *_mostly(str(error))])


def _in_hand(error: BaseException, frames: Sequence[FrameType]) -> Iterator[str]:
    """What the innermost of its functions that has a batch had in it; of another mapping that lacks
    a key, what it has.
    """
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    for name, value in frames[-1].f_locals.items():
        if missing is not None and isinstance(value, Mapping) and missing not in value:
            yield f"`{name}` has {_keys(value)}."
    for frame in reversed(frames):
        for value in frame.f_locals.values():
            if isinstance(value, Batch):
                arrays = ", ".join(f"{name} {_shape(one)}" for name, one in value.arrays.items())
                tables = f"; tables: {', '.join(value.tables)}" if value.tables else ""
                yield f"The batch has, in the types of the file: {arrays}{tables}."
                return


def _keys(mapping: Mapping[Any, Any]) -> str:
    shown = ", ".join(map(str, islice(mapping, MOST_KEYS))) or "nothing"
    left = len(mapping) - MOST_KEYS
    return f"{shown} and {left:,} more" if left > 0 else shown


def _shape(array: Tensor) -> str:
    return f"{tuple(array.shape)} {str(array.dtype).removeprefix('torch.')}"


def _mostly(text: str) -> list[str]:
    return [advice for words, advice in MOSTLY.items() if re.search(words, text)]
