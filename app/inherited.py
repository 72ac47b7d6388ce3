"""Settings that a process inherits from its shell: umask, soft limits and niceness."""

import os
import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

# Names as `resource` has them. A low limit of memory may fail what comes after it: these go last.
_LAST = ("RLIMIT_DATA", "RLIMIT_AS")
_OTHERS = {name for name in dir(resource) if name.startswith("RLIMIT_")} - {*_LAST, "RLIMIT_OFILE"}
LIMITS = (*sorted(_OTHERS), *_LAST)
_PERMISSIONS = 0o777
_NICEST = 19


@dataclass(frozen=True)
class Inherited:
    """`limits`: soft limits by the names in LIMITS; -1 is none. None: leave it as it is."""

    umask: int | None = None
    niceness: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Self:
        """Returns the settings of this process, which has one thread: reading the umask sets it."""
        umask = os.umask(0o077)
        os.umask(umask)
        soft = {name: resource.getrlimit(getattr(resource, name))[0] for name in LIMITS}
        return cls(umask, os.nice(0), soft)

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Reads what `document` wrote. Raises ValueError for anything else."""
        if not isinstance(document, dict):
            raise ValueError("the settings of a shell are an object")  # noqa: TRY004
        umask: Any = document.get("umask")
        niceness, limits = document.get("niceness"), document.get("limits")
        if not isinstance(limits, dict) or not set(limits) <= set(LIMITS):
            raise ValueError("limits has the names of soft limits, such as RLIMIT_NOFILE")
        if any(type(number) is not int for number in (umask, niceness, *limits.values())):
            raise ValueError("umask, niceness and limits are whole numbers")
        return cls(umask & _PERMISSIONS, niceness, limits)

    def document(self) -> dict[str, Any]:
        """Returns the settings as JSON can hold them."""
        return {"umask": self.umask, "niceness": self.niceness, "limits": dict(self.limits)}

    def apply(self) -> None:
        """Takes the settings over in this process, within its own hard limits and niceness.

        It never raises and imports nothing: it runs between fork and exec.
        """
        if self.umask is not None:
            os.umask(self.umask)
        if self.niceness is not None:
            os.nice(min(_NICEST, max(0, self.niceness - os.nice(0))))
        for name, soft in self.limits.items():
            with suppress(OSError, ValueError):
                _set_soft(getattr(resource, name), soft)


def _set_soft(kind: int, soft: int) -> None:
    hard = resource.getrlimit(kind)[1]
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(known, default=resource.RLIM_INFINITY), hard))
