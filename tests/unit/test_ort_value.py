"""`OrtValue`, `SparseTensor` and `OrtDevice` compared with those of onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from direct_ort import assert_same_class, outcome, session

from qnnbridge._options.fields import OrtSparseFormat
from qnnbridge._options.providers import OrtDevice
from qnnbridge._values.ort_value import OrtValue, SparseTensor
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.tensors import Typed
from qnnbridge_protocol.values import equal_bits

NUMERIC = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
           np.float16, np.float32, np.float64]  # fmt: skip


class Ours:
    OrtValue = OrtValue
    SparseTensor = SparseTensor
    OrtDevice = OrtDevice


def array(dtype: Any = np.float32) -> Any:
    return np.arange(6).reshape(2, 3).astype(dtype)


def _facts(value: Any) -> dict[str, Any]:
    methods = (
        "shape data_type element_type tensor_size_in_bytes device_name has_value is_tensor is_tensor_sequence "
        "is_sparse_tensor __dlpack_device__"
    )
    return {name: outcome(getattr(value, name)) for name in methods.split()}


def _assert_same_facts(ours: Any, theirs: Any) -> None:
    mine, want = _facts(ours), _facts(theirs)
    for name, expected in want.items():
        if isinstance(expected, Exception):
            assert_same_class(mine[name], expected)
        else:
            assert mine[name] == expected, name


def _assert_same(ours: Any, theirs: Any) -> None:
    if not isinstance(theirs, Exception):
        assert not isinstance(ours, Exception), f"{ours!r} where direct gives {theirs!r:.200}"
        return
    assert isinstance(ours, errors.BridgeError), f"direct: {theirs!r}"
    assert_same_class(ours, theirs)
    said = str(theirs).splitlines()[0]
    if not re.search(
        "onnxruntime_src|incompatible function|device|can only concatenate|of type `onnx", said, re.IGNORECASE
    ):
        assert ours.message == said


# --- comparison with onnxruntime -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("shape", [(2, 3), (6,), (), (0, 3)])
def test_a_tensor_has_the_same_properties_as_in_onnxruntime(dtype: Any, shape: tuple[int, ...]) -> None:
    ort = pytest.importorskip("onnxruntime")
    data = np.ones(shape, dtype)
    ours, theirs = OrtValue.ortvalue_from_numpy(data), ort.OrtValue.ortvalue_from_numpy(data)
    _assert_same_facts(ours, theirs)
    assert ours.data_ptr() == theirs.data_ptr()
    assert equal_bits(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("number", range(30))
def test_a_new_tensor_of_each_onnx_type_has_the_same_properties_as_in_onnxruntime(number: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    for shape in ([3], [2, 3], [], [0, 4]):
        theirs = outcome(ort.OrtValue.ortvalue_from_shape_and_type, shape, number)
        ours = outcome(OrtValue.ortvalue_from_shape_and_type, shape, number)
        _assert_same(ours, theirs)
        if not isinstance(theirs, Exception):
            _assert_same_facts(ours, theirs)


CASTS = [
    *[("u2", 16), ("f2", 16), ("i2", 10), ("u1", 17), ("i1", 17), ("f4", 6), ("i4", 1)],
    *[("u1", 22), ("i1", 22), ("u1", 21), ("u1", 25), ("u1", 26), ("u1", 23)],
    *[("u2", 1), ("f8", 8), ("O", 8), ("f4", 0), ("f4", 99), ("f4", 16), ("f8", 15)],
]


@pytest.mark.parametrize(("dtype", "number"), CASTS)
def test_bits_reinterpreted_as_another_type_have_the_same_properties_as_in_onnxruntime(
    dtype: Any, number: int
) -> None:
    ort = pytest.importorskip("onnxruntime")
    data = np.zeros((2, 3), dtype)
    theirs = outcome(lambda: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(data, number))
    ours = outcome(lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(data, number))
    if isinstance(theirs, Exception):
        assert_same_class(ours, theirs)
    else:
        _assert_same_facts(ours, theirs)
        assert ours.data_ptr() == theirs.data_ptr()


MAKING: list[Callable[[Any], Any]] = [
    lambda m: m.OrtValue.ortvalue_from_numpy(np.array(["a"])),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.array(["a"], object)),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.array([b"a"])),
    lambda m: m.OrtValue.ortvalue_from_numpy([1.0]),
    lambda m: m.OrtValue.ortvalue_from_numpy(1.0),
    lambda m: m.OrtValue.ortvalue_from_numpy(None),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.zeros(2, complex)),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.zeros(2, "M8[s]")),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.zeros(2, np.longdouble)),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.zeros(2, "V2")),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "cuda"),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "npu"),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "gpu", 0),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "foo"),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "CPU"),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), 3),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "cpu", 1),
    lambda m: m.OrtValue.ortvalue_from_numpy(array(), "cpu", 0, 0x5143),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type(3, np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type("x", np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([1.5], np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([-1], np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2**40, 2**40], np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2**62], np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type(np.array([2, 3]), np.float32),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2], str),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2], object),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2], "float32"),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2], bool),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2], np.complex64),
    lambda m: m.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cuda"),
    lambda m: m.OrtValue.ortvalue_from_numpy_with_onnx_type([1], 1),
    lambda m: m.OrtValue.ortvalue_from_numpy_with_onnx_type(array(), "x"),
    lambda m: m.OrtValue.from_dlpack(3),
    lambda m: m.OrtValue.from_dlpack(array().T),
    lambda m: m.OrtValue.from_dlpack(array()),
    lambda m: m.OrtValue.from_dlpack(array().__dlpack__()),
    lambda m: m.OrtValue.ortvalue_from_numpy(array()).as_sparse_tensor(),
    lambda m: m.OrtDevice.make("foo", 0),
]


@pytest.mark.parametrize("index", range(len(MAKING)))
def test_values_are_created_and_refused_as_in_onnxruntime(index: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    theirs, ours = outcome(lambda: MAKING[index](ort)), outcome(lambda: MAKING[index](Ours))
    _assert_same(ours, theirs)
    if hasattr(theirs, "data_type"):
        _assert_same_facts(ours, theirs)


UPDATES: list[Callable[[Any], Any]] = [
    lambda m: np.ones((2, 3), np.float32),
    lambda m: np.ones((3, 2), np.float32),
    lambda m: np.ones((3, 2), np.float32).T,
    lambda m: np.ones((2, 3), np.int32),
    lambda m: np.ones(4, np.float32),
    lambda m: [1],
    lambda m: np.full((2, 3), "a", object),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32)),
    lambda m: m.OrtValue.ortvalue_from_numpy(np.ones(4, np.float32)),
]


@pytest.mark.parametrize("index", range(len(UPDATES)))
def test_updates_in_place_write_or_refuse_as_in_onnxruntime(index: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    mine, want = array(), array()
    ours_value, theirs_value = OrtValue.ortvalue_from_numpy(mine), ort.OrtValue.ortvalue_from_numpy(want)
    theirs = outcome(lambda: theirs_value.update_inplace(UPDATES[index](ort)))
    ours = outcome(lambda: ours_value.update_inplace(UPDATES[index](Ours)))
    _assert_same(ours, theirs)
    assert mine.tobytes() == want.tobytes()


def test_a_sequence_has_the_same_properties_as_in_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime")
    h = pytest.importorskip("onnx.helper")
    sequence = h.make_sequence_type_proto(h.make_tensor_type_proto(1, [2]))
    direct = session(
        [h.make_node("SequenceConstruct", ["x"], ["y"])],
        [h.make_tensor_value_info("x", 1, [2])],
        [h.make_value_info("y", sequence)],
    )
    data = np.ones(2, np.float32)
    theirs = direct.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(data)})[0]
    ours = OrtValue([data], declared=direct.get_outputs()[0].type)
    _assert_same_facts(ours, theirs)
    for name in ("numpy", "__array__", "data_ptr", "as_sparse_tensor", "__dlpack__"):
        _assert_same(outcome(getattr(ours, name)), outcome(getattr(theirs, name)))


def test_a_sequence_of_maps_has_the_same_properties_as_in_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime")
    h = pytest.importorskip("onnx.helper")
    maps = h.make_sequence_type_proto(h.make_map_type_proto(7, h.make_tensor_type_proto(1, None)))
    direct = session(
        [h.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 4])],
        [h.make_tensor_value_info("x", 1, [None, 2])],
        [h.make_value_info("y", maps)],
    )
    data = np.ones((2, 2), np.float32)
    theirs = direct.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(data)})[0]
    ours = OrtValue(direct.run(None, {"x": data})[0], declared=direct.get_outputs()[0].type)
    mine, want = _facts(ours), _facts(theirs)
    # Compare only methods that onnxruntime can answer without dereferencing a tensor.
    assert {k: v for k, v in mine.items() if not isinstance(v, Exception)} == {
        k: v for k, v in want.items() if not isinstance(v, Exception)
    }


SPARSE: list[Callable[[Any, Any], Any]] = [
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.ones(2, np.float32), np.array([1, 5]), d),
    lambda s, d: s.sparse_coo_from_numpy(np.array([3, 3]), np.ones(2, np.float32), np.array([[0, 1], [1, 2]]), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.ones(2, np.float32), np.array([0, 1, 1, 2]), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.ones(2, np.float32), np.array([1, 5], np.int32), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.ones(2, np.float32), [1, 5], d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.array(["a", "b"]), np.array([1, 5]), d),
    lambda s, d: s.sparse_coo_from_numpy([9], np.ones(2), np.array([1, 5]), d),
    lambda s, d: s.sparse_csr_from_numpy([3, 3], np.ones(2), np.array([1, 2]), np.array([0, 1, 2, 2]), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.ones(2), np.array([1, 5, 6]), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.ones((2, 1)), np.array([1, 5]), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], np.arange(4.0)[::2], np.array([1, 5]), d),
    lambda s, d: s.sparse_coo_from_numpy([3, 3], [1.0, 2.0], np.array([1, 5]), d),
    lambda s, d: s.sparse_coo_from_numpy("x", np.ones(2), np.array([1, 5]), d),
    lambda s, d: s.sparse_csr_from_numpy([3, 3], np.ones(2), np.array([1, 2]), np.array([0, 1]), d),
    lambda s, d: s.sparse_csr_from_numpy([3, 3], np.ones(2), np.array([1]), np.array([0, 1, 2, 2]), d),
    lambda s, d: s.sparse_csr_from_numpy([3, 3, 3], np.ones(2), np.array([1, 2]), np.array([0, 1, 2, 2]), d),
    lambda s, d: s(3),
]


@pytest.mark.parametrize("index", range(len(SPARSE)))
def test_sparse_tensors_are_created_and_read_as_in_onnxruntime(index: int) -> None:
    ort = pytest.importorskip("onnxruntime")

    def make(module: Any) -> Any:
        return SPARSE[index](module.SparseTensor, module.OrtDevice.make("cpu", 0))

    theirs, ours = outcome(lambda: make(ort)), outcome(lambda: make(Ours))
    _assert_same(ours, theirs)
    if isinstance(theirs, Exception):
        return
    for name in ("format", "dense_shape", "data_type", "device_name"):
        assert getattr(ours, name)() == getattr(theirs, name)()
    np.testing.assert_array_equal(ours.values(), theirs.values())
    assert ours.values().flags.writeable == theirs.values().flags.writeable
    assert ours.values().dtype == theirs.values().dtype
    for view, parts in (("as_coo_view", ["indices"]), ("as_csrc_view", ["inner", "outer"])):
        want, mine = outcome(getattr(theirs, view)), outcome(getattr(ours, view))
        _assert_same(mine, want)
        if not isinstance(want, Exception):
            for part in parts:
                np.testing.assert_array_equal(getattr(mine, part)(), getattr(want, part)())
                assert getattr(mine, part)().flags.writeable == getattr(want, part)().flags.writeable
    for name in ("as_blocksparse_view",):
        _assert_same(outcome(getattr(ours, name)), outcome(getattr(theirs, name)))
    _assert_same_facts(
        OrtValue.ort_value_from_sparse_tensor(ours), ort.OrtValue.ort_value_from_sparse_tensor(theirs)
    )


@pytest.mark.parametrize("name", ["cpu", "cuda", "gpu", "npu", "webgpu", "cann"])
def test_devices_have_the_numbers_of_onnxruntime(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    for vendor in (-1, 0x5143):
        ours, theirs = OrtDevice.make(name, 1, vendor), ort.OrtDevice.make(name, 1, vendor)
        for method in ("device_id", "device_type", "device_vendor_id", "device_mem_type"):
            assert getattr(ours, method)() == getattr(theirs, method)()


def test_no_public_method_of_the_onnxruntime_classes_is_missing() -> None:
    ort = pytest.importorskip("onnxruntime")
    for name in ("OrtValue", "SparseTensor", "OrtDevice"):
        theirs, ours = getattr(ort, name), getattr(Ours, name)
        assert not [m for m in vars(theirs) if not m.startswith("_") and not hasattr(ours, m)]


# --- without a comparison --------------------------------------------------------------------------------


def test_a_contiguous_array_is_shared_and_another_is_copied() -> None:
    data = array()
    shared, copied = OrtValue.ortvalue_from_numpy(data), OrtValue.ortvalue_from_numpy(data.T)
    data[0, 0] = 7
    assert shared.numpy()[0, 0] == 7
    assert np.shares_memory(shared.value, data)
    assert shared.value is not data, "whose shape the application may set"
    assert copied.numpy()[0, 0] == 0
    assert np.asarray(shared, dtype=np.float64).dtype == np.float64


def test_an_array_with_the_other_byte_order_keeps_its_numbers() -> None:
    data = array(np.dtype(np.float32).newbyteorder())
    assert OrtValue.ortvalue_from_numpy(data).numpy().tolist() == array().tolist()


def test_a_new_tensor_is_zero() -> None:
    """Memory that was never written would send its earlier contents to the host."""
    assert not OrtValue.ortvalue_from_shape_and_type([1000], np.uint8).numpy().any()


def test_packed_elements_are_the_first_bytes_of_the_array() -> None:
    data = np.array([0x21, 0x43, 0xFF], np.uint8)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(data, ElementType.UINT4)
    assert isinstance(value.value, Typed)
    assert value.value.data.tolist() == [0x21, 0x43]
    assert value.shape() == [3]
    data[0] = 0x65
    assert value.value.data[0] == 0x65


def test_types_without_a_numpy_name_are_returned_as_ml_dtypes_arrays() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = np.array([1.5, -2], ml_dtypes.bfloat16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(data.view(np.uint16), 16)
    assert value.numpy().dtype == ml_dtypes.bfloat16
    assert equal_bits(value.numpy(), data)
    assert equal_bits(OrtValue.ortvalue_from_numpy(data).value, value.value)


def test_updating_raw_bits_in_place_reaches_the_shared_memory() -> None:
    data = np.zeros(3, np.uint16)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(data, 16)
    value.update_inplace(np.array([1, 2, 3], np.uint16))
    assert data.tolist() == [1, 2, 3]


@pytest.mark.parametrize("wrong", [np.ones((2, 3)), np.ones((2, 3), np.float16)])
def test_an_update_with_elements_of_another_size_is_refused(wrong: Any) -> None:
    """onnxruntime copies as many bytes as fit, which gives neither of the two arrays."""
    data = array()
    with pytest.raises(RuntimeError, match="does not match the size"):
        OrtValue.ortvalue_from_numpy(data).update_inplace(wrong)
    assert data.tolist() == array().tolist()


def test_read_only_memory_is_never_written() -> None:
    data = array()
    data.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        OrtValue.ortvalue_from_numpy(data).update_inplace(np.ones((2, 3), np.float32))
    assert data.tolist() == array().tolist()


def test_tensors_of_strings_return_copies_and_cannot_be_updated() -> None:
    """onnxruntime has no way to create such values, but outputs can be such values."""
    value = OrtValue(np.array(["a", "b"], object), declared="tensor(string)")
    assert (value.data_type(), value.element_type(), value.is_tensor()) == ("tensor(string)", 8, True)
    value.numpy()[0] = "changed"
    assert value.numpy().tolist() == ["a", "b"]
    for wrong in (np.zeros(2), value):
        with pytest.raises(RuntimeError):
            value.update_inplace(wrong)


def test_a_missing_value_is_reported_as_missing() -> None:
    """onnxruntime crashes for most of these methods."""
    value = OrtValue(None, declared="optional(tensor(float))")
    assert not value.has_value()
    assert value.is_tensor()
    assert value.data_type() == "optional(tensor(float))"
    unset = OrtValue(None)
    for method in ("shape", "data_type", "element_type", "numpy", "device_name", "data_ptr", "__dlpack__"):
        with pytest.raises(RuntimeError):
            getattr(unset, method)()


def test_a_sequence_without_a_declared_type_gets_the_type_of_its_members() -> None:
    assert OrtValue([np.zeros(2, np.int64)]).data_type() == "seq(tensor(int64))"
    assert OrtValue([], declared="seq(tensor(int64))").element_type() == 7
    assert OrtValue([np.zeros(2)], declared="optional(seq(tensor(double)))").is_tensor_sequence()


def test_dlpack_shares_memory_in_both_directions() -> None:
    data = array()
    value = OrtValue.from_dlpack(data)
    assert value.data_ptr() == data.ctypes.data
    assert np.from_dlpack(value).ctypes.data == data.ctypes.data
    assert OrtValue.from_dlpack(value).data_ptr() == data.ctypes.data
    with pytest.raises(RuntimeError, match="DLPack"):
        OrtValue(Typed(np.zeros(2, np.uint16), ElementType.BFLOAT16, (2,))).__dlpack__()


def test_the_dtype_of_the_source_distinguishes_bool_from_uint8() -> None:
    class Older:
        """An array of a library whose DLPack does not support bool."""

        dtype = "torch.bool"

        def __dlpack__(self, **_: Any) -> Any:
            return np.array([1, 0], np.uint8).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    assert OrtValue.from_dlpack(Older()).data_type() == "tensor(bool)"


def test_devices_and_allocators_are_refused_with_an_explanation() -> None:
    with pytest.raises(errors.RemoteRuntimeError, match="device_type='cpu'"):
        OrtValue.ortvalue_from_numpy(array(), "npu")
    with pytest.raises(errors.RemoteRuntimeError, match="memory_info"):
        OrtValue.ortvalue_from_shape_and_type([1], 1, memory_info=object())


@pytest.mark.parametrize(
    "indices", [np.array([1, 9]), np.array([-1, 0]), np.array([[0, 3], [0, 0]]), np.array([[0, 0], [-1, 0]])]
)
def test_sparse_indices_outside_of_the_tensor_are_refused(indices: Any) -> None:
    """onnxruntime accepts such indices and reads or writes at any address."""
    with pytest.raises(RuntimeError, match="outside"):
        SparseTensor.sparse_coo_from_numpy([3, 3], np.ones(2), indices, OrtDevice.make("cpu", 0))


def test_a_sparse_value_is_accepted_as_an_ort_value() -> None:
    tensor = SparseTensor.sparse_csr_from_numpy(
        [3, 3], np.ones(2, np.float32), np.array([1, 2]), np.array([0, 1, 2, 2]), OrtDevice.make("cpu", 0)
    )
    value = OrtValue.ort_value_from_sparse_tensor(tensor)
    assert value.value is tensor.value
    assert value.as_sparse_tensor().format() is OrtSparseFormat.ORT_SPARSE_CSRC
    assert value.data_type() == "sparse_tensor(float)"
