"""Rows that a model sorts by a score: detections of TopK, the best first.

Scores that are closer than the number format resolves come in another order, which is no other result: the same
rows are there. They are paired by what they hold before they are judged. Rows at the end whose scores are as close
to that of the last may be others altogether; they prove nothing and are left out. Pure functions of numpy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from qnnbridge_host.numerics.judge import LIMITS, NumberFormat, judge, snr_db
from qnnbridge_protocol.model_records import JudgedNumbers

Array = npt.NDArray[Any]
# Fewer rows are in order by chance; more are no detections.
_FEWEST: Final = 4
_MOST: Final = 2048
_MOST_COLUMNS: Final = 256
# By so much of the largest value of its column a value of a row may be off.
_OF_LARGEST: Final = 0.05
_TINY: Final = 1e-30
# The error of a score, of both that are compared.
_BOTH: Final = 2.0


def paired(
    expected: Sequence[Any], found: Sequence[Any], number_format: NumberFormat
) -> tuple[list[Any], list[Any]]:
    """All outputs of one run, with the rows of those that are sorted by one score brought together.

    Outputs that are not sorted, or whose order is that of the CPU, come back as they are.

    Args:
        expected: of the CPU.
        found: of the other computation.
        number_format: in which it was computed.
    """
    mine, theirs = list(expected), list(found)
    for group, lead in _groups(mine, theirs):
        tables = [(_rows(mine[number], lead), _rows(theirs[number], lead)) for number in group]
        score = _score([table[0] for table in tables])
        if score is None:
            continue
        scores = tuple(side[..., score[1]] for side in tables[score[0]])
        # Scores that differ as a whole are an error of the computation, not another order. Pairing would hide it.
        if snr_db(*scores) < LIMITS[number_format].good_db:
            continue
        whole = [mine[number].dtype.kind != "f" for number in group]
        pairs = [
            _pairs(scores[0][batch], scores[1][batch], [(a[batch], b[batch]) for a, b in tables], whole)
            for batch in range(len(scores[0]))
        ]
        if all(left == right == list(range(scores[0].shape[1])) for left, right in pairs):
            continue
        for number, (table, _) in zip(group, tables, strict=True):
            if number == group[score[0]] and table.shape[-1] == 1:
                continue  # the scores themselves, which are in order on both sides
            shape = mine[number].shape[lead:]
            for side, values in enumerate((mine, theirs)):
                rows = values[number].reshape(len(pairs), -1, *shape)
                values[number] = np.concatenate([rows[batch][pair[side]] for batch, pair in enumerate(pairs)])
    return mine, theirs


def _groups(expected: Sequence[Any], found: Sequence[Any]) -> Iterator[tuple[list[int], int]]:
    """Outputs with as many rows as each other, and the number of axes that lead to a row: a batch and the rows, or
    the rows alone."""
    taken: set[int] = set()
    usable = [
        number
        for number, (a, b) in enumerate(zip(expected, found, strict=True))
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.size
        if a.dtype.kind in "biuf" and b.dtype.kind in "biuf" and np.isfinite(a).all() and np.isfinite(b).all()
    ]
    # A batch first: an output of 8 batches with 100 rows would else be a table of 8 rows with 100 columns.
    for lead in (2, 1):
        for first in usable:
            shape = expected[first].shape[:lead]
            if first in taken or len(shape) < lead or not _FEWEST <= shape[-1] <= _MOST:
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
    """By batch, row and column."""
    batches = values.shape[0] if lead > 1 else 1
    return values.reshape(batches, values.shape[lead - 1], -1).astype(np.float64)


def _score(tables: Sequence[Array]) -> tuple[int, int] | None:
    """Table and column of the value that never rises from row to row, and falls."""
    for number, table in enumerate(tables):
        # A column that is constant never rises either, but orders nothing.
        falls = (np.diff(table, axis=1) <= 0).all(axis=(0, 1)) & (table[:, 0] > table[:, -1]).any(axis=0)
        columns = np.flatnonzero(falls)
        if len(columns):
            return number, int(columns[0])
    return None


def _pairs(
    mine: Array, theirs: Array, tables: Sequence[tuple[Array, Array]], whole: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """Rows of both sides that belong together. mine, theirs: the scores. whole: the tables of integers."""
    error = _BOTH * float(np.abs(mine - theirs).max())
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
    # A row that is not near the end and has no other is held against one that is left, so that it counts.
    clear = max(sum(mine[row] - last > error for row in missing), sum(theirs[row] - last > error for row in alone))
    other.update(zip(missing[:clear], alone[:clear], strict=True))
    left = sorted(other)
    return left, [other[row] for row in left]


def _off(rows: Array, row: Array, table: Array, exact: bool) -> Array:
    """For each row the largest difference, of the largest value of its column. exact: integers: equal or not."""
    if exact:
        return np.where((rows == row).all(axis=1), 0.0, math.inf)
    most = np.maximum(np.abs(table).max(axis=0), _TINY)
    return np.asarray((np.abs(rows - row) / most).max(axis=1))


def judge_all(
    names: Sequence[str],
    expected: Sequence[Any],
    found: Sequence[Any],
    number_format: NumberFormat,
    scales: Mapping[str, float] = MappingProxyType({}),
) -> list[tuple[str, JudgedNumbers]]:
    """All outputs of one run. scales: largest values of each on other inputs, as far as known."""
    pairs = zip(names, *paired(expected, found, number_format), strict=True)
    return [(name, judge(a, b, number_format, scales.get(name, 0.0))) for name, a, b in pairs]
