"""How a run computes: device, precision, compilation. One place for each thing."""

from typing import Annotated, Literal

from pydantic import Field

from app.spec.base import SpecModel

# A CUDA graph of a step has a place for each of its micro-batches.
MOST_CAPTURED = 8
# The reason not to capture a step whose activations are recomputed, for the guard and the trainer.
RANDOM_BLOCKS = (
    "The recomputed blocks draw random numbers, such as dropout. These are restored from the host "
    "before each recomputation, which a capture does not allow. With dropout 0 it can be captured."
)


class Compile(SpecModel):
    """torch.compile of the loss and the scores, before the first step; kept from run to run."""

    mode: Literal["none", "default", "max-autotune"] = "none"
    """PyTorch's mode; max-autotune also times kernels to choose among them. Default none."""


class Runtime(SpecModel):
    """Where and how the steps are computed."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device kind; auto: cuda where the worker has one. Default auto."""
    gpus: Annotated[int, Field(ge=1, le=1_024)] = 1
    """GPUs of the run; more than 1 is not available yet. Default 1."""
    precision: Literal["auto", "fp32", "tf32", "bf16-mixed", "fp16-mixed"] = "auto"
    """Number format; default auto: bf16-mixed if the GPU has it, else fp32. Mixed includes TF32, in
    which an RNN stays under bf16-mixed (in fp32 on a CPU)."""
    compile: Compile = Compile()
    """Compilation."""
    cuda_graphs: Literal["auto", "never", "always"] = "auto"
    """Replay whole steps from a CUDA graph; auto: where one is proved right. Default auto."""
    activation_checkpointing: bool = False
    """Keep the inputs of the model's blocks alone and compute the rest anew for the gradients: less
    memory, the same numbers, about a third more work. Default false."""
    deterministic: bool = False
    """Refuse algorithms whose results vary from run to run; default false."""
    attention: Literal["auto", "flash", "memory-efficient", "math"] = "auto"
    """Kernels of attention; flash wants bf16 or fp16 on a GPU. Default auto: PyTorch's choice."""
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1_024)] = "auto"
    """CPU threads of the trainer; auto: the worker's cores over its slots. Default auto."""
