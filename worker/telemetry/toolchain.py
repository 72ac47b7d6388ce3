"""What PyTorch's compiler needs of a host beside PyTorch, and what of it is not there."""

import os
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path

TRITON = ("triton", "pytorch-triton")  # of a release, and of a nightly build


def missing_tools() -> dict[str, list[str]]:
    """By the kind of device, what compiling for it lacks here and where it comes from."""
    headers = [] if _has_headers() else ["Python's headers (Debian: apt-get install python3-dev)"]
    return {"cpu": [*_cpp(), *headers], "cuda": [*_triton(), *_c(), *headers]}


def _cpp() -> list[str]:
    """PyTorch writes C++ for a CPU."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    return [] if found else ["a C++ compiler (Debian: apt-get install g++)"]


def _c() -> list[str]:
    """Triton builds what starts its kernels."""
    given = os.environ.get("CC")
    found = any(shutil.which(name) for name in ([given] if given else ["gcc", "clang"]))
    return [] if found else ["a C compiler (Debian: apt-get install gcc)"]


def _triton() -> list[str]:
    for name in TRITON:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return []
    return ["Triton (pip install triton)"]


def _has_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").exists()
