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


@dataclass(frozen=True)
class Budget:
    """Of one memory: what is to be in it, and how much there is; None was not said."""

    items: tuple[Item, ...]
    available_bytes: int | None

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

    @property
    def is_over(self) -> bool:
        """Whether the peak is above what is known to be there."""
        return self.available_bytes is not None and self.peak_bytes > self.available_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "planned_bytes": self.peak_bytes,
            "budget_bytes": self.available_bytes,
            "phases": self.peaks,
            "items": {item.name: item.bytes for item in self.items if item.bytes},
        }
