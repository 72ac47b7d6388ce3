"""Looks into a dataset and says what it is and what is wrong with it.

`python -m worker.trainer.tools.inspect PATH --json` prints one JSON document and exits 0, whatever
the file is. A damaged file can crash the HDF5 library or make it loop: run this in a child process
with limits on memory and time, and read a missing document as an unreadable file.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from app.mounts import on_network
from app.planning.arithmetic import part_ranges
from app.planning.labels import is_constant, lacking_sentence
from app.spec.data import ChronologicalSplit
from app.spec.suffixes import CONVERTED, TABLES
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats.arrow_index import MissingValues, is_arrow, listed
from worker.trainer.data.formats.arrow_source import ArrowArray, ArrowArrays, open_arrow
from worker.trainer.data.formats.filters import compression_of
from worker.trainer.data.formats.hdf5_file import (
    HDF5_ERRORS,
    INPUTS,
    TARGETS,
    class_names_of,
    open_file,
    read_roles,
    unusable_because,
    walk_links,
)
from worker.trainer.data.formats.packed_files import PARTS, PackedArray, is_packed
from worker.trainer.data.formats.ragged_files import (
    OFFSETS,
    VALUES,
    Ragged,
    RaggedArray,
    is_ragged,
)
from worker.trainer.data.formats.window_files import (
    SERIES,
    TIME_COLUMN,
    WindowArray,
    horizons_of,
    is_windows,
    read_windows,
    target_feature,
)
from worker.trainer.errors import DataError
from worker.trainer.tools.content import (
    InRows,
    Overlap,
    classes_of,
    describe_values,
    groups_of,
    neighbours_of,
    parts_of,
    row_bytes,
    sampled_rows,
    slides_in,
)
from worker.trainer.tools.tables import how_to_convert

# Bounds of what is looked at, so that inspecting a huge file takes seconds.
PROBE_BYTES = 256 * 2**20
PROBE_SECONDS = 2.0
PROBE_PIECE_BYTES = 8 * 2**20
MAX_CHUNK_BYTES = 2**30
Finding = dict[str, str]
Apart: TypeAlias = RaggedArray | PackedArray
Fields = dict[str, InRows | Apart]


def inspect(path: Path) -> dict[str, Any]:
    """What is in the file, or in the Arrow files of a folder. `problems` make it unusable,
    `warnings` do not; both hold {code, message}. Shapes are those of one sample, or of one value
    where samples have `lengths`. Only arrays that can be fields are `fields`.
    """
    report: dict[str, Any] = {
        "path": str(path), "size_bytes": None, "samples": None, "fields": {}, "layout": None,
        "fingerprint": None, "read_probe": None, "problems": [], "warnings": [],
    }  # fmt: skip
    try:
        if not path.exists():
            _add(report, "not_a_file", f"There is no file {path}; put it there, then register it.")
            return report
        if path.is_dir() and not listed(path):
            if any(one.suffix.lower() in TABLES for one in path.iterdir()):
                _add(report, "not_converted", how_to_convert(path))
            else:
                _add(report, "not_a_file", f"The folder {path} has no Arrow files; put them there.")
            return report
        report["size_bytes"] = sum(each.stat().st_size for each in listed(path))
        if not report["size_bytes"]:
            _add(report, "empty_file", f"{path.name} is empty (0 bytes); write it again.")
            return report
        if path.suffix.lower() in CONVERTED and path.is_file():
            _add(report, "not_converted", how_to_convert(path))
            return report
        if is_arrow(path):
            with open_arrow(path) as found:
                _inspect_arrays(report, _without_nulls(report, _usable_columns(report, found)))
        else:
            with open_file(path) as file:
                _inspect_arrays(report, _usable_arrays(report, file))
                _add_attributes(report, file)
        _add_constant_targets(report)
        _add_lacking_classes(report)
        if not report["problems"]:
            report["fingerprint"] = fingerprint(path)
    except DataError as error:
        _add(report, "unreadable", error.message)
    except HDF5_ERRORS as error:
        _add(report, "unreadable", f"{path.name} cannot be read ({error}); it is damaged.")
    return report


def _likely_targets(report: dict[str, Any]) -> list[str]:
    """Returns the arrays that the file names as targets, else those of one number a sample, and
    the one of the usual name.
    """
    if roles := (report["layout"] or {}).get("roles"):
        return list(roles[TARGETS])
    return [
        name
        for name, field in report["fields"].items()
        if name == TARGETS or (math.prod(field["shape"]) == 1 and field["lengths"] is None)
    ]


def _add_constant_targets(report: dict[str, Any]) -> None:
    """Warns of arrays that may be targets and never change."""
    for name in _likely_targets(report):
        field = report["fields"].get(name, {})
        mean, std = field.get("mean"), field.get("std")
        if mean is not None and std is not None and is_constant(mean, std):
            _add(
                report,
                "constant_target",
                f"{name!r} is {mean:.6g} in all {field['sampled_rows']:,} rows that were looked at,"
                " so there is nothing to learn. Check the column that it was made of, or name "
                "another array in data.targets.",
                "warnings",
            )


def _add_lacking_classes(report: dict[str, Any]) -> None:
    """Warns of whole numbers of which the usual validation part lacks a class. Floats may hold
    them too, as molecules' labels do.
    """
    for name in _likely_targets(report):
        field, samples = report["fields"].get(name, {}), report["samples"]
        classes = field.get("classes")
        if classes is None:
            continue
        _, validation, _ = part_ranges(ChronologicalSplit(), samples)
        lacking = [
            one["label"]
            for one in classes
            if any(begin <= validation.start and end == samples for begin, end in one["absent"])
        ]
        if lacking and validation:
            _add(
                report,
                "class_lacking",
                f"{lacking_sentence('validation', lacking, name)} These are the last "
                f"{len(validation):,} samples, unless data.split says otherwise. If the numbers are"
                " classes, draw the parts at random (data.split.method: random), or mix the classes"
                " in the file.",
                "warnings",
            )


def _inspect_arrays(report: dict[str, Any], arrays: Fields) -> None:
    report["fields"] = {name: _describe(array) for name, array in arrays.items()}
    if not arrays:
        _add(
            report,
            "no_arrays",
            "The file has no numeric array with an axis of samples, so there is nothing to train"
            " on; write inputs and targets as plain arrays, one row per sample.",
        )
        return
    lengths = {name: int(array.shape[0]) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        _add(
            report,
            "length_mismatch",
            f"The arrays differ in length ({lengths}), so their rows do not belong together; write"
            " one row per sample in each, and keep other numbers as attributes.",
        )
        return
    report["samples"] = next(iter(lengths.values()))
    if not report["samples"]:
        _add(report, "no_samples", "The arrays have no rows; write at least one sample.")
        return
    if not report["problems"]:
        _sample_rows(report, arrays)
        report["layout"] |= groups_of(Path(report["path"]), report["samples"])
        report["layout"]["network"] = on_network(Path(report["path"]))
        report["read_probe"] = _read_probe(arrays)


def _usable_arrays(report: dict[str, Any], file: h5py.File) -> Fields:
    """Arrays that can be fields; others are warned of, and what leads out of the file refused."""
    usable: Fields = {}
    apart: set[str] = set()
    for name, found in walk_links(file):
        group, _, part = name.rpartition("/")
        if group and is_windows(file[group]):
            if part == SERIES:
                usable[group] = WindowArray(found, read_windows(file[group], group))
        elif group and (is_ragged(file[group]) or is_packed(file[group])):
            apart.add(group)
        elif isinstance(found, str):
            _add(
                report,
                "external_link",
                f"{name!r} is a link into another file, which is not followed for safety; copy the"
                " array into this file.",
            )
        elif found.external is not None or found.is_virtual:
            _add(report, "external_storage", f"{name!r} {unusable_because(found)}.")
        elif reason := unusable_because(found):
            _add(report, "unusable_array", f"{name!r} {reason}; it is left out.", "warnings")
        elif not _has_huge_chunks(report, name, found):
            usable[name] = found
    for group in sorted(apart):
        _add_apart(report, usable, file[group], group)
    return dict(sorted(usable.items()))


def _add_attributes(report: dict[str, Any], file: h5py.File) -> None:
    """Adds what the file says of itself: the roles of its arrays, which feature of its windows is
    the target's past, and whether its rows had times.
    """
    for name, field in report["fields"].items():
        field["target_feature"] = target_feature(file, name)
    if report["layout"] is not None:
        roles = read_roles(file, report["fields"])
        report["layout"]["roles"] = roles
        if roles is None and any(part in file.attrs for part in (INPUTS, TARGETS)):
            _add(
                report,
                "roles_not_used",
                "The file's attributes inputs and targets do not both name arrays that can be "
                "trained on, so they are not used. Write the names of arrays into both, or name "
                "data.inputs and data.targets in the spec.",
                "warnings",
            )
    if file.attrs.get(TIME_COLUMN) == "":
        told = (
            "The rows had no column of times when they were converted, so gaps between them cannot"
            " be seen: a sample may reach over one."
        )
        _add(report, "no_times", told, "warnings")


def _add_apart(report: dict[str, Any], usable: Fields, group: h5py.Group, name: str) -> None:
    """The ragged array or the packed graphs that the group stands for, if it holds together."""
    packed = is_packed(group)
    what, read = ("packed graphs", PARTS) if packed else ("a ragged array", (VALUES, OFFSETS))
    for other in sorted(set(group).difference(read)):
        _add(
            report,
            "unusable_array",
            f"'{name}/{other}' lies in the group of {what}, of which only {', '.join(read)} are"
            " read; it is left out.",
            "warnings",
        )
    array: Apart
    try:
        array = PackedArray(group, name) if packed else RaggedArray(group, name)
    except DataError as error:
        _add(report, "damaged_packed" if packed else "damaged_ragged", error.message)
        return
    if not any(
        _has_huge_chunks(report, f"{name}/{part}", one) for part, one in array.parts.items()
    ):
        usable[name] = array


def _has_huge_chunks(report: dict[str, Any], name: str, array: h5py.Dataset) -> bool:
    """Whether it has; then that is told."""
    chunk_bytes = int(np.prod(array.chunks or (0,), dtype=object)) * int(array.dtype.itemsize)
    if chunk_bytes <= MAX_CHUNK_BYTES:
        return False
    _add(
        report,
        "huge_chunks",
        f"{name!r} is stored in chunks of {chunk_bytes:,} bytes, each of which must be decoded as a"
        " whole; write it with chunks of a few MiB, or contiguous.",
    )
    return True


def _usable_columns(report: dict[str, Any], found: ArrowArrays) -> Fields:
    """Columns that can be fields; others are warned of."""
    for name, reason in found.index.left_out.items():
        _add(report, "unusable_array", f"{name!r} {reason}; it is left out.", "warnings")
    usable: Fields = {}
    for name, array in found.arrays.items():
        if array.batch_bytes > MAX_CHUNK_BYTES:
            _add(
                report,
                "huge_chunks",
                f"{name!r} lies in record batches of {array.batch_bytes:,} bytes, each of which"
                " must be read as a whole; write them with fewer rows (chunksize of"
                " write_feather).",
            )
        else:
            usable[name] = array
    return usable


def _without_nulls(report: dict[str, Any], columns: Fields) -> Fields:
    """Columns without missing values in the rows that are sampled; others are warned of."""
    usable: Fields = {}
    for name, array in columns.items():
        try:
            sampled_rows(array)
        except MissingValues as missing:
            _add(report, "unusable_array", f"{missing.message} It is left out.", "warnings")
        else:
            usable[name] = array
    return usable


def _describe(array: InRows | Apart) -> dict[str, Any]:
    shape = list(array.shape[1:])
    described: dict[str, Any] = {"shape": shape, "dtype": array.dtype.name, "lengths": None}
    described |= {"neighbours": None, "classes": None, "class_names": None}
    if isinstance(array, ArrowArray):
        return described | _describe_column(array)
    if isinstance(array, RaggedArray | PackedArray):
        return described | _describe_storage(array.values) | _describe_apart(array)
    return described | _describe_storage(array)


def _describe_apart(array: Apart) -> dict[str, Any]:
    """How many values or nodes and edges the samples have, and what all of it takes."""
    taken = sum(part.id.get_storage_size() for part in array.parts.values())
    if isinstance(array, RaggedArray):
        lengths, offsets = _lengths(array.ragged), array.ragged.offsets.nbytes
        return {"lengths": lengths, "stored_bytes": taken + offsets}
    packed = array.packed
    values = packed.edge_values
    return {
        "lengths": _lengths(packed.nodes),
        "edges": {
            **_lengths(packed.edges),
            "dtype": packed.edges.value.dtype.name,
            "shape": None if values is None else list(values.shape),
            "values_dtype": None if values is None else values.dtype.name,
        },
        "stored_bytes": taken + 2 * packed.nodes.offsets.nbytes,
    }


def _lengths(ragged: Ragged) -> dict[str, Any]:
    # A file without samples is refused; that is no reason to fail here.
    lengths = ragged.lengths if ragged.num_samples else np.zeros(1, np.int64)
    return {
        "min": int(lengths.min()),
        "mean": float(lengths.mean()),
        "std": float(lengths.std()),
        "max": int(lengths.max()),
    }


def _describe_column(array: ArrowArray) -> dict[str, Any]:
    return {
        "series_steps": None,
        "storage": "record_batches",
        "chunks": [array.index.largest_batch, *array.shape[1:]],
        "compression": None,  # pyarrow does not tell
        "stored_bytes": None,
    }


def _describe_storage(array: h5py.Dataset | WindowArray) -> dict[str, Any]:
    layouts = {
        h5py.h5d.COMPACT: "compact",
        h5py.h5d.CONTIGUOUS: "contiguous",
        h5py.h5d.CHUNKED: "chunked",
    }
    stored = array.series if isinstance(array, WindowArray) else array
    return {
        "series_steps": len(stored) if stored is not array else None,
        "horizons": horizons_of(stored),
        "storage": layouts[stored.id.get_create_plist().get_layout()],
        "chunks": list(stored.chunks) if stored.chunks else None,
        "compression": compression_of(stored),
        "stored_bytes": stored.id.get_storage_size(),
    }


def _sample_rows(report: dict[str, Any], arrays: Fields) -> None:
    """What rows from all over the file hold: NaN and infinity, scale, order, and windows that
    overlap.
    """
    overlaps: dict[str, Overlap] = {}
    breaks: dict[str, list[int] | None] = {}
    for name, array in arrays.items():
        rows = sampled_rows(_in_rows(array))
        if not any(len(part) for part in rows):
            continue
        values = describe_values(rows)
        if isinstance(array, RaggedArray | PackedArray):
            values["sorted"] = None  # its values may be, which says nothing of its samples
        report["fields"][name] |= values
        if bad := values["nonfinite_count"]:
            _add(
                report,
                "nonfinite_values",
                f"{name!r} holds {bad:,} NaN or infinite values in {values['sampled_rows']:,}"
                " sampled rows; training on them fails, so fill or remove them before this array is"
                " used. NaN in targets may stay for a recipe that leaves missing labels out, as"
                " molecule does.",
                "warnings",
            )
        if isinstance(array, RaggedArray | PackedArray):
            continue
        report["fields"][name] |= parts_of(array)
        report["fields"][name]["classes"] = classes_of(array, rows)
        if isinstance(array, h5py.Dataset):
            report["fields"][name]["class_names"] = class_names_of(array)
        report["fields"][name]["neighbours"] = neighbours_of(rows)
        if found := slides_in(array, rows):
            overlaps[name], breaks[name] = found
    report["layout"] = {
        "kind": "overlapping_windows" if overlaps else "arrays",
        "window_steps": {name: overlap.step for name, overlap in overlaps.items()},
        "overlap_ratios": {name: overlap.share for name, overlap in overlaps.items()},
        "breaks": breaks,
    }


def _in_rows(array: InRows | Apart) -> InRows:
    """What is read row by row: of a ragged array its values, of graphs their nodes."""
    return array.values if isinstance(array, RaggedArray | PackedArray) else array


def _read_probe(arrays: Fields) -> dict[str, Any] | None:
    """How fast the largest array reads, in file order; the page cache may have a part in it.
    None where a row alone is larger than the probe may be, or where all samples are empty.
    """
    array = max(map(_in_rows, arrays.values()), key=lambda a: a.size * a.dtype.itemsize)
    if row_bytes(array) > PROBE_BYTES or not array.size:
        return None
    step = max(1, PROBE_PIECE_BYTES // row_bytes(array))
    count = min(int(array.shape[0]), max(1, PROBE_BYTES // row_bytes(array)))
    buffer = np.empty((min(step, count), *array.shape[1:]), array.dtype)
    done, began = 0, time.perf_counter()
    while done < count and time.perf_counter() - began < PROBE_SECONDS:
        stop = min(done + step, count)
        array.read_direct(buffer[: stop - done], source_sel=np.s_[done:stop])
        done = stop
    seconds = time.perf_counter() - began
    read = done * row_bytes(array)
    return {"bytes": read, "seconds": seconds, "bytes_per_second": read / max(seconds, 1e-9)}


def _add(report: dict[str, Any], code: str, message: str, kind: str = "problems") -> None:
    report[kind].append(Finding(code=code, message=message))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="inspect", description="Look into a dataset.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--json", action="store_true", help="on one line instead of indented")
    options = parser.parse_args(arguments)
    try:
        report = inspect(options.path)
    except (Exception, MemoryError) as error:  # noqa: BLE001  a damaged file can raise anything
        report = {"problems": [], "warnings": []}
        _add(report, "unreadable", f"{options.path.name} cannot be read: {error!r}.")
    sys.stdout.write(json.dumps(report, indent=None if options.json else 2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
