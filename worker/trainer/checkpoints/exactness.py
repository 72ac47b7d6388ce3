"""Whether a training can be repeated to the last bit, and what of it nobody can put back."""

import torch
from torch import nn


def keeps_dropout_to_itself(model: nn.Module, device: torch.device) -> bool:
    """True if the model has a torch.nn.LSTM or GRU with dropout between its layers, on a GPU.

    cuDNN draws that dropout from a state that cannot be saved. Stoker's recipes have a StackedRNN
    instead (worker/trainer/recipes/encoders.py); a plugin's model may have PyTorch's.
    """
    return device.type == "cuda" and any(
        isinstance(module, nn.RNNBase) and module.num_layers > 1 and module.dropout > 0
        for module in model.modules()
    )


def resumes_exactly(model: nn.Module, device: torch.device, compile_mode: str = "none") -> bool:
    """Whether an interrupted training ends with the bits of one that was not interrupted.

    On a GPU two runs of the same work agree to the last bit only under runtime.deterministic.
    Compiled kernels that were chosen by their speed may be others when they are compiled anew.
    """
    if device.type != "cuda":
        return compile_mode != "max-autotune"
    if compile_mode != "none":
        return False  # also in the default mode Triton's are chosen so
    deterministic = torch.are_deterministic_algorithms_enabled()
    return deterministic and not keeps_dropout_to_itself(model, device)
