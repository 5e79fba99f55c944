"""The silent traps of QNN that show at a node: the first behind which values differ. Rules as data.

A rule blames one thing about the node, and says how to change that one thing. The trap is named only if the error
goes with the change, on the CPU's own values. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.model.graph_index import rules_about
from qnnbridge_models.verify.traps import BEYOND_HALF, HALF_RANGE, INT64, LOW_32_BITS
from qnnbridge_models.verify.verification import TrapFound

Array = npt.NDArray[Any]

# The smallest number of half floats above 0, with lost digits.
_SMALLEST_HALF = 6e-8
# The simulator's half floats lose digits below 6.1e-5.
_NO_UNDERFLOW = 1e-4
_LARGE_SCORES = 1000.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAt:
    """The node where values begin to differ.

    Args:
        inputs, outputs: the CPU's values there, None where not known.
        shapes: of the inputs, None where not known.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()

    def has(self, name: str) -> bool:
        """Whether an attribute is there and is not zero (zeros, NOTSET)."""
        value = self.attributes.get(name)
        if isinstance(value, (list, tuple)):
            return any(value)
        return bool(value) and value != "NOTSET"

    def floats(self) -> list[Array]:
        """The known values of floats that go in or come out."""
        arrays = [value for value in (*self.inputs, *self.outputs) if isinstance(value, np.ndarray)]
        return [value for value in arrays if value.dtype.kind == "f" and value.size]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeChange:
    """One thing about a node that is made otherwise, to see whether an error goes with it.

    Args:
        words: what is changed.
        attributes: new values; None takes one away.
        inputs: new values by the number of the input.
        scale: factor for all floats that go in.
    """

    words: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTrap:
    """A trap that shows at the first node that differs.

    Args:
        saw: evidence at the node; empty if it is not this trap.
        changes: each takes the cause away; the error must go with one of them.
        operators: of which nodes alone it is about; None for all.
    """

    name: str
    words: str
    advice: str
    saw: Callable[[NodeAt], str]
    changes: Callable[[NodeAt], Sequence[NodeChange]]
    operators: Collection[str] | None = None


def suspected(node: NodeAt) -> list[tuple[NodeTrap, str]]:
    """Rules that blame something about a node, with the evidence; to be proven by their changes."""
    return [(trap, seen) for trap in rules_about(NODE_TRAPS, node.op) if (seen := trap.saw(node))]


def proven(trap: NodeTrap, label: str, evidence: str, change: NodeChange) -> TrapFound:
    """The trap of a node, after the error went with the change."""
    return TrapFound(
        trap.name, trap.words, f"node {label}: {evidence}", trap.advice, f"with {change.words} the node agrees"
    )


def _saw_operator(node: NodeAt) -> str:
    return node.op


def _saw_padding(node: NodeAt) -> str:
    names = [name for name in _PADDING if node.has(name)]
    return f"{node.op} with {', '.join(f'{name}={node.attributes[name]!r}' for name in names)}" if names else ""


def _saw_large_scores(node: NodeAt) -> str:
    values = [value for value in node.inputs[:1] if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    finite = np.abs(values[0][np.isfinite(values[0])]) if values else np.zeros(0)
    most = float(finite.max(initial=0.0))
    return f"{node.op} of values up to {most:.3g}" if most >= _LARGE_SCORES else ""


def _saw_resize(node: NodeAt) -> str:
    mode = node.attributes.get("mode", "nearest")
    how = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    return f"{node.op} with mode {mode!r}, coordinates {how!r}"


def _saw_grid(node: NodeAt) -> str:
    mode = node.attributes.get("mode", "linear")
    return f"GridSample with mode {mode!r}" if mode == "nearest" else ""


def _saw_negative_indices(node: NodeAt) -> str:
    least = _least_index(node)
    return f"{node.op} with indices down to {least}" if least < 0 else ""


def _saw_negative_gather(node: NodeAt) -> str:
    least = _least_index(node)
    return f"Gather with an index of {least}" if least < 0 else ""


def _least_index(node: NodeAt) -> int:
    indices = node.inputs[1] if len(node.inputs) > 1 else None
    if not isinstance(indices, np.ndarray) or indices.dtype.kind != "i" or not indices.size:
        return 0
    return int(indices.min())


def _saw_beyond_half(node: NodeAt) -> str:
    most = max((float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in node.floats()), default=0.0)
    return f"{node.op} with values up to {most:.6g} on the CPU" if most >= BEYOND_HALF else ""


def _saw_underflow(node: NodeAt) -> str:
    least = min((float(np.abs(v[v != 0]).min(initial=np.inf)) for v in node.floats()), default=np.inf)
    return f"{node.op} with values down to {least:.3g} on the CPU" if least < _SMALLEST_HALF else ""


# --- changes: each takes the cause away, and nothing else -------------------------------------------------


def _smaller(node: NodeAt) -> Sequence[NodeChange]:
    most = max((float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in node.floats()), default=0.0)
    return [NodeChange(f"inputs of a {times:g}th", scale=1 / times) for times in _powers(most / 1000.0)]


def _larger(node: NodeAt) -> Sequence[NodeChange]:
    least = min((float(np.abs(v[v != 0]).min(initial=np.inf)) for v in node.floats()), default=1.0)
    changes = [
        NodeChange(f"inputs {times:g} times as large", scale=times) for times in _powers(1e-3 / max(least, 1e-30))
    ]
    # Where large values are beside the small ones, they would not fit then.
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
    """Powers of 10, the smallest that is enough by a linear operator first."""
    first = 10.0 ** max(1, int(np.ceil(np.log10(max(times, 10.0)))))
    return [first, 10.0] if first > 10.0 else [first]


def _without(*names: str) -> Callable[[NodeAt], Sequence[NodeChange]]:
    def changes(node: NodeAt) -> Sequence[NodeChange]:
        there = [name for name in names if node.has(name)]
        return [NodeChange(f"no {', '.join(there)}", dict.fromkeys(there))] if there else []

    return changes


def _resized_plainly(node: NodeAt) -> Sequence[NodeChange]:
    changes = [
        NodeChange(f"coordinates 'half_pixel' and mode {mode!r}", {**_PLAIN_RESIZE, "mode": mode})
        for mode in dict.fromkeys((_text_of(node.attributes.get("mode", "nearest")), "linear"))
    ]
    rank = len(node.shapes[0] or ()) if node.shapes else 0
    if len(node.inputs) > 2 and isinstance(node.inputs[2], np.ndarray) and node.inputs[2].size == rank:
        doubled = np.array([1.0, 1.0, *([2.0] * (rank - 2))], np.float32)
        changes.append(NodeChange("scales of 2", inputs={2: doubled}))
        changes.append(
            NodeChange("scales of 2 and mode 'linear'", {**_PLAIN_RESIZE, "mode": "linear"}, {2: doubled})
        )
    return changes


_PLAIN_RESIZE = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": None, "antialias": None}


def _text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


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


def _nothing_masked(node: NodeAt) -> Sequence[NodeChange]:
    masks = {
        number: np.ones_like(value) if value.dtype.kind in "biu" else np.zeros_like(value)
        # A mask of booleans or integers keeps where it is 1; one of floats is added.
        for number, value in enumerate(node.inputs)
        if number > 2 and isinstance(value, np.ndarray) and value.ndim >= 1
    }
    return [NodeChange("nothing masked", inputs=masks)] if masks else []


def _kept_in_32_bits(node: NodeAt) -> Sequence[NodeChange]:
    wide = {
        # Small enough for 32 bits also when the node multiplies them.
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
        "AveragePool with pads, ceil_mode, auto_pad or count_include_pad counts other values than ONNX says.",
        "Put a Pad node in front of it and pool without padding.",
        _saw_padding,
        _without(*_PADDING),
        ("AveragePool",),
    ),
    NodeTrap(
        "max-pool-padding",
        "MaxPool with padding takes other values than ONNX says: on V68, and with pads on both sides on V73.",
        "Put a Pad node in front of it, or name a newer chip.",
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
        "Resize takes other pixels than ONNX says: nearest when it makes smaller, several coordinate modes, and "
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
        # Until opset 19 it was called bilinear.
        lambda node: [NodeChange(f"mode {mode}", {"mode": mode}) for mode in ("linear", "bilinear")],
        ("GridSample",),
    ),
    NodeTrap(
        "masked-attention",
        "Attention rows in which everything is masked give other numbers.",
        "Leave at least one token unmasked in every row.",
        _saw_operator,
        _nothing_masked,
        ("Attention", "com.microsoft.Attention", "MultiHeadAttention", "com.microsoft.MultiHeadAttention"),
    ),
    NodeTrap(
        "negative-indices",
        "GatherElements and ScatterElements with negative indices run and give other numbers.",
        "Count indices from the start; `qnnbridge fix` does it for constant ones.",
        _saw_negative_indices,
        _counted_from_the_start,
        ("GatherElements", "ScatterElements"),
    ),
    NodeTrap(
        "negative-gather-index",
        "Gather with a negative index that is given or computed at run time takes another element in a quantised "
        "model (constant indices are right, and so is a float model).",
        "Count indices from the start: add the length of the axis to negative ones.",
        _saw_negative_gather,
        _counted_from_the_start,
        ("Gather",),
    ),
    NodeTrap(*INT64, _saw_wide_integers, _kept_in_32_bits),
    NodeTrap(*HALF_RANGE, _saw_beyond_half, _smaller),
    NodeTrap(
        "half-underflow",
        "QNN computes floats in 16 bits, in which the smallest number is 6e-8: smaller ones become 0 "
        "(measured: 1e-5 squared is 0), and what divides by them or takes their logarithm goes astray.",
        "Scale the inputs, or take logarithms in the model.",
        _saw_underflow,
        _larger,
    ),
)
