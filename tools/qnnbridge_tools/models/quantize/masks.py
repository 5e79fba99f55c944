"""Attention masks of -3.4e38 and the like, made small enough to be quantised.

A mask is added to scores of some tens. If it is -3.4e38, the range of the sum has no room for the scores: a
sentence encoder had a cosine of 0.48 against float with it, and 0.98 with -1e4, of which the softmax is 0 just as
well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

HUGE = 1e6
"""From here on a value is "never", not a number."""
ENOUGH = 1e4
"""exp(-1e4) is 0 in every float type."""

ADDING_OPS = ("Add", "Sub", "Mul", "Where", "Expand")
"""Through which a mask reaches the scores. Limits of Clip and paddings are not masks."""
_FLOAT = 1


def shrink_masks(model: Any) -> int:
    """Shrinks masks among the initializers, in place; gives how many there were.

    An initializer is a mask if all that it holds is 0, 1 and huge values.
    """
    from onnx import numpy_helper

    used_by: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            used_by.setdefault(name, set()).add(node.op_type)
    shrunk = 0
    for tensor in model.graph.initializer:
        if tensor.data_type != _FLOAT or not used_by.get(tensor.name, set()) & set(ADDING_OPS):
            continue
        if used_by[tensor.name] - set(ADDING_OPS):
            continue
        values = numpy_helper.to_array(tensor)
        huge = np.abs(values) >= HUGE
        if not huge.any() or not (huge | (values == 0) | (values == 1)).all():
            continue
        tensor.CopyFrom(
            numpy_helper.from_array(
                np.where(huge, np.sign(values) * ENOUGH, values).astype(np.float32), tensor.name
            )
        )
        shrunk += 1
    return shrunk
