"""The command that installs a package into the environment that Stoker runs in."""

import shlex
import sys
from importlib.util import find_spec


def pip_install(*words: str) -> str:
    """To be typed as it is: `pip` alone may be that of another environment."""
    python, asked = shlex.quote(sys.executable), shlex.join(words)
    if find_spec("pip") is None:  # as in environments that uv has made
        return f"uv pip install {asked} --python {python}"
    return f"{python} -m pip install {asked}"
