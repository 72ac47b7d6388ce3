"""What is opened in an HDF5 file and what is not: files, links, arrays that can be fields."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from app.planning.residency import CHUNK_CACHE_BYTES
from worker.trainer.data.formats.filters import missing_filter
from worker.trainer.errors import DataError

# What h5py raises for files that are damaged, locked, or not HDF5 at all.
HDF5_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError)

# What torch has too: a batch keeps the file's dtype until it is on the device.
USABLE_DTYPES = frozenset(
    {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"}
    | {"float16", "float32", "float64"}
)

MAX_LINKS = 1_000
# Attributes of a file: the names of the arrays that are inputs and targets, in a recipe's order.
INPUTS, TARGETS = "inputs", "targets"
# Attribute of an array of labels: what the classes are called that it numbers from 0.
CLASS_NAMES = "class_names"

T = TypeVar("T")


def open_file(path: Path) -> h5py.File:
    """Open for reading. DataError with a sentence when that cannot be done."""
    try:
        return h5py.File(path, "r", locking="best-effort", rdcc_nbytes=CHUNK_CACHE_BYTES)
    except FileNotFoundError:
        raise DataError(
            f"There is no file {path}; put it back or register another dataset."
        ) from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user; change its permissions.") from None
    except BlockingIOError:
        raise DataError(
            f"{path} is open for writing in another process; wait until it is closed, then retry."
        ) from None
    except HDF5_ERRORS as error:
        raise DataError(
            f"{path} cannot be opened as HDF5 ({error}): it is damaged, cut short or of another"
            " kind. Write it again, or restore it from a copy."
        ) from error


def hard_link(group: h5py.Group, name: str) -> Any:
    """The group, dataset or type of this name; None when it is missing or a link elsewhere.

    External links could make the service read any file of the host, and soft links hide cycles,
    so neither is followed.
    """
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        return None
    return group[name]


def find_node(file: h5py.File, name: str) -> Any:
    """What is at `name`, which may lie in groups (a/b), reached by hard links alone; else None."""
    node: Any = file
    for step in name.split("/"):
        node = hard_link(node, step) if isinstance(node, h5py.Group) else None
    return node


def is_marked(node: Any, mark: str) -> bool:
    """Whether it is a group that stands for an array, which its attribute `mark` says."""
    return isinstance(node, h5py.Group) and mark in node.attrs


def read_marked(
    path: Path, names: Iterable[str], mark: str, read: Callable[[h5py.Group, str], T], what: str
) -> dict[str, T]:
    """What `read` makes of those of `names` that are such groups. DataError where it cannot."""
    with open_file(path) as file:
        try:
            nodes = {name: find_node(file, name) for name in names}
            return {name: read(node, name) for name, node in nodes.items() if is_marked(node, mark)}
        except HDF5_ERRORS as error:
            raise DataError(
                f"The {what} of {path} cannot be read ({error}): it is damaged. Write it again, or"
                " restore it from a copy."
            ) from error


def write_roles(file: h5py.File, inputs: Iterable[str], targets: Iterable[str]) -> None:
    """Records which arrays are inputs and targets, for specs that do not name them."""
    file.attrs.update({INPUTS: list(inputs), TARGETS: list(targets)})


def read_roles(file: h5py.File, fields: Iterable[str]) -> dict[str, list[str]] | None:
    """Returns the names by `inputs` and `targets`; None unless both attributes name fields."""
    roles = {part: np.atleast_1d(file.attrs.get(part, ())).tolist() for part in (INPUTS, TARGETS)}
    known = set(fields)
    for part, names in roles.items():
        roles[part] = [n.decode() if isinstance(n, bytes) else str(n) for n in names]
        if not names or not known >= {*roles[part]}:
            return None
    return roles


def write_class_names(labels: h5py.Dataset, names: Iterable[str]) -> None:
    """Records the names of the classes that an array numbers from 0."""
    text = h5py.string_dtype()
    labels.attrs.create(CLASS_NAMES, np.array(list(names), dtype=object), dtype=text)


def class_names_of(labels: h5py.Dataset) -> list[str] | None:
    """Returns the names of an array's classes, in the order of their numbers; None without any."""
    names = np.atleast_1d(labels.attrs.get(CLASS_NAMES, ())).tolist()
    return [one.decode() if isinstance(one, bytes) else str(one) for one in names] or None


def find_array(file: h5py.File, name: str) -> h5py.Dataset | None:
    """The array at `name`."""
    node = find_node(file, name)
    return node if isinstance(node, h5py.Dataset) else None


def walk_links(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset | str]]:
    """(name, array) of every array of the file, and (name, link's target) of external links.

    Groups are visited once, so cycles end; more than MAX_LINKS links are a DataError.
    """
    waiting: list[tuple[str, h5py.Group]] = [("", file)]
    visited, count = {h5py.h5o.get_info(file.id).addr}, 0
    while waiting:
        prefix, group = waiting.pop()
        for key in sorted(group):
            count += 1
            if count > MAX_LINKS:
                raise DataError(f"The file has more than {MAX_LINKS:,} names; keep fewer arrays.")
            name, link = prefix + key, group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield name, str(link.filename)
            node = hard_link(group, key)
            if isinstance(node, h5py.Dataset):
                yield name, node
            elif isinstance(node, h5py.Group):
                address = h5py.h5o.get_info(node.id).addr
                if address not in visited:
                    visited.add(address)
                    waiting.append((f"{name}/", node))


def unusable_because(array: h5py.Dataset) -> str | None:
    """Why this array cannot be a field, as the end of "it …"; None if it can."""
    if array.external is not None:
        return "keeps its data in other files (external storage), which is not read for safety"
    if array.is_virtual:
        return "is virtual (its data lies in other files), which is not read for safety"
    if array.dtype.name not in USABLE_DTYPES or not array.dtype.isnative:
        return f"has dtype {array.dtype.str}, not a native boolean, integer or float"
    if not array.shape:
        return "is a single value without an axis of samples"
    if 0 in array.shape[1:]:
        return f"has shape {array.shape}, so its samples are empty"
    if (missing := missing_filter(array)) is not None:
        return (
            f"is packed by the filter {missing}, which is not installed here; on each worker: pip "
            "install 'stoker[filters]'"
        )
    return None
