"""Rewrites that remove branches that are never taken, unused results, and tensors without elements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.rewrite import constants


def inline_known_branches(editor: Editor) -> list[str]:
    """Replace each If with a known condition by the branch that it takes.

    The other branch is often invalid for the fixed sizes (it handles another rank). ONNX Runtime checks both
    branches and then refuses the model.
    """
    taken = 0
    # Repeat: a branch may contain another If, and its results may determine the condition of another If.
    while "If" in editor.op_types and (decided := _decided(editor)):
        taken += len(decided)
        instead = {tuple(node.output): _written_out(editor, node, branch) for node, branch in decided}
        editor.map_nodes(lambda node, instead=instead: instead.get(tuple(node.output)), ("If",))  # type: ignore[misc]
        editor.changed(shapes=True)
        constants.fold(editor)
    return [f"{taken} If {'node' if taken == 1 else 'nodes'} replaced"] if taken else []


def _decided(editor: Editor) -> list[tuple[Any, Any]]:
    """Return each If with a known condition, and the branch that is executed."""
    return [(node, branch) for node in editor.graph.node if (branch := taken_branch(editor, node)) is not None]


def taken_branch(editor: Editor, node: Any) -> Any | None:
    """Return the branch of an If that is executed; ``None`` if it is unknown, or if the node is not an If."""
    if node.op_type != "If" or node.domain not in graphs.ONNX_DOMAINS or not node.input:
        return None
    condition = editor.constant(node.input[0])
    if condition is None or not condition.size:
        return None
    wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
    return branch if branch is not None and len(branch.output) == len(node.output) else None


def _written_out(editor: Editor, node: Any, branch: Any) -> list[Any]:
    """Return the nodes of a branch, renamed for the main graph, and add its constants to the main graph."""
    renamed = {
        name: editor.fresh(name)
        for name in dict.fromkeys(
            [tensor.name for tensor in branch.initializer]
            + [name for n in branch.node for name in n.output if name]
        )
    }
    # If a branch returns the same tensor twice, or a tensor of the outer graph, a copy is needed.
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
        # In inner graphs, rename only the tensors that they read from the branch.
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


# Number of outputs that are not optional, by operator.
_OPTIONAL_AFTER = {"LayerNormalization": 1, "MaxPool": 1, "Dropout": 1, "BatchNormalization": 1}


def drop_unused_outputs(editor: Editor) -> list[str]:
    """Remove unused optional results: QNN refuses some operators with optional results, even if the results are
    unused."""
    dropped: list[str] = []

    def change(node: Any) -> list[Any] | None:
        # A BatchNormalization in training mode needs all of its results.
        if node.domain not in graphs.ONNX_DOMAINS or graphs.attribute_values(node).get("training_mode", 0):
            return None
        least = _OPTIONAL_AFTER[node.op_type]
        outputs = list(node.output)
        # Remove outputs only from the end, because they are identified by position.
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


# Position of the updates among the inputs, by operator. If the updates are empty, the result is the first input.
_SCATTERS = {"ScatterND": 2, "ScatterElements": 2, "Scatter": 2}

# Operators from which an empty input can be removed.
_DO_WITHOUT = frozenset({"Concat", "Resize", *_SCATTERS})

# The first opset in which an input can be omitted instead of being an empty tensor.
_RESIZE_INPUTS_OPTIONAL = 13


def remove_empty_tensors(editor: Editor) -> list[str]:
    """Remove tensors without elements: QNN does not refuse them but divides by zero, which ends the process.

    Such a tensor counts as a constant. Examples are an empty state that is concatenated, an empty part of a split,
    and an optional input that is given as an empty tensor.
    """
    names: dict[str, None] = {}
    # Repeat, because each new constant may show that another tensor is empty.
    while found := _empty_results(editor):
        names.update(dict.fromkeys(found))
        for name in found:
            shape, element = editor.shape(name), editor.element(name)
            assert shape is not None
            from onnx import helper

            constants.put_constant(editor, name, np.zeros(shape, helper.tensor_dtype_to_np_dtype(element)))
        editor.map_nodes(lambda node: _without_empty_results(editor, node), ("Split",))
        constants.fold(editor)
        editor.drop_dead()
        editor.changed(shapes=True)
    parts = editor.map_nodes(lambda node: _without_empty_inputs(editor, node), _DO_WITHOUT)
    if parts or names:
        editor.changed(shapes=True)
        constants.fold(editor)
        editor.drop_dead()
    changes = [f"{name} has no elements" for name in names]
    return changes + ([f"{parts} nodes without their empty inputs"] if parts else [])


def _empty_results(editor: Editor) -> list[str]:
    """Return the used results of nodes that have a known shape without elements."""
    return [
        name
        for node in editor.graph.node
        for name in node.output
        if editor.is_empty(name)
        and editor.element(name)
        and (editor.uses(name) or name in editor.outputs or name in editor.captured)
    ]


def _without_empty_results(editor: Editor, node: Any) -> list[Any] | None:
    """Remove unused empty parts of a Split."""
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
    # Keep an unused part that has elements.
    if sum(sizes) != data[axis]:
        return None
    outputs = [node.output[n] for n in used]
    if len(outputs) == 1:
        return [editor.make("Identity", [node.input[0]], node, outputs[0])]
    split = editor.make("Split", [node.input[0]], node, outputs[0], axis=axis)
    del split.output[:]
    split.output.extend(outputs)
    # The sizes of Split are an input since opset 13, and an attribute before.
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
                # In ONNX an empty name stands for an omitted optional input that is followed by others.
                node.input[number] = ""
        return [node]
    return None


# --- casts that ONNX Runtime inserts ---------------------------------------------------------------------
# ONNX Runtime inserts casts around float16 operators that its CPU provider lacks. QNN does not need these casts.

# Prefix of the name of a cast that ONNX Runtime inserted.
INSERTED_CAST: Final = "InsertedPrecisionFreeCast_"
# TensorProto.DataType.
_FLOAT, _FLOAT16 = 1, 10


def strip_inserted_casts(model: Any, original: Any | None = None) -> int:
    """Remove the casts that ONNX Runtime inserted around float16 operators for the CPU; return their number.

    QNN computes float16 itself, and would compute the whole graph in float32 with these casts.

    Args:
        model: the model, which is changed in place.
        original: the model before ONNX Runtime's change, with the wanted types of tensors.
    """
    graph = model.graph
    casts: list[Any] = []
    kept: list[Any] = []
    for node in graph.node:
        inserted = node.op_type == "Cast" and node.name.startswith(INSERTED_CAST) and node.input
        (casts if inserted else kept).append(node)
    if not casts:
        return 0
    from_name = {node.output[0]: node.input[0] for node in casts}
    outputs = {value.name for value in graph.output}
    # If a cast computes an output of the model, give its input the name of the output.
    renamed = {node.input[0]: node.output[0] for node in casts if node.output[0] in outputs}

    def source(name: str) -> str:
        # The source of a removed cast may be the result of another removed cast.
        while name in from_name:
            name = from_name[name]
        return str(renamed.get(name, name))

    for node in kept:
        for number, name in enumerate(node.input):
            node.input[number] = source(name)
        for number, name in enumerate(node.output):
            node.output[number] = renamed.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    known = graphs.types_of(original) if original is not None else {}
    _restore_types(model, {name: element for name, (element, _) in known.items()})
    del graph.value_info[:]  # these types belong to the float32 graph; readers infer the types again
    return len(casts)


def _restore_types(model: Any, was: Mapping[str, int]) -> None:
    """Convert operands of an operator to the type that all of them must have.

    The types differ after ONNX Runtime's casts are removed, because ONNX Runtime has also converted constants to
    float32, and has removed pairs of an inserted cast and an opposite cast of the model.

    Args:
        model: the model, which is changed in place.
        was: the known types of tensors before ONNX Runtime's change.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types |= {name: tensor.data_type for name, tensor in constants.items()}
    made: dict[tuple[str, int], str] = {}
    taken = set(constants) | {name for node in graph.node for name in (*node.input, *node.output)}
    nodes: list[Any] = []

    def as_type(name: str, wanted: int) -> str:
        if (name, wanted) not in made:
            stem = f"{name}/{'half' if wanted == _FLOAT16 else 'float'}"
            new = next(new for k in itertools.count() if (new := f"{stem}{k or ''}") not in taken)
            if name in constants:
                values = numpy_helper.to_array(constants[name])
                # Values beyond 65504 are infinite as half floats, about which numpy would warn.
                with np.errstate(over="ignore"):
                    values = values.astype(np.float16 if wanted == _FLOAT16 else np.float32)
                graph.initializer.append(numpy_helper.from_array(values, new))
            else:
                nodes.append(helper.make_node("Cast", [name], [new], to=wanted))
            taken.add(new)
            made[name, wanted], types[new] = new, wanted
        return made[name, wanted]

    for node in graph.node:
        tensor = graphs.constant_tensor(node)
        if tensor is not None:
            constants[node.output[0]] = tensor
            types[node.output[0]] = tensor.data_type
        elif node.op_type == "Cast":
            types[node.output[0]] = next((one.i for one in node.attribute if one.name == "to"), 0)
        for inputs, outputs in _of_one_type(model, node):
            given = {types.get(node.input[number], 0) for number in inputs}
            before = {was.get(node.output[number], 0) for number in outputs}
            # A result keeps its former type. If that type is unknown, use float16 if an operand is float16.
            wanted = next((one for one in (_FLOAT16, _FLOAT) if before == {one}), 0)
            wanted = wanted or next((one for one in (_FLOAT16, _FLOAT) if one in given), 0)
            if not wanted:
                continue
            types |= {node.output[number]: wanted for number in outputs}
            for number in inputs:
                if types.get(node.input[number]) in {_FLOAT, _FLOAT16} - {wanted}:
                    node.input[number] = as_type(node.input[number], wanted)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _of_one_type(model: Any, node: Any) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the positions of the inputs and outputs that must have the same type, for each type variable of an
    operator."""
    import onnx

    version = next((one.version for one in model.opset_import if one.domain == node.domain), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return
    types: dict[str, tuple[list[int], list[int]]] = {}
    for side, names, formal in ((0, node.input, schema.inputs), (1, node.output, schema.outputs)):
        for number, name in enumerate(names):
            if name and formal:
                text = formal[min(number, len(formal) - 1)].type_str
                types.setdefault(text, ([], []))[side].append(number)
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    yield from (numbers for text, numbers in types.items() if text in variables)
