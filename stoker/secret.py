"""What looks secret: variables that a run is not given, and values of its config that are not kept.

Standard library only, and Python 3.8 or later, as in stoker.script.
"""

from __future__ import annotations

import re
from typing import Any

# Words of a name, which `_`, `-` or `.` divide, or a capital letter, as in `hfToken`.
NAME = re.compile(
    r"(?<![a-z0-9])(KEY|TOKEN|SECRET|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PAT)S?(?![a-z0-9])"
    r"|PASSWORD|PASSWD|_?PWD$|APIKEY",
    re.IGNORECASE,
)
WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Of a tokenizer's config.
SPECIAL_TOKEN = re.compile(r"\b(pad|eos|bos|unk|sep|cls|mask)_token$")
# A value such as postgres://user:password@host.
VALUE = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
# An option and what it is given, in one word.
OPTION = re.compile(r"(--[a-z][\w.-]*)=(.*)", re.IGNORECASE | re.DOTALL)
MASK = "***"


def looks_secret(name: str, value: str) -> bool:
    """Whether others should not see the value of a variable or setting of this name."""
    return bool(NAME.search(name) or NAME.search(WORD.sub("_", name)) or VALUE.search(value))


def masked(value: Any, name: str = "") -> Any:
    """A JSON value with `***` in place of each text that looks secret by its own name, or by that
    of what it lies in or of the option that it belongs to. Numbers of JSON stay, such as that of
    `max_tokens`.
    """
    if isinstance(value, str):
        if option := OPTION.match(value):
            return f"{option[1]}={masked(option[2], option[1])}"
        return MASK if looks_secret(SPECIAL_TOKEN.sub("", name), value) else value
    if isinstance(value, dict):
        return {key: masked(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [
            masked(item, f"{name}.{before}" if re.match("-[^=]*$", str(before)) else name)
            for before, item in zip(["", *value], value)  # noqa: B905 - Python 3.8
        ]
    return value
