"""Values are converted between the wire's format and ONNX Runtime's bit for bit, in real sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from engine_models import CPU, FLOAT, assert_same, identity, model, node, tensor, value
from onnx import TensorProto, helper

from qnnbridge_host.engine import ort_values
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.tensors import Sparse, Typed

ONE_BYTE = (
    ElementType.FLOAT8E4M3FN,
    ElementType.FLOAT8E4M3FNUZ,
    ElementType.FLOAT8E5M2,
    ElementType.FLOAT8E5M2FNUZ,
)


@pytest.mark.parametrize("element", ONE_BYTE)
def test_every_float8_bit_pattern_is_kept(create: Any, element: ElementType) -> None:
    session = create(identity(int(element)), provider=CPU)
    data = np.arange(256, dtype=np.uint8)
    (out,) = session.run(None, {"x": Typed(data, element, (256,))})
    assert isinstance(out, Typed)
    assert (out.element_type, out.shape) == (element, (256,))
    assert_same(out.data, data)


@pytest.mark.parametrize("shape", [(65536,), (2, 128, 256), (), (3, 0)])
def test_every_bfloat16_bit_pattern_is_kept(create: Any, shape: tuple[int, ...]) -> None:
    session = create(identity(TensorProto.BFLOAT16, [None] * len(shape)), provider=CPU)
    data = np.arange(int(np.prod(shape)), dtype=np.uint16).reshape(shape)
    (out,) = session.run(None, {"x": Typed(data, ElementType.BFLOAT16, shape)})
    assert (out.element_type, out.shape) == (ElementType.BFLOAT16, shape)
    assert_same(out.data, data)
    assert out.data.flags.writeable


@pytest.mark.parametrize(
    ("element", "packed", "values"),
    [
        (ElementType.INT4, [0x21, 0xF3, 0x08], [1, 2, 3, -1, -8]),
        (ElementType.UINT4, [0x21, 0xF3, 0x08], [1, 2, 3, 15, 8]),
        (ElementType.INT2, [0b11100100, 0b01], [0, 1, -2, -1, 1]),
        (ElementType.UINT2, [0b11100100, 0b01], [0, 1, 2, 3, 1]),
    ],
)
def test_packed_elements_are_accepted_and_returned(
    create: Any, element: ElementType, packed: list[int], values: list[int]
) -> None:
    both = model(
        [
            node("DequantizeLinear", ["x", "s"], ["y"]),
            node("QuantizeLinear", ["y", "s"], ["z"], output_dtype=int(element)),
        ],
        [tensor("x", [5], int(element))],
        [tensor("y", [5]), tensor("z", [5], int(element))],
        {"s": np.float32(1).reshape(())},
        opset=25,
    )
    y, z = create(both, provider=CPU).run(None, {"x": Typed(np.array(packed, np.uint8), element, (5,))})
    assert y.tolist() == values
    assert (z.element_type, z.shape) == (element, (5,))
    assert z.numpy().astype(np.int64).tolist() == values


def test_a_run_that_requests_only_ordinary_outputs_returns_plain_arrays(create: Any) -> None:
    cast = model(
        [node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16), node("Neg", ["x"], ["y"])],
        [tensor("x", [None])],
        [tensor("b", [None], TensorProto.BFLOAT16), tensor("y", [None])],
    )
    session = create(cast, provider=CPU)
    x = np.float32([1, -2])
    assert_same(session.run(["y"], {"x": x}), [-x])
    bits, negative = session.run(None, {"x": x})
    assert bits.data.tolist() == [0x3F80, 0xC000]
    assert_same(negative, -x)


def test_a_plain_array_for_a_bfloat16_input_is_refused_as_in_onnx_runtime(create: Any) -> None:
    session = create(identity(TensorProto.BFLOAT16), provider=CPU)
    with pytest.raises(errors.InvalidArgument, match="Unexpected input data type"):
        session.run(None, {"x": np.ones(3, np.uint16)})


def test_a_non_contiguous_input_works_with_a_bfloat16_output(create: Any) -> None:
    cast = model(
        [node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        [tensor("x", [None, None])],
        [tensor("y", [None, None], TensorProto.BFLOAT16)],
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    (out,) = create(cast, provider=CPU).run(None, {"x": x})
    assert_same(out.data, (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16))


def test_strings_are_passed_as_objects(create: Any) -> None:
    session = create(identity(TensorProto.STRING), provider=CPU)
    words = np.array(["a", "", "日本語", "x" * 300], dtype=object)
    assert_same(session.run(None, {"x": words}), [words])


def _optional_of_floats() -> onnx.TypeProto:
    return helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [None]))


def test_an_optional_may_be_empty(create: Any) -> None:
    kind = _optional_of_floats()
    proto = model([node("Identity", ["x"], ["y"])], [value("x", kind)], [value("y", kind)])
    session = create(proto, provider=CPU)
    assert session.run(None, {"x": None}) == [None]
    assert session.run(None, {}) == [None]
    assert_same(session.run(None, {"x": np.float32([1, 2])}), [np.float32([1, 2])])


def test_a_sequence_may_be_empty(create: Any) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    proto = model([node("Identity", ["x"], ["y"])], [value("x", kind)], [value("y", kind)])
    session = create(proto, provider=CPU)
    items = [np.float32([1, 2]), np.zeros((2, 0), np.float32), np.array(3, np.float32)]
    assert_same(session.run(None, {"x": items}), [items])
    assert_same(session.run(None, {"x": []}), [[]])


def test_a_map_is_accepted(create: Any) -> None:
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, None))
    proto = model(
        [node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"])],
        [value("x", kind)],
        [tensor("y", [1, 3])],
        domains={"ai.onnx.ml": 1},
    )
    (out,) = create(proto, provider=CPU).run(None, {"x": {"c": 3.0, "a": 1.0}})
    assert out.tolist() == [[1, 0, 3]]


def _sparse_product() -> onnx.ModelProto:
    left = onnx.ValueInfoProto(name="a")
    left.type.sparse_tensor_type.elem_type = FLOAT
    for size in (3, 3):
        left.type.sparse_tensor_type.shape.dim.add().dim_value = size
    return model(
        [node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft")],
        [left, tensor("b", [3, 3])],
        [tensor("y", [3, 3])],
        domains={"com.microsoft": 1},
    )


@pytest.mark.parametrize(
    "sparse",
    [
        Sparse(np.float32([1, 2]), (3, 3), "coo", (np.int64([[0, 1], [2, 0]]),)),
        Sparse(np.float32([1, 2]), (3, 3), "csr", (np.int64([1, 0]), np.int64([0, 1, 1, 2]))),
    ],
)
def test_a_sparse_input_is_multiplied(create: Any, sparse: Sparse) -> None:
    dense = np.zeros((3, 3), np.float32)
    dense[0, 1], dense[2, 0] = 1, 2
    right = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert_same(create(_sparse_product(), provider=CPU).run(None, {"a": sparse, "b": right}), [dense @ right])


@pytest.mark.parametrize(
    "sparse",
    [
        Sparse(np.float32([1, 2]), (3, 3), "coo", (np.int64([[0, 1], [2, 0]]),)),
        Sparse(np.float32([1, 2]), (9,), "coo", (np.int64([1, 6]),)),
        Sparse(np.float32([1, 2]), (3, 3), "csr", (np.int64([1, 0]), np.int64([0, 1, 1, 2]))),
    ],
)
def test_a_sparse_value_survives_the_conversion_to_onnx_runtime_and_back(sparse: Sparse) -> None:
    ort = pytest.importorskip("onnxruntime")
    back = ort_values.result_of_ort_value(ort_values.sparse_to_ort(ort, sparse))
    assert (back.format, back.dense_shape) == (sparse.format, sparse.dense_shape)
    assert_same(back.values, sparse.values)
    assert_same(list(back.indices), list(sparse.indices))


def test_the_error_for_a_value_that_onnx_runtime_cannot_take_names_the_input(create: Any) -> None:
    cast = model(
        [node("SequenceAt", ["s", "i"], ["x"]), node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        [
            value("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))),
            tensor("i", [], TensorProto.INT64),
        ],
        [tensor("y", None, TensorProto.BFLOAT16)],
    )
    session = create(cast, provider=CPU)
    with pytest.raises(errors.NotImplemented, match="'s' is a sequence"):
        session.run(None, {"s": [np.float32([1])], "i": np.array(0)})
    element = Typed(np.zeros(1, np.uint16), ElementType.BFLOAT16, (1,))
    with pytest.raises(errors.NotImplemented, match="sequence of bfloat16"):
        ort_values.feed(None, [element])
