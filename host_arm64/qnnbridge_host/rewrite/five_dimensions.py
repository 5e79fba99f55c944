"""Rewrites of operators that QNN computes wrong in five dimensions, but right in fewer dimensions.

Each rewrite changes only nodes that match a row of the known-wrong table (`qnnbridge_host.model.known_wrong`).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.conditions import reduced_axes
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.rewriting import drop_attribute, for_matches, reshaped, set_attribute

# The first opset in which the axes of a reduction are an input.
_AXES_ARE_INPUT = {"ReduceSum": 13}
_OF_THE_OTHERS = 18


@for_matches(
    ("ReduceL2", "ReduceMean", "ReduceMin", "ReduceSum"), ("reduce-batch", "reduce-batch-integers"), "reduction"
)
def reduce_merged_dimensions(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Merge neighbouring dimensions of a reduction in five dimensions, if all of them are reduced or all are
    kept."""
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


@for_matches("Slice", ("slice-five-integers",), "Slice of five dimensions")
def gather_instead_of_step(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace a Slice with a step along one axis by Gather."""
    shape, made_shape = editor.shape(node.input[0]), editor.shape(node.output[0])
    limits = [editor.constant(name, 1) for name in node.input[1:5]]
    if shape is None or made_shape is None or any(limit is None for limit in limits):
        return None
    start, end, axis, step = (int(limit.reshape(-1)[0]) for limit in limits if limit is not None)
    # ONNX limits an end before the first element to -1 - size, which Python takes as "up to the first".
    places = range(shape[axis])[start : None if step < 0 and end < -shape[axis] else end : step]
    indices = editor.add_constant(np.array(places, np.int64), "places")
    gather = editor.make("Gather", [node.input[0], indices], node, node.output[0], axis=axis % len(shape))
    if axis % len(shape) > 0:
        return [gather]
    # Merge the other dimensions: QNN cannot finalize a Gather of several values along the first of five dimensions.
    rows = editor.add_constant(np.array([shape[0], math.prod(shape[1:])]), "rows")
    first = editor.make("Reshape", [node.input[0], rows], node)
    gather.input[0] = first.output[0]
    return [first, gather, reshaped(editor, gather, made_shape)]
