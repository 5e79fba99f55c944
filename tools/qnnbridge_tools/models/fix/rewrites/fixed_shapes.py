"""What follows from fixed inputs: outputs and everything between get their fixed shapes, or none that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.arguments import Dimensions
from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import shapes


def fix_inputs(editor: Editor, sizes: Dimensions) -> list[str]:
    free = {(one.input, one.axis): one.name for one in shapes.free_dimensions(editor.graph)}
    if not shapes.fix(editor.model, sizes):
        return []
    editor.changed(shapes=True)
    left = {(one.input, one.axis) for one in shapes.free_dimensions(editor.graph)}
    changed = dict.fromkeys(name for name, axis in free if (name, axis) not in left)
    if not changed:
        return []
    return [f"input {name}: {_shape_text(editor, name)}" for name in changed] + apply(editor)


def fix_values(editor: Editor, constants: Mapping[str, float]) -> tuple[list[str], dict[str, Any]]:
    """Makes inputs constants; also gives their values, for whoever runs the original."""
    values: dict[str, Any] = {}
    changes = []
    inputs = {value.name: value for value in shapes.real_inputs(editor.graph)}
    for name, number in constants.items():
        value = inputs.get(name)
        if value is None:
            raise OptionError(
                f'The model has no input "{name}".', fix=f"Its inputs: {', '.join(inputs) or 'none'}."
            )
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


def apply(editor: Editor) -> list[str]:
    """Declared shapes of intermediate tensors may be those of other sizes; without them all readers infer."""
    if shapes.free_dimensions(editor.graph):
        return []
    del editor.graph.value_info[:]
    free = [
        value
        for value in editor.graph.output
        if shapes.has_shape(value) and not all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
    ]
    if not free:
        return []
    for value in free:
        for dimension in value.type.tensor_type.shape.dim:
            if not dimension.HasField("dim_value"):
                dimension.Clear()
    editor.changed(shapes=True)
    fixed = []
    for value in free:
        shape = editor.shape(value.name)
        if shape is not None and len(shape) == len(value.type.tensor_type.shape.dim):
            for dimension, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                dimension.dim_value = size
            fixed.append(f"output {value.name}: {'x'.join(map(str, shape))}")
    return fixed


def _shape_text(editor: Editor, name: str) -> str:
    value = next(value for value in editor.graph.input if value.name == name)
    dims = value.type.tensor_type.shape.dim
    return "x".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
