"""The silent traps of QNN: wrong numbers without an error. Rules as data, each with its measurement.

Two kinds. Rules about values look at what the CPU and QNN gave for one output; rules about nodes look at the first
node behind which the values differ. A rule says what it saw, or nothing. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_tools.models.verify.result import TrapFound

Array = npt.NDArray[Any]

HALF_MAX = 65504.0
# Saturated half floats read as 65536, 98304 or 131008; rounding may bring them a little lower.
_BEYOND_HALF = 60000.0
_OF_NUMBERS = 0.01
_LOW_32_BITS = 2**32
_SMALLEST_HALF = 6e-8
_LARGE_SCORES = 1000.0


@dataclasses.dataclass(frozen=True, slots=True)
class ValueTrap:
    """A trap that shows in the values of one output.

    Args:
        saw: evidence in the CPU's and QNN's values of one output; empty if it is not this trap.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[Array, Array], str]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAt:
    """The node where values begin to differ. inputs: the CPU's values there, None where not known."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...] = ()

    def has(self, name: str) -> bool:
        """Whether an attribute is there and is not zero (zeros, NOTSET)."""
        value = self.attributes.get(name)
        if isinstance(value, (list, tuple)):
            return any(value)
        return bool(value) and value != "NOTSET"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTrap:
    """A trap that shows at the first node that differs.

    Args:
        saw: evidence at the node; empty if it is not this trap.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[NodeAt], str]


def of_values(tensor: str, expected: Any, found: Any) -> tuple[TrapFound, ...]:
    """The traps that one output, or a tensor inside of the model, shows."""
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in (expected, found)):
        return ()
    if expected.shape != found.shape or expected.dtype != found.dtype or not expected.size:
        return ()
    return tuple(
        TrapFound(trap.name, trap.words, f"{tensor}: {seen}", trap.advice)
        for trap in VALUE_TRAPS
        if (seen := trap.saw(expected, found))
    )


def of_operators(operators: Mapping[str, int], row: str) -> tuple[TrapFound, ...]:
    """For a row of NaN, infinities or huge numbers that differs: what the operators of the model explain."""
    return tuple(
        TrapFound(trap.name, trap.words, f"{row}; the model has {op}", trap.advice)
        for trap in NODE_TRAPS
        for op in operators
        if op in OF_EXTREMES and trap.saw(NodeAt(op, {}))
    )


def of_node(label: str, node: NodeAt) -> tuple[TrapFound, ...]:
    return tuple(
        TrapFound(trap.name, trap.words, f"node {label}: {seen}", trap.advice)
        for trap in NODE_TRAPS
        if (seen := trap.saw(node))
    )


# --- values ------------------------------------------------------------------------------------------------


def _first(expected: Array, found: Array, where: Array) -> str:
    """The count of the values, and the first of them."""
    index = int(np.flatnonzero(where)[0])
    count = int(np.count_nonzero(where))
    return (
        f"{count} of {expected.size} values, the first at {index}: {_text(expected, index)} on the CPU, "
        f"{_text(found, index)} on QNN"
    )


def _text(array: Array, index: int) -> str:
    value = array.reshape(-1)[index]
    return f"{float(value):.6g}" if array.dtype.kind == "f" else str(value)


def _saw_32_bits(expected: Array, found: Array) -> str:
    if expected.dtype.kind not in "iu" or expected.dtype.itemsize <= 4:
        return ""
    other = expected != found
    with np.errstate(over="ignore"):
        low = (expected - found) % expected.dtype.type(_LOW_32_BITS) == 0
    return _first(expected, found, other) if other.any() and bool(low[other].all()) else ""


def _saw_nan_gone(expected: Array, found: Array) -> str:
    return _float_pair(expected, found, lambda a, b: np.isnan(a) & np.isfinite(b))


def _saw_infinity_gone(expected: Array, found: Array) -> str:
    return _float_pair(expected, found, lambda a, b: np.isinf(a) & np.isfinite(b))


def _saw_half_range(expected: Array, found: Array) -> str:
    def saturated(a: Array, b: Array) -> Array:
        off = np.abs(a - b) > _OF_NUMBERS * np.maximum(np.abs(a), 1.0)
        return np.asarray(np.isfinite(a) & off & ((np.abs(b) >= _BEYOND_HALF) | ~np.isfinite(b)))

    return _float_pair(expected, found, saturated)


def _saw_underflow(expected: Array, found: Array) -> str:
    def gone(a: Array, b: Array) -> Array:
        return np.asarray((b == 0) & (a != 0) & np.isfinite(a) & (np.abs(a) < _SMALLEST_HALF))

    return _float_pair(expected, found, gone)


def _float_pair(expected: Array, found: Array, where: Callable[[Array, Array], Array]) -> str:
    if expected.dtype.kind != "f":
        return ""
    with np.errstate(all="ignore"):
        hit = where(expected.astype(np.float64), found.astype(np.float64))
    return _first(expected, found, hit) if hit.any() else ""


VALUE_TRAPS = (
    ValueTrap(
        "int64-in-32-bits",
        "QNN computes 64-bit integers in 32 bits: the upper half is cut off without an error "
        "(measured: 2**33 + 5, plus 1, gives 6).",
        "Keep integers within 32 bits, or do this part of the work outside of the model.",
        _saw_32_bits,
    ),
    ValueTrap(
        "nan-vanishes",
        "NaN does not come through on QNN: a number comes out in its place (measured: 65536 or 0 for 8 of 8 NaN).",
        "Check the inputs for NaN before the run; a NaN at the output proves nothing here, nor does its absence.",
        _saw_nan_gone,
    ),
    ValueTrap(
        "infinity-vanishes",
        "Infinity becomes a number on QNN (measured: 65536).",
        "Use a large finite number instead, -1e4 for an attention mask.",
        _saw_infinity_gone,
    ),
    ValueTrap(
        "half-range",
        "QNN computes floats in 16 bits, which end at 65504: what is larger, also between two nodes, comes out as "
        "65536, 98304, 131008 or NaN without an error (measured: relu(1e5) = 65536, exp(20) = 131008).",
        "Scale the inputs or the weights, or leave the nodes around it to the CPU.",
        _saw_half_range,
    ),
    ValueTrap(
        "half-underflow",
        "QNN computes floats in 16 bits, in which the smallest number is 6e-8: smaller ones become 0 "
        "(measured: 1e-5 squared is 0).",
        "Scale the inputs, or take logarithms in the model.",
        _saw_underflow,
    ),
)


# --- nodes -------------------------------------------------------------------------------------------------


def _is(*ops: str) -> Callable[[NodeAt], str]:
    return lambda node: node.op if node.op in ops else ""


def _saw_padding(node: NodeAt, *ops: str) -> str:
    if node.op not in ops:
        return ""
    names = [name for name in ("pads", "ceil_mode", "auto_pad", "count_include_pad") if node.has(name)]
    return f"{node.op} with {', '.join(f'{name}={node.attributes[name]!r}' for name in names)}" if names else ""


def _saw_large_scores(node: NodeAt) -> str:
    if node.op not in ("Softmax", "LogSoftmax"):
        return ""
    values = [value for value in node.inputs[:1] if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    finite = np.abs(values[0][np.isfinite(values[0])]) if values else np.zeros(0)
    most = float(finite.max(initial=0.0))
    return f"{node.op} of values up to {most:.3g}" if most >= _LARGE_SCORES else ""


def _saw_resize(node: NodeAt) -> str:
    if node.op not in ("Resize", "Upsample"):
        return ""
    mode = node.attributes.get("mode", "nearest")
    how = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    return f"{node.op} with mode {mode!r}, coordinates {how!r}"


def _saw_grid(node: NodeAt) -> str:
    mode = node.attributes.get("mode", "linear")
    return f"GridSample with mode {mode!r}" if node.op == "GridSample" and mode == "nearest" else ""


def _saw_negative_indices(node: NodeAt) -> str:
    if node.op not in ("GatherElements", "ScatterElements"):
        return ""
    indices = node.inputs[1] if len(node.inputs) > 1 else None
    if not isinstance(indices, np.ndarray) or indices.dtype.kind != "i" or not indices.size:
        return ""
    least = int(indices.min())
    return f"{node.op} with indices down to {least}" if least < 0 else ""


# Operators that go wrong on NaN and infinity alone, where looking for the first node would find the input.
OF_EXTREMES = ("IsNaN",)

NODE_TRAPS = (
    NodeTrap(
        "isnan",
        "IsNaN is wrong in half floats.",
        "Test for NaN outside of the model.",
        _is("IsNaN"),
    ),
    NodeTrap(
        "softmax-of-large-values",
        "Softmax and LogSoftmax of values around 1e4 are wrong in half floats (measured: relative error 0.6).",
        "Scale the scores, or subtract their maximum before.",
        _saw_large_scores,
    ),
    NodeTrap(
        "average-pool-padding",
        "AveragePool with pads, ceil_mode, auto_pad or count_include_pad counts other values than ONNX says.",
        "Put a Pad node in front of it and pool without padding.",
        lambda node: _saw_padding(node, "AveragePool"),
    ),
    NodeTrap(
        "max-pool-padding",
        "MaxPool with padding is wrong on V68.",
        "Put a Pad node in front of it, or name a newer chip.",
        lambda node: _saw_padding(node, "MaxPool"),
    ),
    NodeTrap(
        "conv-transpose-padding",
        "ConvTranspose with pads is wrong.",
        "Use it without pads and cut the border off with Slice.",
        lambda node: _saw_padding(node, "ConvTranspose"),
    ),
    NodeTrap(
        "resize",
        "Resize takes other pixels than ONNX says: nearest when it makes smaller, several coordinate modes, and "
        "linear with scales that are rounded to sizes (measured: 14 node tests; 8 to 11 by 1.4: cosine 0.987).",
        "Resize by whole factors, or outside of the model.",
        _saw_resize,
    ),
    NodeTrap(
        "grid-sample-nearest",
        "GridSample with mode nearest is wrong (measured: relative error 0.2 to 0.25).",
        "Use mode linear.",
        _saw_grid,
    ),
    NodeTrap(
        "masked-attention",
        "Attention rows in which everything is masked give other numbers.",
        "Leave at least one token unmasked in every row.",
        _is("Attention", "com.microsoft.Attention", "MultiHeadAttention", "com.microsoft.MultiHeadAttention"),
    ),
    NodeTrap(
        "negative-indices",
        "GatherElements and ScatterElements with negative indices run and give other numbers.",
        "Count indices from the start; `qnnbridge fix` does it for constant ones.",
        _saw_negative_indices,
    ),
)
