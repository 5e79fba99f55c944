"""Small models that reveal mixed-up calls of a session: various outputs, types and data-dependent shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

# Sizes of free dimensions. Tensors of `LARGE_SIZES` are in shared memory when they are bound or borrowed.
SMALL_SIZES = (0, 1, 2, 3, 7)
LARGE_SIZES = (3, 20_000, 70_000)

Shape = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """An input of a model. shape: the walk chooses the sizes of named dimensions. texts: the input has strings."""

    name: str
    dtype: Any
    shape: Shape
    texts: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A model.

    Args:
        tensors: all inputs and outputs are numeric tensors, so that they can be bound.
        in_place: outputs may overwrite the inputs.
        sizes: possible sizes of free dimensions.
    """

    name: str
    data: bytes
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    tensors: bool = True
    in_place: bool = False
    sizes: tuple[int, ...] = SMALL_SIZES


def _built(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: Any = ()) -> bytes:
    graph = helper.make_graph(nodes, "walk", inputs, outputs, list(constants))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def _tensor(name: str, dtype: Any, shape: Shape | None) -> Any:
    element = TensorProto.STRING if dtype is str else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)


def _simple(name: str, nodes: list[Any], inputs: tuple[Input, ...], outputs: dict[str, Any], **more: Any) -> Model:
    """Return a model. outputs: type and shape by name."""
    given = [_tensor(one.name, str if one.texts else one.dtype, one.shape) for one in inputs]
    data = _built(nodes, given, [_tensor(name, *what) for name, what in outputs.items()], more.pop("constants", ()))
    return Model(name, data, inputs, tuple(outputs), **more)


def _node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def _types() -> list[Model]:
    kinds = (np.int64, np.bool_, np.float16, np.uint8, np.float64, np.int8, np.uint64)
    return [
        _simple(
            f"identity of {np.dtype(kind).name}",
            [_node("Identity", "x", "y"), _node("Identity", "y", "z")],
            (Input("x", kind, ("n",)),),
            {"y": (kind, ("n",)), "z": (kind, ("n",))},
        )
        for kind in kinds
    ]


def _branches() -> Model:
    """Return a model whose output has a different rank in each branch."""
    then = helper.make_graph([_node("Identity", "x", "t")], "then", [], [_tensor("t", np.float32, None)])
    other = helper.make_graph([_node("Unsqueeze", "x zero", "e")], "else", [], [_tensor("e", np.float32, None)])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = (Input("x", np.float32, ("n",)), Input("c", np.bool_, ()))
    zero = numpy_helper.from_array(np.array([0], np.int64), "zero")
    return _simple("if", [branch], inputs, {"y": (np.float32, None)}, constants=[zero])


def _sequence() -> Model:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    data = _built(
        [_node("SplitToSequence", "x", "s", keepdims=1), _node("ConcatFromSequence", "s", "y", axis=0)],
        [_tensor("x", np.float32, ("n",))],
        [sequence, _tensor("y", np.float32, ("n",))],
    )
    return Model("sequence", data, (Input("x", np.float32, ("n",)),), ("s", "y"), tensors=False, sizes=(1, 2, 3))


def _maps() -> Model:
    maps = helper.make_value_info(
        "m",
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        ),
    )
    zip_map = helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[5, 6, 7])
    data = _built(
        [zip_map, _node("Neg", "x", "y")],
        [_tensor("x", np.float32, ("n", 3))],
        [maps, _tensor("y", np.float32, None)],
    )
    return Model("maps", data, (Input("x", np.float32, ("n", 3)),), ("m", "y"), tensors=False, sizes=(1, 2, 3))


def models() -> list[Model]:
    x = Input("x", np.float32, ("n",))
    f, i = np.float32, np.int64
    return [
        _simple(
            "two outputs",
            [_node("Neg", "x", "y"), _node("Abs", "x", "z")],
            (x,),
            {"y": (f, ("n",)), "z": (f, ("n",))},
            in_place=True,
        ),
        _simple(
            "large",
            [_node("Neg", "x", "y"), _node("Abs", "x", "z")],
            (x,),
            {"y": (f, ("n",)), "z": (f, ("n",))},
            in_place=True,
            sizes=LARGE_SIZES,
        ),
        _simple(
            "two inputs",
            [_node("Add", "a b", "s"), _node("Mul", "a b", "p"), _node("Concat", "a b", "c", axis=1)],
            (Input("a", f, ("m", "n")), Input("b", f, ("m", "n"))),
            {"s": (f, ("m", "n")), "p": (f, ("m", "n")), "c": (f, ("m", "k"))},
        ),
        _simple("fixed", [_node("Sqrt", "x", "y")], (Input("x", f, (2, 3)),), {"y": (f, (2, 3))}),
        _simple("scalar", [_node("Not", "x", "y")], (Input("x", np.bool_, ()),), {"y": (np.bool_, ())}),
        # The output x is the input: onnxruntime does not write it to bound memory but returns the input's memory.
        _simple(
            "passed through", [_node("Neg", "x", "y")], (x,), {"x": (f, ("n",)), "y": (f, ("n",))}, tensors=False
        ),
        _simple("not zero", [_node("NonZero", "x", "y")], (x,), {"y": (i, (1, "k"))}),
        _simple(
            "compress",
            [_node("Compress", "x c", "y", axis=0), _node("Neg", "x", "z")],
            (x, Input("c", np.bool_, ("n",))),
            {"y": (f, ("k",)), "z": (f, ("n",))},
        ),
        _simple(
            "reshape",
            [_node("Reshape", "x s", "y")],
            (Input("x", f, (2, 6)), Input("s", i, ("r",))),
            {"y": (f, None)},
            sizes=(1, 2, 3),
        ),
        _simple(
            "strings",
            [_node("Identity", "x", "y")],
            (Input("x", object, ("n",), texts=True),),
            {"y": (str, ("n",))},
            tensors=False,
        ),
        _simple("cast", [_node("Cast", "x", "y", to=TensorProto.INT32)], (x,), {"y": (np.int32, ("n",))}),
        _branches(),
        _sequence(),
        _maps(),
        *_types(),
    ]
