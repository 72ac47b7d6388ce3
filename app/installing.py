"""The command that installs a package into the environment that Stoker runs in."""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution


def pip_install(*words: str) -> str:
    """To be typed as it is: `pip` alone may be that of another environment."""
    python, asked = shlex.quote(sys.executable), shlex.join(words)
    try:
        # Not find_spec: asked for pip, setuptools takes this process for a pip, and then fails when
        # torch.compile imports it (_distutils_hack).
        distribution("pip")
    except PackageNotFoundError:  # as in environments that uv has made
        return f"uv pip install {asked} --python {python}"
    return f"{python} -m pip install {asked}"
