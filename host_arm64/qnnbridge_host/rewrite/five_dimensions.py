"""Rewrites of operators of five dimensions that QNN computes wrong: with fewer dimensions it computes them right.

Each changes only nodes that a row of the table (`qnnbridge_host.model.known_wrong`) matches.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.model.known_wrong import reduced_axes, window_of_node
from qnnbridge_host.rewrite.rewriting import drop_attribute, for_matches, reshaped, set_attribute

# The opset from which the axes of a reduction are an input.
_AXES_ARE_INPUT = {"ReduceSum": 13}
_OF_THE_OTHERS = 18


@for_matches(
    ("ReduceL2", "ReduceMean", "ReduceMin", "ReduceSum"), ("reduce-batch", "reduce-batch-integers"), "reduction"
)
def reduce_merged_dimensions(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """A reduction of five dimensions merges those that stand side by side, and are all reduced or all kept."""
    shape, made_shape = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or made_shape is None:
        return None
    axes = reduced_axes(record)
    runs = [(gone, list(run)) for gone, run in itertools.groupby(range(len(shape)), lambda axis: axis in axes)]
    sizes = np.array([math.prod(shape[axis] for axis in run) for _, run in runs])
    places = [place for place, (gone, _) in enumerate(runs) if gone]
    first = editor.make("Reshape", [node.input[0], editor.add_constant(sizes, "merged")], node)
    node.input[0] = first.output[0]
    if editor.opset < _AXES_ARE_INPUT.get(node.op_type, _OF_THE_OTHERS):
        set_attribute(node, "axes", places)
    else:
        drop_attribute(node, "axes")
        del node.input[1:]
        node.input.append(editor.add_constant(np.array(places), "axes"))
    set_attribute(node, "keepdims", 1)
    return [first, node, reshaped(editor, node, made_shape)]


def crop_and_turn(editor: Editor) -> list[str]:
    """A ConvTranspose in three dimensions is cut off behind it, and gets two equal strides at its end."""
    return [*_crop(editor), *_equal_strides_last(editor)]


@for_matches("ConvTranspose", ("conv-transpose-3d-pads",), "padding of a ConvTranspose in three dimensions")
def _crop(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """A ConvTranspose whose padding differs between the sides is cut off behind it."""
    made_shape = editor.shape(node.output[0])
    if made_shape is None or "output_shape" in record.attributes:
        return None
    before = window_of_node(record)["before"]
    # QNN takes one padding for all sides.
    for name in ("auto_pad", "pads", "output_padding"):
        drop_attribute(node, name)
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/whole")
    ends = [start + size for start, size in zip(before, made_shape[2:], strict=True)]
    limits = [editor.add_constant(np.array(one), "crop") for one in (before, ends, [2, 3, 4])]
    return [node, editor.make("Slice", [node.output[0], *limits], node, output)]


@for_matches("ConvTranspose", ("conv-transpose-3d-strides",), "ConvTranspose in three dimensions")
def _equal_strides_last(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """A ConvTranspose in three dimensions gets two equal strides at its end, by transposes around it."""
    weights = editor.constant(node.input[1])
    strides = window_of_node(record)["strides"]
    # The dimension whose stride is another one comes first.
    other = next((place for place in (1, 2) if strides.count(strides[place]) == 1), None)
    if weights is None or other is None:
        return None
    order = [other, *(place for place in range(3) if place != other)]
    perm = [0, 1, *(place + 2 for place in order)]
    for name, given in record.attributes.items():
        if name in _OF_DIMENSIONS:
            values = list(given)
            parts = [values[start : start + 3] for start in range(0, len(values), 3)]
            set_attribute(node, name, [part[place] for part in parts for place in order])
    first = editor.make("Transpose", [node.input[0]], node, perm=perm)
    node.input[0] = first.output[0]
    node.input[1] = editor.add_constant(np.ascontiguousarray(weights.transpose(perm)), f"{node.input[1]}/order")
    output = node.output[0]
    node.output[0] = editor.fresh(f"{output}/order")
    back = [int(place) for place in np.argsort(perm)]
    return [first, node, editor.make("Transpose", [node.output[0]], node, output, perm=back)]


# The attributes of a ConvTranspose with a number, or a pair of them, for each dimension.
_OF_DIMENSIONS = ("kernel_shape", "strides", "dilations", "output_padding", "output_shape", "pads")
