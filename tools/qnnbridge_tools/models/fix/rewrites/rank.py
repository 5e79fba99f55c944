"""More than five dimensions are folded into fewer: QNN takes five at most, and MatMul four.

An operator that treats neighbouring axes alike does not care whether they are one axis. So around such an
operator one Reshape folds axes together and another one unfolds them. Reshapes that follow each other become one,
and what is left between them has no more than five dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from qnnbridge_tools.models.fix import folded_axes
from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs

MOST_DIMENSIONS = 5
MOST_OF_MATMUL = 4
_AXES_ARE_AN_INPUT, _AXES_ARE_AN_INPUT_EVERYWHERE = 13, 18
"""The opsets from which on: of ReduceSum, and of the others."""
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def apply(editor: Editor) -> list[str]:
    counted: Counter[str] = Counter()

    def change(node: Any) -> list[Any] | None:
        if node.domain not in graphs.ONNX_DOMAINS or not _too_many(editor, node):
            return None
        if node.op_type == "Transpose":
            made = _transpose(editor, node)
        elif node.op_type == "MatMul":
            made = _matmul(editor, node)
        else:
            made = _elementwise_or_reduce(editor, node)
        if made is not None:
            counted[node.op_type] += 1
        return made

    editor.map_nodes(change)
    if counted:
        editor.changed(shapes=True)
        _merge_reshapes(editor)
        editor.drop_dead()
    return [f"{count} {op}" for op, count in counted.items()]


def _too_many(editor: Editor, node: Any) -> bool:
    most = MOST_OF_MATMUL if node.op_type == "MatMul" else MOST_DIMENSIONS
    return any((editor.rank(name) or 0) > most for name in (*node.input, *node.output) if name)


def _reshape(editor: Editor, name: str, shape: Sequence[int], node: Any, made: list[Any], output: str = "") -> str:
    value = None if output else editor.constant(name)
    if value is not None:
        return editor.add_constant(value.reshape(shape), f"{name}/folded")
    sizes = editor.add_constant(np.asarray(shape, np.int64), f"{name}/shape")
    made.append(editor.make("Reshape", [name, sizes], node, output or None))
    return str(made[-1].output[0])


def _transpose(editor: Editor, node: Any) -> list[Any] | None:
    shape = editor.shape(node.input[0])
    if shape is None:
        return None
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(len(shape)))[::-1])
    made: list[Any] = []
    value = node.input[0]
    for sizes, order in folded_axes.transposes(shape, perm, MOST_DIMENSIONS):
        value = _reshape(editor, value, sizes, node, made)
        made.append(editor.make("Transpose", [value], node, perm=order))
        value = made[-1].output[0]
    _reshape(editor, value, [shape[axis] for axis in perm], node, made, node.output[0])
    return made


def _matmul(editor: Editor, node: Any) -> list[Any] | None:
    shapes = [editor.shape(name) for name in node.input]
    result = editor.shape(node.output[0])
    if result is None or any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    batches = [shape[:-2] for shape in shapes if shape is not None]
    groups = folded_axes.groups_alike(batches, result[:-2])
    if groups is None or len(groups) > MOST_OF_MATMUL - 2:
        return None
    made: list[Any] = []
    inputs = []
    for name, shape in zip(node.input, shapes, strict=True):
        assert shape is not None
        if len(shape) == 2:
            inputs.append(name)
            continue
        folded = [*folded_axes.fold(shape[:-2], groups, len(result) - 2), *shape[-2:]]
        inputs.append(_reshape(editor, name, folded, node, made))
    made.append(editor.make("MatMul", inputs, node))
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


def _elementwise_or_reduce(editor: Editor, node: Any) -> list[Any] | None:
    if node.op_type in folded_axes.ELEMENTWISE:
        return _elementwise(editor, node)
    if node.op_type in folded_axes.REDUCING:
        return _reduce(editor, node)
    if node.op_type in folded_axes.ONE_AXIS:
        return _one_axis(editor, node)
    return None


def _elementwise(editor: Editor, node: Any) -> list[Any] | None:
    result = editor.shape(node.output[0])
    shapes = [editor.shape(name) for name in node.input if name]
    if result is None or len(node.output) > 1 or any(shape is None for shape in shapes):
        return None
    groups = folded_axes.groups_alike([shape for shape in shapes if shape is not None], result)
    if groups is None or len(groups) > MOST_DIMENSIONS:
        return None
    made: list[Any] = []
    inputs = []
    for name in node.input:
        shape = editor.shape(name) if name else None
        if not shape:  # left out, or a scalar
            inputs.append(name)
        else:
            inputs.append(_reshape(editor, name, folded_axes.fold(shape, groups, len(result)), node, made))
    made.append(editor.make(node.op_type, inputs, node))
    made[-1].attribute.extend(node.attribute)
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


def _reduce(editor: Editor, node: Any) -> list[Any] | None:
    shape, result = editor.shape(node.input[0]), editor.shape(node.output[0])
    if shape is None or result is None:
        return None
    attribute = next((a for a in node.attribute if a.name == "axes"), None)
    axes: list[int] | None = list(attribute.ints) if attribute is not None else None
    if len(node.input) > 1 and node.input[1]:
        value = editor.constant(node.input[1])
        axes = None if value is None else [int(axis) for axis in value.reshape(-1)]
        if axes is None:
            return None
    reduced = {axis % len(shape) for axis in axes} if axes else set(range(len(shape)))
    groups = folded_axes.groups_by([axis in reduced for axis in range(len(shape))])
    if len(groups) > MOST_DIMENSIONS:
        return None
    made: list[Any] = []
    value_name = _reshape(editor, node.input[0], folded_axes.fold(shape, groups, len(shape)), node, made)
    folded = [number for number, group in enumerate(groups) if group[0] in reduced]
    inputs = [value_name]
    one = editor.make(node.op_type, inputs, node, keepdims=1)
    if editor.opset < (_AXES_ARE_AN_INPUT if node.op_type == "ReduceSum" else _AXES_ARE_AN_INPUT_EVERYWHERE):
        from onnx import helper

        one.attribute.append(helper.make_attribute("axes", folded))
    else:
        one.input.append(editor.add_constant(np.asarray(folded, np.int64), f"{node.output[0]}/axes"))
    made.append(one)
    _reshape(editor, one.output[0], result, node, made, node.output[0])
    return made


def _one_axis(editor: Editor, node: Any) -> list[Any] | None:
    """Softmax, Concat and the like: the axes before and behind the one that counts are folded."""
    result = editor.shape(node.output[0])
    shapes = [editor.shape(name) for name in node.input]
    default = folded_axes.ONE_AXIS[node.op_type]
    axis = next((a.i for a in node.attribute if a.name == "axis"), default)
    if result is None or axis is None or editor.opset < 13 or any(shape is None for shape in shapes):
        return None
    axis %= len(result)
    groups = [list(range(axis)), [axis], list(range(axis + 1, len(result)))]
    made: list[Any] = []
    inputs = []
    for name, shape in zip(node.input, shapes, strict=True):
        assert shape is not None
        inputs.append(_reshape(editor, name, folded_axes.fold(shape, groups, len(result)), node, made))
    made.append(editor.make(node.op_type, inputs, node, axis=1))
    _reshape(editor, made[-1].output[0], result, node, made, node.output[0])
    return made


def _merge_reshapes(editor: Editor) -> None:
    """A Reshape of what was only reshaped takes it from before that."""
    merged = True
    while merged:
        merged = False
        for node in editor.graph.node:
            if node.op_type not in _RESHAPES or node.domain not in graphs.ONNX_DOMAINS:
                continue
            maker, shape = editor.maker(node.input[0]), editor.shape(node.output[0])
            if maker is None or maker.op_type not in _RESHAPES or shape is None or 0 in shape:
                continue
            name, output = maker.input[0], node.output[0]
            sizes = editor.add_constant(np.asarray(shape, np.int64), f"{output}/shape")
            del node.input[:], node.attribute[:]
            node.op_type = "Reshape"
            node.input.extend([name, sizes])
            merged = True
        editor.changed()
