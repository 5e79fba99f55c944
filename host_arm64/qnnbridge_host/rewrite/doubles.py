"""Convert double inputs and outputs of a model to 32 bits on the CPU, and compute inner doubles in 32 bits.

QNN accepts doubles inside of a graph and computes them in 32 bits. If an input or output of its graph is a double,
onnxruntime-qnn 2.7 fails when the session is created ("Unsupported FP64 data type in graph IO") or in each run
("ORT Tensor data size does not match QNN tensor data size"). QNN also accepts a Cast to double and then fails in
the same way. Therefore the conversion uses six dimensions: QNN refuses them, so the conversion runs on the CPU. The
name and type of each input and output do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.double_edges import CONVERSION, CONVERSION_OF_INTEGERS, is_conversion, varying
from qnnbridge_host.rewrite.rewriting import set_attribute
from qnnbridge_protocol.element_types import ElementType

_DOUBLE: Final = ElementType.DOUBLE.value
_FLOAT: Final = ElementType.FLOAT.value
# Attributes that set the element type of a result.
_TYPE_ATTRIBUTES: Final = ("to", "dtype", "output_dtype", "output_datatype")
_REFUSED_DIMENSIONS: Final = 6


def float_inside(editor: Editor) -> list[str]:
    """Compute in float all doubles that are connected with a double input or output. Return descriptions of the
    changes.

    An output that depends only on constants is not changed: QNN treats it as a constant and does not fail.
    """
    computed = varying(((node.op_type, node.input, node.output) for node in editor.protos), editor.inputs)
    edges = [name for name in (*editor.inputs, *editor.outputs) if name in computed and _is_double(editor, name)]
    converted = {name for node in editor.protos if is_conversion(node.name) for name in (*node.input, *node.output)}
    seeds = [name for name in edges if name not in converted]
    doubles = _connected(editor, seeds)
    inputs, outputs = ([name for name in edge if name in doubles] for edge in (editor.inputs, editor.outputs))
    # QNN accepts only fixed shapes. An input that is also an output does not need a node on QNN.
    if not doubles or any(editor.shape(name) is None for name in (*inputs, *outputs)) or set(inputs) & set(outputs):
        return []
    floats = {name: editor.fresh(f"{name}/float") for name in sorted(doubles)}
    constants: dict[str, str] = {}
    nodes: list[Any] = []
    for name in inputs:
        nodes += conversion(editor, name, floats[name], editor.shape(name) or (), _FLOAT)
    for node in editor.protos:
        if not doubles.isdisjoint((*node.input, *node.output)):
            _compute_in_float(editor, node, floats, constants)
        nodes.append(node)
    for name in outputs:
        nodes += conversion(editor, floats[name], name, editor.shape(name) or (), _DOUBLE)
    _set_nodes(editor, nodes, doubles)
    return [
        f"{kind} {name} is converted on the CPU, and computed in 32 bits"
        for kind, names in (("input", inputs), ("output", outputs))
        for name in names
    ]


def float_between(editor: Editor) -> list[str]:
    """Compute in float the doubles inside of the model: with some of them QNN fails, and it computes the others in
    32 bits anyway.

    Return descriptions of the changes.
    """
    computed = varying(((node.op_type, node.input, node.output) for node in editor.protos), editor.inputs)
    seeds = [
        name
        for node in editor.protos
        if not is_conversion(node.name)
        for name in node.output
        if name in computed and _is_double(editor, name)
    ]
    doubles = _connected(editor, seeds)
    # `float_inside` handles doubles that are connected with an input or output.
    if not doubles or not doubles.isdisjoint((*editor.inputs, *editor.outputs)):
        return []
    floats = {name: editor.fresh(f"{name}/float") for name in sorted(doubles)}
    constants: dict[str, str] = {}
    nodes = list(editor.protos)
    for node in nodes:
        if not doubles.isdisjoint((*node.input, *node.output)):
            _compute_in_float(editor, node, floats, constants)
    _set_nodes(editor, nodes, doubles)
    return [f"{len(doubles)} results are computed in 32 bits"]


def _set_nodes(editor: Editor, nodes: list[Any], doubles: Collection[str]) -> None:
    """Replace the model's nodes by `nodes`, and remove the declared types of the tensors in `doubles`."""
    known = [value for value in editor.graph.value_info if value.name not in doubles]
    del editor.graph.value_info[:]
    editor.graph.value_info.extend(known)
    editor.set_nodes(nodes)
    editor.changed(shapes=True)
    editor.drop_dead()


def _is_double(editor: Editor, name: str) -> bool:
    return editor.element(name) == _DOUBLE


def _connected(editor: Editor, seeds: Iterable[str]) -> set[str]:
    """Return the doubles that nodes connect with `seeds`; an empty set if one of these nodes has a subgraph,
    because subgraphs are not changed."""
    found: set[str] = set()
    waiting = list(seeds)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        maker = editor.maker(name)
        for node in (*editor.uses(name), *(() if maker is None else (maker,))):
            if any(True for _ in graphs.graphs_in(node)):
                return set()
            waiting += [
                one
                for one in (*node.input, *node.output)
                if one not in editor.constants and _is_double(editor, one)
            ]
    return set() if found & editor.captured else found


def _compute_in_float(editor: Editor, node: Any, floats: dict[str, str], constants: dict[str, str]) -> None:
    for number, name in enumerate(node.input):
        if name in editor.constants and _is_double(editor, name):
            if name not in constants:
                value = editor.constant(name)
                assert value is not None
                # Values beyond 3.4e38 become infinite; in that case the comparison on the CPU rejects the rewrite.
                with np.errstate(over="ignore"):
                    constants[name] = editor.add_constant(value.astype(np.float32), f"{name}/float")
            node.input[number] = constants[name]
        else:
            node.input[number] = floats.get(name, name)
    for number, name in enumerate(node.output):
        node.output[number] = floats.get(name, name)
    for attribute in list(node.attribute):
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i == _DOUBLE:
            set_attribute(node, attribute.name, _FLOAT)
        elif attribute.name == "value" and attribute.t.data_type == _DOUBLE:
            from onnx import numpy_helper

            with np.errstate(over="ignore"):
                value = numpy_helper.to_array(attribute.t).astype(np.float32)
            set_attribute(node, "value", numpy_helper.from_array(value))


def conversion(editor: Editor, source: str, result: str, shape: Sequence[int], element: int) -> list[Any]:
    """Return nodes that convert `source` to `result` and that QNN refuses, so that the CPU runs them.

    element: the type of `result`.
    """
    from onnx import helper

    nodes: list[Any] = []
    of_doubles = element in (_DOUBLE, _FLOAT)

    def make(op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = editor.fresh(f"{result}/{op}{CONVERSION if of_doubles else CONVERSION_OF_INTEGERS}")
        nodes.append(
            helper.make_node(op, list(inputs), [output or editor.fresh(f"{name} r")], name=name, **attributes)
        )
        return str(nodes[-1].output[0])

    if len(shape) >= _REFUSED_DIMENSIONS:
        make("Cast", source, output=result, to=element)
        return nodes
    whole = [*shape, *[1] * (_REFUSED_DIMENSIONS - len(shape))]
    large = make("Reshape", source, editor.add_constant(np.array(whole, np.int64), f"{result}/sizes"))
    converted = make("Cast", large, to=element)
    make("Reshape", converted, editor.add_constant(np.array(shape, np.int64), f"{result}/sizes"), output=result)
    return nodes
