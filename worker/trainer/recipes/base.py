"""What every recipe gives the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from app.lifecycle import Reason
from app.spec.run import RunSpec
from worker.trainer.data.source import Field, ragged_of
from worker.trainer.errors import SpecMismatch, TrainerError

Arrays = Mapping[str, Tensor]
Statistics = Mapping[str, tuple[Tensor, Tensor]]


@contextmanager
def untouched(task: "Task") -> Iterator[None]:
    """Afterwards the task's state is what it was."""
    before = {name: value.detach().cpu().clone() for name, value in task.state_dict().items()}
    try:
        yield
    finally:
        if before:
            task.load_state_dict(before)


class Task(ABC):
    """A recipe bound to one run's spec and fields."""

    takes_ragged: ClassVar[tuple[str, ...]] = ()
    """Which of `inputs` and `targets` may be ragged. In a batch their samples are filled up with
    zeros to the longest, the shape of the field, and `lengths_of(name)` says where each ends.
    """

    data_buffers: ClassVar[tuple[str, ...]] = ()
    """Buffers of the model that describe the run's data, such as means to standardize by: a restart
    that carries weights keeps those of its own data, and carries all others.
    """

    shape_parameters: ClassVar[tuple[str, ...]] = ()
    """Of `parameters_json`, those without which weights of the same names and shapes would mean
    something else: no checkpoint with others is gone on from.
    """

    def __init__(self, spec: RunSpec, fields: Mapping[str, Field]) -> None:
        self.spec = spec
        self.fields = fields

    @classmethod
    def for_run(cls, spec: RunSpec, fields: Mapping[str, Field]) -> Self:
        """Raises SpecMismatch when the recipe cannot work with these fields."""
        if problem := cls._lengths_not_taken(spec, fields) or cls.check(spec, fields):
            raise SpecMismatch(problem)
        return cls(spec, fields)

    @classmethod
    def _lengths_not_taken(cls, spec: RunSpec, fields: Mapping[str, Field]) -> str | None:
        for part in ("inputs", "targets"):
            for name, field in ragged_of(fields).items():
                if name in getattr(spec.data, part) and part not in cls.takes_ragged:
                    return (
                        f"{name!r} is ragged: its samples have up to {field.longest:,} values, and "
                        f"as one of its {part} the recipe {spec.recipe.kind} takes arrays whose "
                        "samples all have one shape. Pad or cut them to one length (pad_ragged of "
                        "worker.trainer.data.ragged_files), register the file again and name the "
                        f"new array in data.{part}."
                    )
        return None

    @classmethod
    @abstractmethod
    def check(cls, spec: RunSpec, fields: Mapping[str, Field]) -> str | None:
        """A sentence that says what does not fit and what to change, or None when all fits."""

    @property
    @abstractmethod
    def standardized(self) -> tuple[str, ...]:
        """The fields whose statistics `build_model` wants."""

    @abstractmethod
    def build_model(self, statistics: Statistics) -> nn.Module:
        """A new model on the CPU; its parameters come from torch's global generator."""

    @abstractmethod
    def parameters_json(self) -> dict[str, Any]:
        """What is needed to build the same model elsewhere; goes into every manifest."""

    def state_dict(self) -> dict[str, Tensor]:
        """What the task has beside the model and a resume must put back, on any device."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave; the tensors are on the CPU, and the task's to keep.

        Raises TrainerError carry_mismatch when it is of a task that keeps something else.
        """
        if state:
            raise TrainerError(
                Reason.carry_mismatch,
                f"The checkpoint has a state of its recipe ({', '.join(sorted(state))}), and the "
                "recipe of this run keeps none. Restart with the weights alone, or from scratch.",
            )

    @abstractmethod
    def loss(self, model: nn.Module, arrays: Arrays) -> Tensor:
        """Mean loss over the batch's samples, float32 scalar on the device."""

    @abstractmethod
    def measure(self, model: nn.Module, arrays: Arrays) -> Tensor:
        """Means over the batch's samples that `scores` needs, float64 (k,) on the device."""

    @abstractmethod
    def scores(self, means: Sequence[float]) -> dict[str, float]:
        """`loss` and the metrics of the spec, from the means of `measure` over a whole part."""
