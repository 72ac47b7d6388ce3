"""The trainer's errors: each carries the reason of an attempt's end and a sentence for a person."""

from collections.abc import Mapping
from typing import Any

from app.lifecycle import Reason


class TrainerError(Exception):
    """Ends the attempt with `reason`; the message says what happened and what to do now."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """As it comes from one of the loader's processes to the loop, whatever it was made with."""
        return _received, (type(self), self.message), self.__dict__


def _received(kind: type[TrainerError], message: str) -> TrainerError:
    return kind.__new__(kind, message)


class DataError(TrainerError):
    """The data cannot be read, or not as the run needs it."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.data_error, message)


class NothingToScore(DataError):
    """A part of the data has nothing that a score could be of.

    A recipe's `scores` raises it with `what`, a phrase that names the array. If one metric alone
    has no value, it adds `metric`, and as `others` the loss and the metrics that have one.
    """

    def __init__(
        self,
        what: str,
        *,
        metric: str | None = None,
        others: Mapping[str, float] | None = None,
        part: str = "evaluated",
        is_cut: bool = False,
    ) -> None:
        """`is_cut`: True if `evaluation.max_batches` has left some of the part out."""
        more = ", or look at more of it (evaluation.max_batches)" if is_cut else ""
        lacking = "there is nothing to score" if metric is None else f"there is no {metric}"
        without = "" if metric is None else f", or leave {metric} out of evaluation.metrics"
        super().__init__(
            f"In the {part} part {what}, so {lacking}, whatever the model. Give "
            "that part samples of which something is known, by "
            f"data.split or by a larger file{more}{without}; then restart the run."
        )
        self.what, self.metric, self.others = what, metric, dict(others or {})

    def of_part(self, part: str, *, is_cut: bool) -> "NothingToScore":
        """Returns the same error, which says in which part it is."""
        return NothingToScore(
            self.what, metric=self.metric, others=self.others, part=part, is_cut=is_cut
        )


class DatasetChanged(TrainerError):
    """A dataset's file is not the one that was registered."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.dataset_changed, message)


class OutOfMemory(TrainerError):
    """Memory of the device or of the host ran out; None: how much is not known."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        wanted_bytes: int | None = None,
        free_bytes: int | None = None,
    ) -> None:
        super().__init__(reason, message)
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes


class Diverged(TrainerError):
    """The loss or the weights of the training became NaN or infinite. `what` says so without what
    to do now; `reached` is told with it: the step, epoch and position at which that was seen.
    """

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(Reason.nonfinite, f"{what} {advice}")
        self.what = what
        self.reached: dict[str, int] | None = None


class SpecMismatch(TrainerError):
    """The spec asks for what this dataset, device or version cannot give."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.spec_error, message)
