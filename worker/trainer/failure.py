"""From an exception to the reason of an attempt's end and a sentence a person can act on."""

import errno
from traceback import extract_tb

import torch

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError
from worker.trainer.out_of_memory import behind, of_gpu, out_of_memory
from worker.trainer.recipes.raised import told_of_recipe

# What PyTorch says where the kernels that `runtime.attention` allows cannot compute this.
NO_ATTENTION = ("No available kernel", "No viable backend for scaled_dot_product_attention")
# What CUDA says where a program was built for other GPUs.
NO_KERNELS = "no kernel image is available"
COMPILER = ("torch._dynamo", "torch._inductor")
# What its errors name, and what is missing where they do.
NEEDED = {
    "InvalidCxxCompiler": "a C++ compiler (Debian: apt-get install g++)",
    "Python.h": "Python's headers (Debian: apt-get install python3-dev)",
    "find C compiler": "a C compiler (Debian: apt-get install gcc)",
    "working triton": "Triton (pip install triton)",
}


def explain(error: BaseException, phase: str, *, logged: bool = True) -> tuple[Reason, str]:
    """`phase` is what the attempt was doing. `logged`: it has a trainer.log, with the traceback."""
    is_of_the_compiler = type(error).__module__.startswith(COMPILER)
    error = behind(error)
    text = str(error)
    if isinstance(error, TrainerError):
        return error.reason, error.message
    if (ran_out := out_of_memory(error, phase)) is not None:
        return ran_out.reason, ran_out.message
    if of_gpu(error) and NO_KERNELS in text:
        return Reason.trainer_error, (
            f"This PyTorch ({torch.__version__}) has no kernels for this attempt's GPU, which is"
            " older or newer than it knows. Install a build for it on the worker (pytorch.org/"
            "get-started), or run with runtime.device cpu; then restart the run."
        )
    if text.startswith(NO_ATTENTION):
        return Reason.spec_error, (
            "The kernels that runtime.attention allows cannot compute this attention here: none is"
            " for its dropout, mask or number format. Use auto, and restart the run."
            f"{_details(error, logged=logged)}"
        )
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
        return Reason.checkpoint_write_error, (
            f"The checkpoint could not be written: {text}. Earlier checkpoints are intact. Mend "
            "the artifact root; once the retries are used up, restart the run from its latest."
        )
    details = _details(error, logged=logged)
    of_recipe = None if is_of_the_compiler else told_of_recipe(error, phase)
    if of_recipe is not None:
        mend = f"Mend the recipe's package and install it again.{details if logged else ''}"
        return Reason.trainer_error, f"{of_recipe} {mend}"
    if is_of_the_compiler or phase == "compiling":
        return Reason.spec_error, _not_compiled(error, logged=logged)
    return Reason.trainer_error, (
        f"An unexpected {type(error).__name__} came while {phase}: {_first_line(text)}{details}"
    )


def _details(error: BaseException, *, logged: bool) -> str:
    """Where there is more to read of it, or what there is: its place."""
    if logged:
        return " trainer.log of the attempt has the details."
    at = extract_tb(error.__traceback__)[-1:]
    return "".join(f" It was raised in {one.filename}, line {one.lineno}." for one in at)


def _not_compiled(error: BaseException, *, logged: bool) -> str:
    told = ": ".join(filter(None, (type(error).__name__, str(error))))
    needed = next((what for name, what in NEEDED.items() if name in told), None)
    advice = "set runtime.compile.mode to none, which needs nothing of this"
    if needed is not None:
        advice = f"install {needed} where this worker runs, or {advice}"
    return (
        f"The steps could not be compiled: {_first_line(told)} To go on, {advice}, and restart "
        f"the run.{_details(error, logged=logged)}"
    )


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0][:300]
    return line if line.endswith((".", "!", "?")) else f"{line}."
