"""Element types, byte counts and type texts match ONNX's own tables."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import (
    LAYOUTS,
    MAX_DEPTH,
    ElementType,
    ValueType,
    element_of,
    from_ort_type,
    nbytes,
    numpy_dtype,
)
from qnnbridge_protocol.tensors import Typed, ml_dtype, pack, unpack

E = ElementType
NUMERIC = [e for e in E if e is not E.STRING]
NAMED = [e for e in NUMERIC if LAYOUTS[e].named]
RAW = [e for e in NUMERIC if not LAYOUTS[e].named]
PACKED = [e for e in RAW if LAYOUTS[e].packed]

TEXTS = [
    "tensor(float)",
    "tensor(float8e4m3fn)",
    "sparse_tensor(double)",
    "seq(tensor(string))",
    "seq(map(string,tensor(float)))",
    "map(int64,tensor(double))",
    "optional(tensor(int4))",
    "optional(seq(tensor(bfloat16)))",
]


def test_numbers_and_names_equal_those_of_the_installed_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    theirs = {name: number for name, number in onnx.TensorProto.DataType.items() if name != "UNDEFINED"}
    ours = {e.name: int(e) for e in E}
    assert {name: ours.get(name) for name in theirs} == theirs


def test_every_element_type_has_a_layout() -> None:
    assert set(LAYOUTS) == set(E)


@pytest.mark.parametrize("element", NAMED, ids=lambda e: e.name)
def test_numpy_dtypes_agree_with_onnx(element: ElementType) -> None:
    helper = pytest.importorskip("onnx.helper")
    assert numpy_dtype(element) == helper.tensor_dtype_to_np_dtype(int(element))
    assert element_of(numpy_dtype(element)) is element
    assert element_of(numpy_dtype(element).newbyteorder()) is element


@pytest.mark.parametrize("element", RAW, ids=lambda e: e.name)
def test_dtypes_of_ml_dtypes_are_recognised(element: ElementType) -> None:
    pytest.importorskip("ml_dtypes")
    dtype = ml_dtype(element)
    if dtype is None:
        pytest.skip("this ml_dtypes does not have the type yet")
    assert element_of(dtype) is element


@pytest.mark.parametrize("dtype", ["U3", "S3", "O", ">U3"])
def test_text_dtypes_are_strings(dtype: str) -> None:
    assert element_of(np.dtype(dtype)) is E.STRING


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "V4", [("a", "f4")]])
def test_other_dtypes_have_no_element_type(dtype: object) -> None:
    assert element_of(np.dtype(dtype)) is None  # type: ignore[call-overload]


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is double here")
def test_a_long_double_is_not_mistaken_for_a_double() -> None:
    assert element_of(np.dtype(np.longdouble)) is None


@pytest.mark.parametrize("element", NUMERIC, ids=lambda e: e.name)
@given(shape=st.lists(st.integers(0, 50), max_size=4))
def test_byte_counts_round_bits_up(element: ElementType, shape: list[int]) -> None:
    assert nbytes(element, shape) == math.ceil(math.prod(shape) * LAYOUTS[element].bits / 8)


@pytest.mark.parametrize(
    "shape",
    [[-1], [2**62], [2**31, 2**31, 2], [0, 2**62], [1] * 65, [0, 2**40, 2**40]],
    ids=["negative", "bytes", "product", "beside-zero", "rank", "product-beside-zero"],
)
def test_impossible_shapes_are_refused(shape: list[int]) -> None:
    with pytest.raises(errors.InvalidArgument):
        nbytes(E.FLOAT, shape)


@pytest.mark.parametrize("element", NAMED, ids=lambda e: e.name)
def test_numpy_accepts_the_largest_empty_shape_that_is_allowed(element: ElementType) -> None:
    bits = LAYOUTS[element].bits
    shape = (0, 2**62 * 8 // bits)
    assert nbytes(element, shape) == 0
    assert np.empty(shape, numpy_dtype(element)).shape == shape


def test_a_string_tensor_has_no_byte_count() -> None:
    with pytest.raises(errors.InvalidArgument):
        nbytes(E.STRING, [1])


def test_byte_counts_accept_numpy_integers_but_not_floats() -> None:
    assert nbytes(E.FLOAT, [np.int32(3)]) == 12
    with pytest.raises(errors.InvalidArgument):
        nbytes(E.FLOAT, [1.0])  # type: ignore[list-item]


# --- type texts


@pytest.mark.parametrize("text", TEXTS)
def test_type_strings_survive_parsing(text: str) -> None:
    assert str(from_ort_type(text)) == text


@pytest.mark.parametrize("element", E, ids=lambda e: e.name)
def test_every_element_type_has_a_type_string(element: ElementType) -> None:
    assert from_ort_type(f"tensor({element.text})") == ValueType("tensor", element=element)


def test_a_nested_type_is_parsed_into_a_tree() -> None:
    parsed = from_ort_type("seq(map(int64,tensor(float)))")
    assert parsed.kind == "sequence"
    assert parsed.item == ValueType("map", key=E.INT64, item=ValueType("tensor", element=E.FLOAT))


FOREIGN_TEXTS = {
    "nothing": "",
    "no kind": "float",
    "no element": "tensor",
    "open": "tensor(",
    "empty": "tensor()",
    "unknown element": "tensor(real)",
    "opaque": "opaque(domain,name)",
    "map without values": "map(int64)",
    "sequence of nothing": "seq()",
    "sequence of an element": "seq(float)",
    "bracket too many": "tensor(float))",
    "too deep": "seq(" * MAX_DEPTH + "tensor(float)" + ")" * MAX_DEPTH,
    "endless": "seq(" * 10**5,
}


@pytest.mark.parametrize("text", FOREIGN_TEXTS.values(), ids=FOREIGN_TEXTS)
def test_the_error_for_an_unknown_type_names_it(text: str) -> None:
    with pytest.raises(errors.NotImplemented, match="cannot be sent"):
        from_ort_type(text)


# --- packing


@pytest.mark.parametrize("bits", [2, 4, 6])
@given(data=st.data())
def test_unpacking_undoes_packing(bits: int, data: st.DataObject) -> None:
    codes = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=40)), np.uint8)
    packed = pack(codes, bits)
    assert packed.nbytes == math.ceil(len(codes) * bits / 8)
    assert unpack(packed, bits, len(codes)).tolist() == codes.tolist()


def test_the_first_of_two_elements_is_the_low_nibble() -> None:
    assert pack(np.array([0x1, 0x2, 0x3], np.uint8), 4).tolist() == [0x21, 0x03]


@pytest.mark.parametrize("element", RAW, ids=lambda e: e.name)
def test_raw_bytes_equal_those_of_onnx(element: ElementType) -> None:
    numpy_helper = pytest.importorskip("onnx.numpy_helper")
    dtype = ml_dtype(element)
    if dtype is None:
        pytest.skip("this ml_dtypes does not have the type yet")
    array = np.array([1, 0, 1, 1, 1], np.float32).astype(dtype)
    tensor = Typed.of(array)
    proto = numpy_helper.from_array(array)
    assert proto.data_type == element
    assert tensor.data.tobytes() == proto.raw_data


@pytest.mark.parametrize("element", RAW, ids=lambda e: e.name)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_ml_dtypes_arrays_survive_the_conversion_to_raw_bytes(element: ElementType, shape: tuple[int, ...]) -> None:
    dtype = ml_dtype(element)
    if dtype is None:
        pytest.skip("this ml_dtypes does not have the type yet")
    bits = LAYOUTS[element].bits
    codes = np.random.default_rng(int(element)).integers(0, 2**bits, shape, numpy_dtype(element))
    array = np.asarray(codes).view(dtype)
    back = Typed.of(array).numpy()
    assert back.dtype == dtype
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()


def test_without_ml_dtypes_the_raw_bytes_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensor = Typed(np.array([0x21], np.uint8), E.UINT4, (2,))
    assert tensor.numpy() is tensor.data


def test_an_older_ml_dtypes_without_the_type_returns_the_raw_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    monkeypatch.delattr(ml_dtypes, "float4_e2m1fn")
    tensor = Typed(np.array([0x21], np.uint8), E.FLOAT4E2M1, (2,))
    assert tensor.numpy() is tensor.data


@pytest.mark.parametrize(
    ("data", "element", "shape"),
    [
        (np.zeros(3, np.uint16), E.BFLOAT16, (4,)),
        (np.zeros(4, np.int16), E.BFLOAT16, (4,)),
        (np.zeros(4, np.uint8), E.BFLOAT16, (4,)),
        (np.zeros(3, np.uint8), E.INT4, (7,)),
        (np.zeros(4, np.float32), E.FLOAT, (4,)),
        (np.zeros(4, np.uint8), 99, (4,)),
        (np.zeros(4, np.uint8), E.FLOAT8E5M2, (-4,)),
        (np.zeros(4, np.uint8), E.FLOAT8E5M2, ("4",)),
    ],
    ids=["size", "kind", "width", "packed-size", "named-type", "no-type", "negative", "text-dimension"],
)
def test_a_typed_tensor_with_inconsistent_parts_is_refused(data: object, element: object, shape: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        Typed(data, element, shape)  # type: ignore[arg-type]


def test_only_ml_dtypes_arrays_have_a_raw_form() -> None:
    with pytest.raises(errors.InvalidArgument, match="float32"):
        Typed.of(np.zeros(1, np.float32))


def test_a_typed_tensor_reports_its_elements_and_its_bytes() -> None:
    tensor = Typed(np.zeros(3, np.uint8), E.FLOAT6E2M3, (2, 2))
    assert (tensor.size, tensor.nbytes) == (4, 3)


# --- import cost


@pytest.mark.process
def test_importing_values_loads_numpy_and_nothing_else_heavy() -> None:
    code = (
        "import sys, numpy; before = set(sys.modules); import qnnbridge_protocol.values;"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(done.stdout.split()) - set(sys.stdlib_module_names)
    assert new == {"qnnbridge_protocol"}, done.stdout
