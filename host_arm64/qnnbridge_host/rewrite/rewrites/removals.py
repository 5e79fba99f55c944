"""Rewrites that take something out: branches that are never taken, unused results, tensors without elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.editor import Editor
from qnnbridge_host.rewrite import folding


def inline_known_branches(editor: Editor) -> list[str]:
    """An If whose condition is known is replaced by the branch that it takes.

    The other branch is often impossible for the sizes at hand (it handles another rank), and then ONNX Runtime
    refuses the model with fixed sizes: it looks into both.
    """
    taken = 0
    # A branch may have an If of its own, and what it gives may decide another one.
    while "If" in editor.op_types and (decided := _decided(editor)):
        taken += len(decided)
        instead = {tuple(node.output): _written_out(editor, node, branch) for node, branch in decided}
        editor.map_nodes(lambda node, instead=instead: instead.get(tuple(node.output)), ("If",))  # type: ignore[misc]
        editor.changed(shapes=True)
        folding.fold(editor)
    return [f"{taken} {'branch' if taken == 1 else 'branches'} decided"] if taken else []


def _decided(editor: Editor) -> list[tuple[Any, Any]]:
    """Each If with the branch that it takes."""
    return [(node, branch) for node in editor.graph.node if (branch := taken_branch(editor, node)) is not None]


def taken_branch(editor: Editor, node: Any) -> Any | None:
    """The branch that an If takes, if that is known."""
    if node.op_type != "If" or node.domain not in graphs.ONNX_DOMAINS or not node.input:
        return None
    condition = editor.constant(node.input[0])
    if condition is None or not condition.size:
        return None
    wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
    return branch if branch is not None and len(branch.output) == len(node.output) else None


def _written_out(editor: Editor, node: Any, branch: Any) -> list[Any]:
    """The nodes of the branch that an If takes, under names of the main graph, which gets its constants."""
    renamed = {
        name: editor.fresh(name)
        for name in dict.fromkeys(
            [tensor.name for tensor in branch.initializer]
            + [name for n in branch.node for name in n.output if name]
        )
    }
    # What a branch gives may be the same tensor twice, or one from outside of it: then a copy is needed.
    copies: list[tuple[str, str]] = []
    for inner, outer in zip(branch.output, node.output, strict=True):
        if not outer:
            continue
        made = {name for n in branch.node for name in n.output}
        if inner.name in made and renamed[inner.name] not in node.output:
            renamed[inner.name] = outer
        else:
            copies.append((renamed.get(inner.name, inner.name), outer))
    for graph in graphs.subgraphs(branch):
        _rename_in_branch(editor, graph, renamed, is_branch=graph is branch)
    from onnx import helper

    identities = [helper.make_node("Identity", [a], [b], name=editor.fresh(f"{b}/copy")) for a, b in copies]
    editor.graph.initializer.extend(branch.initializer)
    return [*branch.node, *identities]


def _rename_in_branch(editor: Editor, graph: Any, renamed: dict[str, str], *, is_branch: bool) -> None:
    for number, one in enumerate(graph.node):
        for at, name in enumerate(one.input):
            one.input[at] = renamed.get(name, name)
        # Inner graphs keep the names that they make. Only what they take from the branch has another one.
        if is_branch:
            for at, name in enumerate(one.output):
                one.output[at] = renamed.get(name, name)
            one.name = one.name and editor.fresh(f"{one.name}/{number}")
    if is_branch:
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
    else:
        for value in graph.output:
            value.name = renamed.get(value.name, value.name)


# How many outputs are not optional.
_OPTIONAL_AFTER = {"LayerNormalization": 1, "MaxPool": 1, "Dropout": 1, "BatchNormalization": 1}


def drop_unused_outputs(editor: Editor) -> list[str]:
    """QNN refuses some operators because of optional results, also unused ones."""
    dropped: list[str] = []

    def change(node: Any) -> list[Any] | None:
        if node.domain not in graphs.ONNX_DOMAINS:
            return None
        least = _OPTIONAL_AFTER[node.op_type]
        outputs = list(node.output)
        while len(outputs) > least and not (
            outputs[-1] and (editor.uses(outputs[-1]) or not editor.is_free(outputs[-1]))
        ):
            outputs.pop()
        if len(outputs) == len(node.output):
            return None
        dropped.extend(
            f"{node.op_type} {node.name or node.output[0]}: {name}" for name in node.output[len(outputs) :]
        )
        del node.output[:]
        node.output.extend(outputs)
        return [node]

    editor.map_nodes(change, _OPTIONAL_AFTER)
    return dropped


# Operators that give their first input if this one is empty.
_SCATTERS = {"ScatterND": 2, "ScatterElements": 2, "Scatter": 2}

# Operators that do without an empty input.
_DO_WITHOUT = frozenset({"Concat", "Resize", *_SCATTERS})

# The opset from which on an empty tensor need not stand for an input that is left out.
_RESIZE_INPUTS_OPTIONAL = 13


def remove_empty_tensors(editor: Editor) -> list[str]:
    """Takes out tensors without elements: QNN does not refuse them, it divides by zero, and the process ends.

    Such a tensor is a constant, however it is computed. An empty state that is concatenated, an empty half of a
    split, an optional input that is given as an empty tensor: all of them vanish.
    """
    names: dict[str, None] = {}
    # Each constant may make another tensor empty.
    while found := _empty_results(editor):
        names.update(dict.fromkeys(found))
        for name in found:
            shape, element = editor.shape(name), editor.element(name)
            assert shape is not None
            from onnx import helper

            folding.put_constant(editor, name, np.zeros(shape, helper.tensor_dtype_to_np_dtype(element)))
        editor.map_nodes(lambda node: _without_empty_results(editor, node), ("Split",))
        folding.fold(editor)
        editor.drop_dead()
        editor.changed(shapes=True)
    parts = editor.map_nodes(lambda node: _without_empty_inputs(editor, node), _DO_WITHOUT)
    if parts or names:
        editor.changed(shapes=True)
        folding.fold(editor)
        editor.drop_dead()
    changes = [f"{name} has no elements" for name in names]
    return changes + ([f"{parts} nodes no longer take empty tensors"] if parts else [])


def _empty_results(editor: Editor) -> list[str]:
    """Tensors of a known shape without elements that nodes make and that are used."""
    return [
        name
        for node in editor.graph.node
        for name in node.output
        if editor.is_empty(name)
        and editor.element(name)
        and (editor.uses(name) or name in editor.outputs or name in editor.captured)
    ]


def _without_empty_results(editor: Editor, node: Any) -> list[Any] | None:
    """A Split that gives an empty part gives the others only."""
    if node.domain not in graphs.ONNX_DOMAINS:
        return None
    used = [n for n, name in enumerate(node.output) if editor.uses(name) or name in editor.outputs]
    if len(used) == len(node.output) or not used:
        return None
    shapes = [editor.shape(node.output[n]) for n in used]
    data = editor.shape(node.input[0])
    axis = graphs.attribute_values(node).get("axis", 0)
    if data is None or any(shape is None for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    # A part that nothing reads and that has elements must stay.
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
    if node.domain not in graphs.ONNX_DOMAINS or not any(editor.is_empty(name) for name in node.input):
        return None
    if node.op_type == "Concat":
        kept = [name for name in node.input if not editor.is_empty(name)]
        if len(kept) == 1:
            return [editor.make("Identity", kept, node, node.output[0])]
        if not kept:
            return None
        del node.input[:]
        node.input.extend(kept)
        return [node]
    if node.op_type in _SCATTERS and editor.is_empty(node.input[_SCATTERS[node.op_type]]):
        return [editor.make("Identity", [node.input[0]], node, node.output[0])]
    if node.op_type == "Resize" and editor.opset >= _RESIZE_INPUTS_OPTIONAL:
        for number in (1, 2):
            if number < len(node.input) - 1 and editor.is_empty(node.input[number]):
                node.input[number] = ""
        return [node]
    return None
