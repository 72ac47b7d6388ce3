"""From an exception to the reason of an attempt's end and a sentence a person can act on."""

import errno

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError
from worker.trainer.out_of_memory import of_gpu, out_of_memory


def explain(error: BaseException, phase: str) -> tuple[Reason, str]:
    """`phase` is what the attempt was doing."""
    text = str(error)
    if isinstance(error, TrainerError):
        return error.reason, error.message
    if (ran_out := out_of_memory(error, phase)) is not None:
        return ran_out.reason, ran_out.message
    if of_gpu(error):
        return Reason.gpu_fault, (
            f"The GPU reported a fault while {phase}: {_first_line(text)} If it comes again, look "
            "at the driver's messages (dmesg, nvidia-smi -q) and try another GPU."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Reason.disk_full, (
            f"The disk is full while {phase} ({error.filename or 'artifact root'}). Earlier "
            "checkpoints are intact. Free space and restart the run from its latest."
        )
    if phase == "checkpointing" and isinstance(error, OSError):
        return Reason.checkpoint_error, (
            f"The checkpoint could not be written: {text}. Earlier checkpoints are intact. Mend "
            "the artifact root and restart the run from its latest."
        )
    return Reason.trainer_error, (
        f"An unexpected {type(error).__name__} ended the attempt while {phase}: "
        f"{_first_line(text)} trainer.log of the attempt has the details."
    )


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0][:300]
    return line if line.endswith((".", "!", "?")) else f"{line}."
