"""Rewrites of poolings that QNN computes wrong.

Each rewrite changes only nodes that match a row of the known-wrong table (`qnnbridge_host.model.known_wrong`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnbridge_host.graph import shapes
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.conditions import window_of_node
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.static_shapes import slid_sizes
from qnnbridge_host.rewrite.rewriting import (
    LAST,
    drop_attribute,
    dtype_of,
    for_matches,
    rewrite_matched,
    set_attribute,
    sliced,
    with_edges,
)
from qnnbridge_protocol.elements import ElementType

# Width from which QNN computes all results right. Some narrower results are wrong (row `average-pool-narrow` of the
# known-wrong table).
_LEAST_WIDTH = 9


@for_matches(
    "AveragePool",
    (
        "average-pool-1d",
        "average-pool-1d-one-side",
        "average-pool-to-one",
        "average-pool-to-one-16",
        "average-pool-3d",
        "average-pool-3d-strided",
        "average-pool-counted-line",
        "average-pool-three-sides",
        "average-pool-top",
        "average-pool-half-input",
        "average-pool-one-channel",
        "average-pool-forty",
        "average-pool-last-row",
        "average-pool-ceil",
        "average-pool-few-channels",
        "average-pool-counted",
        "average-pool-one-side",
        "average-pool-narrow",
        "average-pool-strided",
        "average-pool-even",
        "average-pool-four",
        "average-pool-blocks",
        "average-pool-to-one-counted",
        "average-pool-five",
        "average-pool-left-out",
    ),
    "AveragePool",
)
def average_by_sums(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace AveragePool by an AveragePool of a padded tensor, a Slice at the end, and a Mul by constants."""
    shape, made_shape = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or made_shape is None:
        return None
    window = window_of_node(record)
    counted = bool(record.attributes.get("count_include_pad", 0))
    # The new pooling divides by the size of the whole kernel. Multiply by this size and divide by the number of
    # values by which the original pooling divides.
    factors, more = [], []
    for size, kernel, step, _, before, after, out in zip(*window.values(), made_shape[2:], strict=True):
        # The divisor depends on whether zeros of the padding count.
        low, high = (-before, size + after) if counted else (0, size)
        starts = np.arange(out) * step - before
        reached = np.minimum(starts + kernel, high) - np.maximum(starts, low)
        # Avoid a division by zero: a window that is completely in the padding reaches no value.
        factors.append(kernel / np.maximum(reached, 1))
        more.append(max(after, int(starts[-1]) + kernel - size))
    if window["kernel"] == window["strides"] == [4, 4] and all(
        (size + before + end) % 4 == 2
        for size, before, end in zip(window["sizes"], window["before"], more, strict=True)
    ):
        # QNN crashes if the windows leave two values unread in both dimensions. Pad one more zero, which no window
        # reads.
        more[-1] += 1
    wider = _wider_than_wrong(record, shape, made_shape)
    more[-1] += wider
    pads = [0, 0, *window["before"], 0, 0, *more]
    made: list[Any] = []
    value = node.input[0]
    if shape[1] == 1 and editor.element(value) == ElementType.FLOAT16.value:
        # QNN reads wrong values of an input of half floats with a single channel if the pooling reads the input
        # directly. This Max changes no value.
        made.append(editor.make("Max", [value, editor.like(value, -65504.0, f"{value}/least")], node))
        value = made[-1].output[0]
    for axis in range(2, len(shape)):
        # Pad one dimension at a time, and with Concat, because QNN also computes some Pads of two dimensions wrong.
        sides = (pads[axis], pads[axis + len(shape)])
        if any(sides):
            value = _with_zeros(editor, node, value, axis, sides, shape, pads, made)
    for name in ("pads", "auto_pad", "ceil_mode", "count_include_pad"):
        drop_attribute(node, name)
    node.input[0] = value
    made.append(node)
    output, factor = node.output[0], functools.reduce(np.multiply.outer, factors)
    if wider:
        node.output[0] = editor.fresh(f"{output}/wider")
        made.append(sliced(editor, node, node.output[0], len(shape) - 1, 0, made_shape[-1]))
    if np.any(factor != 1):
        made[-1].output[0] = editor.fresh(f"{output}/sum")
        scale = editor.add_constant(factor[None, None].astype(dtype_of(editor, output)), f"{output}/factor")
        made.append(editor.make("Mul", [made[-1].output[0], scale], node))
    made[-1].output[0] = output
    return made


def _wider_than_wrong(pool: GraphNode, shape: Sequence[int], made: Sequence[int]) -> int:
    """Return how many columns wider an AveragePool's result must be so that QNN computes it right."""
    # The bounds are those of the row `average-pool-narrow` of the known-wrong table.
    if len(shape) < 4 or max(window_of_node(pool)["strides"]) > 1 or shape[1] > 32 or made[-2] < 13:
        return 0
    return _LEAST_WIDTH - made[-1] if 2 <= made[-1] < _LEAST_WIDTH else 0


def _with_zeros(
    editor: Editor,
    node: Any,
    value: str,
    axis: int,
    sides: tuple[int, int],
    shape: Sequence[int],
    pads: Sequence[int],
    made: list[Any],
) -> str:
    """Append a Concat with zeros along one axis to `made`, and return its result.

    value: the tensor, already padded along the axes before `axis`. sides: number of zeros before and after. shape:
    shape of the tensor without padding. pads: pads of all axes.
    """
    rank = len(shape)
    sizes = [size + (pads[i] + pads[i + rank] if 1 < i < axis else 0) for i, size in enumerate(shape)]
    parts = [value]
    for front, many in zip((True, False), sides, strict=True):
        if many:
            block = np.zeros((*sizes[:axis], many, *sizes[axis + 1 :]), dtype_of(editor, node.input[0]))
            name = editor.add_constant(block, f"{node.output[0]}/zeros")
            parts = [name, *parts] if front else [*parts, name]
    made.append(editor.make("Concat", parts, node, axis=axis))
    return str(made[-1].output[0])


@for_matches("MaxPool", ("max-pool-even",), "MaxPool with padding")
def _copy_edges(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the padding of a MaxPool by copies of the edges."""
    shape, window = editor.shape(node.input[0]), window_of_node(record)
    if shape is None:
        return None
    sides = zip(window["before"], window["after"], strict=True)
    # Padding is smaller than the kernel, so each window that reaches a copy contains the copied edge itself.
    made = with_edges(editor, node, shape, {axis: pair for axis, pair in enumerate(sides, 2) if any(pair)})
    node.input[0] = made[-1].output[0]
    for name in ("pads", "auto_pad"):
        drop_attribute(node, name)
    return [*made, node]


@for_matches("MaxPool", ("max-pool-column",), "MaxPool that is one wide")
def _step_before_pool(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace the stride of a MaxPool along the last dimension, where the kernel has one value, by a Slice."""
    step = record.attributes["strides"][1]
    # Start, end, axis and step of the Slice.
    limits = [editor.add_constant(np.array([number]), "step") for number in (0, LAST, 3, step)]
    first = editor.make("Slice", [node.input[0], *limits], node)
    node.input[0] = first.output[0]
    set_attribute(node, "strides", [record.attributes["strides"][0], 1])
    return [first, node]


def rewrite_max_pools(editor: Editor) -> list[str]:
    """Rewrite a MaxPool that QNN computes wrong because of its padding, or because its kernel has a width of 1."""
    return [*_copy_edges(editor), *_step_before_pool(editor)]


@for_matches("LpPool", ("lp-pool-same",), "LpPool with auto_pad")
def pads_of_lp_pools(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace auto_pad of an LpPool by pads, and by a Slice if ONNX Runtime's first window begins inside of the
    image.
    """
    window, made = window_of_node(record), slid_sizes([*record.given], record.attributes)
    value, pads, nodes = node.input[0], [window["before"], window["after"]], []
    for axis, (size, kernel, step, out) in enumerate(
        zip(window["sizes"], window["kernel"], window["strides"], made, strict=True), 2
    ):
        # If the windows do not cover the whole image, ONNX Runtime skips half of the uncovered values at the start,
        # rounded towards zero.
        rest = size - (out - 1) * step - kernel
        start = (rest if record.attributes["auto_pad"] == "SAME_UPPER" else rest - 1) // 2
        if start > 0:
            nodes.append(sliced(editor, node, value, axis, start, LAST))
            value = nodes[-1].output[0]
    node.input[0] = value
    drop_attribute(node, "auto_pad")
    set_attribute(node, "pads", [*pads[0], *pads[1]])
    return [*nodes, node]


def pool_whole_windows(editor: Editor) -> list[str]:
    """Replace ceil_mode of poolings by the padding at the end that the last window of ONNX's definition needs."""

    def change(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
        window, after = window_of_node(record), []
        # QNN adds a window that begins in the padding at the end. Without ceil_mode there is no such window.
        for size, kernel, step, dilation, before, end in zip(*window.values(), strict=True):
            reach = (kernel - 1) * dilation + 1
            last = -(-(size + before + end - reach) // step) * step
            if last >= size + before:  # a window that would begin in the padding at the end does not exist
                last -= step
            after.append(max(0, last + reach - size - before))
        beyond = any(more > end for more, end in zip(after, window["after"], strict=True))
        if beyond and record.attributes.get("count_include_pad", 0):
            return None  # the average would include the added padding
        for name in ("auto_pad", "ceil_mode"):
            drop_attribute(node, name)
        set_attribute(node, "pads", [*window["before"], *after])
        return [node]

    rows = ("pool-ceil-shape",)
    changes = [line for op in ("MaxPool", "AveragePool") for line in rewrite_matched(editor, op, rows, change, op)]
    if changes:
        _declare_outputs(editor)
    return changes


def _declare_outputs(editor: Editor) -> None:
    """Set the outputs to inferred shapes: declared shapes follow onnx's rules, and may have one window more."""
    declared = [value for value in editor.graph.output if shapes.has_shape(value)]
    before = [list(value.type.tensor_type.shape.dim) for value in declared]
    shapes.forget_inferred(editor.graph)
    for value in declared:
        value.type.tensor_type.ClearField("shape")
    editor.changed(shapes=True)
    for value, dims in zip(declared, before, strict=True):
        shape = editor.shape(value.name)
        value.type.tensor_type.shape.dim.extend(dims)
        for dimension, size in zip(value.type.tensor_type.shape.dim, shape or (), strict=False):
            if dimension.HasField("dim_value"):
                dimension.dim_value = size
    editor.changed(shapes=True)
