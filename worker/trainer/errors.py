"""The trainer's errors: each carries the reason of an attempt's end and a sentence for a person."""

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
    """A part of the data has nothing that a score could be of: a recipe's `scores` raises it with
    `what`, a phrase that names the array; who knows the part says which one it is.
    """

    def __init__(self, what: str, part: str = "evaluated", *, is_cut: bool = False) -> None:
        """`is_cut`: whether `evaluation.max_batches` has left some of that part out."""
        more = ", or look at more of it (evaluation.max_batches)" if is_cut else ""
        super().__init__(
            f"In the {part} part {what}, so there is nothing to score, whatever the model. Give "
            "that part samples of which something is known, by "
            f"data.split or by a larger file{more}; then restart the run."
        )
        self.what = what


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
