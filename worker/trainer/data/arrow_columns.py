"""Which columns of an Arrow schema are named arrays, and where each stands among the buffers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from worker.trainer.data.arrow_library import arrow
from worker.trainer.data.hdf5_file import USABLE_DTYPES
from worker.trainer.data.source import Field


@dataclass(frozen=True)
class Column:
    """A column that is a named array. A record batch lists the nodes (length, nulls) and the
    buffers (offset, length) of all its columns in one order, which the schema gives.
    """

    field: Field
    nodes: range
    """Its own, one for each level of lists and one for the numbers."""
    buffer: int
    """Its numbers, were no column before it of a type with a varying count of buffers (views)."""
    views_before: int
    """Of these, so many come before it."""

    @property
    def numbers(self) -> int:
        """Of a sample."""
        return prod(self.field.shape)

    @property
    def is_bits(self) -> bool:
        """Arrow packs booleans, eight to a byte."""
        return self.field.dtype == np.bool_

    def stored_bytes(self, rows: int) -> int:
        """Of so many samples, unpacked from LZ4 or ZSTD."""
        numbers = rows * self.numbers
        return -(-numbers // 8) if self.is_bits else numbers * self.field.dtype.itemsize


@dataclass(frozen=True)
class Columns:
    """Those of a schema."""

    usable: Mapping[str, Column]
    left_out: Mapping[str, str]
    """Names, and why each is no named array, as the end of "it …"."""
    types: Mapping[str, str]
    nodes: int
    buffers: int
    views: int


def columns_of(schema: Any) -> Columns:
    """The columns of a pyarrow schema."""
    usable: dict[str, Column] = {}
    left_out: dict[str, str] = {}
    nodes = buffers = views = 0
    for entry in schema:
        each = list(_levels(entry.type))
        found = _field_of(entry.type)
        if schema.names.count(entry.name) > 1:
            left_out[entry.name] = "is the name of several columns; give each a name of its own"
        elif isinstance(found, str):
            left_out[entry.name] = found
        else:
            own = range(nodes, nodes + len(each))
            last = buffers + sum(count for count, _ in each) - 1
            usable[entry.name] = Column(found, own, last, views)
        nodes += len(each)
        buffers += sum(count for count, _ in each)
        views += sum(is_view for _, is_view in each)
    types = {entry.name: str(entry.type) for entry in schema}
    return Columns(usable, left_out, types, nodes, buffers, views)


def _levels(kind: Any) -> Iterator[tuple[int, bool]]:
    """(buffers, whether more may follow) of each node of a column, as a file lists them."""
    types = arrow().types
    if isinstance(kind, arrow().BaseExtensionType):
        yield from _levels(kind.storage_type)
        return
    # Without the bits that tell nulls, which these types do not have in a file.
    bare = types.is_null(kind) or types.is_union(kind) or types.is_run_end_encoded(kind)
    is_view = types.is_string_view(kind) or types.is_binary_view(kind)
    yield kind.num_buffers - bare, is_view
    for number in range(0 if types.is_dictionary(kind) else kind.num_fields):
        yield from _levels(kind.field(number).type)


def _field_of(kind: Any) -> Field | str:
    """A sample's shape and type, or why there is none."""
    library = arrow()
    shape: tuple[int, ...] = ()
    whole = kind
    if isinstance(kind, library.FixedShapeTensorType):
        if list(kind.permutation or ()) != sorted(kind.permutation or ()):
            return "is a tensor whose axes are stored in another order; write it in its own"
        shape, kind = tuple(kind.shape), kind.value_type
    elif isinstance(kind, library.BaseExtensionType):
        kind = kind.storage_type
    while library.types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    if (reason := _unusable_because(kind, whole)) is not None:
        return reason
    if 0 in shape:
        return f"is {whole}, so its samples are empty"
    return Field(shape, np.dtype(kind.to_pandas_dtype()))


def _unusable_because(kind: Any, whole: Any) -> str | None:
    types = arrow().types
    if types.is_dictionary(kind):
        return f"is a dictionary ({whole}); write its codes as integers"
    if types.is_list(kind) or types.is_large_list(kind):
        return (
            f"has lists of any length ({whole}); where all have one length, cast them to a list"
            " of a fixed size; else write them as a ragged array of an HDF5 file"
        )
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not is_number or np.dtype(kind.to_pandas_dtype()).name not in USABLE_DTYPES:
        return f"is {whole}, not a boolean, an integer or a float; convert it to one of these"
    return None
