"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Callable, Sequence  # noqa: UP035 - scripts of older Pythons import it


def lazily(package: str, modules: Sequence[str], names: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: its `modules`, and the `names` that they bring.

    It is assigned, not defined: type checkers would take any name of a module that defines one.
    """

    def find(name: str) -> Any:
        if name in modules:
            found = import_module(f"{package}.{name}")
        elif name in names:
            loaded = (import_module(f"{package}.{module}") for module in modules)
            found = next(getattr(module, name) for module in loaded if hasattr(module, name))
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, found)  # the next time it is there
        return found

    return find
