"""Outputs that mix scales in their columns: boxes in pixels beside scores of 0 to 1, joined by a Concat.

The large columns hold nearly all of the energy, so an SNR of the whole says nothing of the small ones. Such columns
are groups, and each group is judged by its own values. Differences up to the noise of the number format count as
none there: most scores are nearly 0, and their noise together would be more than the few that are not. Pure
functions of numpy arrays.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Columns that stay below the first are scores; those of pixels are larger by the second factor.
SCORE_LIMIT: Final = 2.0
UNLIKE: Final = 8.0
# An axis with more columns than this is of positions.
MOST_COLUMNS: Final = 1024
# Fewer rows of an output make no columns.
FEWEST_ROWS: Final = 16
# Of more axes than these it is a map, whose channels are of unlike magnitudes by nature. There only one run of
# columns beside one other counts.
_TABLE_NDIM: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one output that have the same scale.

    Args:
        axis: of the output.
        numbers: of the columns along the axis, rising.
        largest: magnitude in them.
    """

    axis: int
    numbers: tuple[int, ...]
    largest: float

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
        """By row and column."""
        moved = np.moveaxis(values, self.axis, -1)
        return moved.reshape(-1, moved.shape[-1])[:, list(self.numbers)].astype(np.float64)


def unlike_columns(values: Array, leading: int = 0) -> tuple[Columns, ...]:
    """The large columns of an output and its small ones; nothing for an output of one scale.

    Args:
        values: of the output on the CPU.
        leading: number of axes in front that are of samples; `Columns.axis` counts them.
    """
    ndim = values.ndim - leading
    if values.dtype.kind != "f" or ndim < 2 or not values.size:
        return ()
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
