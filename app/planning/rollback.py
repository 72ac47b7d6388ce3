"""Going back after a loss that was not finite: to which checkpoint, past what, and how often.

Whatever made the loss NaN lies in the weights as they had become, in the batches since, or in both
together. So a run goes back to weights from before, and leaves those batches out: what is known to
help where large models are trained (Chowdhery et al., 2022: PaLM, section 5.1).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

MOST_ROLLBACKS = 3


@dataclass(frozen=True)
class Rollback:
    """The `number`-th of a run, from the checkpoint of `from_step` to behind `step`: that many
    steps are done then, `epoch` epochs, and `position` samples of the running one.
    """

    number: int
    from_step: int
    step: int
    epoch: int
    position: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> Self | None:
        return None if document is None else cls(**document)

    def as_json(self) -> dict[str, int]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        """What is undone, and where it goes on."""
        left_out = self.step - self.from_step
        steps = "step" if left_out == 1 else "steps"
        return (
            f"Rollback {self.number} of at most {MOST_ROLLBACKS}: it goes back to its checkpoint "
            f"of step {self.from_step} and continues after step {self.step}, without the data of "
            f"the {left_out:,} {steps} between."
        )


def next_rollback(
    before: Rollback | None, saved_step: int | None, step: int, epoch: int, position: int
) -> Rollback | str:
    """Of a run whose loss was not finite at `step`; a sentence where there is none. `saved_step`:
    of its newest checkpoint; `before`: its last rollback.
    """
    if saved_step is None:
        return (
            "It was not rolled back, for it had saved no checkpoint yet: checkpoint.every_steps "
            "says how often it does."
        )
    if before is None:
        return Rollback(1, saved_step, step, epoch, position)
    if saved_step <= before.step:
        return (
            f"It was rolled back past step {before.step} and saved no checkpoint since, so "
            "the batches that were left out are not what is wrong."
        )
    if before.number >= MOST_ROLLBACKS:
        return f"It was rolled back {MOST_ROLLBACKS} times, and that is the limit."
    return Rollback(before.number + 1, saved_step, step, epoch, position)
