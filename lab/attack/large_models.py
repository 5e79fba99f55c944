"""Models with thousands of nodes, inputs or constants of one kind.

An algorithm that searches the whole graph for each node takes hours on them; a linear algorithm takes seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

_MICROSOFT = "com.microsoft"


def _value(name: str, shape: Any = (1, 4), element: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def _tensor(name: str, value: Any, kind: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.asarray(value, kind), name)


def _model(nodes: Sequence[Any], initializers: Sequence[Any] = (), inputs: Sequence[Any] = ()) -> Any:
    graph = helper.make_graph(nodes, "g", list(inputs) or [_value("x")], [_value("y", None)], list(initializers))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], name=f"make_{output}", **attributes)


def long_chain(count: int = 100_000) -> Any:
    names = ["x", *(f"t{n}" for n in range(count - 1)), "y"]
    return _model([helper.make_node("Relu", [a], [b], name=b) for a, b in itertools.pairwise(names)])


def dead_chain(count: int = 50_000) -> Any:
    """Return a model with a long chain of nodes that no output needs, and other nodes that can be folded."""
    names = ["x", *(f"t{n}" for n in range(count))]
    nodes = [_node("Relu", [a], b) for a, b in itertools.pairwise(names)]
    sizes = [_node("Shape", ["x"], "s"), _node("Cast", ["s"], "f", to=1), _node("ReduceSum", ["f"], "r")]
    return _model([*nodes, *sizes, _node("Add", ["x", "r"], "y")])


def many_shapes(count: int = 3_000) -> Any:
    """Return a model with many Shape nodes, each of which can be folded."""
    nodes = []
    for n in range(count):
        nodes += [_node("Shape", [f"t{n}" if n else "x"], f"s{n}"), _node("Cast", [f"s{n}"], f"f{n}", to=1)]
        nodes += [_node("ReduceSum", [f"f{n}"], f"r{n}")]
        nodes += [_node("Add", [f"t{n}" if n else "x", f"r{n}"], f"t{n + 1}")]
    return _model([*nodes, _node("Relu", [f"t{count}"], "y")])


def many_branches(count: int = 5_000) -> Any:
    """Return a model with many If nodes with a constant condition."""
    nodes = []
    for n in range(count):
        given = f"t{n}" if n else "x"
        graphs = {
            f"{kind}_branch": helper.make_graph([_node(op, [given], "o")], kind, [], [_value("o")])
            for kind, op in (("then", "Relu"), ("else", "Abs"))
        }
        nodes.append(_node("If", ["c"], f"t{n + 1}", **graphs))
    return _model([*nodes, _node("Relu", [f"t{count}"], "y")], [_tensor("c", True, bool)])


def many_ranges(count: int = 10_000) -> Any:
    limits = [_tensor(f"l{n}", n % 7 + 1) for n in range(count)]
    nodes = [_node("Range", ["zero", f"l{n}", "one"], f"r{n}") for n in range(count)]
    nodes += [_node("ReduceSum", [f"r{n}"], f"t{n}") for n in range(count)]
    total = [_node("Sum", [f"f{n}" for n in range(count)], "s"), _node("Add", ["x", "s"], "y")]
    casts = [_node("Cast", [f"t{n}"], f"f{n}", to=1) for n in range(count)]
    return _model([*nodes, *casts, *total], [_tensor("zero", 0), _tensor("one", 1), *limits])


def foreign_pairs(count: int = 8_000) -> Any:
    """Return a model with many pairs of QuantizeLinear and DequantizeLinear in ONNX Runtime's own domain."""
    nodes, constants = [], []
    for n in range(count):
        constants += [_tensor(f"a{n}", 0.1, np.float32), _tensor(f"z{n}", 7, np.uint16)]
        numbers = [f"a{n}", f"z{n}"]
        nodes.append(_node("QuantizeLinear", [f"t{n}" if n else "x", *numbers], f"q{n}", domain=_MICROSOFT))
        nodes.append(_node("DequantizeLinear", [f"q{n}", *numbers], f"d{n}", domain=_MICROSOFT))
        nodes.append(_node("Relu", [f"d{n}"], f"t{n + 1}"))
    return _model([*nodes, _node("Relu", [f"t{count}"], "y")], constants)


def lone_pairs(count: int = 25_000) -> Any:
    """Return a model that consists of Quantize and Dequantize only."""
    nodes = []
    for n in range(count):
        nodes.append(_node("QuantizeLinear", [f"t{n}" if n else "x", "a", "z"], f"q{n}"))
        nodes.append(_node("DequantizeLinear", [f"q{n}", "a", "z"], f"t{n + 1}" if n + 1 < count else "y"))
    return _model(nodes, [_tensor("a", 0.1, np.float32), _tensor("z", 7, np.uint8)])


def many_indices(count: int = 10_000) -> Any:
    """Return a model whose many Gather nodes have negative indices; each node needs two rewrites."""
    nodes, constants = [], []
    for n in range(count):
        constants.append(_tensor(f"i{n}", [[-1, 0], [1, -2]]))
        nodes += [_node("Gather", ["x", f"i{n}"], f"g{n}", axis=1), _node("ReduceMean", [f"g{n}"], f"m{n}")]
    return _model([*nodes, _node("Sum", [f"m{n}" for n in range(count)], "y")], constants)


def many_casts(count: int = 20_000) -> Any:
    """Return a model whose Cast nodes have the names of Cast nodes that ONNX Runtime inserts."""
    nodes = []
    for n in range(count):
        cast = helper.make_node("Cast", [f"t{n}" if n else "x"], [f"c{n}"], f"InsertedPrecisionFreeCast_{n}", to=1)
        nodes += [cast, _node("Relu", [f"c{n}"], f"t{n + 1}")]
    return _model([*nodes, _node("Relu", [f"t{count}"], "y")])


def refused_constants(count: int = 3_000) -> Any:
    """Return a model whose nodes could be folded, but which ONNX Runtime refuses to compute."""
    nodes = [_node("Reshape", ["w", f"s{n}"], f"r{n}") for n in range(count)]
    nodes += [_node("ReduceSum", [f"r{n}"], f"t{n}") for n in range(count)]
    sizes = [_tensor(f"s{n}", [5, n + 1]) for n in range(count)]
    total = [_node("Sum", [f"t{n}" for n in range(count)], "s"), _node("Add", ["x", "s"], "y")]
    return _model([*nodes, *total], [_tensor("w", np.ones((7, 3)), np.float32), *sizes])


def large_constants(count: int = 300) -> Any:
    """Return a model with constants that are gigantic in total, but not individually."""
    nodes = [_node("Expand", ["w", "s"], f"e{n}") for n in range(count)]
    nodes += [_node("Add", [f"t{n}" if n else "x", f"e{n}"], f"t{n + 1}") for n in range(count)]
    constants = [_tensor("w", np.ones((1, 1)), np.float32), _tensor("s", [1 << 18, 4])]
    return _model([*nodes, _node("Relu", [f"t{count}"], "y")], constants)


def many_inputs(count: int = 10_000) -> Any:
    """Return a model with many inputs, each with a different free dimension."""
    names = [f"x{n}" for n in range(count)]
    inputs = [_value(name, [f"n{number}", 4]) for number, name in enumerate(names)]
    means = [_node("ReduceMean", [name], f"m_{name}") for name in names]
    return _model([*means, _node("Sum", [f"m_{name}" for name in names], "y")], inputs=inputs)


def unused_weights(count: int = 50_000) -> Any:
    sizes = [_node("Shape", ["x"], "s"), _node("Cast", ["s"], "f", to=1), _node("ReduceSum", ["f"], "r")]
    constants = [_tensor(f"w{n}", [n, n], np.float32) for n in range(count)]
    return _model([*sizes, _node("Add", ["x", "r"], "y")], constants)


MODELS = (
    long_chain,
    dead_chain,
    many_shapes,
    many_branches,
    many_ranges,
    foreign_pairs,
    lone_pairs,
    many_indices,
    many_casts,
    refused_constants,
    large_constants,
    many_inputs,
    unused_weights,
)
