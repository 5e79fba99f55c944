"""The silent traps of QNN, recognised by what they do to the numbers, or by their operator. Pure functions.

All of them were seen on the HTP simulator; none raises anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_tools.verify.result import Trap

HALF_LARGEST: Final = 65504.0
HALF_SMALLEST: Final = 6e-8
HALF_NORMAL: Final = 6.2e-5

NOT_FINITE = Trap(
    "not-finite-lost",
    "NaN or infinity on the CPU is an ordinary number on QNN, so that nothing downstream notices it",
    "check the inputs for NaN and infinity before they go to the model",
)
RANGE = Trap(
    "half-range",
    "values beyond 65504 do not fit into the half floats that QNN computes with; they come out as 65504 to 131008",
    "scale the inputs, or quantise the model with samples that cover this range",
)
UNDERFLOW = Trap(
    "half-underflow",
    "values below 6e-8 are 0 in the half floats that QNN computes with; a square of 1e-5 is one",
    "scale the inputs, or add epsilons of at least 1e-6",
)
WIDE = Trap(
    "int64-truncated",
    "QNN keeps the lower 32 bits of int64",
    "keep ids and counts below 2**31, and check them before they go to the model",
)
INDEX = Trap(
    "index-not-checked",
    "the CPU refuses this index, QNN takes it and gives some number",
    "check the values of index inputs before they go to the model",
)


def of_values(expected: Any, found: Any, output: str) -> list[Trap]:
    """What the differences between two results look like."""
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray) or expected.shape != found.shape:
        return []
    if expected.dtype.kind in "iu":
        return _of_integers(expected, found, output)
    if expected.dtype.kind != "f" or not expected.size:
        return []
    a, b = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(a)
    traps = []
    if (~finite & np.isfinite(b)).any():
        traps.append(NOT_FINITE)
    beyond = finite & (np.abs(a) > HALF_LARGEST)
    wrong = ~np.isclose(a, b, rtol=0.05, atol=0, equal_nan=True)
    saturated = finite & wrong & (~np.isfinite(b) | ((np.abs(b) >= HALF_LARGEST) & (np.abs(b) <= 2 * 65536)))
    if (beyond & wrong).any() or saturated.any():
        traps.append(RANGE)
    if (finite & (a != 0) & (np.abs(a) < HALF_NORMAL) & (b == 0)).any():
        traps.append(UNDERFLOW)
    return [_at(trap, output) for trap in traps]


def _of_integers(expected: Any, found: Any, output: str) -> list[Trap]:
    differ = expected != found
    if expected.dtype.itemsize != 8 or not differ.any():
        return []
    wrapped = expected.astype(np.int64).astype(np.int32).astype(np.int64)
    wide = np.abs(expected.astype(np.float64)) >= 2**31
    return [_at(WIDE, output)] if (differ & wide & (found == wrapped)).any() else []


def of_operator(op: str, attributes: Mapping[str, Any]) -> Trap | None:
    """The known fault of an operator, if its attributes are those that show it."""
    for ops, applies, what, fix in _OPERATORS:
        if op in ops and applies(attributes):
            return Trap(f"operator-{op}", what, fix)
    return None


def _at(trap: Trap, output: str) -> Trap:
    return Trap(trap.name, trap.what, trap.fix, output)


def _always(attributes: Mapping[str, Any]) -> bool:
    return True


def _padded(attributes: Mapping[str, Any]) -> bool:
    automatic = attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return automatic or any(attributes.get("pads", ())) or bool(attributes.get("ceil_mode", 0))


_OPERATORS: Final[tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], bool], str, str], ...]] = (
    (
        ("Softmax", "LogSoftmax"),
        _always,
        "Softmax of values of some 10000 loses its precision in half floats",
        "subtract the largest value first, or scale the scores",
    ),
    (("IsNaN",), _always, "IsNaN does not see NaN in half floats", "test the inputs before they go to the model"),
    (
        ("AveragePool",),
        _padded,
        "AveragePool with padding counts the padding otherwise than ONNX says",
        "pad with a Pad operator before it",
    ),
    (
        ("MaxPool",),
        _padded,
        "MaxPool with padding or ceil_mode is wrong on chips before V73",
        "pad with a Pad operator before it",
    ),
    (
        ("ConvTranspose",),
        _padded,
        "ConvTranspose with pads gives other values than ONNX says",
        "leave the pads away and slice the result",
    ),
    (
        ("Resize",),
        lambda attributes: attributes.get("mode", "nearest") == "nearest",
        "Resize to nearest takes other neighbours when it shrinks, and with some coordinate modes",
        "export with the mode linear, or with asymmetric coordinates and whole factors",
    ),
    (("Resize",), _always, "Resize uses the sizes and not the scale that it was given", "export with sizes"),
    (
        ("GridSample",),
        lambda attributes: attributes.get("mode", "linear") == "nearest",
        "GridSample to nearest takes other neighbours",
        "use the mode bilinear",
    ),
    (
        ("GatherElements", "ScatterElements"),
        _always,
        "negative indices are computed wrongly",
        "qnnbridge fix (negative-indices) for constants; otherwise add the size to negative ones",
    ),
    (
        ("Attention",),
        _always,
        "rows that are masked as a whole give other values",
        "mask so that each row has one element left",
    ),
)
"""Operators, when, what happens, what to do."""
