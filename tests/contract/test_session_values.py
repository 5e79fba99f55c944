"""Values of every kind, as inputs and outputs of real models, equal those of ONNX Runtime used directly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime_qnn")

import onnxruntime

import qnnbridge
from qnnbridge_protocol.values import ElementType, Typed, equal_bits
from tests.contract.both_sides import assert_same_run, two_sessions
from tests.contract.small_models import CPU, MODELS, identity, model, node, tensor

pytestmark = pytest.mark.simulator

NAMED: dict[str, Any] = {
    "FLOAT": np.array([0.0, -0.0, np.inf, -np.inf, 1e-45], np.float32),
    "FLOAT16": np.array([0.0, -0.0, np.inf, 6e-8], np.float16),
    "DOUBLE": np.array([5e-324, -np.inf, np.pi], np.float64),
    "BOOL": np.array([True, False, True]),
    "INT8": np.array([-128, 127], np.int8),
    "UINT8": np.array([0, 255], np.uint8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "UINT16": np.array([0, 2**16 - 1], np.uint16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "STRING": np.array(["", "a", "Grüße 語 🙂", "nul\0inside", "x" * 10_000], object),
}
EVERY_BYTE = np.arange(256, dtype=np.uint8)
WITHOUT_NUMPY: dict[str, Any] = {
    "BFLOAT16": np.arange(2**16, dtype=np.uint16),
    "FLOAT8E4M3FN": EVERY_BYTE,
    "FLOAT8E4M3FNUZ": EVERY_BYTE,
    "FLOAT8E5M2": EVERY_BYTE,
    "FLOAT8E5M2FNUZ": EVERY_BYTE,
}
# Number of elements in one byte, for types smaller than a byte.
PER_BYTE = {"INT4": 2, "UINT4": 2, "INT2": 4, "UINT2": 4}


@pytest.fixture(scope="module")
def floats(host: qnnbridge.Host) -> Any:
    """Return both Identity sessions for float tensors of any shape."""
    with two_sessions(host, identity(TensorProto.FLOAT, None)) as sessions:
        yield sessions


# --- element types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_every_numpy_type_is_transferred_unchanged(name: str, host: qnnbridge.Host) -> None:
    with two_sessions(host, identity(getattr(TensorProto, name))) as (direct, bridged):
        assert_same_run(direct, bridged, {"x": NAMED[name]})
        assert_same_run(direct, bridged, {"x": NAMED[name][:0]})


@pytest.mark.parametrize("name", WITHOUT_NUMPY)
def test_every_type_that_numpy_lacks_is_transferred_unchanged(name: str, host: qnnbridge.Host) -> None:
    """onnxruntime accepts such values only as OrtValue; the bridge's `run` accepts and returns them as arrays."""
    raw, element = WITHOUT_NUMPY[name], ElementType[name]
    value = Typed(raw, element, raw.shape)
    with qnnbridge.InferenceSession(identity(int(element)), providers=[CPU], host=host) as session:
        assert equal_bits(session.run_values(None, {"x": value})[0], value)
        # ONNX Runtime itself returns this one type as an array of its bits.
        shown = raw if element is ElementType.FLOAT8E4M3FN else value
        assert equal_bits(session.run(None, {"x": value})[0], shown)
        assert equal_bits(session.run(None, {"x": value.numpy()})[0], shown)


@pytest.mark.parametrize("name", PER_BYTE)
def test_types_smaller_than_a_byte_are_transferred_unchanged(name: str, host: qnnbridge.Host) -> None:
    element = ElementType[name]
    same = node("Transpose", ["x"], ["y"], perm=[0])  # Identity does not support these
    made = model([same], [tensor("x", [None], element)], [tensor("y", [None], element)], opset=25)
    with qnnbridge.InferenceSession(made.SerializeToString(), providers=[CPU], host=host) as session:
        for count in (256 * PER_BYTE[name], 1, 0):  # one element does not fill a byte
            raw = EVERY_BYTE[1 : 1 + (count + PER_BYTE[name] - 1) // PER_BYTE[name]] if count < 256 else EVERY_BYTE
            value = Typed(raw, element, (count,))
            assert equal_bits(session.run(None, {"x": value})[0], value)
            assert equal_bits(session.run(None, {"x": value.numpy()})[0], value)


def test_bits_of_nans_are_kept(floats: Any) -> None:
    nans = np.array([0x7FC00001, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert_same_run(floats[0], floats[1], {"x": nans})
    assert floats[1].run(None, {"x": nans})[0].tobytes() == nans.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8, (2, 1, 3)], ids=str)
def test_shapes_of_all_kinds_are_transferred(shape: tuple[int, ...], floats: Any) -> None:
    (result,) = assert_same_run(floats[0], floats[1], {"x": np.ones(shape, np.float32)})
    assert result.shape == shape


BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
LAYOUTS: dict[str, Any] = {
    "transposed": BASE.T,
    "reversed": BASE[::-1, :, ::-1],
    "every second": BASE[:, :, ::2],
    "broadcast": np.broadcast_to(np.float32(7), (2, 5)),
    "Fortran order": np.asfortranarray(BASE),
    "read-only": np.frombuffer(BASE.tobytes(), np.float32),
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), np.float32, offset=1),
    "a subclass": np.ma.masked_array(BASE),
    "a list": [[1.0, 2.0], [3.0, 4.0]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layouts_make_no_difference(layout: str, floats: Any) -> None:
    assert_same_run(floats[0], floats[1], {"x": LAYOUTS[layout]})


def test_big_endian_arrays_arrive_with_the_same_numbers(floats: Any) -> None:
    """ONNX Runtime reads the bytes as little-endian numbers; the bridge preserves the numbers."""
    assert floats[1].run(None, {"x": BASE.astype(">f4")})[0].tolist() == BASE.tolist()


# --- strings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts",
    [
        np.array(["a", "語"]),
        np.array([["a", ""], ["b", "c"]], object),
        np.array([], object),
        np.array([1, None], object),
    ],
    ids=["fixed width", "objects", "none", "other objects"],
)
def test_strings_are_accepted_and_returned(texts: Any, host: qnnbridge.Host) -> None:
    with two_sessions(host, identity(TensorProto.STRING, None)) as (direct, bridged):
        assert_same_run(direct, bridged, {"x": texts})


# --- sequences, maps, optionals --------------------------------------------------------------------------


def test_a_classifier_returns_a_sequence_of_maps(host: qnnbridge.Host) -> None:
    feeds = {"float_input": np.array([[5.1, 3.5], [6.0, 2.2], [0, 0]], np.float32)}
    with two_sessions(host, MODELS / "logreg_iris.onnx") as (direct, bridged):
        _, probabilities = assert_same_run(direct, bridged, feeds)
    assert [list(row) for row in probabilities] == [[0, 1, 2]] * 3


@pytest.mark.parametrize("count", [0, 1, 3])
def test_sequences_of_tensors_are_accepted_and_returned(count: int, host: qnnbridge.Host) -> None:
    of_tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, None))
    made = model(
        [node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceLength", ["t"], ["n"])],
        [helper.make_value_info("s", of_tensors), tensor("x", None, TensorProto.INT64)],
        [helper.make_value_info("t", of_tensors), tensor("n", [], TensorProto.INT64)],
    )
    items = [np.arange(size) for size in range(count)]
    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        result, length = assert_same_run(direct, bridged, {"s": items, "x": np.array([7, 8])})
    assert length == count + 1
    assert result[-1].tolist() == [7, 8]


SEQUENCES = {
    "bfloat16": [np.zeros(2, np.uint16)],
    "float8e4m3fn": [np.zeros(2, np.uint8)],
    "int4": [np.zeros(1, np.uint8)],
    "float16": [np.arange(3, dtype=np.float16), np.zeros(0, np.float16)],
    "double": [np.arange(3.0)],
    "bool": [np.array([True, False])],
    "uint64": [np.array([2**64 - 1], np.uint64)],
    "string": [np.array(["a", "größer"], object), np.array([], object)],
    "complex64": [np.zeros(2, np.complex64)],
}


@pytest.mark.parametrize("element", SEQUENCES)
def test_sequences_of_every_type_are_those_of_onnxruntime(element: str, host: qnnbridge.Host) -> None:
    """No operator of ONNX Runtime accepts sequences of bfloat16, float8 or int4: both sides refuse such a model."""
    kind = getattr(TensorProto, element.upper())
    ends = [helper.make_tensor_sequence_value_info(name, kind, None) for name in "xy"]
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    if element in ("bfloat16", "float8e4m3fn", "int4", "complex64"):
        with pytest.raises(Exception, match=r"Type|MLDataType") as native:
            onnxruntime.InferenceSession(made, providers=[CPU])
        with pytest.raises(qnnbridge.BridgeError) as caught:
            qnnbridge.InferenceSession(made, providers=[CPU], host=host)
        assert type(caught.value).__name__ == type(native.value).__name__
        assert str(native.value).strip() in str(caught.value)
        return
    with two_sessions(host, made) as (direct, bridged):
        for items in (SEQUENCES[element], []):
            assert_same_run(direct, bridged, {"x": items})


def test_sequences_of_strings_are_returned(host: qnnbridge.Host) -> None:
    made = model(
        [node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0)],
        [tensor("x", [None], TensorProto.STRING)],
        [helper.make_tensor_sequence_value_info("s", TensorProto.STRING, None)],
    )
    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        assert_same_run(direct, bridged, {"x": np.array(["a", "語"], object)})


def test_maps_are_accepted_as_inputs(host: qnnbridge.Host) -> None:
    of_floats = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
    cast = helper.make_node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", map_form="SPARSE", max_map=5)
    graph = helper.make_graph([cast], "g", [helper.make_value_info("m", of_floats)], [tensor("y", [1, 5])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        (result,) = assert_same_run(direct, bridged, {"m": {1: 0.5, 4: -2.0}})
        assert result.tolist() == [[0, 0.5, 0, 0, -2.0]]


@pytest.mark.parametrize("full", [True, False])
def test_optionals_are_returned_full_or_empty(full: bool, host: qnnbridge.Host) -> None:
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    make = (
        node("Optional", ["x"], ["o"])
        if full
        else node("Optional", [], ["o"], type=helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    made = model(
        [make, node("OptionalHasElement", ["o"], ["has"]), node("Identity", ["x"], ["y"])],
        [tensor("x", None)],
        [helper.make_value_info("o", optional), tensor("has", [], TensorProto.BOOL), tensor("y", None)],
        opset=18,
    )
    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        result = assert_same_run(direct, bridged, {"x": np.ones(2, np.float32)})
        assert bool(result[1]) is full
        assert (result[0] is None) is not full


@pytest.mark.parametrize("value", [None, np.ones(3, np.float32)], ids=["empty", "full"])
def test_optionals_are_accepted_full_or_empty(value: Any, host: qnnbridge.Host) -> None:
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    made = model(
        [node("OptionalHasElement", ["o"], ["has"])],
        [helper.make_value_info("o", optional)],
        [tensor("has", [], TensorProto.BOOL)],
        opset=18,
    )
    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        assert_same_run(direct, bridged, {"o": value})
        assert_same_run(direct, bridged, {})


# --- sparse ----------------------------------------------------------------------------------------------


def test_sparse_tensors_are_accepted_and_returned(host: qnnbridge.Host) -> None:
    """Multiply by a sparse matrix, which is also an output, since no operator creates one."""
    import onnxruntime

    from qnnbridge._options.providers import OrtDevice

    kind = onnx.TypeProto()
    kind.sparse_tensor_type.elem_type = TensorProto.FLOAT
    for size in (3, 4):
        kind.sparse_tensor_type.shape.dim.add().dim_value = size
    matrix = helper.make_value_info("a", kind)
    multiply = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft")
    graph = helper.make_graph([multiply], "g", [matrix, tensor("b", [4, 2])], [tensor("y", [3, 2]), matrix])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=10)
    values, places = np.array([2, 3, 4], np.float32), np.array([[0, 1], [1, 2], [2, 3]], np.int64)
    dense = np.arange(8, dtype=np.float32).reshape(4, 2)

    def feeds(module: Any, device: Any) -> dict[str, Any]:
        sparse = module.SparseTensor.sparse_coo_from_numpy([3, 4], values, places, device.make("cpu", 0))
        ort_value = module.OrtValue
        return {"a": ort_value.ort_value_from_sparse_tensor(sparse), "b": ort_value.ortvalue_from_numpy(dense)}

    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        theirs = direct.run_with_ort_values(None, feeds(onnxruntime, onnxruntime.OrtDevice))
        ours = bridged.run_with_ort_values(None, feeds(qnnbridge, OrtDevice))
        assert equal_bits(ours[0].numpy(), theirs[0].numpy())
        for given in (ours[1].as_sparse_tensor(), bridged.run(["a"], feeds(qnnbridge, OrtDevice))[0]):
            expected = theirs[1].as_sparse_tensor()
            assert list(given.dense_shape()) == list(expected.dense_shape())
            assert equal_bits(given.values(), expected.values())
            assert given.as_coo_view().indices().tolist() == expected.as_coo_view().indices().tolist()


@pytest.mark.parametrize("providers", [CPU, None], ids=["CPU", "compiled"])
def test_a_model_with_very_long_metadata_runs_and_the_log_names_the_omitted_texts(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture, providers: Any
) -> None:
    made = onnx.load_model_from_string(identity(TensorProto.FLOAT, [2]))
    made.doc_string = "d" * 300_000
    for key, value in {"names": "{0: 'cat'}", "vocabulary": "v" * 2_000_000}.items():
        made.metadata_props.add(key=key, value=value)
    with qnnbridge.InferenceSession(
        made.SerializeToString(), providers=providers, host=host, cache=providers is None
    ) as session:
        meta = session.get_modelmeta()
        assert (meta.custom_metadata_map, meta.description, meta.graph_name) == (
            {"names": "{0: 'cat'}"},
            "",
            "graph",
        )
        (x,), (y,) = session.get_inputs(), session.get_outputs()
        feeds = {x.name: np.ones(2, np.float32)}
        np.testing.assert_array_equal(session.run([y.name], feeds)[0], feeds[x.name])
    (told,) = {record.message for record in caplog.records if "too long" in record.message}
    assert told.endswith("get_modelmeta() omits strings that are too long: description, vocabulary.")
