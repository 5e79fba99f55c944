"""Rewrites that make constants: of inputs and sizes, of what follows from them, and of constants QNN cannot use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs, shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.graph.editor import Editor
from qnnbridge_host.rewrite import folding
from qnnbridge_protocol.errors import OptionError


def fix_inputs(editor: Editor, sizes: Dimensions) -> list[str]:
    """Gives inputs these sizes; outputs and everything between follow."""
    free = {(one.input, one.axis): one.name for one in shapes.free_dimensions(editor.graph)}
    if not shapes.fix(editor.model, sizes):
        return []
    editor.changed(shapes=True)
    left = {(one.input, one.axis) for one in shapes.free_dimensions(editor.graph)}
    changed = dict.fromkeys(name for name, axis in free if (name, axis) not in left)
    if not changed:
        return []
    inputs = {value.name: value for value in editor.graph.input}
    return [f"input {name}: {_shape_text(inputs[name])}" for name in changed] + propagate_shapes(editor)


def fix_values(editor: Editor, constants: Mapping[str, float]) -> tuple[list[str], dict[str, Any]]:
    """Makes inputs constants; also gives their values, with which the original runs."""
    values: dict[str, Any] = {}
    changes = []
    inputs = {value.name: value for value in shapes.real_inputs(editor.graph)}
    for name, number in constants.items():
        value = inputs.get(name)
        if value is None:
            raise shapes.no_input(name, inputs)
        from onnx import helper

        shape = editor.shape(name)
        if shape is None:
            raise OptionError(
                f'Input "{name}" has free dimensions, so no constant can be made of it.',
                fix="Give its --shape, too.",
            )
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        values[name] = np.full(shape, number).astype(dtype)
        editor.graph.input.remove(value)
        editor.add_constant(values[name], name, name)
        changes.append(f"input {name} is always {number:g} now, and no input any more")
    if changes:
        editor.model.ir_version = max(editor.model.ir_version, 4)
        editor.changed(shapes=True)
    return changes, values


def propagate_shapes(editor: Editor) -> list[str]:
    """Declared shapes of intermediate tensors may be those of other sizes; without them all readers infer."""
    if shapes.free_dimensions(editor.graph):
        return []
    free = shapes.forget_inferred(editor.graph)
    if not free:
        return []
    editor.changed(shapes=True)
    fixed = []
    for value in free:
        shape = editor.shape(value.name)
        if shape is not None and len(shape) == len(value.type.tensor_type.shape.dim):
            for dimension, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                dimension.dim_value = size
            fixed.append(f"output {value.name}: {'x'.join(map(str, shape))}")
    return fixed


def _shape_text(value: Any) -> str:
    dims = value.type.tensor_type.shape.dim
    return "x".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def weights_from_inputs(editor: Editor) -> list[str]:
    """Before IR version 4 every weight is also an input: a caller could change it, so QNN cannot compile it in."""
    moved = graphs.weights_out_of_inputs(editor.model)
    if not moved:
        return []
    editor.model.ir_version = max(editor.model.ir_version, 4)  # from which on a weight need not be an input
    editor.changed()
    return [f"{moved} weights were inputs, too"]


def initializers_from_constants(editor: Editor) -> list[str]:
    """Also in subgraphs. The quantizer leaves weights in Constant nodes in float."""
    moved = sum(_moved(graph) for graph in graphs.subgraphs(editor.graph))
    if not moved:
        return []
    editor.model.ir_version = max(editor.model.ir_version, 4)
    editor.changed()
    return [f"{moved} Constant {'node' if moved == 1 else 'nodes'}"]


def _moved(graph: Any) -> int:
    kept: list[Any] = []
    tensors: list[Any] = []
    for node in graph.node:
        tensor = graphs.constant_tensor(node)
        if tensor is None:
            kept.append(node)
        else:
            tensors.append(tensor)
    if tensors:
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(tensors)
    return len(tensors)


def compute_shapes(editor: Editor) -> list[str]:
    """Sizes, axes, paddings and masks that are computed from fixed shapes become constants, as QNN needs them."""
    saved = folding.fold(editor)
    return [f"{saved} nodes computed"] if saved else []


_ALONG_AXIS = frozenset({"Gather", "GatherElements", "ScatterElements"})
_BY_COORDINATES = frozenset({"GatherND", "ScatterND"})


def count_indices_from_start(editor: Editor) -> list[str]:
    """QNN computes something else with some indices below zero."""

    def change(node: Any) -> list[Any] | None:
        if node.domain not in graphs.ONNX_DOMAINS:
            return None
        shape, indices = editor.shape(node.input[0]), editor.constant(node.input[1])
        if not shape or indices is None or not (indices < 0).any():
            return None
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type in _ALONG_AXIS:
            sizes = np.asarray(shape[attributes.get("axis", 0)])
        else:
            first = attributes.get("batch_dims", 0)
            sizes = np.asarray(shape[first : first + indices.shape[-1]])
        counted = np.where(indices < 0, indices + sizes, indices).astype(indices.dtype)
        node.input[1] = editor.add_constant(counted, f"{node.input[1]}/counted")
        return [node]

    count = editor.map_nodes(change, _ALONG_AXIS | _BY_COORDINATES)
    if count:
        editor.drop_dead()
    return [f"{count} nodes with negative indices"] if count else []


def shrink_masks(editor: Editor) -> list[str]:
    """Attention masks of -3.4e38 become -1e4.

    In half floats the large ones are infinite; quantised they leave no room for the scores (cosine 0.48 against
    float with them, 0.98 without).
    """
    for tensor in editor.graph.initializer:
        users = editor.uses(tensor.name)
        if users and all(node.op_type in graphs.MASK_ADDING_OPS for node in users):
            graphs.load_tensor(tensor, editor.folder)
    shrunk = graphs.shrink_masks(editor.model)
    return [f"{shrunk} masks are -{graphs.ENOUGH_FOR_MASK:g} now"] if shrunk else []
