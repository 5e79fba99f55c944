"""A call that is too large for the largest bucket, done in several parts along a dimension that allows it.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge._buckets.cutting import OutputShapes
from qnnbridge._buckets.plan import Plan
from qnnbridge_protocol.errors import InvalidArgument
from qnnbridge_protocol.typed import Typed


def parts(plan: Plan, feeds: Mapping[str, Any], number: int, size: int) -> Iterator[dict[str, Any]]:
    """The feeds of each part. number: of the symbol, whose size is `size`."""
    largest = plan.buckets[number][-1]
    for start in range(0, size, largest):
        part = dict(feeds)
        for name, padded in plan.inputs.items():
            value = feeds.get(name)
            if value is None:
                continue
            for axis, symbol in padded.axes.items():
                if symbol == number:
                    value = value[(slice(None),) * axis + (slice(start, start + largest),)]
            part[name] = value
        yield part


def joints(plan: Plan, shapes: OutputShapes, names: Sequence[str], number: int) -> list[int]:
    """The axis of each output along which the parts are put together. Raises `InvalidArgument` if there is none."""
    symbol = plan.symbols[number]
    found = []
    for name in names:
        axes = [
            axis
            for axis, relation in enumerate(shapes.relations(name) or ())
            if relation is not None and relation.symbol == symbol
        ]
        if len(axes) != 1:
            raise _no_joint(name, symbol, plan.buckets[number][-1])
        found.append(axes[0])
    return found


def joined(results: Sequence[Sequence[Any]], axes: Sequence[int]) -> list[Any]:
    """The outputs of all parts, put together."""
    return [_concatenate([part[at] for part in results], axis) for at, axis in enumerate(axes)]


def _concatenate(values: list[Any], axis: int) -> Any:
    if not isinstance(values[0], Typed):
        return np.concatenate(values, axis)
    data = np.concatenate([value.data for value in values], axis)
    return Typed(data, values[0].element_type, data.shape)


def _no_joint(name: str, symbol: str, largest: int) -> InvalidArgument:
    return InvalidArgument(
        f"The output {name!r} cannot be put together from parts: it does not have the dimension {symbol!r} once.",
        cause=f"More than {largest}, the largest bucket, are done in several parts.",
        fix=f"Ask for other outputs, give a larger bucket for {symbol!r}, or say in which dimension it is: "
        f"cut={{{name!r}: [{symbol!r}, ...]}}.",
    )
