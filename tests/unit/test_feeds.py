"""`FeedChecker` accepts the feeds that onnxruntime accepts, and refuses the others with the same errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from direct_ort import assert_same_class, error_of, outcome, session

from qnnbridge._session.runs import NodeArg
from qnnbridge._values.feeds import FeedChecker
from qnnbridge._values.ort_value import OrtValue, SparseTensor
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.tensors import Typed
from qnnbridge_protocol.values import Encoder


def check_feeds(inputs: Sequence[Any], feeds: Any, overridable: Sequence[Any] = ()) -> list[Any]:
    return FeedChecker(inputs, overridable).check(feeds)


def f32(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


X = NodeInfo("x", "tensor(float)", (4, "N"))
Y = NodeInfo("y", "tensor(float)", (4, "N"))
GOOD = {"x": f32(4, 2), "y": f32(4, 2)}


# --- comparison with onnxruntime -------------------------------------------------------------------------


def _add() -> Any:
    h = pytest.importorskip("onnx.helper")
    value = h.make_tensor_value_info
    return session(
        [h.make_node("Add", ["x", "y"], ["z"])],
        [value("x", 1, [4, "N"]), value("y", 1, [4, "N"])],
        [value("z", 1, [4, "N"])],
    )


def _one(
    op: str, type_proto: Callable[[Any], Any], output: Callable[[Any], Any], domain: str = "", **attributes: Any
) -> Any:
    h = pytest.importorskip("onnx.helper")
    node = h.make_node(op, ["a"], ["b"], domain=domain, **attributes)
    return session([node], [h.make_value_info("a", type_proto(h))], [h.make_value_info("b", output(h))])


def _tensor(element: int, shape: Any = None) -> Callable[[Any], Any]:
    return lambda h: h.make_tensor_type_proto(element, shape)


def _sequence(element: int) -> Callable[[Any], Any]:
    return lambda h: h.make_sequence_type_proto(h.make_tensor_type_proto(element, [2]))


def _map(key: int) -> Callable[[Any], Any]:
    return lambda h: h.make_map_type_proto(key, h.make_tensor_type_proto(1, None))


def _optional(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda h: h.make_optional_type_proto(inner(h))


MODELS: dict[str, Callable[[], Any]] = {
    "two tensors": _add,
    "strings": lambda: _one("Identity", _tensor(8, ["N"]), _tensor(8, ["N"])),
    "empty first dimension": lambda: _one("Identity", _tensor(1, [0, 2]), _tensor(1, [0, 2])),
    "scalar": lambda: _one("Identity", _tensor(1, []), _tensor(1, [])),
    "any shape": lambda: _one("Identity", _tensor(1), _tensor(1)),
    "int64": lambda: _one("Identity", _tensor(7, ["N"]), _tensor(7, ["N"])),
    "three fixed dimensions": lambda: _one("Identity", _tensor(1, [1, 2, 3]), _tensor(1, [1, 2, 3])),
    "sequence": lambda: _one("SequenceLength", _sequence(1), _tensor(7, [])),
    "int map": lambda: _one("CastMap", _map(7), _tensor(1), domain="ai.onnx.ml", cast_to="TO_FLOAT"),
    "text map": lambda: _one(
        "DictVectorizer", _map(8), _tensor(1), domain="ai.onnx.ml", string_vocabulary=["k", "l"]
    ),
    "optional tensor": lambda: _one("OptionalHasElement", _optional(_tensor(1, [2])), _tensor(9, [])),
    "optional sequence": lambda: _one("OptionalHasElement", _optional(_sequence(1)), _tensor(9, [])),
}


class _Subclass(np.ndarray[Any, np.dtype[Any]]):
    pass


GOOD_FEEDS: dict[str, list[dict[Any, Any]]] = {
    "two tensors": [
        GOOD,
        {"y": f32(4, 7), "x": f32(4, 7)},
        {"x": f32(4, 0), "y": f32(4, 0)},
        {"x": [[1, 2]] * 4, "y": f32(4, 2)},
        {"x": [["1", "2"]] * 4, "y": f32(4, 2)},
        {"x": [f32(2)] * 4, "y": f32(4, 2)},
        {"x": [[None, 1]] * 4, "y": f32(4, 2)},
        {"x": f32(4, 2).view(_Subclass), "y": np.ma.masked_array(f32(4, 2))},
        {"x": f32(2, 4).T, "y": f32(8, 2)[::2]},
    ],
    "strings": [
        {"a": np.array(["a", "ü", "a\0b"], object)},
        {"a": np.array(["a", "ü"])},
        {"a": np.array([1, None, 2.5, b"x"], object)},
        {"a": ["a", "b"]},
        {"a": [b"a", 1]},
    ],
    "empty first dimension": [{"a": f32(0, 2)}],
    "scalar": [{"a": np.array(1, np.float32)}, {"a": f32(1)}],
    "any shape": [{"a": f32(1, 2, 3)}, {"a": np.array(1, np.float32)}],
    "int64": [{"a": np.array([1, 2])}, {"a": np.array([1, 2], np.longlong)}, {"a": [1, 2]}, {"a": [1.0, True]}],
    "sequence": [{"a": [f32(2)]}, {"a": []}, {"a": [f32(3), f32(2, 2)]}],
    "int map": [{"a": {1: 2.0}}, {"a": {1: 2}}, {"a": {np.int64(1): np.float32(2)}}, {"a": {1: np.array(2.0)}}],
    "text map": [{"a": {"k": 1.0}}, {"a": {"k": 2, "l": 3}}],
    "optional tensor": [{"a": None}, {}, {"a": f32(2)}, {"a": [1.0, 2.0]}],
    "optional sequence": [{"a": None}, {}, {"a": [f32(2)]}, {"a": []}, {"a": [f32(3)]}],
}

BAD_FEEDS: dict[str, list[dict[Any, Any]]] = {
    "two tensors": [
        {},
        {"x": f32(4, 2)},
        {"x": f32(4, 2), "q": f32(1)},
        {**GOOD, "q": f32(1)},
        {1: f32(4, 2), "y": f32(4, 2)},
        {**GOOD, 1: f32(4, 2)},
        {"x": f32(4), "y": f32(4, 2)},
        {"x": np.array(3, np.float32), "y": f32(4, 2)},
        {"x": f32(3, 2), "y": f32(4, 2)},
        {"x": np.zeros((4, 2)), "y": f32(4, 2)},
        {"x": np.zeros((3, 2)), "y": f32(4, 2)},
        {"x": np.full((4, 2), "a"), "y": f32(4, 2)},
        {"x": np.full((4, 2), "a", object), "y": f32(4, 2)},
        {"x": np.zeros((4, 2), "M8[s]"), "y": f32(4, 2)},
        {"x": np.zeros((4, 2), np.complex64), "y": f32(4, 2)},
        {"x": np.zeros((4, 2), np.longdouble), "y": f32(4, 2)},
        {"x": [[1, 2], [1]], "y": f32(4, 2)},
        {"x": [["a", "b"]] * 4, "y": f32(4, 2)},
        {"x": [], "y": f32(4, 2)},
        {"x": ((1, 2),) * 4, "y": f32(4, 2)},
        {"x": (f32(2),) * 4, "y": f32(4, 2)},
        {"x": 1.0, "y": f32(4, 2)},
        {"x": 1, "y": f32(4, 2)},
        {"x": "abc", "y": f32(4, 2)},
        {"x": np.float32(3), "y": f32(4, 2)},
        {"x": memoryview(b"1234"), "y": f32(4, 2)},
        {"x": memoryview(f32(4, 2)), "y": f32(4, 2)},
        {"x": memoryview(f32()), "y": f32(4, 2)},
        {"x": object(), "y": f32(4, 2)},
        {"x": {1: 2.0}, "y": f32(4, 2)},
        {"x": {}, "y": f32(4, 2)},
    ],
    "strings": [{"a": f32(2)}, {"a": np.array([["a"]], object)}, {"a": "abc"}, {"a": {"k": 1.0}}],
    "empty first dimension": [{"a": f32(1, 2)}],
    "int64": [{"a": np.array([1, 2], np.int32)}, {"a": ["x"]}, {"a": [2**70]}],
    "three fixed dimensions": [{"a": f32(2, 2, 2)}, {"a": f32(1, 2)}],
    "sequence": [
        {"a": [np.zeros(2)]},
        {"a": [f32(2), np.zeros(2)]},
        {"a": f32(2)},
        {"a": (f32(2),)},
        {"a": [[1.0, 2.0]]},
        {"a": [1.0]},
        {"a": ["a"]},
        {"a": [None]},
        {"a": [np.float32(1)]},
        {"a": {}},
    ],
    "int map": [
        {"a": {"k": 1.0}},
        {"a": {1: "a"}},
        {"a": {1: None}},
        {"a": [{1: 2.0}]},
        {"a": ({1: 2.0},)},
        {"a": {1: 2.0, "k": 3.0}},
        {"a": {}},
        {"a": f32(2)},
        {"a": {1.5: 1.0}},
        {"a": {b"k": 1.0}},
        {"a": []},
    ],
    "text map": [{"a": {1: 2.0}}, {"a": {"k": "a"}}, {"a": {}}],
    "optional tensor": [
        {"a": f32(3)},
        {"a": np.zeros(2)},
        {"q": f32(2)},
        {"a": [f32(2)]},
        {"a": {}},
    ],
    "optional sequence": [{"a": [np.zeros(2)]}, {"a": f32(2)}],
}

# Messages that contain source paths of ONNX Runtime or text of pybind11 are not repeated here.
_OTHER_WORDS = re.compile(r"onnxruntime_src|incompatible function arguments|cannot be linked")


def _nodes(direct: Any) -> tuple[list[Any], list[Any]]:
    return direct.get_inputs(), direct.get_overridable_initializers()


def _through_the_wire(feeds: list[Any]) -> dict[str, Any]:
    """Return the feeds as the host decodes them, so that each value must be encodable."""
    for _, value, kind in feeds:
        Encoder().add(value, kind)
    return {name: value for name, value, _ in feeds}


@pytest.mark.parametrize("model", GOOD_FEEDS)
def test_feeds_that_onnxruntime_accepts_are_accepted_with_the_same_results(model: str) -> None:
    direct = MODELS[model]()
    for feeds in GOOD_FEEDS[model]:
        expected = direct.run(None, feeds)
        fed = _through_the_wire(check_feeds(*_nodes(direct)[:1], feeds, _nodes(direct)[1]))
        for got, want in zip(direct.run(None, fed), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("model", BAD_FEEDS)
def test_feeds_that_onnxruntime_refuses_are_refused_with_the_same_class_and_message(model: str) -> None:
    direct = MODELS[model]()
    for feeds in BAD_FEEDS[model]:
        theirs = error_of(direct.run, None, feeds)
        ours = error_of(check_feeds, direct.get_inputs(), feeds)
        assert isinstance(ours, errors.BridgeError)
        assert_same_class(ours, theirs)
        if not _OTHER_WORDS.search(str(theirs)):
            assert ours.message == str(theirs)


def test_an_overridable_initializer_may_be_fed_and_is_checked_like_an_input() -> None:
    h = pytest.importorskip("onnx.helper")
    numpy_helper = pytest.importorskip("onnx.numpy_helper")
    value = h.make_tensor_value_info
    direct = session(
        [h.make_node("Add", ["x", "w"], ["z"])],
        [value("x", 1, [4, 2]), value("w", 1, [4, 2])],
        [value("z", 1, [4, 2])],
        [numpy_helper.from_array(np.ones((4, 2), np.float32), "w")],
    )
    checker = FeedChecker(*_nodes(direct))
    for feeds in ({"x": f32(4, 2)}, {"x": f32(4, 2), "w": f32(4, 2)}, {"x": f32(4, 2), "w": None}):
        fed = _through_the_wire(checker.check(feeds))
        np.testing.assert_array_equal(direct.run(None, fed)[0], direct.run(None, feeds)[0])
    for bad in (f32(3, 2), np.zeros((4, 2))):
        theirs = error_of(direct.run, None, {"x": f32(4, 2), "w": bad})
        ours = error_of(checker.check, {"x": f32(4, 2), "w": bad})
        assert_same_class(ours, theirs)
        assert ours.message == str(theirs)


def test_ort_values_of_the_wrong_type_are_refused_as_by_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    direct = _add()
    theirs_from, ours_from = onnxruntime.OrtValue, OrtValue
    makers: list[Callable[[Any], Any]] = [
        lambda cls: cls.ortvalue_from_numpy(np.zeros((4, 2))),
        lambda cls: cls.ortvalue_from_numpy(f32(3, 2)),
        lambda cls: cls.ortvalue_from_numpy_with_onnx_type(np.zeros((4, 2), np.uint16), 16),
    ]
    for make in makers:
        theirs = error_of(direct.run, None, {**GOOD, "x": make(theirs_from)})
        ours = error_of(check_feeds, direct.get_inputs(), {**GOOD, "x": make(ours_from)})
        assert_same_class(ours, theirs)
        assert ours.message == str(theirs)


# --- without a comparison ----------------------------------------------------------------------------------


def test_feeds_are_returned_in_the_given_order_with_their_declared_types() -> None:
    a, b = f32(4, 1), f32(4, 2)
    checked = check_feeds([X, Y], {"y": b, "x": a})
    assert [(name, str(kind)) for name, _, kind in checked] == [("y", "tensor(float)"), ("x", "tensor(float)")]
    assert checked[0][1] is b
    assert checked[1][1] is a


def test_the_error_for_a_mistyped_name_has_a_suggestion() -> None:
    inputs = [NodeInfo("input_ids", "tensor(int64)", ("N",)), NodeInfo("mask", "optional(tensor(float))", (2,))]
    ids = np.array([1])
    with pytest.raises(ValueError, match="Did you mean 'input_ids'") as missing:
        check_feeds(inputs, {"input_id": ids})
    assert isinstance(missing.value, errors.RemoteValueError)
    with pytest.raises(errors.InvalidArgument, match="Did you mean 'mask'"):
        check_feeds(inputs, {"input_ids": ids, "masc": f32(2)})


def test_the_error_for_a_wrong_dtype_names_the_conversion() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"astype\(numpy\.float32\)"):
        check_feeds([X, Y], {**GOOD, "x": np.zeros((4, 2))})


def test_the_error_for_a_wrong_shape_names_the_expected_shape() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"the model takes \(4, \?\)"):
        check_feeds([X, Y], {**GOOD, "x": f32(3, 2)})


def test_dimensions_of_the_same_name_need_not_agree() -> None:
    assert len(check_feeds([X, Y], {"x": f32(4, 2), "y": f32(4, 3)})) == 2


def test_feeds_that_are_not_a_mapping_are_refused_as_in_onnxruntime() -> None:
    with pytest.raises(AttributeError):
        check_feeds([X], [f32(4, 2)])  # type: ignore[arg-type]


def test_none_means_absent_for_an_optional_input_and_is_refused_for_a_required_one() -> None:
    optional = NodeInfo("o", "optional(tensor(float))", (2,))
    assert check_feeds([optional], {"o": None}) == []
    assert check_feeds([], {"w": None}, [NodeInfo("w", "tensor(float)", (2,))]) == []
    checker = FeedChecker([X])
    with pytest.raises(errors.Fail, match="Missing Input: x"):
        checker.refuse_missing(checker.check({"x": None}))


def test_types_without_a_numpy_name_are_checked_by_their_onnx_type() -> None:
    node = NodeInfo("x", "tensor(bfloat16)", (2, 3))
    good = Typed(np.zeros((2, 3), np.uint16), ElementType.BFLOAT16, (2, 3))
    assert check_feeds([node], {"x": good})[0][1] is good
    with pytest.raises(errors.InvalidArgument, match=r"Actual: \(tensor\(uint16\)\)"):
        check_feeds([node], {"x": np.zeros((2, 3), np.uint16)})
    with pytest.raises(errors.InvalidArgument, match="Invalid rank"):
        check_feeds([node], {"x": Typed(np.zeros(6, np.uint16), ElementType.BFLOAT16, (6,))})
    with pytest.raises(errors.InvalidArgument, match=r"Actual: \(tensor\(bfloat16\)\)"):
        check_feeds([X], {"x": Typed(np.zeros((4, 2), np.uint16), ElementType.BFLOAT16, (4, 2))})


def test_arrays_of_ml_dtypes_are_accepted_for_their_type() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    node = NodeInfo("x", "tensor(int4)", (3,))
    array = np.array([1, -2, 7], ml_dtypes.int4)
    assert check_feeds([node], {"x": array})[0][1] is array
    assert check_feeds([node], {"x": [1, -2, 7]})[0][1].dtype == array.dtype


def test_sparse_tensors_are_checked_and_passed_on() -> None:
    node = NodeInfo("x", "sparse_tensor(float)", (3, 3))
    from qnnbridge._options.providers import OrtDevice

    def coo(dtype: Any, shape: list[int]) -> SparseTensor:
        values = np.array([1, 2], dtype)
        return SparseTensor.sparse_coo_from_numpy(shape, values, np.array([1, 5]), OrtDevice.make("cpu", 0))

    good = coo(np.float32, [3, 3])
    assert check_feeds([node], {"x": good})[0][1] is good.value
    assert check_feeds([node], {"x": OrtValue.ort_value_from_sparse_tensor(good)})[0][1] is good.value
    for bad in (coo(np.float64, [3, 3]), coo(np.float32, [4, 3]), f32(3, 3)):
        with pytest.raises(errors.InvalidArgument):
            check_feeds([node], {"x": bad})
    with pytest.raises(errors.InvalidArgument, match="received a sparse tensor"):
        check_feeds([X], {"x": good})


def test_sequences_of_maps_are_accepted_as_lists_and_as_other_iterables() -> None:
    node = NodeInfo("x", "seq(map(string,tensor(float)))", ())
    rows = [{"k": 1.0}, {"k": 2.0}]
    assert check_feeds([node], {"x": rows})[0][1] == rows
    assert check_feeds([node], {"x": tuple(rows)})[0][1] == rows
    with pytest.raises(RuntimeError, match="list of dictionaries"):
        check_feeds([node], {"x": [f32(2)]})


def test_an_ort_value_that_contains_a_list_is_not_a_tensor() -> None:
    with pytest.raises(errors.InvalidArgument, match="received a tensor sequence"):
        check_feeds([X], {"x": OrtValue([f32(4, 2)], "seq(tensor(float))")})


def test_arrays_with_the_other_byte_order_are_accepted_for_the_encoder_to_convert() -> None:
    array = np.ones((4, 2), np.dtype(np.float32).newbyteorder())
    assert check_feeds([X], {"x": array})[0][1].dtype == array.dtype


def test_arrays_of_bytes_are_accepted_as_strings() -> None:
    """onnxruntime reads beyond the items of arrays without a terminating zero, so results are not compared."""
    texts = np.array([b"a", "ü".encode()])
    assert check_feeds([NodeInfo("x", "tensor(string)", ("N",))], {"x": texts})[0][1] is texts


def test_node_args_work_as_well_as_node_infos() -> None:
    assert check_feeds([NodeArg(X), NodeArg(Y)], GOOD)[0][1] is GOOD["x"]


def test_a_type_that_cannot_be_transferred_is_refused_when_the_checker_is_created() -> None:
    with pytest.raises(errors.NotImplemented, match="opaque"):
        FeedChecker([NodeInfo("x", "opaque(a,b)", ())])


def test_a_valid_feed_is_checked_in_microseconds() -> None:
    """Check ten inputs. The limit is twenty times the measured 5 us, so that a busy machine does not exceed it."""
    nodes = [NodeInfo(f"input_{i}", "tensor(float)", (1, 3, "H", 224)) for i in range(10)]
    feeds = {node.name: f32(1, 3, 2, 224) for node in nodes}
    checker = FeedChecker(nodes)
    best = min(_timed(lambda: checker.check(feeds)) for _ in range(300))
    assert best < 100e-6


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_the_checker_accepts_exactly_the_random_feeds_that_onnxruntime_accepts() -> None:
    """For any mixture of valid and invalid feeds, either both sides refuse or both accept."""
    direct = _add()
    values = [f32(4, 2), f32(3, 2), np.zeros((4, 2)), [[1, 2]] * 4, "s", 1, f32(4), np.full((4, 2), "a")]
    for left in values:
        for right in values:
            feeds = {"x": left, "y": right}
            ours = outcome(check_feeds, direct.get_inputs(), feeds)
            theirs = outcome(direct.run, None, feeds)
            assert isinstance(ours, Exception) == isinstance(theirs, Exception), feeds
