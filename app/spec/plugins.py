"""Where in a recipe's package an error was raised."""

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from traceback import walk_tb
from types import FrameType

# Entry points: the half of a recipe that the API asks, and the one that trains.
FIRST_HALVES, TASKS = "stoker.recipes", "stoker.tasks"
GROUPS = (FIRST_HALVES, TASKS)
OURS = ("app", "worker")


@dataclass(frozen=True)
class RaisedInPlugin:
    """`frames` are those of the package's functions that were under way, the innermost last.

    `kind` is `a or b` where the package has several recipes, and nothing tells which it was.
    """

    kind: str
    error: BaseException
    frames: tuple[FrameType, ...]
    line: int

    @property
    def file(self) -> str:
        return self.frames[-1].f_code.co_filename

    def told(self) -> str:
        """What was raised, in which function: a phrase."""
        text = " ".join(str(self.error).split())[:300].rstrip(".")
        name = type(self.error).__name__
        return f"{f'{name}: {text}' if text else name}, in {self.frames[-1].f_code.co_qualname}"


def raised_in_plugin(error: BaseException) -> RaisedInPlugin | None:
    """None where it was raised by none, or by nothing that one has called."""
    every = (point for group in GROUPS for point in entry_points(group=group))
    points = [point for point in every if _top(point.module) not in OURS]
    packages = {_top(point.module) for point in points}
    at = [
        (frame, line)
        for frame, line in walk_tb(error.__traceback__)
        if _top(_module(frame)) in packages
    ]
    if not at:
        return None
    frames = tuple(frame for frame, _ in at)
    return RaisedInPlugin(_kind(points, frames), error, frames, at[-1][1])


def _kind(points: Collection[EntryPoint], frames: Collection[FrameType]) -> str:
    """Of the recipe one of whose two classes is at work; else whose module; else whose package."""
    classes = {(cls.__module__, cls.__qualname__) for cls in map(_class_at_work, frames)}
    modules = {_module(frame) for frame in frames}
    packages = {_top(module) for module in modules}
    kinds = (
        {point.name for point in points if (point.module, point.attr) in classes}
        or {point.name for point in points if point.module in modules}
        or {point.name for point in points if _top(point.module) in packages}
    )
    return " or ".join(sorted(kinds))


def _class_at_work(frame: FrameType) -> type:
    """That of the method's object, also where the method itself is inherited."""
    of = frame.f_locals.get("self", frame.f_locals.get("cls"))
    return of if isinstance(of, type) else type(of)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _top(module: str) -> str:
    return module.partition(".")[0]
