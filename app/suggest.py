"""Did you mean …? What a name that nobody knows was probably meant to be."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path

LIKE = 0.6
"""How like (0 to 1) a name has to be to one that there is for a question about it."""
SURE = 0.75
"""The same where a fix puts that name in."""


def closest(name: str, known: Iterable[str], likeness: float = LIKE) -> str | None:
    """The known name that is spelt much like this one, or the only one that has all of its words,
    at the beginning before elsewhere; case and dashes do not count.
    """
    plain, names = _plain(name), {_plain(one): one for one in known}
    close = get_close_matches(plain, names, n=1, cutoff=likeness)
    begins = [one for one in names if one.startswith(f"{plain}_")]
    holds = [one for one in names if set(plain.split("_")) <= set(one.split("_"))]
    return next((names[found[0]] for found in (close, begins, holds) if len(found) == 1), None)


def closest_file(path: Path, suffixes: Collection[str]) -> Path | None:
    """The file with one of these suffixes that a path was meant to be, where it leads to none; its
    folder may be misspelt too.
    """
    folder = path.parent
    if not folder.is_dir():
        if not folder.parent.is_dir():
            return None
        name = closest(folder.name, (one.name for one in folder.parent.iterdir() if one.is_dir()))
        if name is None:
            return None
        folder = folder.with_name(name)
    there = (one.name for one in folder.iterdir() if one.suffix in suffixes)
    name = closest(path.name, there)
    return None if name is None else folder / name


def did_you_mean(meant: str | None) -> str:
    """The question, to be put behind a sentence; nothing when nothing was meant."""
    return f" Did you mean {meant}?" if meant is not None else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
