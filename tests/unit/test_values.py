"""Values survive the wire bit for bit, whatever their type, layout and structure."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, MAX_DEPTH, ElementType, nbytes
from qnnbridge_protocol.tensors import ml_dtype
from qnnbridge_protocol.values import Decoder, Encoder, Sparse, Typed, decode, equal_bits, from_ort_type

E = ElementType
NAMED: list[ElementType] = [e for e in E if LAYOUTS[e].named and e is not E.STRING]
RAW: list[ElementType] = [e for e in E if not LAYOUTS[e].named]
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def sent(value: Any, declared: str | None = None) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Return the value as the receiver decodes it: the descriptor passes msgpack, the buffers are copied."""
    encoder = Encoder()
    descriptor = encoder.add(value, from_ort_type(declared) if declared else None)
    for buffer in encoder.buffers:
        assert buffer.dtype == np.uint8
        assert buffer.ndim == 1
        assert buffer.flags.c_contiguous
    received = [np.frombuffer(bytearray(b), np.uint8) for b in encoder.buffers]
    return msgpack.unpackb(msgpack.packb(descriptor), raw=False), received


def trip(value: Any, declared: str | None = None) -> Any:
    decoder_input, buffers = sent(value, declared)
    decoder = Decoder(buffers)
    back = decoder.value(decoder_input)
    decoder.finish()
    return back


@st.composite
def tensors(draw: st.DrawFn, elements: list[ElementType]) -> Any:
    """Draw a dense tensor of any bits, including NaN payloads."""
    element, shape = draw(st.sampled_from(elements)), draw(SHAPES)
    layout = LAYOUTS[element]
    size = nbytes(element, shape)
    raw: np.ndarray[Any, Any] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if element is E.BOOL:
        raw = raw & 1
    if layout.packed:
        return Typed(raw, element, shape)
    array = raw.view(layout.storage).reshape(shape)
    return array if layout.named else Typed(array, element, shape)


def string_arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    def build(texts: list[str]) -> np.ndarray[Any, Any]:
        return np.array([*texts, None], dtype=object)[:-1]

    return st.lists(TEXT, max_size=5).map(build)


SCALARS = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=True),
    "str": TEXT,
}
KEYS = {"int": st.integers(-(2**63), 2**63 - 1), "str": TEXT}


def maps(values: st.SearchStrategy[Any], max_size: int) -> st.SearchStrategy[dict[Any, Any]]:
    return st.sampled_from(sorted(KEYS)).flatmap(lambda k: st.dictionaries(KEYS[k], values, max_size=max_size))


def rows() -> st.SearchStrategy[list[dict[Any, Any]]]:
    """Draw maps of one key type and one scalar type, with equal or different keys."""

    def build(kinds: tuple[str, str]) -> st.SearchStrategy[list[dict[Any, Any]]]:
        keys, scalars = KEYS[kinds[0]], SCALARS[kinds[1]]
        shared = st.lists(keys, unique=True, max_size=4).flatmap(
            lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, scalars)), max_size=5)
        )
        return shared | st.lists(st.dictionaries(keys, scalars, max_size=4), max_size=5)

    return st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(SCALARS))).flatmap(build)


LEAVES = st.none() | tensors(NAMED + RAW) | string_arrays()
VALUES = st.recursive(
    LEAVES | rows(),
    lambda inner: st.lists(inner, max_size=4) | maps(inner, max_size=3),
    max_leaves=8,
)


# --- dense tensors


@pytest.mark.parametrize("element", NAMED + RAW, ids=lambda e: e.name)
@given(data=st.data())
def test_every_element_type_arrives_bit_for_bit(element: ElementType, data: st.DataObject) -> None:
    value = data.draw(tensors([element]))
    back = trip(value)
    assert type(back) is type(value)
    assert equal_bits(value, back)
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        assert back.tobytes() == value.tobytes()
        assert back.flags.writeable
    else:
        assert (back.element_type, back.shape) == (element, value.shape)


LAYOUT_CHANGES = {
    "fortran": np.asfortranarray,
    "reversed": lambda a: a[..., ::-1],
    "every-second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "transposed": lambda a: a.T,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian-fortran": lambda a: np.asfortranarray(a.astype(a.dtype.newbyteorder(">"))),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
}


@pytest.mark.parametrize("change", LAYOUT_CHANGES)
@pytest.mark.parametrize("element", NAMED, ids=lambda e: e.name)
def test_memory_layout_does_not_matter(element: ElementType, change: str) -> None:
    raw = np.random.default_rng(int(element)).integers(0, 256, 24 * LAYOUTS[element].bits // 8, np.uint8)
    if element is E.BOOL:
        raw &= 1
    plain = raw.view(LAYOUTS[element].storage).reshape(2, 3, 4)
    array = LAYOUT_CHANGES[change](plain)  # type: ignore[operator]
    expected = np.ascontiguousarray(array).astype(plain.dtype)
    back = trip(array)
    assert back.shape == array.shape
    assert back.dtype == plain.dtype
    assert back.tobytes() == expected.tobytes()


def test_a_signalling_nan_keeps_its_payload_through_a_byte_swap() -> None:
    array = np.array([0x7FA12345, 0xFFC00001], ">u4").view(">f4")
    assert trip(array).view(np.uint32).tolist() == [0x7FA12345, 0xFFC00001]


@pytest.mark.parametrize("element", [E.BFLOAT16, E.FLOAT8E4M3FN], ids=lambda e: e.name)
def test_raw_types_may_be_strided_and_big_endian(element: ElementType) -> None:
    storage = LAYOUTS[element].storage
    data = np.arange(12, dtype=storage).reshape(3, 4)
    view = np.asfortranarray(data.astype(storage.newbyteorder(">")))
    assert trip(Typed(view, element, (3, 4))).data.tolist() == data.tolist()


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    encoder = Encoder()
    descriptor = encoder.add(array)
    assert np.shares_memory(encoder.buffers[0], array)
    assert np.shares_memory(decode(descriptor, encoder.buffers), array)
    assert not np.shares_memory(decode(descriptor, encoder.buffers, copy=True), array)


def test_a_read_only_array_is_sent_without_a_copy() -> None:
    array = np.arange(3, dtype=np.int16)
    array.flags.writeable = False
    assert trip(array).tolist() == [0, 1, 2]


def test_a_buffer_at_an_odd_address_is_copied_to_an_even_one() -> None:
    block = np.zeros(17, np.uint8)
    start = 1 - block.ctypes.data % 2 if block.ctypes.data % 8 else 1
    back = decode(["t", int(E.DOUBLE), [2], 0], [block[start : start + 16]])
    assert back.flags.aligned
    assert not np.shares_memory(back, block)


def test_bools_with_other_bytes_are_sent_as_one() -> None:
    array = np.array([0, 1, 2, 255], np.uint8).view(bool)
    assert trip(array).view(np.uint8).tolist() == [0, 1, 1, 1]


def test_unused_bits_of_the_last_byte_are_cleared_without_touching_the_original() -> None:
    data = np.array([0x21, 0xF3], np.uint8)
    assert trip(Typed(data, E.UINT4, (3,))).data.tolist() == [0x21, 0x03]
    assert data.tolist() == [0x21, 0xF3]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_of_arrays_are_sent_as_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "m", np.float32, "w+", shape=(2, 2))
    mapped[:] = 3
    assert trip(mapped).tolist() == [[3, 3], [3, 3]]
    assert trip(np.asmatrix(np.eye(2))).tolist() == [[1, 0], [0, 1]]
    del mapped


def test_a_numpy_scalar_is_a_tensor_without_dimensions() -> None:
    back = trip(np.float16(1.5))
    assert (back.dtype, back.shape, float(back)) == (np.float16, (), 1.5)


@pytest.mark.parametrize("element", RAW, ids=lambda e: e.name)
def test_ml_dtypes_arrays_can_be_sent(element: ElementType) -> None:
    dtype = ml_dtype(element)
    if dtype is None:
        pytest.skip("ml_dtypes is missing or does not have the type yet")
    array = np.array([[1, 0], [1, 1], [0, 1]], np.float32).astype(dtype)
    back = trip(array.T)
    assert back.numpy().dtype == dtype
    assert back.numpy().tobytes() == array.T.tobytes()
    assert equal_bits(back, array.T)


# --- containers


@given(array=string_arrays())
def test_any_string_arrives_in_two_buffers(array: np.ndarray[Any, Any]) -> None:
    _, buffers = sent(array)
    assert len(buffers) == 2
    assert trip(array).tolist() == array.tolist()


@given(value=VALUES)
def test_any_tree_of_values_arrives(value: Any) -> None:
    assert equal_bits(trip(value), value)


@given(value=rows())
def test_sequences_of_maps_keep_keys_their_order_and_values(value: list[dict[Any, Any]]) -> None:
    back = trip(value)
    assert equal_bits(back, value)
    assert [list(row) for row in back] == [list(row) for row in value]


@pytest.mark.parametrize("keys", ["shared", "varied"])
def test_thousands_of_maps_need_few_buffers(keys: str) -> None:
    value = [{"setosa": 0.5, f"k{i % 2 if keys == 'varied' else 0}": i / 4} for i in range(5000)]
    descriptor, buffers = sent(value, "seq(map(string,tensor(float)))")
    assert len(buffers) <= 5
    assert len(msgpack.packb(descriptor)) < 64
    assert decode(descriptor, buffers) == value


def test_rows_whose_keys_differ_in_order_keep_their_order() -> None:
    back = trip([{"a": 1, "b": 2}, {"b": 3, "a": 4}])
    assert [list(row.items()) for row in back] == [[("a", 1), ("b", 2)], [("b", 3), ("a", 4)]]


def test_a_declared_float_map_is_sent_as_float32() -> None:
    _, buffers = sent({1: 0.5, 2: 1}, "map(int64,tensor(float))")
    assert buffers[1].nbytes == 8
    assert trip({1: 0.1}, "map(int64,tensor(float))") == {1: float(np.float32(0.1))}
    assert trip({1: 1e300}, "map(int64,tensor(float))") == {1: float("inf")}


def test_an_integer_too_large_for_the_declared_float_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="does not fit"):
        sent({1: 10**400}, "map(int64,tensor(double))")


def test_numpy_scalars_in_maps_arrive_as_python_scalars() -> None:
    back = trip({np.int32(1): np.float32(0.5), np.int64(2): np.float64(2)})
    assert back == {1: 0.5, 2: 2.0}
    assert {type(x) for pair in back.items() for x in pair} == {int, float}


@pytest.mark.parametrize("declared", [None, "map(int64,tensor(string))", "map(string,tensor(float))"])
def test_an_empty_map_is_an_empty_map(declared: str | None) -> None:
    assert trip({}, declared) == {}
    assert trip([{}, {}]) == [{}, {}]


def test_a_map_of_tensors_arrives() -> None:
    value = {"a": np.arange(3, dtype=np.int8), "b": np.zeros((0, 2), np.float32)}
    assert equal_bits(trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {1: 1, "a": 2},
        {True: 1},
        {None: 1},
        {1.5: 1},
        {1: 1, 2: 1.5},
        {1: True},
        {1: "a", 2: 3},
        {1: 2**63},
        {2**63: 1},
        {1: np.uint64(2**63)},
        {1: np.zeros(1), 2: 3.0},
        {1: b"x"},
        {1: 1j},
    ],
    ids=repr,
)
def test_maps_that_onnx_does_not_know_are_refused(value: dict[Any, Any]) -> None:
    with pytest.raises(errors.InvalidArgument):
        Encoder().add(value)


@pytest.mark.parametrize("extra", [0, 1])
def test_nesting_is_limited(extra: int) -> None:
    value: Any = np.zeros(1)
    for _ in range(MAX_DEPTH - 1 + extra):
        value = [value]
    if extra:
        with pytest.raises(errors.InvalidArgument, match="nested"):
            Encoder().add(value)
    else:
        assert equal_bits(trip(value), value)


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(errors.InvalidArgument, match="nested"):
        Encoder().add(endless)


# --- sparse


COO_FLAT = Sparse(np.array([1, 2], np.float32), (3, 3), "coo", (np.array([0, 8]),))
COO_PAIRS = Sparse(np.array([1, 2], np.int64), (3, 4), "coo", (np.array([[0, 3], [2, 0]]),))
CSR = Sparse(np.array([1, 2, 3], np.float32), (2, 5), "csr", (np.array([0, 4, 1]), np.array([0, 2, 3])))
CSR_EMPTY = Sparse(np.array([], np.float32), (2, 5), "csr", (np.array([], np.int64), np.array([], np.int64)))


@pytest.mark.parametrize("value", [COO_FLAT, COO_PAIRS, CSR, CSR_EMPTY], ids=["flat", "pairs", "csr", "empty"])
def test_sparse_tensors_arrive(value: Sparse) -> None:
    back = trip(value)
    assert isinstance(back, Sparse)
    assert (back.format, back.dense_shape) == (value.format, value.dense_shape)
    assert equal_bits(back, value)


ONE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    "arguments",
    [
        (ONE, (3, 3), "coo", (np.array([9]),)),
        (ONE, (3, 3), "coo", (np.array([-1]),)),
        (ONE, (3, 3), "coo", (np.array([[0, 3]]),)),
        (ONE, (3, 3), "coo", (np.array([0, 1]),)),
        (ONE, (3, 3), "coo", (np.array([0], np.int32),)),
        (ONE, (3, 3), "coo", ()),
        (np.ones((1, 1), np.float32), (3, 3), "coo", (np.array([0]),)),
        (ONE, (3, -3), "coo", (np.array([0]),)),
        (ONE, (2, 3), "csr", (np.array([3]), np.array([0, 1, 1]))),
        (ONE, (2, 3), "csr", (np.array([0]), np.array([0, 1]))),
        (ONE, (2, 3), "csr", (np.array([0]), np.array([0, 2, 1]))),
        (ONE, (2, 3), "csr", (np.array([0]), np.array([0, 0, 0]))),
        (ONE, (2, 3, 1), "csr", (np.array([0]), np.array([0, 0, 1]))),
        (ONE, (3, 3), "block", (np.array([0]),)),
    ],
)
def test_indices_outside_the_tensor_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(errors.InvalidArgument, match="sparse"):
        Sparse(*arguments)


# --- equality


@given(value=tensors(NAMED + RAW), data=st.data())
def test_one_flipped_bit_is_detected(value: Any, data: st.DataObject) -> None:
    raw = bytearray((value.data if isinstance(value, Typed) else value).tobytes())
    if isinstance(value, Typed):
        bits = value.size * LAYOUTS[value.element_type].bits
    else:
        bits = len(raw) if value.dtype == bool else 8 * len(raw)
    if not bits:
        return
    flipped = data.draw(st.integers(0, bits - 1))
    if isinstance(value, np.ndarray) and value.dtype == bool:
        raw[flipped] ^= 1
    else:
        raw[flipped // 8] ^= 1 << flipped % 8
    if isinstance(value, Typed):
        storage = LAYOUTS[value.element_type].storage
        other: Any = Typed(np.frombuffer(raw, storage), value.element_type, value.shape)
    else:
        other = np.frombuffer(raw, value.dtype).reshape(value.shape)
    assert not equal_bits(value, other)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.zeros(1, np.float32), np.zeros(1, np.float64)),
        (np.zeros(2, np.float32), np.zeros((1, 2), np.float32)),
        (np.array([0.0]), np.array([-0.0])),
        (np.zeros(2, np.uint16), Typed(np.zeros(2, np.uint16), E.BFLOAT16, (2,))),
        (Typed(np.zeros(1, np.uint8), E.INT4, (1,)), Typed(np.zeros(1, np.uint8), E.INT4, (2,))),
        ([np.zeros(1)], [np.zeros(1), np.zeros(1)]),
        ([], {}),
        ([], None),
        (None, np.zeros(1)),
        ({1: 1}, {1: 1.0}),
        ({1: 0.0}, {1: -0.0}),
        ({1: 1}, {2: 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        (COO_FLAT, COO_PAIRS),
        ([np.zeros(1)], np.zeros((1, 1))),
    ],
)
def test_different_values_are_distinguished(left: Any, right: Any) -> None:
    assert not equal_bits(left, right)
    assert not equal_bits(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.array([1.0], ">f4"), np.array([1.0], "<f4")),
        (np.array(["a"], "U5"), np.array(["a"], object)),
        (np.array([np.nan]), np.array([np.nan])),
        ({1: 1.0, 2: float("nan")}, {2: float("nan"), 1: 1.0}),
    ],
)
def test_the_same_value_in_another_form_is_equal(left: Any, right: Any) -> None:
    assert equal_bits(left, right)
