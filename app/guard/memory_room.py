"""One memory of a plan: the items in it by phase, and how much may be."""

from dataclasses import dataclass
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
class Room:
    """One memory: what is in it, and how much may be; a budget of None was not said."""

    items: tuple[Item, ...]
    budget_bytes: int | None

    @property
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

    def as_json(self) -> dict[str, Any]:
        return {
            "planned_bytes": self.peak_bytes,
            "budget_bytes": self.budget_bytes,
            "phases": self.peaks,
            "items": {item.name: item.bytes for item in self.items if item.bytes},
        }
