"""What the values of an array tell, by rows from all over it: scale, order, overlapping windows."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from app.planning.arithmetic import GROUP_BUCKETS, PartSizes
from worker.trainer.data.formats.arrow_index import MissingValues
from worker.trainer.data.formats.arrow_source import ArrowArray
from worker.trainer.data.formats.window_files import WindowArray, Windows
from worker.trainer.data.groups import fields_of_groups, group_buckets
from worker.trainer.data.split import first_that_is_no_part
from worker.trainer.errors import DataError

# Bounds of what is looked at, so that inspecting a huge file takes seconds.
SAMPLE_BYTES = 16 * 2**20
# Values that are turned into float64 at once.
PIECE_VALUES = 2**20
# Windows of several series (months, stations) break the overlap where one ends.
OVERLAPPING_SHARE = 0.9
# Where a series ends is looked for in all rows, for so long, and so many ends are told.
BREAKS_SECONDS, MOST_BREAKS = 10.0, 1_000
# How long all samples are looked at for which part they belong to.
PARTS_SECONDS = 10.0
# How long all samples are looked at for their classes, the most classes that are told apart, and
# the share of the file that a stretch without a class has at least.
CLASSES_SECONDS, MOST_CLASSES, ABSENT_SHARE = 10.0, 64, 0.01
# How long fields are looked at for the groups that they name.
GROUPS_SECONDS = 5.0
# Of two neighbours, places where the second may begin in the first; and so many pairs are asked.
TRIED_PLACES, ASKED_PAIRS = 32, 16
# Rows that share less may only begin and end alike: words between the same marks, framed pictures.
LEAST_SHARED, LEAST_SHARED_STEPS = 0.1, 3

# Values of a row that are compared with those of its neighbours, and the fewest blocks whose means
# say how much these differ.
COMPARED_VALUES, LEAST_BLOCKS = 16, 16

Parts = list[NDArray[Any]]
InRows: TypeAlias = h5py.Dataset | WindowArray | ArrowArray


@dataclass(frozen=True)
class Overlap:
    """By how many steps each row is moved on from the one before, or back; `share`: of the rows
    looked at, those that are."""

    step: int
    share: float
    backward: bool = False


def sampled_rows(array: h5py.Dataset) -> Parts:
    """Four ranges of rows spread over the array from its first to its last, SAMPLE_BYTES in all,
    each of at least 2 rows and apart from the others; one of all rows where they are no more; none
    where a row alone is too large to look at.
    """
    return [array[start:stop] for start, stop in sample_bounds(array)]


def sample_bounds(array: h5py.Dataset) -> list[tuple[int, int]]:
    """Where those ranges begin and end."""
    count = int(array.shape[0])
    if row_bytes(array) > SAMPLE_BYTES:
        return []
    length = max(2, SAMPLE_BYTES // 4 // row_bytes(array))
    if count <= 4 * length:
        return [(0, count)]
    starts = np.linspace(0, count - length, 4).astype(int).tolist()
    return [(start, start + length) for start in starts]


def row_bytes(array: h5py.Dataset) -> int:
    return int(np.prod(array.shape[1:], dtype=object)) * int(array.dtype.itemsize)


def describe_values(rows: Parts) -> dict[str, Any]:
    """As JSON for the field that the rows are of; sampled_rows, nonfinite_count, mean, std, sorted.

    The deviation is that of all finite values; null where there is none, or too large a one.
    """
    mean, std = _moments(rows)
    return {
        "sampled_rows": sum(len(part) for part in rows),
        "nonfinite_count": sum(int((~np.isfinite(part)).sum()) for part in rows),
        "mean": mean,
        "std": std,
        "sorted": _is_sorted(rows),
    }


def neighbours_of(rows: Parts) -> dict[str, Any] | None:
    """Returns the likeness of rows that lie close together, as JSON of the model `Neighbours`.

    The figures are means over several values of a row, COMPARED_VALUES at most. None where no value
    varies, or where fewer than 2 × LEAST_BLOCKS rows were looked at.
    """
    parts = _standardized(rows)
    sampled = sum(len(part) for part in rows)
    if not parts or sampled < 2 * LEAST_BLOCKS:
        return None
    found: dict[str, Any] = {"distances": [], "correlations": [], "shares": []}
    means, distance = parts, 1
    while sum(len(part) for part in means) >= LEAST_BLOCKS:
        pairs = [(part[:-distance], part[distance:]) for part in parts if len(part) > distance]
        if not pairs:
            break
        products = sum(float(np.vdot(one, other)) for one, other in pairs)
        found["distances"].append(distance)
        found["correlations"].append(products / sum(one.size for one, _ in pairs))
        found["shares"].append(
            sum(float(np.square(part).sum()) for part in means) / sum(part.size for part in means)
        )
        means = [np.float32(0.5) * (part[0 : len(part) & -2 : 2] + part[1::2]) for part in means]
        distance *= 2
    return found


def _standardized(rows: Parts) -> list[NDArray[np.float32]]:
    """Some values of each row, (rows, values), shifted and scaled to mean 0 and deviation 1 over
    all rows; what is not finite becomes 0. Values that do not vary are left out.
    """
    width = int(np.prod(rows[0].shape[1:], dtype=np.int64))
    chosen = np.unique(np.linspace(0, width - 1, min(width, COMPARED_VALUES)).astype(int))
    some = [part.reshape(len(part), -1)[:, chosen] for part in rows]
    with np.errstate(over="ignore", invalid="ignore"):
        finite = sum(np.isfinite(piece).sum(axis=0) for piece in _row_pieces(some))
        sums = sum(_finite_or_0(piece).sum(axis=0) for piece in _row_pieces(some))
        mean = sums / np.maximum(1, finite)
        squares = sum(
            np.square(_finite_or_0(piece - mean)).sum(axis=0) for piece in _row_pieces(some)
        )
        std = np.sqrt(squares / np.maximum(1, finite))
        # Sums of equal numbers are rounded: 5,000 times 0.1 have a deviation of 1e-17.
        varies = np.isfinite(std) & (std > 1e-9 * np.abs(mean))
        if not varies.any():
            return []
        return [
            np.concatenate([
                _finite_or_0((piece - mean)[:, varies] / std[varies]).astype(np.float32)
                for piece in _row_pieces([part])
            ])
            for part in some
        ]  # fmt: skip


def _row_pieces(parts: Parts) -> Iterator[NDArray[np.float64]]:
    """All rows, a piece at a time as float64: a file's labels may be many."""
    for part in parts:
        step = max(1, PIECE_VALUES // max(1, part.shape[1]))
        for start in range(0, len(part), step):
            yield part[start : start + step].astype(np.float64)


def _finite_or_0(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, 0.0)


def slides_in(
    array: h5py.Dataset | WindowArray, rows: Parts
) -> tuple[Overlap, list[int] | None] | None:
    """How the rows of an array, of which `rows` are some, slide over one series, and the breaks
    (`breaks_of`) in it. None: they do not overlap.
    """
    if isinstance(array, WindowArray):
        kept = _overlap_in(array.windows)
        return None if kept is None else (kept, _breaks_in(array.windows))
    overlap = overlap_of(rows)
    return None if overlap is None else (overlap, breaks_of(array, overlap))


def _overlap_in(windows: Windows) -> Overlap | None:
    """Of windows that are kept as their series: by where they begin."""
    moved = np.diff(windows.starts)
    steps = np.abs(moved[(moved != 0) & (np.abs(moved) < windows.length)])
    if not len(steps):
        return None
    sizes, counts = np.unique(steps, return_counts=True)
    most = int(counts.argmax())
    share = float(counts[most] / np.count_nonzero(moved))
    return Overlap(int(sizes[most]), share, backward=bool(moved.sum() < 0))


def _breaks_in(windows: Windows) -> list[int] | None:
    """Windows that begin further from the one before than they are long. None: too many."""
    found = np.flatnonzero(np.abs(np.diff(windows.starts)) > windows.length) + 1
    return found.tolist() if len(found) <= MOST_BREAKS else None


def overlap_of(rows: Parts) -> Overlap | None:
    """How the rows are windows that slide over one series, forth or back; None: they are not."""
    if rows[0].ndim < 2 or rows[0].shape[1] < 2:
        return None
    same = [same_bits(part) for part in rows]
    forward = _overlap_of_next(same)
    if forward is not None:
        return forward
    backward = _overlap_of_next([part[::-1] for part in same])
    return replace(backward, backward=True) if backward is not None else None


def same_bits(part: NDArray[Any]) -> NDArray[Any]:
    """The same rows, of which a NaN is equal to itself, and 0 not to -0."""
    is_float = np.issubdtype(part.dtype, np.floating)
    return part.view(f"u{part.dtype.itemsize}") if is_float else part


def _overlap_of_next(rows: Parts) -> Overlap | None:
    pairs = [(part[i], part[i + 1]) for part in rows for i in _spread(len(part) - 1, len(rows))]
    steps = Counter(step for pair in pairs if (step := _step_between(*pair)) is not None)
    if not steps:
        return None
    [(step, _)] = steps.most_common(1)
    share = float(np.mean(np.concatenate([_moved_on(part, step) for part in rows])))
    return Overlap(step, share) if share > OVERLAPPING_SHARE else None


def breaks_of(array: h5py.Dataset, overlap: Overlap) -> list[int] | None:
    """Rows that share no step with the row before: there another series begins, such as that of
    another month or station. None: they are too many, or to look at all rows takes too long.
    """
    deadline, step = time.monotonic() + BREAKS_SECONDS, overlap.step
    at_once = max(2, SAMPLE_BYTES // row_bytes(array))
    found: list[int] = []
    for begin in range(0, int(array.shape[0]) - 1, at_once):
        if time.monotonic() > deadline:
            return None
        rows = same_bits(array[begin : begin + at_once + 1])
        before, after = (rows[1:], rows[:-1]) if overlap.backward else (rows[:-1], rows[1:])
        inner = tuple(range(1, rows.ndim - 1))
        goes_on = (before[:, step] == after[:, 0]).all(axis=inner)
        found += [
            begin + row + 1
            for row in np.flatnonzero(~goes_on).tolist()
            if not (before[row] == after[row][:1]).all(axis=inner).any()
        ]
        if len(found) > MOST_BREAKS:
            return None
    return found


def parts_of(array: h5py.Dataset) -> dict[str, Any]:
    """`parts` of an array that says 0, 1 or 2 of each sample, `not_a_part` of another with one
    whole number a sample; see DatasetField. Nothing of others, or if to look takes too long.
    """
    if len(array.shape) != 1 or array.dtype.kind not in "biu":
        return {}
    deadline, at_once = time.monotonic() + PARTS_SECONDS, SAMPLE_BYTES // row_bytes(array)
    counts = np.zeros(len(PartSizes._fields), np.int64)
    changes: list[int] = []
    last = None
    for begin in range(0, int(array.shape[0]), at_once):
        if time.monotonic() > deadline:
            return {}
        values = array[begin : begin + at_once]
        if (stray := first_that_is_no_part(values)) is not None:
            return {"not_a_part": {"sample": begin + stray, "value": int(values[stray])}}
        counts += np.bincount(values.astype(np.int64), minlength=len(counts))
        before = np.concatenate((values[:1] if last is None else last, values[:-1]))
        others = np.flatnonzero(values != before)
        changes += (begin + others[: MOST_BREAKS + 1 - len(changes)]).tolist()
        last = values[-1:]
    told = changes if len(changes) <= MOST_BREAKS else None
    return {"parts": PartSizes(*counts.tolist())._asdict() | {"changes": told}}


def classes_of(array: InRows, rows: Parts) -> list[dict[str, Any]] | None:
    """Returns what DatasetField.classes says of an array with one number a sample.

    None if it has other numbers than MOST_CLASSES whole ones, of which `rows` are some, or if
    reading all samples takes too long. NaN is a missing label.
    """
    if math.prod(array.shape[1:]) != 1 or not all(_may_be_classes(part) for part in rows):
        return None
    deadline, at_once = time.monotonic() + CLASSES_SECONDS, SAMPLE_BYTES // row_bytes(array)
    samples = int(array.shape[0])
    found: dict[int, _Occurrences] = {}
    for begin in range(0, samples, at_once):
        try:
            values = array[begin : begin + at_once].reshape(-1)
        except MissingValues:
            return None
        if time.monotonic() > deadline or not _may_be_classes(values):
            return None
        for label in _labels(values):
            at = begin + np.flatnonzero(values == label)
            found.setdefault(label, _Occurrences(samples)).add(at)
        if len(found) > MOST_CLASSES:
            return None
    return [{"label": label} | found[label].as_json() for label in sorted(found)]


def _may_be_classes(values: NDArray[Any]) -> bool:
    kind = values.dtype.kind
    if kind == "f":
        values = values[~np.isnan(values)]
    whole = kind in "biu" or (kind == "f" and bool((values == np.floor(values)).all()))
    return whole and (not values.size or (values.min() >= 0 and values.max() < 2**31))


def _labels(values: NDArray[Any]) -> list[int]:
    """The different labels, or MOST_CLASSES and one more of them."""
    labels = np.unique(values)
    if labels.dtype.kind == "f":
        labels = labels[~np.isnan(labels)]
    return [int(label) for label in labels[: MOST_CLASSES + 1]]


class _Occurrences:
    """Counts the samples of one class, and finds the stretches of the file that lack it."""

    def __init__(self, samples: int) -> None:
        self._file_samples = samples
        self._samples, self._last = 0, -1
        self._absent: list[tuple[int, int]] = []

    def add(self, rows: NDArray[np.int64]) -> None:
        """Adds the next rows of the class, ascending."""
        self._add_absent(np.append(self._last, rows))
        self._samples, self._last = self._samples + len(rows), int(rows[-1])

    def as_json(self) -> dict[str, Any]:
        self._add_absent(np.array([self._last, self._file_samples]))
        return {"samples": self._samples, "absent": self._absent}

    def _add_absent(self, places: NDArray[np.int64]) -> None:
        long = np.flatnonzero(np.diff(places) - 1 >= max(1, ABSENT_SHARE * self._file_samples))
        begins, ends = (places[long] + 1).tolist(), places[long + 1].tolist()
        self._absent += zip(begins, ends, strict=True)


def groups_of(path: Path, samples: int) -> dict[str, dict[str, Any]]:
    """Of fields that can say the group of each sample: `groups`, how many samples each bucket of
    groups has, and `group_changes`; see DatasetLayout. Without those that to look at took too long,
    or that lack some.
    """
    deadline = time.monotonic() + GROUPS_SECONDS
    found: dict[str, dict[str, Any]] = {"groups": {}, "group_changes": {}}
    for field in fields_of_groups(path):
        counts, begins = np.zeros(GROUP_BUCKETS, np.int64), list[tuple[int, int]]()
        last = GROUP_BUCKETS  # of none
        try:
            for piece in group_buckets(path, field):
                others = np.flatnonzero(np.diff(piece, prepend=np.uint8(last)))
                others = others[: MOST_BREAKS + 1 - len(begins)]
                places = (int(counts.sum()) + others).tolist()
                begins += zip(places, piece[others].tolist(), strict=True)
                counts += np.bincount(piece, minlength=GROUP_BUCKETS)
                last = int(piece[-1])
                if time.monotonic() > deadline:
                    return found
        except DataError:
            continue
        if counts.sum() == samples:
            found["groups"][field] = counts.tolist()
            found["group_changes"][field] = begins if len(begins) <= MOST_BREAKS else None
    return found


def _spread(count: int, parts: int) -> list[int]:
    """Some of the numbers below `count`, from all over them."""
    asked = min(count, ASKED_PAIRS // parts)
    return np.linspace(0, count - 1, asked).astype(int).tolist() if asked > 0 else []


def _step_between(row: NDArray[Any], following: NDArray[Any]) -> int | None:
    """The least number of steps by which `following` is `row` moved on; None: it is not, or the
    row repeats itself, as hours of the day do, and so cannot tell.
    """
    if _place_in(row, row) is not None:
        return None
    return _place_in(row, following)


def _place_in(row: NDArray[Any], other: NDArray[Any]) -> int | None:
    """The first step of `row`, behind its own first, at which `other` begins and goes on to the
    end of `row`; None where it shares too little with it.
    """
    length = len(row)
    last = max(1, length - max(LEAST_SHARED_STEPS, round(LEAST_SHARED * length)))
    inner = tuple(range(1, row.ndim))
    places = np.flatnonzero((row[1 : last + 1] == other[:1]).all(axis=inner)) + 1
    for step in places[:TRIED_PLACES].tolist():
        if (row[step:] == other[: length - step]).all():
            return int(step)
    return None


def _moved_on(part: NDArray[Any], step: int) -> NDArray[np.bool_]:
    """For each row but the last that is not as the next, whether the next is it, moved on."""
    inner = tuple(range(1, part.ndim))
    moved = (part[1:, :-step] == part[:-1, step:]).all(axis=inner)
    differs = (part[1:] != part[:-1]).any(axis=inner)
    return np.asarray(moved[differs])


def _moments(rows: Parts) -> tuple[float | None, float | None]:
    """(mean, standard deviation) of the finite values; None where there is none, or too large a
    one to square.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        count = sum(len(piece) for piece in _finite_pieces(rows))
        mean = sum(float(piece.sum()) for piece in _finite_pieces(rows)) / max(count, 1)
        squares = sum(float(np.square(piece - mean).sum()) for piece in _finite_pieces(rows))
    if not count or not math.isfinite(squares):
        return None, None
    return mean, math.sqrt(squares / count)


def _finite_pieces(rows: Parts) -> Iterator[NDArray[np.float64]]:
    for part in rows:
        flat = part.reshape(-1)
        for start in range(0, flat.size, PIECE_VALUES):
            piece = flat[start : start + PIECE_VALUES].astype(np.float64)
            yield piece[np.isfinite(piece)]


def _is_sorted(rows: Parts) -> bool:
    """Whether the rows never fall, or never rise, along the file: by their value, or by their mean
    where they have many.

    Equal neighbours do not count against it, so few labels are seen as well as many. Rows that are
    all equal are in no order: the first and the last of the file are among them, so nothing else
    can lie between in a sorted one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        each = [part.reshape(len(part), -1).mean(axis=1, dtype=np.float64) for part in rows]
    means = np.concatenate(each)
    steps = np.diff(means[np.isfinite(means)])
    return bool(steps.any() and ((steps >= 0).all() or (steps <= 0).all()))
