"""Silent traps of QNN that show in values or at a node: wrong numbers without an error. Rules as data.

A trap is proven, not guessed: a trap of values is reported only if the output agrees except for these values, a
trap of a node only if the node agrees after a change. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.model.graph_index import rules_about
from qnnbridge_host.numerics.judge import NumberFormat, judge
from qnnbridge_models.verify.verification import TrapFound

Array = npt.NDArray[Any]

# Limit from which values count as saturated half floats. They appear as 65536, 98304 or 131008; rounding may reduce
# them slightly.
BEYOND_HALF = 60000.0
_OF_NUMBERS = 0.01
LOW_32_BITS = 2**32


@dataclasses.dataclass(frozen=True, slots=True)
class ValueTrap:
    """A trap that shows in the values of one output.

    Args:
        name: name of the trap.
        words: description.
        advice: what to do.
        saw: returns a mask of the values that show the trap, from the CPU's and QNN's values; None for other types.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[Array, Array], Array | None]


def of_values(
    tensor: str, expected: Any, found: Any, number_format: NumberFormat = "fp16"
) -> tuple[TrapFound, ...]:
    """Return the traps that explain the whole error of an output or an inner tensor."""
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in (expected, found)):
        return ()
    # A different shape or type is not a trap of values.
    if expected.shape != found.shape or expected.dtype != found.dtype or not expected.size:
        return ()
    seen = [(trap, hit) for trap in VALUE_TRAPS if (hit := trap.saw(expected, found)) is not None and hit.any()]
    # Values that no trap explains.
    rest = ~np.logical_or.reduce([hit for _, hit in seen]) if seen else np.zeros(0, bool)
    if not seen or (rest.any() and judge(expected[rest], found[rest], number_format).state == "differs"):
        return ()
    proof = "the other values agree" if rest.any() else "there are no others"
    return tuple(
        TrapFound(
            trap.name,
            trap.words,
            f"{tensor}: {_first(expected, found, hit)}",
            trap.advice,
            f"{int(np.count_nonzero(hit))} values show it, and {proof}",
        )
        for trap, hit in seen
    )


def _first(expected: Array, found: Array, where: Array) -> str:
    """Return the number of affected values, and the first of them, as text."""
    index = int(np.flatnonzero(where)[0])
    count = int(np.count_nonzero(where))
    return (
        f"{count} of {expected.size} values, the first at {index}: {_text(expected, index)} on the CPU, "
        f"{_text(found, index)} on QNN"
    )


def _text(array: Array, index: int) -> str:
    value = array.reshape(-1)[index]
    return f"{float(value):.6g}" if array.dtype.kind == "f" else str(value)


def _saw_32_bits(expected: Array, found: Array) -> Array | None:
    if expected.dtype.kind not in "iu" or expected.dtype.itemsize <= 4:
        return None
    # The difference of 64-bit integers may exceed 64 bits.
    with np.errstate(over="ignore"):
        # If the lower halves are equal, the upper half was cut off.
        low = (expected - found) % expected.dtype.type(LOW_32_BITS) == 0
    return np.asarray((expected != found) & low)


def _saw_nan_gone(expected: Array, found: Array) -> Array | None:
    return _floats(expected, found, lambda a, b: np.isnan(a) & np.isfinite(b))


def _saw_infinity_gone(expected: Array, found: Array) -> Array | None:
    return _floats(expected, found, lambda a, b: np.isinf(a) & np.isfinite(b))


def _saw_half_range(expected: Array, found: Array) -> Array | None:
    def saturated(a: Array, b: Array) -> Array:
        # Half floats are always off by rounding; the trap is a larger error.
        off = np.abs(a - b) > _OF_NUMBERS * np.maximum(np.abs(a), 1.0)
        return np.asarray(np.isfinite(a) & off & ((np.abs(b) >= BEYOND_HALF) | ~np.isfinite(b)))

    return _floats(expected, found, saturated)


def _floats(expected: Array, found: Array, where: Callable[[Array, Array], Array]) -> Array | None:
    if expected.dtype.kind != "f":
        return None
    # Suppress warnings: the rules look for NaN and infinity.
    with np.errstate(all="ignore"):
        return where(expected.astype(np.float64), found.astype(np.float64))


# Traps that rules about values and rules about nodes both report.
HALF_RANGE = (
    "half-range",
    "QNN computes floats in 16 bits, which end at 65504: larger values, also between two nodes, become "
    "65536, 98304, 131008 or NaN without an error (measured: relu(1e5) = 65536, exp(20) = 131008).",
    "Scale the inputs or the weights, or run the nodes around it on the CPU.",
)
INT64 = (
    "int64-in-32-bits",
    "QNN computes 64-bit integers in 32 bits: the upper half is cut off without an error "
    "(measured: 2**33 + 5, plus 1, gives 6).",
    "Keep integers within 32 bits, or compute this part outside of the model.",
)

VALUE_TRAPS = (
    ValueTrap(*INT64, _saw_32_bits),
    ValueTrap(
        "nan-vanishes",
        "QNN does not propagate NaN, but returns a number instead (measured: 65536 or 0 for 8 of 8 NaN).",
        "Check the inputs for NaN before the run; neither a NaN at the output nor its absence proves anything.",
        _saw_nan_gone,
    ),
    ValueTrap(
        "infinity-vanishes",
        "Infinity becomes a number on QNN (measured: 65536).",
        "Use a large finite number instead, -1e4 for an attention mask.",
        _saw_infinity_gone,
    ),
    ValueTrap(*HALF_RANGE, _saw_half_range),
)


# --- at the first node whose results differ -------------------------------------------------------------
# A rule blames one property of the node, and returns changes of this property. The trap is reported only if the
# error disappears with a change, on the CPU's values.

# Smallest half float above 0, with reduced precision.
_SMALLEST_HALF = 6e-8
# The simulator's half floats lose precision below 6.1e-5.
_NO_UNDERFLOW = 1e-4
_LARGE_SCORES = 1000.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAt:
    """The node where values begin to differ.

    Args:
        op: operator.
        attributes: attributes by name.
        inputs, outputs: the CPU's values, None where unknown.
        shapes: shapes of the inputs, None where unknown.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether an attribute is present and neither zero nor NOTSET."""
        value = self.attributes.get(name)
        if isinstance(value, (list, tuple)):
            return any(value)
        return bool(value) and value != "NOTSET"

    def floats(self) -> list[Array]:
        """Return the known float values of inputs and outputs."""
        arrays = [value for value in (*self.inputs, *self.outputs) if isinstance(value, np.ndarray)]
        return [value for value in arrays if value.dtype.kind == "f" and value.size]

    def largest(self) -> float:
        """Return the largest finite absolute value of `floats()`."""
        return max((float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in self.floats()), default=0.0)

    def smallest(self) -> float:
        """Return the smallest absolute value of `floats()` except 0; infinite if there is none."""
        return min((float(np.abs(v[v != 0]).min(initial=np.inf)) for v in self.floats()), default=np.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of one property of a node, to see whether an error disappears.

    Args:
        words: description of the change.
        attributes: new values; None removes the attribute.
        inputs: new values by number of the input.
        scale: factor for all float inputs.
    """

    words: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTrap:
    """A trap that is detected at the first node that differs.

    Args:
        name: name of the trap.
        words: description.
        advice: what to do.
        saw: returns the evidence at the node; empty if it is not this trap.
        changes: returns changes that each remove the cause; the error must disappear with one of them.
        operators: operators that the rule applies to; None for all.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[NodeAt], str]
    changes: Callable[[NodeAt], Sequence[NodeChange]]
    operators: Collection[str] | None = None


def suspected(node: NodeAt) -> list[tuple[NodeTrap, str]]:
    """Return the rules that may explain the node's error, with the evidence. Only their changes prove the cause."""
    return [(trap, seen) for trap in rules_about(NODE_TRAPS, node.op) if (seen := trap.saw(node))]


def proven(trap: NodeTrap, label: str, evidence: str, change: NodeChange) -> TrapFound:
    """Return the record of a trap that was proven: with the change, the node agrees with the CPU."""
    return TrapFound(
        trap.name, trap.words, f"node {label}: {evidence}", trap.advice, f"with {change.words} the node agrees"
    )


def _saw_operator(node: NodeAt) -> str:
    return node.op


def _saw_padding(node: NodeAt) -> str:
    names = [name for name in _PADDING if node.has(name)]
    return f"{node.op} with {', '.join(f'{name}={node.attributes[name]!r}' for name in names)}" if names else ""


def _saw_large_scores(node: NodeAt) -> str:
    most = dataclasses.replace(node, inputs=node.inputs[:1], outputs=()).largest()
    return f"{node.op} of values up to {most:.3g}" if most >= _LARGE_SCORES else ""


def _saw_resize(node: NodeAt) -> str:
    mode = node.attributes.get("mode", "nearest")
    how = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    return f"{node.op} with mode {mode!r}, coordinates {how!r}"


def _saw_grid(node: NodeAt) -> str:
    mode = node.attributes.get("mode", "linear")
    return f"GridSample with mode {mode!r}" if mode == "nearest" else ""


def _saw_negative_indices(node: NodeAt) -> str:
    indices = node.inputs[1] if len(node.inputs) > 1 else None
    if not isinstance(indices, np.ndarray) or indices.dtype.kind != "i" or not indices.size or indices.min() >= 0:
        return ""
    return f"{node.op} with {'an index of' if node.op == 'Gather' else 'indices down to'} {int(indices.min())}"


def _saw_beyond_half(node: NodeAt) -> str:
    most = node.largest()
    return f"{node.op} with values up to {most:.6g} on the CPU" if most >= BEYOND_HALF else ""


def _saw_underflow(node: NodeAt) -> str:
    least = node.smallest()
    return f"{node.op} with values down to {least:.3g} on the CPU" if least < _SMALLEST_HALF else ""


# --- changes: each removes the cause, and nothing else ----------------------------------------------------


def _smaller(node: NodeAt) -> Sequence[NodeChange]:
    most = node.largest()
    return [NodeChange(f"inputs of a {times:g}th", scale=1 / times) for times in _powers(most / 1000.0)]


def _larger(node: NodeAt) -> Sequence[NodeChange]:
    powers = _powers(1e-3 / max(node.smallest(), 1e-30))
    changes = [NodeChange(f"inputs {times:g} times as large", scale=times) for times in powers]
    # If the inputs also contain large values, scaled ones would overflow.
    raised = {
        number: np.where((value != 0) & (np.abs(value) < _NO_UNDERFLOW), np.copysign(_NO_UNDERFLOW, value), value)
        for number, value in enumerate(node.inputs)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size
    }
    if raised:
        small = {number: value.astype(node.inputs[number].dtype) for number, value in raised.items()}
        changes.append(NodeChange(f"inputs of {_NO_UNDERFLOW:g} or more", inputs=small))
    return changes


def _powers(times: float) -> list[float]:
    """Return powers of 10, starting with the smallest one that is enough for a linear operator."""
    first = 10.0 ** max(1, int(np.ceil(np.log10(max(times, 10.0)))))
    return [first, 10.0] if first > 10.0 else [first]


def _without(*names: str) -> Callable[[NodeAt], Sequence[NodeChange]]:
    def changes(node: NodeAt) -> Sequence[NodeChange]:
        there = [name for name in names if node.has(name)]
        return [NodeChange(f"no {', '.join(there)}", dict.fromkeys(there))] if there else []

    return changes


def _resized_plainly(node: NodeAt) -> Sequence[NodeChange]:
    # Upsample has only the mode, and the scales as its second input.
    plain = _PLAIN_RESIZE if node.op == "Resize" else {}
    place = 2 if node.op == "Resize" else 1
    modes = dict.fromkeys((node.attributes.get("mode", "nearest"), "linear")) if plain else ["linear"]
    prefix = "coordinates 'half_pixel' and " if plain else ""
    changes = [NodeChange(f"{prefix}mode {mode!r}", {**plain, "mode": mode}) for mode in modes]
    rank = len(node.shapes[0] or ()) if node.shapes else 0
    scales = node.inputs[place] if len(node.inputs) > place else None
    if isinstance(scales, np.ndarray) and scales.size == rank:
        doubled = {place: np.array([1.0, 1.0, *([2.0] * (rank - 2))], np.float32)}
        changes.append(NodeChange("scales of 2", inputs=doubled))
        changes.append(NodeChange("scales of 2 and mode 'linear'", {**plain, "mode": "linear"}, doubled))
    return changes


_PLAIN_RESIZE = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": None, "antialias": None}


def _counted_from_the_start(node: NodeAt) -> Sequence[NodeChange]:
    indices, shape = node.inputs[1], node.shapes[0] if node.shapes else None
    if not isinstance(indices, np.ndarray) or not shape:
        return []
    axis = int(node.attributes.get("axis", 0))
    return [
        NodeChange(
            "indices counted from the start", inputs={1: np.where(indices < 0, indices + shape[axis], indices)}
        )
    ]


def _numbers_for_nan(node: NodeAt) -> Sequence[NodeChange]:
    value = node.inputs[0] if node.inputs else None
    if not isinstance(value, np.ndarray):
        return []
    return [NodeChange("numbers for NaN", inputs={0: np.nan_to_num(value, nan=0.5, posinf=0.5, neginf=0.5)})]


# Indexes of the inputs that are masks.
_MASKS = {"Attention": (3,), "com.microsoft.Attention": (3, 5), "com.microsoft.MultiHeadAttention": (4, 5)}


def _nothing_masked(node: NodeAt) -> Sequence[NodeChange]:
    masks = {
        number: np.ones_like(value) if value.dtype.kind in "biu" else np.zeros_like(value)
        # In a mask of booleans or integers 1 keeps a value; a float mask is added. A mask with one axis contains
        # lengths.
        for number, value in enumerate(node.inputs)
        if number in _MASKS[node.op] and isinstance(value, np.ndarray) and value.ndim > 1
    }
    return [NodeChange("nothing masked", inputs=masks)] if masks else []


def _kept_in_32_bits(node: NodeAt) -> Sequence[NodeChange]:
    wide = {
        # Make values small enough for 32 bits, even if the node multiplies them.
        number: value % 1000
        for number, value in enumerate(node.inputs)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.dtype.itemsize > 4
    }
    return [NodeChange("small integers", inputs=wide)] if wide else []


def _saw_wide_integers(node: NodeAt) -> str:
    most = max(
        (
            int(np.abs(value).max())
            for value in (*node.inputs, *node.outputs)
            if isinstance(value, np.ndarray)
            and value.dtype.kind in "iu"
            and value.dtype.itemsize > 4
            and value.size
        ),
        default=0,
    )
    # Report values from 2**31 on, the limit of signed 32-bit integers.
    return f"{node.op} of integers up to {most}" if most >= LOW_32_BITS // 2 else ""


_PADDING = ("pads", "ceil_mode", "auto_pad", "count_include_pad")

NODE_TRAPS = (
    NodeTrap(
        "isnan",
        "IsNaN is wrong in half floats.",
        "Test for NaN outside of the model.",
        _saw_operator,
        _numbers_for_nan,
        ("IsNaN",),
    ),
    NodeTrap(
        "softmax-of-large-values",
        "Softmax and LogSoftmax of values around 1e4 are wrong in half floats (measured: relative error 0.6).",
        "Scale the scores, or subtract their maximum before.",
        _saw_large_scores,
        _smaller,
        ("Softmax", "LogSoftmax"),
    ),
    NodeTrap(
        "average-pool-padding",
        "AveragePool with pads, ceil_mode, auto_pad or count_include_pad averages other values than ONNX defines.",
        "Put a Pad node in front of it and pool without padding.",
        _saw_padding,
        _without(*_PADDING),
        ("AveragePool",),
    ),
    NodeTrap(
        "max-pool-padding",
        "MaxPool with padding uses other values than ONNX defines: on V68, and with pads on both sides on V73.",
        "Put a Pad node in front of it, or select a newer chip.",
        _saw_padding,
        _without(*_PADDING),
        ("MaxPool",),
    ),
    NodeTrap(
        "conv-transpose-padding",
        "ConvTranspose with pads is wrong.",
        "Use it without pads and cut the border off with Slice.",
        _saw_padding,
        _without(*_PADDING),
        ("ConvTranspose",),
    ),
    NodeTrap(
        "resize",
        "Resize uses other pixels than ONNX defines: nearest when reducing, several coordinate modes, and "
        "linear with scales that are rounded to sizes (measured: 14 node tests; 8 to 11 by 1.4: cosine 0.987).",
        "Resize by whole factors, or outside of the model.",
        _saw_resize,
        _resized_plainly,
        ("Resize", "Upsample"),
    ),
    NodeTrap(
        "grid-sample-nearest",
        "GridSample with mode nearest is wrong (measured: relative error 0.2 to 0.25).",
        "Use mode linear.",
        _saw_grid,
        # The mode linear was called bilinear until opset 19.
        lambda node: [NodeChange(f"mode {mode}", {"mode": mode}) for mode in ("linear", "bilinear")],
        ("GridSample",),
    ),
    NodeTrap(
        "masked-attention",
        "Attention rows in which every token is masked give other numbers.",
        "Leave at least one token unmasked in every row.",
        _saw_operator,
        _nothing_masked,
        _MASKS,
    ),
    NodeTrap(
        "negative-indices",
        "GatherElements and ScatterElements with negative indices run and give other numbers.",
        "Count indices from the start; `qnnbridge fix` does it for constant indices.",
        _saw_negative_indices,
        _counted_from_the_start,
        ("GatherElements", "ScatterElements"),
    ),
    NodeTrap(
        "negative-gather-index",
        "Gather with a negative index that is an input or computed at run time returns another element in a "
        "quantised model (constant indices are right, and so is a float model).",
        "Count indices from the start: add the length of the axis to negative ones.",
        _saw_negative_indices,
        _counted_from_the_start,
        ("Gather",),
    ),
    NodeTrap(*INT64, _saw_wide_integers, _kept_in_32_bits),
    NodeTrap(*HALF_RANGE, _saw_beyond_half, _smaller),
    NodeTrap(
        "half-underflow",
        "QNN computes floats in 16 bits, in which the smallest number is 6e-8: smaller ones become 0 "
        "(measured: 1e-5 squared is 0), and dividing by them or taking their logarithm gives wrong results.",
        "Scale the inputs, or compute with logarithms in the model.",
        _saw_underflow,
        _larger,
    ),
)
