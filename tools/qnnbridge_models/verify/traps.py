"""Rules for silent traps of QNN: wrong results without an error that can be recognised in values or at a node.

A trap is reported only with proof. For a value trap, all values that the trap does not affect must agree; for a
node trap, the node's results must agree after a change of the node. All functions are pure.
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

# Smallest magnitude that counts as a saturated float16 value. QNN returns 65536, 98304 or 131008 for such values,
# possibly reduced slightly by rounding.
BEYOND_HALF = 60000.0
_OF_NUMBERS = 0.01
LOW_32_BITS = 2**32


@dataclasses.dataclass(frozen=True, slots=True)
class ValueTrap:
    """A trap that can be recognised in the values of one output.

    Args:
        name: name of the trap.
        words: description.
        advice: what to do.
        saw: function (CPU values, QNN values) that returns a mask of the values that the trap affects, or None for
            unsupported types.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[Array, Array], Array | None]


def of_values(
    tensor: str, expected: Any, found: Any, number_format: NumberFormat = "fp16"
) -> tuple[TrapFound, ...]:
    """Return the traps in an output or inner tensor if they explain all its differing values, else ()."""
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in (expected, found)):
        return ()
    # value traps do not explain a different shape or type
    if expected.shape != found.shape or expected.dtype != found.dtype or not expected.size:
        return ()
    seen = [(trap, hit) for trap in VALUE_TRAPS if (hit := trap.saw(expected, found)) is not None and hit.any()]
    # Mask of the values that no trap explains.
    rest = ~np.logical_or.reduce([hit for _, hit in seen]) if seen else np.zeros(0, bool)
    if not seen or (rest.any() and judge(expected[rest], found[rest], number_format).state == "differs"):
        return ()
    proof = "the other values agree" if rest.any() else "there are no other values"
    return tuple(
        TrapFound(
            trap.name,
            trap.words,
            f"{tensor}: {_first(expected, found, hit)}",
            trap.advice,
            f"{int(np.count_nonzero(hit))} values show the trap, and {proof}",
        )
        for trap, hit in seen
    )


def _first(expected: Array, found: Array, where: Array) -> str:
    """Return a text with the number of affected values and the first of them."""
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
    # The difference of two 64-bit integers may overflow; its lower 32 bits are still right.
    with np.errstate(over="ignore"):
        # If the lower 32 bits are equal, the upper 32 bits were cut off.
        low = (expected - found) % expected.dtype.type(LOW_32_BITS) == 0
    return np.asarray((expected != found) & low)


def _saw_nan_gone(expected: Array, found: Array) -> Array | None:
    return _floats(expected, found, lambda a, b: np.isnan(a) & np.isfinite(b))


def _saw_infinity_gone(expected: Array, found: Array) -> Array | None:
    return _floats(expected, found, lambda a, b: np.isinf(a) & np.isfinite(b))


def _saw_half_range(expected: Array, found: Array) -> Array | None:
    def saturated(a: Array, b: Array) -> Array:
        # Ignore the usual rounding errors of float16.
        off = np.abs(a - b) > _OF_NUMBERS * np.maximum(np.abs(a), 1.0)
        return np.asarray(np.isfinite(a) & off & ((np.abs(b) >= BEYOND_HALF) | ~np.isfinite(b)))

    return _floats(expected, found, saturated)


def _floats(expected: Array, found: Array, where: Callable[[Array, Array], Array]) -> Array | None:
    if expected.dtype.kind != "f":
        return None
    # Ignore numpy's warnings, because NaN and infinity are expected here.
    with np.errstate(all="ignore"):
        return where(expected.astype(np.float64), found.astype(np.float64))


# Traps that can be recognised both in values and at nodes.
HALF_RANGE = (
    "half-range",
    "QNN computes floats in 16 bits, which end at 65504: larger values, even between two nodes, become 65536, "
    "98304, 131008 or NaN without an error (measured: relu(1e5) = 65536, exp(20) = 131008).",
    "Scale the inputs or the weights, or run the affected nodes on the CPU.",
)
INT64 = (
    "int64-in-32-bits",
    "QNN computes 64-bit integers in 32 bits: the upper half is cut off without an error "
    "(measured: 2**33 + 5, plus 1, gives 6).",
    "Keep integers within 32 bits, or do this computation outside of the model.",
)

VALUE_TRAPS = (
    ValueTrap(*INT64, _saw_32_bits),
    ValueTrap(
        "nan-vanishes",
        "QNN does not propagate NaN, but returns a number instead (measured: 65536 or 0 for 8 of 8 NaN).",
        "Check the inputs for NaN before the run; whether QNN's output contains NaN proves nothing.",
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


# --- rules about the first node whose results differ ----------------------------------------------------
# A rule suspects one property of the node, and returns changes that remove this property. The trap is reported only
# if one of the changes removes the error of the node, which runs on inputs that the CPU computed.

# Smallest positive float16 number.
_SMALLEST_HALF = 6e-8
# To exclude underflow, smaller values are raised to this number: the simulator's float16 is imprecise below 6.1e-5.
_NO_UNDERFLOW = 1e-4
_LARGE_SCORES = 1000.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAt:
    """Properties of the node where values begin to differ.

    Args:
        op: operator.
        attributes: attributes by name.
        inputs, outputs: the CPU's values; None for unknown values.
        shapes: shapes of the inputs; None for unknown shapes.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether an attribute is present and neither zero nor "NOTSET", the default of auto_pad."""
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
        """Return the smallest nonzero absolute value of `floats()`; infinity if there is none."""
        return min((float(np.abs(v[v != 0]).min(initial=np.inf)) for v in self.floats()), default=np.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of one property of a node, to test whether an error disappears.

    Args:
        words: description of the change.
        attributes: new values of attributes; None removes the attribute.
        inputs: new values of inputs, by index.
        scale: factor for all float inputs.
    """

    words: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTrap:
    """A trap that can be recognised at the first differing node.

    Args:
        name: name of the trap.
        words: description.
        advice: what to do.
        saw: function that returns the evidence at the node as text; empty if the trap does not apply.
        changes: function that returns changes of the node, each of which removes the suspected cause. The trap is
            proven if one of them removes the error.
        operators: operators that the rule applies to; None for all.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[NodeAt], str]
    changes: Callable[[NodeAt], Sequence[NodeChange]]
    operators: Collection[str] | None = None


def suspected(node: NodeAt) -> list[tuple[NodeTrap, str]]:
    """Return the rules that match the node, with the evidence. A match alone proves nothing."""
    return [(trap, seen) for trap in rules_about(NODE_TRAPS, node.op) if (seen := trap.saw(node))]


def proven(trap: NodeTrap, label: str, evidence: str, change: NodeChange) -> TrapFound:
    """Return the record of a proven trap: after the change, QNN's result of the node agrees with the CPU's."""
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
    return f"{node.op} with negative indices (minimum {int(indices.min())})"


def _saw_beyond_half(node: NodeAt) -> str:
    most = node.largest()
    return f"{node.op} with values up to {most:.6g} on the CPU" if most >= BEYOND_HALF else ""


def _saw_underflow(node: NodeAt) -> str:
    least = node.smallest()
    return f"{node.op} with values down to {least:.3g} on the CPU" if least < _SMALLEST_HALF else ""


# --- changes: each removes the suspected cause and nothing else -------------------------------------------


def _smaller(node: NodeAt) -> Sequence[NodeChange]:
    most = node.largest()
    return [NodeChange(f"inputs of a {times:g}th", scale=1 / times) for times in _powers(most / 1000.0)]


def _larger(node: NodeAt) -> Sequence[NodeChange]:
    powers = _powers(1e-3 / max(node.smallest(), 1e-30))
    changes = [NodeChange(f"inputs {times:g} times as large", scale=times) for times in powers]
    # Also try to raise only the small values: scaling all inputs would overflow if they also contain large values.
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
    """Return factors to try: the smallest power of 10 from `times` on (enough for a linear operator), then 10."""
    first = 10.0 ** max(1, int(np.ceil(np.log10(max(times, 10.0)))))
    return [first, 10.0] if first > 10.0 else [first]


def _without(*names: str) -> Callable[[NodeAt], Sequence[NodeChange]]:
    def changes(node: NodeAt) -> Sequence[NodeChange]:
        there = [name for name in names if node.has(name)]
        return [NodeChange(f"no {', '.join(there)}", dict.fromkeys(there))] if there else []

    return changes


def _resized_plainly(node: NodeAt) -> Sequence[NodeChange]:
    # An Upsample has no coordinate attributes, so change only its mode. Its scales are input 1; a Resize has them
    # as input 2.
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
        # Mask nothing: use 1 in a boolean or integer mask, and 0 in a float mask, which is added to the scores. Do
        # not change a mask with one axis, which contains lengths.
        for number, value in enumerate(node.inputs)
        if number in _MASKS[node.op] and isinstance(value, np.ndarray) and value.ndim > 1
    }
    return [NodeChange("nothing masked", inputs=masks)] if masks else []


def _kept_in_32_bits(node: NodeAt) -> Sequence[NodeChange]:
    wide = {
        # Keep the values small, so that they fit into 32 bits even if the node multiplies them.
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
    # Signed 32-bit integers cannot represent values from 2**31 on.
    return f"{node.op} of integers up to {most}" if most >= LOW_32_BITS // 2 else ""


_PADDING = ("pads", "ceil_mode", "auto_pad", "count_include_pad")

NODE_TRAPS = (
    NodeTrap(
        "isnan",
        "QNN computes IsNaN wrong in float16.",
        "Test for NaN outside of the model.",
        _saw_operator,
        _numbers_for_nan,
        ("IsNaN",),
    ),
    NodeTrap(
        "softmax-of-large-values",
        "Softmax and LogSoftmax of values around 1e4 are wrong in float16 (measured: relative error 0.6).",
        "Scale the scores, or subtract their maximum first.",
        _saw_large_scores,
        _smaller,
        ("Softmax", "LogSoftmax"),
    ),
    NodeTrap(
        "average-pool-padding",
        "With pads, ceil_mode, auto_pad or count_include_pad, QNN's AveragePool does not average the values that "
        "ONNX defines.",
        "Put a Pad node before the pooling and pool without padding.",
        _saw_padding,
        _without(*_PADDING),
        ("AveragePool",),
    ),
    NodeTrap(
        "max-pool-padding",
        "With padding, QNN's MaxPool does not use the values that ONNX defines: on V68, and on V73 with pads on "
        "both sides.",
        "Put a Pad node before the pooling, or select a newer chip.",
        _saw_padding,
        _without(*_PADDING),
        ("MaxPool",),
    ),
    NodeTrap(
        "conv-transpose-padding",
        "QNN computes ConvTranspose with pads wrong.",
        "Use ConvTranspose without pads and cut the border off with Slice.",
        _saw_padding,
        _without(*_PADDING),
        ("ConvTranspose",),
    ),
    NodeTrap(
        "resize",
        "QNN's Resize does not use the pixels that ONNX defines: with mode nearest when reducing, with several "
        "coordinate modes, and with mode linear if size times scale is rounded (measured: 14 node tests; cosine "
        "0.987 from 8 to 11 pixels with scale 1.4).",
        "Resize by integer factors, or resize outside of the model.",
        _saw_resize,
        _resized_plainly,
        ("Resize", "Upsample"),
    ),
    NodeTrap(
        "grid-sample-nearest",
        "QNN's results of GridSample with mode nearest are wrong (measured: relative error 0.2 to 0.25).",
        "Use mode linear.",
        _saw_grid,
        # Try both names of the mode: before opset 20, the mode "linear" of GridSample is named "bilinear".
        lambda node: [NodeChange(f"mode {mode}", {"mode": mode}) for mode in ("linear", "bilinear")],
        ("GridSample",),
    ),
    NodeTrap(
        "masked-attention",
        "Attention rows in which every token is masked return wrong numbers.",
        "Leave at least one token unmasked in every row.",
        _saw_operator,
        _nothing_masked,
        _MASKS,
    ),
    NodeTrap(
        "negative-indices",
        "GatherElements and ScatterElements with negative indices run but return wrong numbers.",
        "Count indices from the start; `qnnbridge fix` rewrites constant indices.",
        _saw_negative_indices,
        _counted_from_the_start,
        ("GatherElements", "ScatterElements"),
    ),
    NodeTrap(
        "negative-gather-index",
        "Gather with a negative index that is an input or computed at run time returns a wrong element in a "
        "quantised model (constant indices and float models are right).",
        "Count indices from the start: add the length of the axis to negative ones.",
        _saw_negative_indices,
        _counted_from_the_start,
        ("Gather",),
    ),
    NodeTrap(*INT64, _saw_wide_integers, _kept_in_32_bits),
    NodeTrap(*HALF_RANGE, _saw_beyond_half, _smaller),
    NodeTrap(
        "half-underflow",
        "QNN computes floats in 16 bits, where the smallest number is 6e-8: smaller numbers become 0 (measured: "
        "1e-5 squared is 0), and dividing by them or taking their logarithm gives wrong results.",
        "Scale the inputs, or compute with logarithms in the model.",
        _saw_underflow,
        _larger,
    ),
)
