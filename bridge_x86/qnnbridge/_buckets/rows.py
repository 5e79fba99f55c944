"""Compare the results of two rows of a batch with the results of each row alone. Pure functions, except that they
call a function that communicates with a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets.batches import axes_of
from qnnbridge._buckets.plan import BucketPlan

# Rows count as dependent on each other if the power of the difference exceeds this fraction of the power of the
# results (20 dB). Smaller differences prove nothing: dynamic quantisation chooses one scale for all rows.
MIXED: Final = 0.01


def mixes(
    plan: BucketPlan, number: int, feeds: Mapping[str, Any], run: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> bool:
    """Return whether the results of two rows in one batch differ from the results of each row alone.

    Args:
        number: index of the dimension whose rows are compared.
        feeds: inputs of two rows.
        run: function that runs the model with free sizes on the CPU.
    """
    both = run(feeds)
    for row in range(2):
        alone = dict(feeds)
        for name, axis in axes_of(plan, feeds, number):
            alone[name] = alone[name].take([row], axis)
        if any(_differs(values, value, row) for values, value in zip(both, run(alone), strict=True)):
            # Run the batch again. If its results differ, the model is random, and the comparison above proves
            # nothing.
            return all(map(np.array_equal, both, run(feeds)))
    return False


def mixed_text(symbols: frozenset[str]) -> str:
    """Return a clause for messages: rows of these dimensions depend on each other."""
    return f"a row of {' and '.join(map(repr, sorted(symbols)))} gives different results alone and with other rows"


def _differs(both: Any, alone: Any, row: int) -> bool:
    """Return whether the output of a row that ran alone differs clearly from its output in a batch of two rows."""
    whole, value = np.asarray(both), np.asarray(alone)
    if whole.dtype.kind != "f" or whole.ndim != value.ndim:
        return False
    sizes = zip(whole.shape, value.shape, strict=True)
    part = whole[tuple(slice(None) if two == one else slice(row * one, (row + 1) * one) for two, one in sizes)]
    if part.shape != value.shape or not (np.isfinite(part).all() and np.isfinite(value).all()):
        return False
    expected = value.astype(np.float64)
    return float(np.square(part - expected).sum()) > MIXED * float(np.square(expected).sum())
