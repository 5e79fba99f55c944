"""Tensors without elements are taken out: QNN does not refuse them, it divides by zero, and the process is gone.

Such a tensor is a constant, whatever makes it. An empty state that is concatenated, an empty half of a split, an
optional input that is given as an empty tensor: all of them vanish.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_tools.models.fix import folding
from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

_SCATTERS = {"ScatterND": 2, "ScatterElements": 2, "Scatter": 2}
"""Operators that give their first input if this one is empty."""

_RESIZE_INPUTS_OPTIONAL = 13
"""The opset from which on an empty tensor need not stand for an input that is left out."""


def apply(editor: Editor) -> list[str]:
    names: dict[str, None] = {}
    while found := _empty_results(editor):
        names.update(dict.fromkeys(found))
        for name in found:
            shape, element = editor.shape(name), editor.element(name)
            assert shape is not None
            from onnx import helper

            folding.put_constant(editor, name, np.zeros(shape, helper.tensor_dtype_to_np_dtype(element)))
        editor.map_nodes(lambda node: _without_empty_results(editor, node))
        folding.fold(editor)
        editor.drop_dead()
        editor.changed(shapes=True)
    parts = editor.map_nodes(lambda node: _without_empty_inputs(editor, node))
    if parts or names:
        editor.changed(shapes=True)
        folding.fold(editor)
        editor.drop_dead()
    changes = [f"{name} has no elements" for name in names]
    return changes + ([f"{parts} nodes no longer take empty tensors"] if parts else [])


def _is_empty(editor: Editor, name: str) -> bool:
    shape = editor.shape(name) if name else None
    return shape is not None and 0 in shape


def _empty_results(editor: Editor) -> list[str]:
    """Tensors of a known shape without elements that nodes make, and that somebody uses."""
    return [
        name
        for node in editor.graph.node
        for name in node.output
        if _is_empty(editor, name)
        and editor.element(name)
        and (editor.uses(name) or name in editor.outputs or name in editor.captured)
    ]


def _without_empty_results(editor: Editor, node: Any) -> list[Any] | None:
    """A Split that gives an empty part gives the others only."""
    if node.op_type != "Split" or node.domain not in graphs.ONNX_DOMAINS:
        return None
    used = [n for n, name in enumerate(node.output) if editor.uses(name) or name in editor.outputs]
    if len(used) == len(node.output) or not used:
        return None
    shapes = [editor.shape(node.output[n]) for n in used]
    data = editor.shape(node.input[0])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    if data is None or any(shape is None for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    if sum(sizes) != data[axis]:
        return None
    outputs = [node.output[n] for n in used]
    if len(outputs) == 1:
        return [editor.make("Identity", [node.input[0]], node, outputs[0])]
    split = editor.make("Split", [node.input[0]], node, outputs[0], axis=axis)
    del split.output[:]
    split.output.extend(outputs)
    if editor.opset >= 13:
        split.input.append(editor.add_constant(np.asarray(sizes, np.int64), f"{node.name}/sizes"))
    else:
        from onnx import helper

        split.attribute.append(helper.make_attribute("split", sizes))
    return [split]


def _without_empty_inputs(editor: Editor, node: Any) -> list[Any] | None:
    if node.domain not in graphs.ONNX_DOMAINS or not any(_is_empty(editor, name) for name in node.input):
        return None
    if node.op_type == "Concat":
        kept = [name for name in node.input if not _is_empty(editor, name)]
        if len(kept) == 1:
            return [editor.make("Identity", kept, node, node.output[0])]
        if not kept:
            return None
        del node.input[:]
        node.input.extend(kept)
        return [node]
    if node.op_type in _SCATTERS and _is_empty(editor, node.input[_SCATTERS[node.op_type]]):
        return [editor.make("Identity", [node.input[0]], node, node.output[0])]
    if node.op_type == "Resize" and editor.opset >= _RESIZE_INPUTS_OPTIONAL:
        for number in (1, 2):
            if number < len(node.input) - 1 and _is_empty(editor, node.input[number]):
                node.input[number] = ""
        return [node]
    return None
