"""The five operations that durability rests on, named so that a test can replay their prefixes."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from app.durable import sync

if TYPE_CHECKING:
    from torch import Tensor

# How safetensors tells what the system said.
OS_ERROR = re.compile(r"\(os error (\d+)\)")


Content: TypeAlias = "bytes | Mapping[str, Tensor]"


def make_folder(path: Path) -> None:
    path.mkdir()


def write_file(path: Path, content: Content) -> None:
    """Bytes, or a safetensors file of contiguous tensors on the CPU, none of which shares memory
    with another; no copy of them is made. OSError.
    """
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    import safetensors.torch  # late: other files are written without PyTorch

    try:
        safetensors.torch.save_file(dict(content), path)
    except safetensors.SafetensorError as error:
        said = OS_ERROR.search(str(error))
        if said is None:
            raise
        number = int(said[1])
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(0o644)  # it makes it for its user alone


def sync_file(path: Path) -> None:
    sync(path)


def sync_folder(path: Path) -> None:
    """Make the names inside a folder durable."""
    sync(path)


def rename(source: Path, target: Path) -> None:
    source.rename(target)
