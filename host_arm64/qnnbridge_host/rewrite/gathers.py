"""Rewrites of nodes with indices, such as Gather, for which QNN uses the wrong elements.

Except for `count_constant_indices`, each rewrite changes only nodes that match a row of the known-wrong table
(`qnnbridge_host.model.known_wrong`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.graph_index import GraphNode
from qnnbridge_host.rewrite.constants import count_constant_indices
from qnnbridge_host.rewrite.quantised_reshapes import quantise_reshapes
from qnnbridge_host.rewrite.rewriting import NodeChain, dtype_of, for_matches, reshaped, set_attribute, unchanged
from qnnbridge_protocol.elements import ElementType

# Rank of GatherND's indices if they are a matrix whose rows are the coordinates of one slice each.
_OF_A_MATRIX = 2


def gather_by_list(editor: Editor) -> list[str]:
    """Change the indices or the data of each Gather for which QNN reads wrong elements."""
    done: list[str] = []
    for step in (_list_indices, _gather_inside, limit_gathered):
        found = step(editor)
        if found:
            editor.changed(shapes=True)
        done += found
    if done:
        quantise_reshapes(editor)
    return done[:1]


@for_matches("Gather", ("gather-table", "gather-table-row", "gather-table-deep"), "Gather with a table of indices")
def _list_indices(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Replace a Gather whose indices have several dimensions by a Gather with flat indices and a Reshape."""
    made_shape = editor.shape(node.output[0])
    if made_shape is None:
        return None
    # If the indices have several dimensions, QNN returns wrong elements along the last dimension, or fails with
    # more than four dimensions.
    flat = editor.add_constant(np.array([-1]), "flat")
    first = editor.make("Reshape", [node.input[1], flat], node)
    node.input[1] = first.output[0]
    return [first, node, reshaped(editor, node, made_shape)]


@for_matches("Gather", ("gather-long",), "Gather with more than 256 indices")
def _gather_inside(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Append a dimension of size 1 to the data: QNN's Gather reads wrong elements only along the last dimension."""
    shape, made_shape = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or made_shape is None:
        return None
    sizes = editor.add_constant(np.array([*shape, 1]), "sizes")
    first = editor.make("Reshape", [node.input[0], sizes], node)
    node.input[0] = first.output[0]
    set_attribute(node, "axis", len(shape) - 1)
    return [first, node, reshaped(editor, node, made_shape)]


@for_matches("Gather", ("gather-input",), "Gather with indices that are an input")
def limit_gathered(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Insert Max (Add and Sub below opset 12) before indices that are an input of the model: QNN computes Gather
    right if the indices are the result of a node.
    """
    chain = NodeChain(editor, node)
    indices = node.input[1]
    if editor.element(indices) != ElementType.INT32.value:
        indices = chain("Cast", indices, to=ElementType.INT32.value)
    node.input[1] = unchanged(chain, indices, np.int32)
    return [*chain.made, node]


@for_matches("GatherND", ("gather-nd-slices", "gather-nd-rows"), "GatherND of slices")
def gather_flat_slices(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Merge the dimensions of each slice that a GatherND reads into one dimension."""
    shape, indices, made_shape = (editor.shape(name) for name in (*node.input[:2], node.output[0]))
    if shape is None or indices is None or made_shape is None:
        return None
    if indices[-1] == 1 and len(indices) == _OF_A_MATRIX:
        # The indices refer to the first dimension only, so replace the GatherND by a Gather.
        flat = editor.add_constant(np.array([-1]), "flat")
        first = editor.make("Reshape", [node.input[1], flat], node)
        return [first, editor.make("Gather", [node.input[0], first.output[0]], node, node.output[0], axis=0)]
    # QNN's result is wrong after the first slices if a slice has several dimensions, so merge these dimensions.
    flat = editor.add_constant(np.array([*shape[: indices[-1]], -1]), "flat")
    first = editor.make("Reshape", [node.input[0], flat], node)
    node.input[0] = first.output[0]
    return [first, node, reshaped(editor, node, made_shape)]


@for_matches(("GatherElements", "ScatterElements", "ScatterND"), ("negative-indices",), "computed indices")
def _count_computed_indices(editor: Editor, node: Any, record: GraphNode) -> list[Any] | None:
    """Add the size of the dimension to negative indices that the model computes."""
    shape, indices = editor.shape(node.input[0]), editor.shape(node.input[1])
    if not shape or not indices:
        return None
    # Each index of ScatterND is a list of coordinates, so add one size for each coordinate.
    sizes = shape[: indices[-1]] if node.op_type == "ScatterND" else shape[record.attributes.get("axis", 0)]
    chain, kind = NodeChain(editor, node), dtype_of(editor, node.input[1])
    zero, size = (editor.add_constant(np.array(number, kind), "from_start") for number in (0, sizes))
    index = node.input[1]
    node.input[1] = chain("Where", chain("Less", index, zero), chain("Add", index, size), index)
    return [*chain.made, node]


def count_indices_from_start(editor: Editor) -> list[str]:
    """Replace negative indices, some of which QNN uses wrong, by the equivalent indices from the start."""
    return [*count_constant_indices(editor), *_count_computed_indices(editor)]
