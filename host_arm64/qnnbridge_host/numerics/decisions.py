"""Compare the decisions that a task derives from an output: classes, sides of a threshold, objects, detections.

An SNR in decibels measures how far values are off; a decision shows whether the result of the task changes. A
detector's map with an SNR of 15 dB, wrong at the edges of objects, can show the same objects; a table with 20 dB
may have lost its detections.

The columns of a table may have different scales: boxes in pixels next to scores of 0 to 1, joined by a Concat. The
large columns contain nearly all of the energy, so the SNR of the whole table reveals nothing about the small
columns. Columns of the same scale form a group, and each group is judged separately. Differences up to the noise of
the number format are ignored in small columns: most scores are nearly 0, and the sum of their noise would exceed
the few larger scores.

A detection list, with one detection in each row, also has a column of class numbers. Its columns are judged one by
one; `detection_columns` finds them. All functions are pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# A column of values up to SCORE_LIMIT contains scores. Two columns have different scales if the values of one
# column are UNLIKE times as large as those of the other, for example pixels and scores.
SCORE_LIMIT: Final = 2.0
UNLIKE: Final = 8.0
# Maximum number of columns. A longer axis is treated as an axis of positions.
MOST_COLUMNS: Final = 1024
# Minimum number of rows of an output that is split into columns.
FEWEST_ROWS: Final = 16
# Maximum number of axes of a table. An output with more axes is a map, whose channels may differ in magnitude; it
# is split only if all large columns are adjacent.
_TABLE_NDIM: Final = 3


# values: coordinates and other measured values; score: 0 to 1; class: integers.
ColumnKind = Literal["values", "score", "class"]


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Columns of an output that have the same scale.

    Args:
        axis: axis of the output.
        numbers: indices of the columns along the axis, ascending.
        largest: largest magnitude in the columns.
        kind: meaning of the values.
    """

    axis: int
    numbers: tuple[int, ...]
    largest: float
    kind: ColumnKind = "values"

    def __str__(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        if first == last:
            where = f"column {first}"
        elif last - first + 1 == len(self.numbers):
            where = f"columns {first} to {last}"
        else:
            where = f"{len(self.numbers)} columns from {first} to {last}"
        return f"{where} of axis {self.axis}"

    def of(self, values: Array) -> Array:
        """Return these columns of an array, as an array of shape [rows, columns]."""
        moved = np.moveaxis(values, self.axis, -1)
        return moved.reshape(-1, moved.shape[-1])[:, list(self.numbers)].astype(np.float64)


def unlike_columns(values: Array, leading: int = 0) -> tuple[Columns, ...]:
    """Return the large and the small columns of an output; an empty result if all columns have the same scale.

    Args:
        values: values of the output on the CPU.
        leading: number of leading axes that count samples; `Columns.axis` includes them.
    """
    ndim = values.ndim - leading
    if values.dtype.kind != "f" or ndim < 2 or not values.size:
        return ()
    # The first of three or more axes is the batch, not columns.
    for axis in range(leading + (ndim > 2), values.ndim):
        size = values.shape[axis]
        if not 2 <= size <= MOST_COLUMNS or values.size // size < FEWEST_ROWS:
            continue
        others = tuple(other for other in range(values.ndim) if other != axis)
        peaks: Array = np.abs(values).max(axis=others).astype(np.float64)
        if not np.isfinite(peaks).all():
            continue
        large: Array = np.greater(peaks, SCORE_LIMIT)
        runs = int(np.count_nonzero(large[1:] != large[:-1]))
        if runs < 1 or (runs > 1 and ndim > _TABLE_NDIM):
            continue
        small_peak = float(peaks[~large].max())
        if small_peak > 0.0 and float(peaks[large].min()) >= UNLIKE * small_peak:
            return tuple(
                Columns(axis, tuple(map(int, np.flatnonzero(mine))), float(peaks[mine].max()))
                for mine in (large, ~large)
            )
    return ()


# Minimum and maximum number of columns of a detection list: a box, a score, a class; some lists also have the
# number of the image or an angle.
_LEAST_LIST, _MOST_LIST = 5, 8
_BOX: Final = 4
# Minimum number of columns with fractions: a box has four coordinates, and one of them may be an integer at the
# image's border.
_LEAST_MEASURED: Final = 3
# Minimum number of rows: fewer scores may be in falling order by chance.
SORTED_ROWS: Final = 8
# A column contains scores if most of its values are nearly 0: this fraction of the values is below `_SEEN` times
# the largest value, or all values are below `_SEEN`.
_SPARSE: Final = 0.8
_SEEN: Final = 0.1


def detection_columns(expected: Array, found: Array) -> tuple[Columns, ...]:
    """Return each column of a detection list with its meaning; an empty result if the output is not such a list.

    A list has five to eight columns in the last axis: measured values, and a column of integers (the class) or of
    scores by which the rows are sorted. Axes before the rows have size 1.
    """
    if expected.dtype.kind != "f" or expected.ndim < 2 or not expected.size:
        return ()
    if not _LEAST_LIST <= expected.shape[-1] <= _MOST_LIST or any(size > 1 for size in expected.shape[:-2]):
        return ()
    mine, theirs = (side.reshape(-1, side.shape[-1]).astype(np.float64) for side in (expected, found))
    low, high = mine.min(axis=0), mine.max(axis=0)
    within = (low >= 0.0) & (high <= 1.0)
    whole: Array = (mine == np.rint(mine)).all(axis=0)
    # Check both results, because in one of them a coordinate at the border may be exactly 0, or a saturated score
    # exactly 1.
    whole &= (theirs == np.rint(theirs)).all(axis=0)
    falls = _falling(mine) & within & ~whole
    classes = whole & (np.maximum(high, theirs.max(axis=0)) >= 1.0)
    if len(mine) < SORTED_ROWS:
        falls &= False
    if int(np.count_nonzero(~whole)) < _LEAST_MEASURED or not (classes.any() or falls.any()):
        return ()
    # Columns in 0 to 1 by which the rows are sorted are scores. Without such columns, a single fractional column in
    # 0 to 1 is the score; several such columns may be coordinates.
    scores = falls if falls.any() else within & ~whole
    if int(np.count_nonzero(scores)) > 1:
        scores = falls
    largest = np.abs(mine).max(axis=0)
    kinds: list[ColumnKind] = [
        "class" if whole[number] else "score" if scores[number] else "values" for number in range(mine.shape[1])
    ]
    return tuple(Columns(expected.ndim - 1, (n,), float(largest[n]), kind) for n, kind in enumerate(kinds))


def _falling(rows: Array) -> Array:
    """Return for each column whether it falls and never rises from row to row."""
    return np.asarray((np.diff(rows, axis=0) <= 0).all(axis=0) & (rows[0] > rows[-1]))


def normalised_columns(values: Array) -> tuple[Columns, ...]:
    """Return the coordinate and score columns of a detector with coordinates in 0 to 1; empty for other outputs.

    Most scores are nearly 0 and coordinates are spread, so a common SNR reveals little about the scores.
    """
    if values.dtype.kind != "f" or values.ndim not in (2, 3) or not values.size:
        return ()
    if float(values.min()) < 0.0 or float(values.max()) > SCORE_LIMIT:
        return ()
    for axis in range(values.ndim - 2, values.ndim):
        size = values.shape[axis]
        if not _LEAST_LIST <= size <= MOST_COLUMNS or values.size // size < FEWEST_ROWS:
            continue
        rows = np.moveaxis(values, axis, -1).reshape(-1, size)
        high = rows.max(axis=0)
        sparse: Array = (high < _SEEN) | (np.mean(rows < _SEEN * high, axis=0) >= _SPARSE)
        dense = np.flatnonzero(~sparse)
        if len(dense) != _BOX or int(dense[-1] - dense[0]) != _BOX - 1 or float(high[sparse].max()) > 1.0:
            continue
        groups = (dense, np.flatnonzero(sparse))
        kinds: tuple[ColumnKind, ColumnKind] = ("values", "score")
        return tuple(
            Columns(axis, tuple(map(int, group)), float(high[group].max()), kind)
            for group, kind in zip(groups, kinds, strict=True)
        )
    return ()


# Allowed error of a value, relative to the range of the output.
OFF_OF_RANGE: Final = 0.05
# A probability map has axes of at least `_MAP_AXIS`, and at least the fraction `_DECIDED` of its values is within
# `_NEAR` of 0 or 1.
_MAP_AXIS: Final = 16
_NEAR: Final = 0.1
_DECIDED: Final = 0.9
# Thresholds that programs apply to probability maps: 0.3 for text detectors, 0.5 for most others.
_CUTS: Final = (0.3, 0.5)
# `_SAME_OBJECT`: minimum overlap of boxes of the same object. `_THINNEST`: minimum width and height of an object;
# programs that use probability maps ignore smaller objects.
_SAME_OBJECT: Final = 0.7
_THINNEST: Final = 3
_MOST_RUNS: Final = 20_000
_MOST_OBJECTS: Final = 2_000
# `_CLASS_SHARE`: fraction of a segmentation's pixels below which a class is ignored. `_SAME_REGION`: minimum
# overlap of the regions of a class.
_CLASS_SHARE: Final = 1e-3
_SAME_REGION: Final = 0.8
_SUM_OF_ONE: Final = 0.02
# Minimum score at which programs use a detection (0.2 to 0.3). A score within `_CLOSE` of this limit may be on
# either side of the limit.
CONFIDENT: Final = 0.25
_CLOSE: Final = 0.05
# Allowed change of a detection's score. A larger change is an error, because programs rank detections by score and
# have their own thresholds.
SCORE_MOVES: Final = 0.1
# Largest difference of two class numbers that count as equal.
HALF: Final = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of one type.

    Args:
        what: name of the decisions, in the plural.
        count: number of decisions in the CPU's values.
        same: share of decisions that agree.
    """

    what: str
    count: int
    same: float

    @property
    def all_same(self) -> bool:
        return self.count > 0 and self.same == 1.0

    def __str__(self) -> str:
        return f"{self.same:.1%} of {self.count} {self.what} are the same"


def classes(expected: Array, found: Array, noise: float) -> float | None:
    """Return the fraction of rows with the largest value at the same position in both results. A position with a
    value that is nearly as large counts, too.

    Images have their classes in the second axis, other outputs in the last. noise: values that are closer than this
    count as equal.
    """
    axis = 1 if expected.ndim >= 4 else expected.ndim - 1
    if expected.ndim == 0 or expected.shape[axis] < 2:
        return None
    a = np.moveaxis(expected, axis, -1).reshape(-1, expected.shape[axis]).astype(np.float64)
    b = np.moveaxis(found, axis, -1).reshape(a.shape)
    rows = np.arange(len(a))
    best = a.max(axis=1)
    chosen = a[rows, b.argmax(axis=1)]
    spread = best - a.min(axis=1)
    return float(np.mean(chosen >= best - np.maximum(OFF_OF_RANGE * spread, noise)))


def sides(expected: Array, found: Array) -> float | None:
    """Return the fraction of probabilities that stay on the same side of 0.5, without those near 0.5; None if all
    are on one side."""
    if float(expected.min()) < 0.0 or float(expected.max()) > 1.0:
        return None
    above = expected >= 0.5
    clear = np.abs(expected.astype(np.float64) - 0.5) > OFF_OF_RANGE
    if not clear.any() or above.all() or not above.any():
        return None
    return float(np.mean((found >= 0.5)[clear] == above[clear]))


def picture_decisions(expected: Array, found: Array) -> Decisions | None:
    """Compare objects of a probability map, or regions of a segmentation. Return None if the output is neither."""
    if expected.ndim < 3 or min(expected.shape[-2:]) < _MAP_AXIS:
        return None
    low, high = float(expected.min()), float(expected.max())
    if not 0.0 <= low < _CUTS[0] or not _CUTS[-1] < high <= 1.0:
        return None
    if float(found.min()) < low - _NEAR or float(found.max()) > high + _NEAR:
        return None
    decided = np.mean((expected <= _NEAR) | (expected >= 1 - _NEAR))
    if float(decided) < _DECIDED:
        return None
    if expected.ndim == 4 and expected.shape[1] > 1:
        sums = expected.astype(np.float64).sum(axis=1)
        return _regions(expected, found) if float(np.abs(sums - 1.0).max()) < _SUM_OF_ONE else None
    maps = [side.reshape(-1, *side.shape[-2:]) for side in (expected, found)]
    count, same = 0, 1.0
    for cut in _CUTS:
        boxes = [[_objects(one >= cut) for one in side] for side in maps]
        total = kept = 0
        for mine, theirs in zip(*boxes, strict=True):
            if mine is None or theirs is None:
                return None
            # Count the larger number, so that an object without a counterpart is a changed decision.
            total += max(len(mine), len(theirs))
            kept += _paired(mine, theirs)
        count = max(count, total)
        same = min(same, kept / total if total else 1.0)
    return Decisions("objects", count, same) if count else None


def detections(expected: Array, found: Array, columns: Sequence[Columns]) -> Decisions | None:
    """Compare the rows with a relevant score in a table of boxes and scores.

    A row agrees if its score is relevant in both results, with the same class and nearly the same score and box.
    Return None if no columns are scores, or no row has a relevant score.

    Args:
        expected: values on the CPU.
        found: values of the other computation.
        columns: column groups of the table; if their meaning is unknown, the last group may be scores.
    """
    scores = [one for one in columns if one.kind == "score"] or [columns[-1]]
    if len(scores) > 1 or scores[0].kind == "class":
        return None
    mine, theirs = scores[0].of(expected), scores[0].of(found)
    if float(mine.min()) < 0.0 or float(mine.max()) > 1.0:
        return None
    best, other = mine.max(axis=1), theirs.max(axis=1)
    rows = np.flatnonzero((best >= CONFIDENT + _CLOSE) | (other >= CONFIDENT + _CLOSE))
    if not len(rows):
        return None
    counts = (best[rows] >= CONFIDENT - _CLOSE) & (other[rows] >= CONFIDENT - _CLOSE)
    chosen = mine[rows, theirs[rows].argmax(axis=1)]
    same = counts & (chosen >= best[rows] - _CLOSE) & (np.abs(best[rows] - other[rows]) <= SCORE_MOVES)
    # Compare all scores: if there is a score column for each class, the best score alone would ignore the class.
    counted = np.maximum(mine[rows], theirs[rows]) >= CONFIDENT - _CLOSE
    same &= ~(counted & (np.abs(mine[rows] - theirs[rows]) > SCORE_MOVES)).any(axis=1)
    largest = max((one.largest for one in columns if one.kind == "values"), default=0.0)
    for group in columns:
        if group in scores:
            continue
        values = group.of(expected)
        gap = np.abs(values[rows] - group.of(found)[rows])
        # A coordinate near 0 may be off by as much as larger coordinates.
        extent = largest if len(group.numbers) == 1 else np.abs(values).max(axis=0)
        most = HALF if group.kind == "class" else OFF_OF_RANGE * extent
        same &= (gap <= most).all(axis=1)
    return Decisions("detections", len(rows), float(same.mean()))


def _regions(expected: Array, found: Array) -> Decisions | None:
    """Compare the regions of those classes of a segmentation that cover enough pixels."""
    mine, theirs = expected.argmax(axis=1), found.argmax(axis=1)
    wanted = [one for one in range(expected.shape[1]) if float(np.mean(mine == one)) >= _CLASS_SHARE]
    if len(wanted) < 2:
        return None
    overlaps = [
        np.count_nonzero((mine == one) & (theirs == one)) / np.count_nonzero((mine == one) | (theirs == one))
        for one in wanted
    ]
    return Decisions("regions", len(wanted), float(np.mean(np.asarray(overlaps) >= _SAME_REGION)))


def _objects(mask: Array) -> Array | None:
    """Return the bounding boxes of connected pixels: top, left, bottom, right, the last two exclusive.

    Return None for noise, which has too many objects.
    """
    # Pad each line with zeros on both sides, so that a run at the border has a start and an end too.
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    if len(starts) > _MOST_RUNS:
        return None
    # Union-find over the runs of each line, which are far fewer than the pixels.
    leader = list(range(len(starts)))

    def leader_of(run: int) -> int:
        while leader[run] != run:
            # Halve the path, so that later searches are short.
            leader[run] = leader[leader[run]]
            run = leader[run]
        return run

    line = np.searchsorted(starts[:, 0], np.arange(len(mask) + 1)) if len(starts) else np.zeros(len(mask) + 1, int)
    for row in range(1, len(mask)):
        above, here = int(line[row - 1]), int(line[row])
        while above < line[row] and here < line[row + 1]:
            # Pixels that touch at a corner are connected, too.
            if starts[above, 1] <= ends[here, 1] and starts[here, 1] <= ends[above, 1]:
                leader[leader_of(here)] = leader_of(above)
            # Advance past the run that ends first: this run touches no later run of the adjacent row.
            if ends[above, 1] < ends[here, 1]:
                above += 1
            else:
                here += 1
    boxes: dict[int, list[int]] = {}
    for run, ((row, left), (_, right)) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        box = boxes.setdefault(leader_of(run), [row, left, row + 1, right])
        box[:] = [min(box[0], row), min(box[1], left), max(box[2], row + 1), max(box[3], right)]
    found = np.asarray(list(boxes.values()), np.int64).reshape(-1, 4)
    thick = (found[:, 2] - found[:, 0] >= _THINNEST) & (found[:, 3] - found[:, 1] >= _THINNEST)
    return found[thick] if np.count_nonzero(thick) <= _MOST_OBJECTS else None


def _paired(mine: Array, theirs: Array) -> int:
    """Return how many boxes have a counterpart in the other result."""
    # Greedy matching: each box is matched with the free box that it overlaps most.
    free = np.ones(len(theirs), bool)
    pairs = 0
    for box in mine:
        sizes = np.minimum(box[2:], theirs[:, 2:]) - np.maximum(box[:2], theirs[:, :2])
        common = np.maximum(sizes, 0).prod(axis=1)
        both = (box[2:] - box[:2]).prod() + (theirs[:, 2:] - theirs[:, :2]).prod(axis=1) - common
        overlap = np.where(free, common / np.maximum(both, 1), 0.0)
        if len(overlap) and float(overlap.max()) >= _SAME_OBJECT:
            free[int(overlap.argmax())] = False
            pairs += 1
    return pairs
