"""The budget of one memory: the items in it by phase, and how much there is."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

PHASES = ("building", "training", "evaluating", "checkpointing")
STEPS = ("training", "evaluating", "checkpointing")


@dataclass(frozen=True)
class Item:
    """Something that is held during some phases."""

    name: str
    bytes: int
    phases: tuple[str, ...] = PHASES
    least: int | None = None
    """What it takes for sure; None: all of it."""


@dataclass(frozen=True)
class Budget:
    """Of one memory: what is to be in it, and how much there is; None was not said."""

    items: tuple[Item, ...]
    available_bytes: int | None
    is_known: bool = True
    """Whether all that will be in it is planned. What was never measured is not among the items."""

    @cached_property
    def peaks(self) -> dict[str, int]:
        """The sum of what is held in each phase."""
        return {
            phase: sum(item.bytes for item in self.items if phase in item.phases)
            for phase in PHASES
        }

    @property
    def peak_bytes(self) -> int:
        """The most of any phase: what one phase gives back, the next takes again."""
        return max(self.peaks.values())

    @cached_property
    def least_bytes(self) -> int:
        """The most of any phase of what is exact or was measured: no run takes less."""
        return max(
            sum(
                item.bytes if item.least is None else item.least
                for item in self.items
                if phase in item.phases
            )
            for phase in PHASES
        )

    @property
    def is_over(self) -> bool:
        """Whether what it takes for sure is above what is known to be there."""
        return self.available_bytes is not None and self.least_bytes > self.available_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "planned_bytes": self.peak_bytes if self.is_known else None,
            "least_bytes": self.least_bytes,
            "budget_bytes": self.available_bytes,
            "phases": self.peaks,
            "items": {item.name: item.bytes for item in self.items if item.bytes},
        }
