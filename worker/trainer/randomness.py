"""The state of every generator that a training may draw from: PyTorch's, Python's, NumPy's."""

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed % 2**32, seed // 2**32])


@dataclass(frozen=True)
class RandomState:
    """`cuda` is None on a CPU."""

    cpu: Tensor
    cuda: Tensor | None
    python: Any
    numpy: Any

    @classmethod
    def now(cls, device: torch.device) -> Self:
        return cls(
            torch.get_rng_state(),
            torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            random.getstate(),
            np.random.get_state(legacy=False),
        )

    def put_back(self, device: torch.device) -> None:
        """That of a GPU only where there is one."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None and device.type == "cuda":
            torch.cuda.set_rng_state(self.cuda, device)
        random.setstate(self.python)
        np.random.set_state(self.numpy)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint, as bytes; Python's and NumPy's are JSON."""
        found = {"rng.cpu": self.cpu, "rng.python": _packed(self.python)}
        found["rng.numpy"] = _packed(self.numpy)
        return found if self.cuda is None else found | {"rng.cuda": self.cuda}

    def restored(self, tensors: Mapping[str, Tensor]) -> "RandomState":
        """As it was saved; where an older version of Stoker did not save a generator, as it is."""
        python, numpy = (tensors.get(name) for name in ("rng.python", "rng.numpy"))
        version, numbers, gauss = self.python if python is None else _unpacked(python)
        return RandomState(
            tensors["rng.cpu"],
            tensors.get("rng.cuda"),
            (version, tuple(numbers), gauss),
            self.numpy if numpy is None else _unpacked(numpy),
        )


@contextmanager
def same_random_numbers(device: torch.device) -> Iterator[None]:
    """Whatever is drawn within it, afterwards the same numbers come as without it."""
    before = RandomState.now(device)
    try:
        yield
    finally:
        before.put_back(device)


def _packed(state: Any) -> Tensor:
    said = json.dumps(state, default=lambda array: array.tolist())
    return torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8)


def _unpacked(tensor: Tensor) -> Any:
    return json.loads(tensor.numpy().tobytes())
