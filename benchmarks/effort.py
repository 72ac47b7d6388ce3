"""How much of a part is measured: all of it for the record, or a quick form of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """At most so many rounds, over this share of the samples, with at most so many variants of the
    same thing (packings, numbers of processes); `own_processes`: also what takes seconds to start a
    process each time: peers with an environment of their own, a plain script, peaks of memory.
    """

    most_rounds: int
    share: float
    most_variants: int
    own_processes: bool

    def rounds(self, usual: int) -> int:
        return min(usual, self.most_rounds)

    def samples(self, usual: int, times: int = 1) -> int:
        """The share of them; `times`: of that the share again, where all would take too long."""
        return round(usual * self.share**times)

    def variants(self, usual: Sequence[T]) -> Sequence[T]:
        return usual[: self.most_variants]


FULL = Effort(most_rounds=1000, share=1.0, most_variants=1000, own_processes=True)
QUICK = Effort(most_rounds=4, share=0.5, most_variants=2, own_processes=False)
