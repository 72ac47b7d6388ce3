"""Counts optimizer steps and the time that a script waits for its DataLoader, from within.

Python imports a module of this name at its start. This one lies in a folder that only runs of
scripts have on their PYTHONPATH. It does nothing until the script itself imports PyTorch, changes
no result, and never raises. Another `sitecustomize` that it stands in front of is run too.

The figures go into STOKER_SHIM_FILE, which is mapped into memory: steps as a whole number, seconds
of waiting as a double, the process that counts, steps that nobody counts, which are a sign of life,
and the step at the last `torch.save`; each of 8 bytes. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import mmap
import os
import struct
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # typing itself would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FIGURES, ONE = struct.Struct("<QdQ"), struct.Struct("<Q")
OTHERS_AT, SAVED_AT = FIGURES.size, FIGURES.size + ONE.size
SIZE = SAVED_AT + ONE.size
OPTIMIZER, DATALOADER = "torch.optim.optimizer", "torch.utils.data.dataloader"
SERIALIZATION = "torch.serialization"
# After so many steps in a row of another optimizer, the counted one is done. It may live on for
# long, in a scheduler that refers to it.
TURN_STEPS = 100


class Counter:
    """The figures of one process: of several that make steps, the first one counts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._memory: Any = None
        self._optimizer = self._pid = 0
        self._reference: Any = None
        self._counts = False
        """Whether this process is the one that counts."""
        self.steps = self.others = 0
        self.waited = 0.0
        self._turn = self._turn_began = 0
        """Steps of others since the last counted one, and which that was."""
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        self._memory, self._optimizer = None, 0

    def step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """After an optimizer's step; of several that take turns, the first one is counted. A step
        costs no system call, and next to nothing besides.
        """
        try:
            if self._optimizer != id(optimizer):
                self._other_step(optimizer)
                return
            self.steps += 1
            FIGURES.pack_into(self._memory, 0, self.steps, self.waited, self._pid)
        except Exception:  # a file that cannot be seen from here stops no training
            self._memory = bytearray(SIZE)

    def _other_step(self, optimizer: object) -> None:
        """Of an optimizer that is not counted. It is from now on if the counted one is gone, or
        has made no step for so long that it is done.
        """
        if self._memory is None:
            self._claim()
        if self._turn_began != self.steps:
            self._turn, self._turn_began = 0, self.steps
        self._turn += 1
        if self._counts and (not self._optimizer or self._turn >= TURN_STEPS):
            if self._optimizer:
                self.steps += self._turn - 1
            self._follow(optimizer)
            self.step(optimizer, (), {})
            return
        self.others += 1
        ONE.pack_into(self._memory, OTHERS_AT, self.others)

    def save_begins(self) -> None:
        """Note the step that is being saved, in the process that counts."""
        if self._counts and self._memory is not None:
            ONE.pack_into(self._memory, SAVED_AT, self.steps)

    def _follow(self, optimizer: object) -> None:
        """Count this one's steps. It is not kept alive by that."""
        import weakref  # PyTorch has it by now, and other programs need not import it

        self._optimizer = id(optimizer)
        with suppress(TypeError):  # one that cannot be referred to so
            self._reference = weakref.ref(optimizer, self._let_go)

    def _let_go(self, reference: object) -> None:
        if reference is self._reference:
            self._optimizer = 0

    def _claim(self) -> None:
        """Map the file, and count if no other process that lives does. Of several that a launcher
        has started, the first alone writes there.
        """
        self._pid, self._memory, self._counts = os.getpid(), bytearray(SIZE), False
        if os.environ.get("RANK", "0") != "0" or os.environ.get("LOCAL_RANK", "0") != "0":
            return
        with open(self._path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        counts_now = FIGURES.unpack_from(self._memory, 0)[2]
        self._counts = counts_now in (0, self._pid) or not os.path.exists(f"/proc/{counts_now}")


def watch_optimizers(module: Any, counter: Counter) -> None:
    """By the hook that PyTorch documents for all optimizers."""
    module.register_optimizer_step_post_hook(counter.step)


def watch_saves(module: Any, counter: Counter) -> None:
    """Note at which step `torch.save` is called. PyTorch itself takes the function from here."""
    import functools  # PyTorch has it by now

    save = module.save

    @functools.wraps(save)
    def noted_save(*args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            counter.save_begins()
        return save(*args, **kwargs)

    module.save = noted_save


def watch_loaders(module: Any, counter: Counter) -> None:
    """Time what `next` of a DataLoader's iterator takes. The iterator stays the one it is."""
    loader = module.DataLoader
    timed: set[type] = set()
    begin = loader.__iter__

    def timed_iter(self: Any) -> Any:
        iterator = begin(self)
        kind = type(iterator)
        if kind not in timed and hasattr(kind, "__next__"):
            timed.add(kind)
            kind.__next__ = _timed(kind.__next__, counter)
        return iterator

    loader.__iter__ = timed_iter


def _timed(following: Callable[[Any], Any], counter: Counter) -> Callable[[Any], Any]:
    clock = time.perf_counter

    def timed_next(self: Any) -> Any:
        began = clock()
        try:
            return following(self)
        finally:
            counter.waited += clock() - began

    return timed_next


class Finder:
    """Lets others find these modules, and looks at them once they are loaded."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._left = {
            OPTIMIZER: watch_optimizers,
            DATALOADER: watch_loaders,
            SERIALIZATION: watch_saves,
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        """The spec that the next finder gives, with its loader made to call us."""
        watch = self._left.pop(name, None)
        if watch is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None and spec.loader is not None:
                _call_after(spec.loader, watch, self._counter)
                return spec
        return None


def _call_after(loader: Any, watch: Callable[[Any, Counter], None], counter: Counter) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        with suppress(Exception):  # whatever this PyTorch is like, the script goes on
            watch(module, counter)

    loader.exec_module = exec_module


def run_next_sitecustomize() -> None:
    """The one that would have been found, had this one not stood in front of it."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None and spec.origin != __file__:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def arm() -> None:
    """Only inside a run, and only once."""
    path = os.environ.get("STOKER_SHIM_FILE")
    if path and OPTIMIZER not in sys.modules:
        sys.meta_path.insert(0, Finder(Counter(path)))


with suppress(Exception):
    arm()
try:
    run_next_sitecustomize()
except Exception as error:  # as Python itself does, which then goes on
    sys.stderr.write(f"sitecustomize: {type(error).__name__}: {error}\n")
