"""`python -m app.cli.host.first_half KIND`: what a recipe's first half imports and must not.

Prints a line for each: what it is, and where it is imported. A process of its own, for Stoker's may
have imported it already.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.metadata import EntryPoint, entry_points
from traceback import walk_stack

from app.spec.plugins import FIRST_HALVES

FORBIDDEN = ("torch", "worker", "app.spec.run")


class ImportWatch(MetaPathFinder):
    """Notes where something forbidden is imported, and leaves it to others to find."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.places: dict[str, str] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Called by Python before each import of what is not there yet."""
        if name in FORBIDDEN:
            self.places.setdefault(name, next(self._of_the_package(), "in what it imports"))

    def _of_the_package(self) -> Iterator[str]:
        for frame, line in walk_stack(None):  # who imports is known by this alone
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] == self.package:
                yield f"{frame.f_code.co_filename}, line {line}"


def main(kind: str) -> None:
    """Import it, and tell."""
    # What it may have, before it: nothing of it is the recipe's.
    import app.spec.data
    import app.spec.recipe  # noqa: F401 - to have been imported

    for point in entry_points(group=FIRST_HALVES, name=kind):
        for name, place in _imported(point).items():
            sys.stdout.write(f"{name} ({place})\n")


def _imported(point: EntryPoint) -> dict[str, str]:
    watch = ImportWatch(point.module.partition(".")[0])
    sys.meta_path.insert(0, watch)
    with suppress(Exception, SystemExit):  # told elsewhere
        point.load()
    return watch.places


if __name__ == "__main__":
    main(sys.argv[1])
