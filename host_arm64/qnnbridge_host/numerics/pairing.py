"""Judge all outputs of a run, after pairing the rows of detection lists.

A model sorts such rows by a score (TopK), the best first. If scores are closer than the number format resolves, the
order of the rows changes, but not the result. So rows are paired by content before they are judged. Rows at the end
whose scores are equally close to the last score may be different detections in the two results, so they are
excluded. If no row has a score above the noise in either result, nothing is detected: the rows are arbitrary, and
all are excluded. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from qnnbridge_host.numerics.decisions import CONFIDENT, SCORE_MOVES, SORTED_ROWS
from qnnbridge_host.numerics.judge import LIMITS, SILENT, NumberFormat, NumberLimits, beyond_noise, judge, snr_db
from qnnbridge_protocol.model_records import JudgedNumbers

Array = npt.NDArray[Any]

# Minimum and maximum number of rows: fewer rows may be sorted by chance; more rows are not detections.
_FEWEST: Final = 4
_MOST: Final = 2048
# Maximum number of columns of a table with scores. An output with more columns is a map.
_MOST_COLUMNS: Final = 256
# Maximum number of columns of a detection list, and number of columns of a box.
_MOST_LIST: Final = 8
_BOX: Final = 4
_TINY: Final = 1e-30
# A value of a row may be off by this fraction of the largest value in its column.
_OF_LARGEST: Final = 0.05
# Allowed difference of two scores, as a multiple of the error of one score.
_BOTH: Final = 2.0


def paired(
    expected: Sequence[Any], found: Sequence[Any], number_format: NumberFormat
) -> tuple[list[Any], list[Any]]:
    """Return all outputs of a run, with the rows of outputs that are sorted by a common score paired.

    Outputs that are not sorted, or have the CPU's order, are returned unchanged.

    Args:
        expected: outputs of the CPU.
        found: outputs of the other computation.
        number_format: format of the other computation.
    """
    mine, theirs = list(expected), list(found)
    for group, lead in _groups(mine, theirs):
        tables = [(_rows(mine[number], lead), _rows(theirs[number], lead)) for number in group]
        whole = [mine[number].dtype.kind != "f" for number in group]
        score = _score([table[0] for table in tables]) or _zero_score([table[0] for table in tables], whole)
        if score is None:
            continue
        scores = (tables[score[0]][0][..., score[1]], tables[score[0]][1][..., score[1]])
        limits = LIMITS[number_format]
        is_list = _is_list([table[0] for table in tables], score[0])
        # For probabilities, assume at least the noise of the number format: near 0 the observed differences may be
        # smaller.
        probable = is_list and float(scores[0].min()) >= 0.0 and float(scores[0].max()) <= 1.0
        error = limits.noise if probable else 0.0
        least = CONFIDENT if probable else 0.0
        error = max(error, _BOTH * float(np.abs(scores[0] - scores[1]).max()))
        if is_list and _nothing_detected(*scores, limits):
            pairs: list[tuple[list[int], list[int]]] = [([], []) for _ in range(len(scores[0]))]
        # If the sorted scores differ, the results differ, not only the order of the rows. Pairing would hide the
        # error.
        elif not _near(*scores, limits):
            continue
        else:
            pairs = [
                _pairs(
                    scores[0][batch],
                    scores[1][batch],
                    [(a[batch], b[batch]) for a, b in tables],
                    whole,
                    error,
                    least,
                )
                for batch in range(len(scores[0]))
            ]
        if is_list:
            for number in group:
                # An SNR is meaningless for class numbers.
                if math.prod(mine[number].shape[lead:]) == 1 and _is_class(mine[number], theirs[number]):
                    mine[number], theirs[number] = mine[number].astype(np.int64), theirs[number].astype(np.int64)
        if all(left == right == list(range(scores[0].shape[1])) for left, right in pairs):
            continue
        for number, (table, _) in zip(group, tables, strict=True):
            if number == group[score[0]] and table.shape[-1] == 1 and any(left for left, _ in pairs):
                continue  # skip the scores themselves, which are sorted in both results
            shape = mine[number].shape[lead:]
            for side, values in enumerate((mine, theirs)):
                rows = values[number].reshape(len(pairs), -1, *shape)
                values[number] = np.concatenate([rows[batch][pair[side]] for batch, pair in enumerate(pairs)])
    return mine, theirs


def _is_list(tables: Sequence[Array], scores: int) -> bool:
    """Return whether the scores belong to boxes, in the same table or in another table."""
    return tables[scores].shape[-1] <= _MOST_LIST and any(_BOX <= table.shape[-1] <= _MOST_LIST for table in tables)


def _is_class(mine: Array, theirs: Array) -> bool:
    """Return whether floats are class numbers: integers in both results."""
    if mine.dtype.kind != "f" or not mine.any():
        return False
    return all(bool((side == np.rint(side)).all()) for side in (mine, theirs))


def _nothing_detected(mine: Array, theirs: Array, limits: NumberLimits) -> bool:
    """Return whether all scores of both results are 0 within the noise of the number format."""
    if mine.shape[1] < SORTED_ROWS or float(mine.min()) < 0.0:
        return False
    return max(float(mine.max()), float(np.abs(theirs).max())) < SILENT * limits.noise


def _near(mine: Array, theirs: Array, limits: NumberLimits) -> bool:
    """Return whether scores are equal except for rounding or, for probabilities, differ by at most
    `SCORE_MOVES`."""
    most, gap = float(np.abs(mine).max()), beyond_noise(mine, theirs, 0.0, limits)
    if snr_db(mine, mine + gap) >= limits.good_db:
        return True
    probable = float(mine.min()) >= 0.0 and CONFIDENT <= most <= 1.0
    return probable and float(np.abs(mine - theirs).max()) <= SCORE_MOVES


def _groups(expected: Sequence[Any], found: Sequence[Any]) -> Iterator[tuple[list[int], int]]:
    """Yield groups of outputs with the same number of rows, each with the position of the axis of the rows, counted
    from 1.

    The position is 1 for shapes that begin with (rows), 2 for (batch, rows) and 3 for (1, 1, rows).
    """
    taken: set[int] = set()
    usable = [
        number
        for number, (a, b) in enumerate(zip(expected, found, strict=True))
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.size
        if a.dtype.kind in "biuf" and b.dtype.kind in "biuf" and np.isfinite(a).all() and np.isfinite(b).all()
    ]
    # Try the shapes with more leading axes first: otherwise an output of 8 batches with 100 rows would be a table
    # of 8 rows with 100 columns. Some detection lists have two axes before the rows.
    for lead in (3, 2, 1):
        for first in usable:
            shape = expected[first].shape[:lead]
            if first in taken or len(shape) < lead or not _FEWEST <= shape[-1] <= _MOST:
                continue
            if lead > 2 and (math.prod(shape[:-1]) > 1 or math.prod(expected[first].shape[lead:]) > _MOST_LIST):
                continue
            # The first of two axes is a batch only if its size is 1, or if another output begins with the same two
            # sizes and has more axes.
            if (
                lead == 2
                and shape[0] > 1
                and all(expected[number].ndim == 2 for number in usable if expected[number].shape[:2] == shape)
            ):
                continue
            group = [
                number
                for number in usable
                if number not in taken
                and expected[number].shape[:lead] == shape
                and expected[number].ndim <= lead + 1
                and math.prod(expected[number].shape[lead:]) <= _MOST_COLUMNS
            ]
            if first in group:
                taken.update(group)
                yield group, lead


def _rows(values: Array, lead: int) -> Array:
    """Return the values in the shape (batch, row, column). lead: number of leading axes that are batch or row."""
    batches = math.prod(values.shape[: lead - 1])
    return values.reshape(batches, values.shape[lead - 1], -1).astype(np.float64)


def _score(tables: Sequence[Array]) -> tuple[int, int] | None:
    """Return the table and column whose values fall and never rise from row to row."""
    for number, table in enumerate(tables):
        # Exclude a constant column, which never rises, but defines no order.
        falls = (np.diff(table, axis=1) <= 0).all(axis=(0, 1)) & (table[:, 0] > table[:, -1]).any(axis=0)
        columns = np.flatnonzero(falls)
        if len(columns):
            return number, int(columns[0])
    return None


def _zero_score(tables: Sequence[Array], whole: Sequence[bool]) -> tuple[int, int] | None:
    """Return table and column of the scores if all scores are 0; else None.

    The scores are found only if exactly four columns, the box, have fractions: they are the last column that is 0
    in all rows.
    """
    measured = [
        (number, column)
        for number, table in enumerate(tables)
        if not whole[number]
        for column in range(table.shape[-1])
        if (table[..., column] != np.rint(table[..., column])).any()
    ]
    silent = [
        (number, column)
        for number, table in enumerate(tables)
        if not whole[number]
        for column in range(table.shape[-1])
        if not table[..., column].any()
    ]
    return silent[-1] if len(measured) == _BOX and silent else None


def _pairs(
    mine: Array,
    theirs: Array,
    tables: Sequence[tuple[Array, Array]],
    whole: Sequence[bool],
    error: float,
    least: float,
) -> tuple[list[int], list[int]]:
    """Return the rows of both results that belong together.

    Args:
        mine, theirs: the scores.
        tables: the rows of each output, in both results.
        whole: which tables contain integers.
        error: error of the scores.
        least: the smallest score that counts; 0 if the meaning of the scores is unknown.
    """
    free = np.ones(len(mine), bool)
    other: dict[int, int] = {}
    for row, score in enumerate(theirs):
        near = np.flatnonzero(free & (np.abs(mine - score) <= error))
        if not len(near):
            continue
        off = np.max([_off(a[near], b[row], a, exact) for (a, b), exact in zip(tables, whole, strict=True)], axis=0)
        best = int(off.argmin())
        if off[best] <= _OF_LARGEST:
            other[int(near[best])] = row
            free[near[best]] = False
    alone = [row for row in range(len(mine)) if row not in set(other.values())]
    last = float(mine[-1])
    missing = [int(row) for row in np.flatnonzero(free)]
    missing.sort(key=lambda row: bool(mine[row] - last <= error))
    alone.sort(key=lambda row: bool(theirs[row] - last <= error))
    # Pair rows without a counterpart with rows of the other result that have none either, so that they count as
    # differences. Leave out rows near the end of the list, which may lack a counterpart by chance.
    clear = max(sum(mine[row] - last > error for row in missing), sum(theirs[row] - last > error for row in alone))
    other.update(zip(missing[:clear], alone[:clear], strict=True))
    # Remove pairs of rows with very low scores that are close to the last score: they match only by chance.
    for row in [row for row in other if mine[row] < least and mine[row] - last <= error]:
        del other[row]
    left = sorted(other)
    return left, [other[row] for row in left]


def _off(rows: Array, row: Array, table: Array, exact: bool) -> Array:
    """Return the largest difference in each row, relative to its column. exact: values must be equal."""
    if exact:
        return np.where((rows == row).all(axis=1), 0.0, math.inf)
    most = np.maximum(np.abs(table).max(axis=0), _TINY)
    # Class numbers next to boxes must be equal, too.
    most[(table == np.rint(table)).all(axis=0)] = _TINY
    return np.asarray((np.abs(rows - row) / most).max(axis=1))


def judge_all(
    names: Sequence[str],
    expected: Sequence[Any],
    found: Sequence[Any],
    number_format: NumberFormat,
    scales: Mapping[str, float] = MappingProxyType({}),
    steps: Mapping[str, float] = MappingProxyType({}),
) -> list[tuple[str, JudgedNumbers]]:
    """Judge all outputs of a run.

    Args:
        names: names of the outputs.
        expected: outputs of the CPU.
        found: outputs of the other computation.
        number_format: format of the other computation.
        scales: largest magnitude of each output on other inputs, if it is known.
        steps: quantisation step of each quantised output.
    """
    pairs = zip(names, *paired(expected, found, number_format), strict=True)
    return [
        (name, judge(a, b, number_format, scales.get(name, 0.0), step=steps.get(name, 0.0))) for name, a, b in pairs
    ]
