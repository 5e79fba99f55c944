"""Made-up inputs to try a compiled model with: all ones, and random values that are the same on every machine.

Floats lie in 0..1, wide integers are 0 or 1 (they are mostly indices, masks or lengths), narrow integers cover
their whole range (they are mostly quantised data). Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qnnbridge_protocol import elements
from qnnbridge_protocol.errors import NotImplemented as NotCarried
from qnnbridge_protocol.specs import NodeInfo

_WIDE_BYTES = 4


class CannotMakeUp(Exception):
    """There is no value to be made up for an input; the text says why."""


def ones(inputs: Sequence[NodeInfo]) -> dict[str, Any]:
    """A one everywhere. Raises `CannotMakeUp`."""
    import numpy as np

    return {node.name: np.ones(_shape(node), _dtype(node)) for node in inputs}


def random(inputs: Sequence[NodeInfo], seed: int) -> dict[str, Any]:
    """The same values for the same seed. Raises `CannotMakeUp`."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return {node.name: _random(_dtype(node), _shape(node), rng) for node in inputs}


def _random(dtype: Any, shape: tuple[int, ...], rng: Any) -> Any:
    import numpy as np

    if dtype.kind == "f":
        return np.asarray(rng.random(shape)).astype(dtype)
    if dtype.kind == "b" or dtype.itemsize >= _WIDE_BYTES:
        return rng.integers(0, 2, size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, size=shape, endpoint=True).astype(dtype)


def _dtype(node: NodeInfo) -> Any:
    try:
        declared = elements.from_ort_type(node.type)
    except NotCarried:
        raise CannotMakeUp(f"values of type {node.type} cannot be made up (input {node.name!r})") from None
    element = declared.element if declared.kind == "tensor" else None
    dtype = elements.numpy_dtype(element) if element is not None and elements.LAYOUTS[element].named else None
    if dtype is None or dtype.kind not in "fiub":
        raise CannotMakeUp(f"values of type {node.type} cannot be made up (input {node.name!r})")
    return dtype


def _shape(node: NodeInfo) -> tuple[int, ...]:
    """Free dimensions, which only parts on the CPU can have, are 1."""
    return tuple(size if isinstance(size, int) and size >= 0 else 1 for size in node.shape or ())
