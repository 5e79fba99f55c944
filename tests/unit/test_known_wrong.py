"""The table of operators that QNN computes wrong, how it is matched with graphs and shapes, and its messages."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from qnnbridge_host.model import known_wrong
from qnnbridge_host.model.conditions import all_true, nearest_places
from qnnbridge_host.model.graph_index import FileGraph, GraphNode, GraphTensor, read_graph
from qnnbridge_host.model.static_shapes import complete
from qnnbridge_protocol.shell import ModelInCommands

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, pytest.importorskip("onnx.numpy_helper")
np = pytest.importorskip("numpy")

ROWS = {row.name: row for row in known_wrong.table()}


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any]],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> bytes:
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    output = helper.make_empty_tensor_value_info(nodes[-1].output[0])
    graph = helper.make_graph(nodes, "g", values, [output], tensors)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()
    )


def conv(length: Any, kernel: int, dilation: int, *, channels: int = 4, group: int = 1, **other: Any) -> bytes:
    pad = dilation * (kernel - 1) // 2
    attributes = {"kernel_shape": [kernel], "dilations": [dilation], "pads": [pad, pad], "group": group, **other}
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **attributes)
    return model_of(
        [node], {"x": [1, channels, length]}, {"w": np.zeros((channels, channels // group, kernel), np.float32)}
    )


def names_in(model: bytes, **options: Any) -> list[str]:
    return [one.fault.name for one in known_wrong.find_in_model(model, **{"arch": 73, **options})]


@pytest.mark.parametrize(
    ("length", "kernel", "dilation", "is_wrong"),
    [
        (32, 3, 6, True),
        (32, 5, 3, True),
        (40, 3, 6, True),
        (48, 3, 6, False),  # beyond 8 * (padding - 1)
        (33, 3, 6, False),  # not a multiple of 8
        (8, 5, 1, True),  # not even dilated
        (16, 5, 1, False),
        (8, 3, 8, False),  # every window has one value inside
        (16, 3, 8, True),
        (56, 3, 8, True),
        (64, 3, 8, False),
        (128, 3, 17, True),
        (136, 3, 17, False),
    ],
)
def test_the_limits_of_convolutions_equal_the_measured_ones(
    length: int, kernel: int, dilation: int, is_wrong: bool
) -> None:
    assert names_in(conv(length, kernel, dilation)) == ["conv-equal-padding"] * is_wrong


def test_a_convolution_of_another_kind_is_right() -> None:
    assert names_in(conv(32, 3, 6, group=4)) == []  # depthwise
    assert names_in(conv(32, 3, 6, pads=[12, 0])) == []
    assert names_in(conv(32, 3, 6, strides=[2])) == []


def test_an_unknown_shape_causes_no_alarm_and_a_fixed_size_does() -> None:
    model = conv("length", 3, 6)
    assert names_in(model) == []
    assert names_in(model, sizes={"length": 32}) == ["conv-equal-padding"]
    assert names_in(model, sizes={"length": 33}) == []


def test_a_chip_without_float16_is_right() -> None:
    assert names_in(conv(32, 3, 6), arch=68) == []
    assert names_in(conv(32, 3, 6), release="2.2.0") == []
    assert names_in(conv(32, 3, 6), release="2.9.1") == ["conv-equal-padding"]


def test_quantised_convolutions_are_right() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3], dilations=[6], pads=[6, 6]),
    ]
    values = [helper.make_tensor_value_info("q", 2, [1, 4, 32])]
    constants = {"s": np.float32(1), "z": np.uint8(0), "w": np.zeros((4, 4, 3), np.float32)}
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", values, [helper.make_empty_tensor_value_info("y")], tensors)
    assert names_in(helper.make_model(graph).SerializeToString()) == []


@pytest.mark.parametrize(
    ("shape", "axis", "is_wrong"),
    [
        ((65,), -1, True),
        ((1, 257), -1, True),
        ((1025,), 0, True),
        ((65, 3), 0, True),
        ((65, 3), 1, False),
        ((64,), -1, False),
        ((66,), -1, False),
        ((1,), -1, False),  # row `log-softmax-of-one`
    ],
)
def test_a_log_softmax_is_found_on_the_axes_that_qnn_computes_wrong(
    shape: tuple[int, ...], axis: int, is_wrong: bool
) -> None:
    node = helper.make_node("LogSoftmax", ["x"], ["y"], axis=axis)
    found = known_wrong.find_in_model(model_of([node], {"x": list(shape)}, {}), arch=73)
    assert ("log-softmax-blocks" in [one.fault.name for one in found]) == is_wrong


@pytest.mark.parametrize(("op", "domain"), [("Relu", ""), ("QuickGelu", "com.microsoft")])
def test_the_shape_after_other_operators_is_inferred_without_onnx(op: str, domain: str) -> None:
    nodes = [
        helper.make_node(op, ["x"], ["a"], domain=domain),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Conv", ["d", "w"], ["y"], name="far", kernel_shape=[3], dilations=[6], pads=[6, 6]),
    ]
    model = model_of(
        nodes, {"x": [1, 32, 4]}, {"c": np.zeros((4, 1), np.float32), "w": np.zeros((8, 4, 3), np.float32)}
    )
    (found,) = known_wrong.find_in_model(model, arch=73)
    assert (found.op, found.node) == ("Conv", "far")


def test_the_warning_names_operator_node_condition_and_command() -> None:
    found = known_wrong.find_in_model(conv(32, 3, 6), arch=73)
    text = known_wrong.warning_of("m.onnx", found, ModelInCommands("m.onnx"))
    assert "Conv conv" in text
    assert ROWS["conv-equal-padding"].says in text
    assert "qnnbridge fix m.onnx -o m_fixed.onnx --only conv-padding" in text
    assert known_wrong.warning_of("m.onnx", ()) == ""


def test_a_file_that_is_not_a_model_is_ignored(tmp_path: Any) -> None:
    assert known_wrong.find_in_model(b"no model", arch=73) == ()
    assert known_wrong.find_in_model(tmp_path / "absent.onnx", arch=73) == ()


@pytest.mark.parametrize("row", list(ROWS.values()), ids=list(ROWS))
def test_each_row_matches_its_own_example_and_has_an_advice(row: known_wrong.WrongOperator) -> None:
    pytest.importorskip("onnxruntime")
    from lab.sweep.report import explained

    from qnnbridge_host.numerics.cases import Case

    assert row.name in [one.fault.name for one in explained(Case.from_words(row.example))]
    assert row.remedy
    assert row.wrong
    assert row.tried >= row.wrong
    assert math.isfinite(row.snr)


@pytest.mark.parametrize("shape", [(1, 4, 9, 7), (2, 3, 8, 16)], ids=["odd", "even"])
def test_shapes_inferred_without_onnx_equal_those_of_onnx(shape: tuple[int, ...]) -> None:
    """The model is a chain of most operators that `static_shapes` supports."""
    node = helper.make_node
    channels = shape[1]
    nodes = [
        node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], strides=[2, 1], pads=[1, 0, 1, 2]),
        node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Pad", ["b", "pads"], ["c"]),
        node("Slice", ["c", "starts", "ends", "axes", "steps"], ["d"]),
        node("ConvTranspose", ["d", "w"], ["e"], strides=[2, 2], output_padding=[1, 1]),
        node("Resize", ["e", "", "scales"], ["f"]),
        node("ReduceMean", ["f"], ["g"], axes=[3], keepdims=0),
        node("Unsqueeze", ["g", "first"], ["h"]),
        node("Concat", ["h", "h"], ["i"], axis=1),
        node("Reshape", ["i", "to"], ["j"]),
        node("Gather", ["j", "first"], ["k"], axis=1),
        node("Flatten", ["k"], ["l"], axis=1),
        node("Gemm", ["l", "l"], ["y"], transB=1),
    ]
    constants = {
        "w": np.zeros((channels, channels, 3, 3), np.float32),
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 3]),
        "starts": np.array([0, -1]),
        "ends": np.array([2**31 - 1, -(2**31)]),
        "axes": np.array([2, 3]),
        "steps": np.array([2, -1]),
        "scales": np.array([1, 1, 1.5, 2], np.float32),
        "first": np.array([0]),
        "to": np.array([0, -1]),
    }
    data = model_of(nodes, {"x": list(shape)}, constants)
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(data), data_prop=True).graph
    known = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.output)
    }
    assert {node.made[0].name: node.made[0].shape for node in graph.nodes} == {
        name: known[name] for name in known if name in "abcdefghijkly"
    }


@pytest.mark.parametrize(
    ("op", "attributes", "constants", "follows"),
    [
        ("Flatten", {"axis": -1}, {}, True),
        ("Flatten", {"axis": 4}, {}, True),
        ("Slice", {}, {"s": [-100], "e": [-100], "a": [3], "t": [-1]}, True),
        ("Slice", {}, {"s": [-2], "e": [2**63 - 1], "a": [3], "t": [-1]}, True),
        ("Slice", {}, {"s": [-100, 1], "e": [2**31 - 1, -1], "a": [3, 2], "t": [2, 1]}, True),
        ("Resize", {}, {"": [], "scales": np.array([1, 1, 3.3, 0.7], np.float32)}, True),
        ("Resize", {"keep_aspect_ratio_policy": "not_larger"}, {"": [], " ": [], "z": [1, 2, 7, 7]}, False),
        ("Pad", {}, {"p": [1, 0, 0, 0, 2, 0, 0, 3], "": [], "a": [3, 2, 1, 0]}, False),
        ("ConvTranspose", {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, {"w": np.zeros((2, 2, 1, 2), "f")}, True),
        ("ConvTranspose", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, {"w": np.zeros((2, 2, 3, 3), "f")}, True),
        ("MaxPool", {"auto_pad": "SAME_LOWER", "kernel_shape": [3, 3], "dilations": [2, 2]}, {}, False),
        ("MaxPool", {"kernel_shape": [6, 6], "dilations": [2, 2], "strides": [3, 3]}, {}, False),
    ],
)
def test_an_inferred_shape_equals_that_of_onnxruntime_or_is_unknown(
    op: str, attributes: dict[str, Any], constants: dict[str, Any], follows: bool
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    nodes = [helper.make_node(op, ["x", *map(str.strip, constants)], ["y"], **attributes)]
    data = model_of(
        nodes, {"x": [1, 2, 10, 10]}, {name: one for name, one in constants.items() if name.strip()}, 18
    )
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {"x": np.zeros((1, 2, 10, 10), np.float32)})
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert graph.about("y").shape == (made.shape if follows else None)


def test_sizes_that_a_model_computes_in_floats_are_rounded_as_by_onnxruntime() -> None:
    """The nearest float to 0.7, times 10, is less than 7, but rounds to 7 in 32 bits."""
    nodes = [
        helper.make_node("Mul", ["ten", "factor"], ["product"]),
        helper.make_node("Floor", ["product"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["y"], to=7),
    ]
    data = model_of(nodes, {}, {"ten": np.array([10], np.float32), "factor": np.array([0.7], np.float32)})
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert graph.about("y").values == (7,)


def test_attributes_of_a_wrong_type_make_a_shape_unknown() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=[1]),
        helper.make_node("MaxPool", ["x"], ["b"], kernel_shape=[2, 2], auto_pad=3),
        helper.make_node("Relu", ["x"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),  # an output without a declared type
    ]
    data = model_of(nodes, {"x": [1, 2, 8, 8]})
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert [graph.about(name).type for name in "abcy"] == ["", "float", "float", "float"]
    assert [graph.about(name).shape for name in "abc"] == [(1, 2, 8, 8), None, (1, 2, 8, 8)]
    known_wrong.find(graph, known_wrong.rows_for(73))


@pytest.mark.parametrize(
    ("numbers", "size"), [((0, 5, 2), 3), ((5, 0, -2), 3), ((0.0, 5.5, 1.0), 6), ((3, 0, 1), 0)]
)
def test_a_range_has_the_size_that_onnx_infers(numbers: tuple[float, ...], size: int) -> None:
    constants = {
        name: np.array(number, np.asarray(numbers).dtype) for name, number in zip("abc", numbers, strict=True)
    }
    data = model_of([helper.make_node("Range", ["a", "b", "c"], ["y"])], {}, constants)
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert graph.about("y").shape == (size,)


@pytest.mark.parametrize(
    ("element", "values"),
    [("INT32", (1, 2)), ("UINT8", (1, 2)), ("BOOL", (1, 2)), ("BFLOAT16", None), ("FLOAT16", None)]
    + [(name, None) for name in ("FLOAT8E4M3FN", "FLOAT8E5M2", "UINT4", "INT4")],
)
def test_bits_in_a_list_of_integers_are_not_values(element: str, values: tuple[int, ...] | None) -> None:
    tensor = onnx.TensorProto(
        name="c", dims=[2], int32_data=[1, 2], data_type=onnx.TensorProto.DataType.Value(element)
    )
    graph = helper.make_graph([helper.make_node("Identity", ["c"], ["y"])], "g", [], [], [tensor])
    data = helper.make_model(graph).SerializeToString()
    assert read_graph(io.BytesIO(data), len(data)).about("c").values == values


def is_true(expressions: list[str], node: GraphNode) -> bool:
    return all_true(expressions, node, FileGraph([], {}))


def node_of(op: str, **attributes: Any) -> GraphNode:
    return GraphNode(0, "n", op, (), (GraphTensor("y"),), attributes)


def test_expressions_support_only_arithmetic_and_loops() -> None:
    node = node_of("Pad", pads=[1, 0, 2], mode="edge")
    assert is_true(
        ["len(pads) == 3 and max(pads) == 2", "any(one > 1 for one in pads)", "pads[-1] // 2 == 1"], node
    )
    assert not is_true(["pads[0] > 1"], node)
    assert not is_true(["absent == 1"], node)
    assert not is_true(["shape(0)[0] == 1"], node)  # unknown, so not true
    assert not is_true(["__import__('os')"], node)
    assert not is_true(["(lambda: True)()"], node)
    assert not is_true(["pads.__class__ == 1 or True"], node)
    # The condition of a loop counts.
    assert is_true(["sum(1 for one in pads if one > 1) == 1"], node)
    assert not is_true(["any(one >= 0 for one in pads if one > 5)"], node)


def test_nearest_positions_equal_those_of_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for coordinate in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
        for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            # Scales, too: a third of 39, scales that keep the size, and products that 32 bits round.
            for size, made in (
                (8, 16),
                (8, 12),
                (12, 5),
                (9, 1),
                (7, 7),
                (39, 1 / 3),
                (16, 0.9),
                (9, 1.1),
                (10, 3.3),
            ):
                attributes = {"coordinate_transformation_mode": coordinate, "nearest_mode": rounding}
                is_size = isinstance(made, int)
                inputs = ["x", "", "", "z"] if is_size else ["x", "", "z"]
                resize = helper.make_node("Resize", inputs, ["y"], mode="nearest", **attributes)
                sizes = np.array([1, 1, 1, made], np.int64 if is_size else np.float32)
                model = model_of([resize], {"x": [1, 1, 1, size]}, {"z": sizes})
                session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
                (row,) = session.run(None, {"x": np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)})
                (node,) = read_graph(io.BytesIO(model), len(model)).nodes
                assert nearest_places(node)[1][0] == row.ravel().astype(int).tolist(), (attributes, size, made)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1),
        ({"backend_type": "htp"}, 1),
        ({"backend_path": "/opt/libQnnHtp.so"}, 1),
        ({"backend_type": "gpu"}, 0),
        ({"backend_path": "C:\\qnn\\QnnCpu.dll"}, 0),
    ],
)
def test_the_faults_apply_only_to_the_htp(options: dict[str, str], count: int) -> None:
    """Another backend of QNN computes with other code."""
    assert len(session_faults({"soc_model": "60", **options})) == count


def session_faults(options: dict[str, str]) -> tuple[known_wrong.KnownWrong, ...]:
    """Return the faults that a session on the simulator reports for a model with one of them."""
    pytest.importorskip("onnxruntime")
    from lab.sweep.cases import float_model

    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.numerics.cases import Case
    from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec

    source = ModelSource.open(float_model(Case.from_words(ROWS["conv-equal-padding"].example)).SerializeToString())
    spec = SessionSpec(None, providers=(ProviderSpec(QNN, options),))
    return known_wrong.find_for_session(source, spec, {}, simulator=True)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 1),
        ({"soc_model": "0"}, 1),
        ({"htp_arch": "75"}, 1),
        ({"htp_arch": "68"}, 0),
        ({"soc_model": "30"}, 0),
        ({"soc_model": "SM8350"}, 0),
        ({"soc_model": "SC8380XP"}, 1),
        ({"soc_model": "9999"}, 1),
    ],
)
def test_the_simulator_without_a_chip_has_the_faults_of_its_default_chip(
    options: dict[str, str], count: int
) -> None:
    """The host sets a chip for the simulator if the application does not; results are as wrong as on that chip."""
    from qnnbridge_host.engine.qnn_options import arch_of, chip_for_simulator, parse_chips

    assert len(session_faults(options)) == count
    computed = arch_of(parse_chips(chip_for_simulator(options.get("soc_model"), options.get("htp_arch")))[0])
    assert (computed is None or computed >= ROWS["conv-equal-padding"].least_arch) == bool(count)


@pytest.mark.parametrize(
    ("scales", "sizes"),
    [
        ([1, 1, math.inf, 2], None),
        ([1, 1, math.nan, 2], None),
        ([1, 1, 0, 2], None),
        ([1, 1, -3, 2], None),
        ([1, 1, 1e30, 2], None),
        (None, [1, 1, 2**40, 8]),
        (None, [1, 1, -(2**63), 8]),
    ],
)
def test_an_invalid_resize_takes_neither_time_nor_memory(
    scales: list[float] | None, sizes: list[int] | None
) -> None:
    """The check precedes each session, and ONNX Runtime then refuses such a model."""
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    kind, values = (TensorProto.FLOAT, scales) if scales is not None else (TensorProto.INT64, sizes)
    constant = helper.make_tensor("c", kind, [4], values)
    inputs = ["x", "", "c"] if scales is not None else ["x", "", "", "c"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Resize", inputs, ["r"], mode="nearest"), helper.make_node("Relu", ["r"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [constant])).SerializeToString()
    assert known_wrong.find_in_model(model, arch=73) == ()


def hard_swish(product: Sequence[str], *, name: str = "gate", more: Sequence[Any] = (), **attributes: Any) -> bytes:
    given = {"alpha": 1 / 6, "beta": 0.5} | attributes
    nodes = [helper.make_node("HardSigmoid", ["x"], ["h"], name=name, **given), *more]
    return model_of([*nodes, helper.make_node("Mul", list(product), ["y"])], {"x": [1, 8], "z": [1, 8]}, opset=13)


def test_only_the_product_that_qnn_merges_into_a_hard_swish_is_wrong() -> None:
    assert names_in(hard_swish(["x", "h"])) == ["hard-swish-product"]
    assert names_in(hard_swish(["x", "h"]), release="2.3.0") == []
    assert names_in(hard_swish(["h", "x"])) == []
    assert names_in(hard_swish(["z", "h"])) == []  # squeeze and excitation
    assert names_in(hard_swish(["x", "h"], name="")) == []
    assert names_in(hard_swish(["x", "h"], alpha=0.2)) == []
    assert names_in(hard_swish(["x", "h"], more=[helper.make_node("Relu", ["h"], ["r"])])) == []


def test_sizes_that_the_model_computes_and_parts_of_a_split_are_inferred() -> None:
    """PyTorch's older exporter writes `x.view(x.shape[0], 2, -1)`, `chunk` and the pads of `F.pad` like this."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "first"], ["n1"]),
        node("Concat", ["n1", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["v"]),
        node("Split", ["v"], ["a", "b"], axis=1),
        node("ConstantOfShape", ["two"], ["more"], value=helper.make_tensor("v", 7, [1], [0])),
        node("Concat", ["front", "more"], ["p"], axis=0),
        node("Reshape", ["p", "pairs"], ["p2"]),
        node("Slice", ["p2", "last", "end", "first", "last"], ["p3"]),
        node("Transpose", ["p3"], ["p4"], perm=[1, 0]),
        node("Reshape", ["p4", "last"], ["pads"]),
        node("Pad", ["b", "pads"], ["y"], mode="edge"),
    ]
    constants = {
        "zero": np.array(0),
        "first": np.array([0]),
        "rest": np.array([4, -1]),
        "two": np.array([2]),
        "front": np.array([3, 1, 0, 0]),
        "pairs": np.array([-1, 2]),
        "last": np.array([-1]),
        "end": np.array([-(2**63)]),
    }
    data = model_of(nodes, {"x": [2, 32]}, constants)
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert graph.known["to"].values == (2, 4, -1)
    assert [graph.known[name].shape for name in "vab"] == [(2, 4, 8), (2, 2, 8), (2, 2, 8)]
    assert graph.known["pads"].values == (0, 0, 3, 0, 0, 1)
    assert graph.known["y"].shape == (2, 2, 12)
    assert names_in(data) == ["pad-edge"]


def test_numbers_that_grow_without_limit_are_not_computed() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Mul", [f"s{k}", f"s{k}"], [f"s{k + 1}"]) for k in range(80)]
    nodes += [helper.make_node("Where", ["x"], ["w"]), helper.make_node("Reshape", ["x", "s80"], ["r"])]
    nodes += [helper.make_node("Pow", ["r", "x"], ["y"])]
    assert names_in(model_of(nodes, {"x": [7, 9]})) == ["pow-zero-computed"]


def rms(order: Sequence[str], maker: str = "Reciprocal", shape: Sequence[int] = (1, 4, 8)) -> bytes:
    node = helper.make_node
    nodes = [
        node("Pow", ["x", "two"], ["a"]),
        node("ReduceMean", ["a", "last"], ["b"]),
        node("Add", ["b", "eps"], ["c"]),
        node("Sqrt", ["c"], ["d"]),
        node(maker, ["d"], ["e"]),
        node("Mul", ["x", "e"], ["m"]),
        node("Mul", list(order), ["y"]),
    ]
    constants = {"two": np.float32(2), "last": np.array([-1]), "eps": np.float32(1e-6), "w": np.ones(8, np.float32)}
    return model_of(nodes, {"x": list(shape)}, constants, opset=18)


@pytest.mark.parametrize(
    ("shape", "merged"),
    [
        ((24, 8), False),
        ((1, 24, 8), False),
        ((2, 4, 8), False),
        ((2, 24, 8), True),
        ((9, 2, 8), True),
        ((1, 4, 3, 8), False),
        ((1, 9, 1, 8), True),
        ((1, 2, 24, 8), True),
        ((17, 2, 8, 8), True),
    ],
)
def test_a_normalization_of_several_dimensions_may_return_stale_memory(
    shape: tuple[int, ...], merged: bool
) -> None:
    assert names_in(rms(["m", "w"], shape=shape)) == ["rms-merged-4d"] * merged
    batched = len(shape) == 4 or (len(shape) == 3 and shape[0] > 1)
    assert names_in(rms(["w", "m"], shape=shape)) == ["rms-weight-first-4d" if batched else "rms-weight-first"]
    one = [helper.make_node("RMSNormalization", ["x", "w"], ["y"], axis=-1)]
    data = model_of(one, {"x": list(shape)}, {"w": np.ones(8, np.float32)}, opset=23)
    assert names_in(data) == ["rms-normalization-4d"] * merged


def test_a_condition_follows_the_producers_of_a_tensor() -> None:
    assert names_in(rms(["w", "m"])) == ["rms-weight-first"]
    assert names_in(rms(["m", "w"])) == []
    assert names_in(rms(["w", "m"], "Neg")) == []


@pytest.mark.parametrize(
    ("shape", "vector", "order", "found"),
    [
        ((1, 1, 4, 8, 8), (8,), ["x", "w"], True),
        ((2, 3, 4, 7, 7), (1, 1, 7), ["x", "w"], True),
        ((1, 1, 4, 8, 8), (8,), ["w", "x"], False),
        ((1, 1, 4, 8, 8), (1, 1, 1, 1, 8), ["x", "w"], False),
        ((1, 1, 4, 8, 8), (8, 8), ["x", "w"], False),
        ((1, 1, 8, 4, 8), (8,), ["x", "w"], False),
        ((1, 4, 8, 8), (8,), ["x", "w"], False),
        ((1, 1, 4, 1, 1), (1,), ["x", "w"], False),
    ],
)
def test_a_vector_after_a_square_of_five_dimensions_is_found(
    shape: Sequence[int], vector: Sequence[int], order: Sequence[str], found: bool
) -> None:
    data = model_of([helper.make_node("Mul", order, ["y"])], {"x": shape}, {"w": np.ones(vector, np.float32)})
    assert names_in(data) == ["mul-square-vector"] * found


@pytest.mark.parametrize(
    ("given", "rows", "made", "found"),
    [
        ((5, 4, 3), (5, 12), (5, 4, 2), "matmul-reshapes-fail"),
        ((2, 3, 4), (1, 24), (2, 3, 1), "matmul-reshapes"),
        ((3, 1), (1, 3), (3, 1), "matmul-reshapes"),
        ((4, 6), (1, 24), (4, 2), ""),
        ((1, 3, 2), (3, 2), (1, 3, 2), ""),
        ((4, 4, 6, 5), (32, 15), (1, 128), ""),
        ((2, 3, 2), (3, 4), (3, 6, 1), ""),
        ((2, 3, 2, 2, 2), (6, 8), (2, 3, 2, 2, 4), ""),
    ],
)
def test_a_product_between_reshapes_of_the_last_dimension_is_found(
    given: Sequence[int], rows: Sequence[int], made: Sequence[int], found: str
) -> None:
    columns = int(np.prod(made)) // rows[0]
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "s"], ["a"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("Reshape", ["b", "t"], ["y"]),
    ]
    constants = {"s": np.array(rows), "t": np.array(made), "w": np.ones((rows[1], columns), np.float32)}
    assert names_in(model_of(nodes, {"x": given}, constants)) == [found] * bool(found)
    behind = [node("Reshape", ["b", "t"], ["c"]), node("Relu", ["c"], ["y"])]
    wrong = ["matmul-reshapes"] * bool(found)
    assert names_in(model_of([*nodes[:2], *behind], {"x": given}, constants)) == wrong


@pytest.mark.parametrize(
    ("sizes", "kernel", "pads", "counted", "found"),
    [
        ([17, 2], [5, 5], [2, 0, 2, 3], 0, False),
        ([5, 2], [5, 5], [0, 2, 0, 2], 0, True),
        ([3, 3], [3, 3], [0, 0, 0, 0], 0, False),
        ([3, 3], [4, 4], [1, 1, 0, 0], 1, True),
        ([3, 3], [4, 4], [0, 0, 1, 1], 1, False),
    ],
)
def test_a_global_average_with_padding_is_found(
    sizes: list[int], kernel: list[int], pads: list[int], counted: int, found: bool
) -> None:
    one = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=kernel, pads=pads, count_include_pad=counted, strides=[3, 3]
    )
    names = names_in(model_of([one], {"x": [1, 64, *sizes]}, {}))
    assert ("average-pool-to-one" in names) == found


@pytest.mark.parametrize(
    ("shape", "attributes", "found"),
    [
        (
            [1, 8, 6, 9, 9],
            {"kernel_shape": [3] * 3, "strides": [2] * 3, "pads": [1] * 6, "count_include_pad": 1},
            "3d-strided",
        ),
        ([1, 8, 6, 9, 9], {"kernel_shape": [3] * 3, "strides": [2] * 3, "pads": [1] * 6}, ""),
        (
            [1, 8, 6, 9, 9],
            {"kernel_shape": [3] * 3, "strides": [3] * 3, "pads": [1] * 6, "count_include_pad": 1},
            "",
        ),
        (
            [1, 8, 6, 9, 9],
            {"kernel_shape": [5] * 3, "strides": [2] * 3, "pads": [2] * 6, "count_include_pad": 1},
            "",
        ),
        ([1, 33, 1, 16], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}, "counted-line"),
        ([1, 33, 16, 1], {"kernel_shape": [5, 5], "pads": [2] * 4, "count_include_pad": 1}, "counted-line"),
        ([1, 33, 2, 16], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}, ""),
        ([1, 33, 1, 16], {"kernel_shape": [5, 5], "strides": [2, 2], "pads": [2] * 4, "count_include_pad": 1}, ""),
        ([1, 64, 12, 12], {"kernel_shape": [3, 3], "pads": [1, 1, 2, 1]}, "three-sides"),
        ([1, 64, 12, 12], {"kernel_shape": [3, 3], "pads": [1, 1, 0, 1]}, ""),
        ([1, 64, 12, 12], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, ""),
        ([1, 64, 1, 12], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, "three-sides"),
        ([1, 64, 1, 12], {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}, ""),
        ([1, 31, 12, 64], {"kernel_shape": [7, 7], "pads": [0, 1, 2, 1]}, "top"),
        ([1, 31, 12, 64], {"kernel_shape": [7, 7], "pads": [2, 1, 0, 1]}, ""),
        ([1, 32, 12, 64], {"kernel_shape": [7, 7], "pads": [0, 1, 2, 1]}, ""),
        ([1, 16, 1, 170], {"kernel_shape": [1, 3], "pads": [0, 1, 0, 1]}, "top"),
        ([1, 16, 1, 150], {"kernel_shape": [1, 3], "pads": [0, 1, 0, 1]}, ""),
    ],
)
def test_averages_that_are_wrong_in_used_hosts_are_found(
    shape: list[int], attributes: dict[str, Any], found: str
) -> None:
    rank = len(shape) - 2
    one = helper.make_node("AveragePool", ["x"], ["y"], **{"strides": [1] * rank, **attributes})
    assert names_in(model_of([one], {"x": shape}, {})) == [f"average-pool-{found}"] * bool(found)


def quantised(nodes: Sequence[Any], shape: Sequence[int], kind: Any, constants: Mapping[str, Any]) -> bytes:
    """A model whose nodes read a DequantizeLinear `x` of an input quantised to integers of a type."""
    pair = ["scale", "zero"]
    front = [
        helper.make_node("QuantizeLinear", ["given", *pair], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *pair], ["x"]),
    ]
    scales = {"scale": np.float32(0.1), "zero": np.array(7, kind)}
    return model_of([*front, *nodes], {"given": shape}, {**scales, **constants}, 21)


@pytest.mark.parametrize(
    ("shape", "attributes", "found"),
    [
        ([16, 16], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": 1}, "blocks"),
        ([16, 16], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4}, ""),
        ([18, 18], {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1] * 4}, "blocks"),
        ([18, 20], {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1] * 4}, ""),  # one window more
        ([18, 18], {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [0, 0, 1, 1]}, ""),
        ([24], {"kernel_shape": [4], "strides": [4], "pads": [1, 1]}, "blocks"),
        (
            [8, 8],
            {"kernel_shape": [5, 5], "strides": [6, 6], "pads": [1] * 4, "count_include_pad": 1},
            "to-one-counted",
        ),
        ([8, 8], {"kernel_shape": [5, 5], "strides": [6, 6], "pads": [1] * 4}, ""),
        ([16, 16], {"kernel_shape": [5, 5], "strides": [3, 3], "pads": [2] * 4}, "five"),
        ([16, 16], {"kernel_shape": [5, 5], "strides": [2, 2], "pads": [2] * 4}, "five"),
        ([15, 15], {"kernel_shape": [5, 5], "strides": [2, 2], "pads": [2] * 4}, ""),
        ([16, 16], {"kernel_shape": [5, 5], "strides": [2, 2], "pads": [1] * 4}, ""),
        ([15, 15], {"kernel_shape": [5, 5], "strides": [2, 2], "pads": [1] * 4}, "five"),
        ([18, 24], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0]}, "left-out"),
        ([15, 24], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0]}, ""),
        ([18, 24], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, ""),
        ([18, 18], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}, ""),
        ([17, 17], {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [2, 0, 2, 0]}, ""),
        ([28, 10], {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 0, 1, 0]}, ""),
        ([10, 10], {"kernel_shape": [4, 4], "strides": [4, 4]}, "four"),
        ([14, 14], {"kernel_shape": [4, 4], "strides": [4, 4]}, ""),
        ([42, 42], {"kernel_shape": [4, 4], "strides": [4, 4]}, ""),
    ],
)
def test_averages_of_quantised_values_that_were_measured_in_used_hosts(
    shape: list[int], attributes: dict[str, Any], found: str
) -> None:
    one = helper.make_node("AveragePool", ["x"], ["y"], **attributes)
    assert names_in(quantised([one], [1, 3, *shape], np.uint8, {})) == [f"average-pool-{found}"] * bool(found)


@pytest.mark.parametrize(
    ("kind", "shape", "axis", "is_wrong"),
    [
        (np.uint8, [2, 3, 8], 1, True),
        (np.uint8, [2, 3, 8], -1, False),
        (np.uint16, [2, 3, 8], 1, False),
        (np.uint8, [1, 3, 8], 0, True),
        (np.uint8, [2, 3, 4, 5], 0, False),
        (np.uint8, [2, 3, 4, 5], 1, True),
        (np.uint8, [2, 2, 3, 4, 5], 0, True),
        (np.uint8, [2, 2, 3, 4, 5], 1, False),
    ],
)
def test_cumulative_sums_of_8_bits_are_wrong_along_other_axes_than_the_last(
    kind: Any, shape: list[int], axis: int, is_wrong: bool
) -> None:
    one = helper.make_node("CumSum", ["x", "axis"], ["y"])
    found = names_in(quantised([one], shape, kind, {"axis": np.array(axis)}))
    assert found == ["cum-sum-bytes"] * is_wrong


@pytest.mark.parametrize(
    ("shape", "attributes", "found"),
    [
        ([8, 24], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 0, 1]}, "even"),
        ([8, 25], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 0, 1]}, ""),
        ([8, 25], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 1, 0, 0]}, "even"),
        ([8, 24], {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [0, 1, 0, 1]}, ""),
        ([8, 24], {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}, ""),
        ([16, 16], {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]}, "even"),
        ([16, 16], {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [2, 2, 2, 2]}, ""),
        ([16, 16], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, ""),
        ([8, 9], {"kernel_shape": [3, 1], "strides": [2, 2]}, "column"),
        ([8, 9], {"kernel_shape": [3, 1], "strides": [2, 1]}, ""),
        ([8, 9], {"kernel_shape": [1, 3], "strides": [2, 2]}, ""),
        ([8, 9], {"kernel_shape": [1, 1], "strides": [2, 2]}, ""),
    ],
)
def test_maxima_that_were_measured_in_used_hosts(shape: list[int], attributes: dict[str, Any], found: str) -> None:
    one = helper.make_node("MaxPool", ["x"], ["y"], **attributes)
    assert names_in(model_of([one], {"x": [1, 3, *shape]}, {})) == [f"max-pool-{found}"] * bool(found)


@pytest.mark.parametrize(("channels", "nodes", "is_wrong"), [(1, 0, False), (1, 1, True), (3, 0, True)])
def test_a_float16_maximum_of_one_channel_at_the_input_is_right(channels: int, nodes: int, is_wrong: bool) -> None:
    pool = helper.make_node(
        "MaxPool", ["a" * nodes or "x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4
    )
    negative = [helper.make_node("Neg", ["x"], ["a"])][:nodes]
    assert names_in(half_model([*negative, pool], [1, channels, 8, 8], {})) == ["max-pool-even"] * is_wrong


@pytest.mark.parametrize(("shape", "count", "is_wrong"), [([12, 20, 3], 9, True), ([12, 20, 3], 8, False)])
def test_many_slices_of_quantised_values_are_found(shape: list[int], count: int, is_wrong: bool) -> None:
    one = helper.make_node("GatherND", ["x", "i"], ["y"])
    found = names_in(quantised([one], shape, np.uint8, {"i": np.zeros([count, 1], np.int64)}))
    assert found == ["gather-nd-slices"] * is_wrong


@pytest.mark.parametrize(
    ("shape", "indices", "constant", "is_wrong"),
    [
        ([20, 4, 6], [9, 1], False, True),
        ([20, 4, 6], [10, 1], False, True),
        ([20, 4, 6], [8, 1], False, False),
        ([20, 4, 6], [5, 1], True, True),
        ([20, 4, 6], [4, 1], True, False),
        ([12, 6, 3], [5, 1], True, False),
        ([12, 6, 3], [9, 1], True, True),
        ([12, 16, 4], [9, 1], True, False),
        ([6, 5, 4, 3], [12, 2], False, True),
        ([20, 4], [20, 1], False, False),
    ],
)
def test_slices_of_a_gather_nd_that_were_measured_in_used_hosts(
    shape: list[int], indices: list[int], constant: bool, is_wrong: bool
) -> None:
    one = helper.make_node("GatherND", ["x", "i"], ["y"])
    inputs = {"x": shape} if constant else {"x": shape, "i": indices}
    model = model_of([one], inputs, {"i": np.zeros(indices, np.int64)} if constant else {})
    assert names_in(model) == ["gather-nd-slices"] * is_wrong


@pytest.mark.parametrize(
    ("axis", "step", "kind", "is_wrong"),
    [(0, 2, 6, True), (0, -1, 6, True), (1, 2, 6, True), (1, -1, 6, False), (3, 2, 6, False), (0, 2, 1, False)],
)
def test_steps_through_integers_of_five_dimensions(axis: int, step: int, kind: int, is_wrong: bool) -> None:
    limits = {"b": [0], "e": [9], "a": [axis], "t": [step]}
    node = helper.make_node("Slice", ["x", *limits], ["y"])
    model = onnx.load_from_string(
        model_of([node], {"x": [2, 3, 4, 5, 6]}, {name: np.array(one) for name, one in limits.items()})
    )
    model.graph.input[0].type.tensor_type.elem_type = kind
    assert names_in(bytes(model.SerializeToString())) == ["slice-five-integers"] * is_wrong


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "auto_pad", "is_wrong"),
    [
        ([8, 8], [1, 1], [2, 2], "SAME_UPPER", True),
        ([8, 8], [3, 1], [2, 2], "SAME_LOWER", True),
        ([9, 9], [2, 2], [3, 3], "SAME_UPPER", True),
        ([9], [2], [3], "SAME_UPPER", True),
        ([9, 9], [1, 1], [2, 2], "SAME_UPPER", False),  # the last window ends at the last value
        ([8, 8], [2, 2], [3, 3], "SAME_UPPER", False),
        ([8, 8], [3, 3], [2, 2], "SAME_UPPER", False),
        ([8, 8], [1, 1], [2, 2], "VALID", False),
    ],
)
def test_an_lp_pool_with_auto_pad_whose_windows_end_early_is_found(
    shape: list[int], kernel: list[int], strides: list[int], auto_pad: str, is_wrong: bool
) -> None:
    one = helper.make_node("LpPool", ["x"], ["y"], kernel_shape=kernel, strides=strides, auto_pad=auto_pad)
    assert names_in(model_of([one], {"x": [1, 3, *shape]})) == ["lp-pool-same"] * is_wrong


@pytest.mark.parametrize(
    ("base", "exponent", "is_wrong"),
    [
        ("input", "input", True),
        ("Abs", "Floor", True),
        ("input", [0.0, 1.0, 2.0], True),
        ([0.0, 1.0, 2.0], "input", True),
        ("input", [1.0, 2.0, 3.0], False),
        ([1.0, 2.0, 3.0], "input", False),
        ("Sigmoid", "input", False),
        ("input", "Sigmoid", False),
    ],
)
def test_powers_whose_exponent_may_be_zero_are_found(base: Any, exponent: Any, is_wrong: bool) -> None:
    nodes, constants, names = [], {}, []
    for name, maker in (("b", base), ("e", exponent)):
        if isinstance(maker, list):
            constants[name] = np.array(maker, np.float32)
        elif maker != "input":
            nodes.append(helper.make_node(maker, [name], [f"{name}/made"]))
        names.append(nodes[-1].output[0] if nodes and nodes[-1].input[0] == name else name)
    nodes.append(helper.make_node("Pow", names, ["y"]))
    inputs = {name: [4, 3] for name in ("b", "e") if name not in constants}
    assert names_in(model_of(nodes, inputs, constants)) == ["pow-zero-computed"] * is_wrong


@pytest.mark.parametrize(
    ("op", "kind", "scale", "is_wrong"),
    [
        ("Ceil", np.uint16, 3.8e-6, True),
        ("Round", np.int16, 3.8e-6, True),
        ("Ceil", np.uint16, 3.82e-6, False),
        ("Ceil", np.uint8, 3.8e-6, False),
        ("Floor", np.uint16, 3.8e-6, False),
    ],
)
def test_rounding_of_16_bits_is_found_by_its_scale(op: str, kind: Any, scale: float, is_wrong: bool) -> None:
    model = quantised([helper.make_node(op, ["x"], ["y"])], [2, 3], kind, {"scale": np.float32(scale)})
    assert names_in(model) == ["ceil-fine-scale"] * is_wrong


INT64 = onnx.TensorProto.INT64
MAKERS_OF_INDICES: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], bool]] = {
    "input": ([("Identity", ["i"], {})], False),
    "difference": ([("Sub", ["i", "two"], {})], True),
    "sum with a negative constant": ([("Add", ["i", "minus"], {})], True),
    "sum with a positive constant": ([("Add", ["i", "two"], {})], False),
    "moved difference": (
        [("Sub", ["i", "two"], {}), ("Unsqueeze", ["", "axis"], {}), ("Squeeze", ["", "axis"], {})],
        True,
    ),
    "part of a list": ([("Sub", ["i", "two"], {}), ("Concat", ["i", ""], {"axis": 0})], True),
    "limited difference": ([("Sub", ["i", "two"], {}), ("Max", ["", "two"], {})], False),
    "largest index": ([("ArgMax", ["x"], {"axis": 1, "keepdims": 1})], False),
    "rounded number": ([("Floor", ["x"], {}), ("Cast", [""], {"to": INT64})], True),
    "limited number": ([("Relu", ["x"], {}), ("Floor", [""], {}), ("Cast", [""], {"to": INT64})], False),
    "number of a Clip": ([("Clip", ["x", "zero", "many"], {}), ("Cast", [""], {"to": INT64})], False),
    "number of a Clip from -1": ([("Clip", ["x", "less", "many"], {}), ("Cast", [""], {"to": INT64})], True),
    "counted from the start": (
        [
            ("Sub", ["i", "two"], {}),
            ("Less", ["y0", "none"], {}),
            ("Add", ["y0", "size"], {}),
            ("Where", ["y1", "y2", "y0"], {}),
        ],
        False,
    ),
}


@pytest.mark.parametrize(("makers", "is_wrong"), list(MAKERS_OF_INDICES.values()), ids=list(MAKERS_OF_INDICES))
def test_computed_indices_are_found_if_they_may_be_negative(
    makers: list[tuple[str, list[str], dict[str, Any]]], is_wrong: bool
) -> None:
    nodes = [
        helper.make_node(op, [name or f"y{number - 1}" for name in inputs], [f"y{number}"], **attributes)
        for number, (op, inputs, attributes) in enumerate(makers)
    ]
    nodes.append(helper.make_node("GatherElements", ["x", nodes[-1].output[0]], ["y"], axis=1))
    numbers = {"two": 2, "minus": -2, "none": 0, "size": 8}
    constants = {name: np.array(number) for name, number in numbers.items()}
    constants |= {name: np.float32(number) for name, number in {"zero": 0, "many": 7, "less": -1}.items()}
    model = onnx.load_from_string(
        model_of(nodes, {"x": [4, 8], "i": [4, 8]}, {**constants, "axis": np.array([0])}, 18)
    )
    model.graph.input[1].type.tensor_type.elem_type = INT64
    assert names_in(model.SerializeToString()) == ["negative-indices"] * is_wrong


@pytest.mark.parametrize(
    ("op", "number", "maker", "is_wrong"),
    [
        ("Equal", math.inf, "", True),
        ("Equal", -math.inf, "Neg", True),
        ("Equal", 65504.0, "", False),
        ("Greater", math.inf, "", False),
        ("Equal", math.inf, "Log", False),
    ],
)
def test_comparisons_with_infinity_are_found(op: str, number: float, maker: str, is_wrong: bool) -> None:
    nodes = [helper.make_node(maker, ["x"], ["a"])] if maker else []
    operands = ["a" if maker else "x", "k"]
    for order in (operands, operands[::-1]):
        model = model_of([*nodes, helper.make_node(op, order, ["y"])], {"x": [3, 4]}, {"k": np.float32(number)})
        assert names_in(model) == ["equal-infinity"] * is_wrong


def test_infinite_values_of_a_mask_made_by_where_are_right() -> None:
    nodes = [helper.make_node("Where", ["x", "k", "zero"], ["a"]), helper.make_node("Equal", ["a", "k"], ["y"])]
    model = model_of(nodes, {"x": [3, 4]}, {"k": np.float32(-math.inf), "zero": np.float32(0)})
    assert names_in(model) == []


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_resize_to_one_is_found(mode: str) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
    one = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    model = model_of([one], {"x": [1, 3, 8, 8]}, {"sizes": np.array([1, 3, 1, 4])})
    assert names_in(model) == ["resize-linear-to-one"]


def half_model(nodes: Sequence[Any], shape: Sequence[int], constants: Mapping[str, Any]) -> bytes:
    model = onnx.load_from_string(model_of(nodes, {"x": shape}, constants))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("in_front", "channels", "pads", "found"),
    [
        ("", 1, 1, True),
        ("Reshape", 1, 1, True),
        ("Relu", 1, 1, False),
        ("", 2, 1, False),
        ("", 1, 0, True),
    ],
)
def test_a_float16_average_of_one_channel_at_the_input_is_found(
    in_front: str, channels: int, pads: int, found: bool
) -> None:
    shape = [1, channels, 28, 28]
    first = {
        "": [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[pads] * 4)],
        "Relu": [helper.make_node("Relu", ["x"], ["h"])],
        "Reshape": [helper.make_node("Reshape", ["x", "s"], ["h"])],
    }[in_front]
    behind = [helper.make_node("AveragePool", ["h"], ["y"], kernel_shape=[3, 3], pads=[pads] * 4)] * bool(in_front)
    names = names_in(half_model([*first, *behind], shape, {"s": np.array(shape)}))
    assert names == ["average-pool-half-input"] * found


@pytest.mark.parametrize(
    ("shape", "axes", "found"),
    [
        ((1, 4, 12, 9, 24), [0, 1, 2, 3, 4], True),
        ((1, 4, 12, 9, 24), None, True),
        ((1, 4, 12, 9, 24), [-5, -2, -1, 2], True),
        ((1, 4, 12, 9, 24), [1, 2, 3, 4], False),
        ((2, 3, 4, 5, 6), [0, 1, 2, 3, 4], False),
        ((4096, 1, 2, 2, 2), [0], False),
        ((4, 12, 9, 24), [0, 1, 2, 3], False),
    ],
)
def test_a_reduction_of_five_dimensions_including_the_first_is_found(
    shape: Sequence[int], axes: list[int] | None, found: bool
) -> None:
    given = ["x"] if axes is None else ["x", "axes"]
    constants = {} if axes is None else {"axes": np.array(axes)}
    node = helper.make_node("ReduceMean", given, ["y"])
    assert names_in(model_of([node], {"x": shape}, constants, opset=18)) == ["reduce-batch"] * found
    older = helper.make_node("ReduceMean", ["x"], ["y"], **({} if axes is None else {"axes": axes}))
    assert names_in(model_of([older], {"x": shape})) == ["reduce-batch"] * found


def casts(*between: Any, first: str = "x", back: str = "n", to: int = 1, whole: int = 7) -> list[Any]:
    node = helper.make_node
    return [node("Cast", [first], ["w"], to=whole), *between, node("Cast", [back], ["y"], to=to)]


def test_casts_that_cancel_each_other_are_found() -> None:
    node = helper.make_node
    constants = {"s": np.array([-1]), "one": np.array(1)}
    wrong = [
        casts(back="w"),
        casts(node("Reshape", ["w", "s"], ["n"])),
        casts(node("Cast", ["w"], ["n"], to=6), to=10),
        casts(back="w", whole=12),
        [node("Relu", ["x"], ["r"]), *casts(first="r", back="w")],
        # Another operator uses the integers, too.
        [*casts(back="w"), node("Add", ["w", "one"], ["z"])],
    ]
    right = [
        casts(node("Add", ["w", "one"], ["n"])),
        casts(back="w", to=6),
        [node("Floor", ["x"], ["f"]), *casts(first="f", back="w")],
        [node("Cast", ["x"], ["y"], to=7)],
    ]
    for nodes in wrong:
        assert names_in(model_of(nodes, {"x": [2, 3]}, constants)) == ["cast-back"], nodes
    of_bytes = model_of(casts(back="w", whole=2), {"x": [2, 3]})
    assert names_in(of_bytes) == ["cast-back", "cast-uint8"]
    for nodes in right:
        assert names_in(model_of(nodes, {"x": [2, 3]}, constants)) == [], nodes


@pytest.mark.parametrize(
    ("maker", "found"), [("", True), ("Neg", True), ("ArgMax", False), ("Abs", False), ("Max", False)]
)
def test_a_one_hot_with_possibly_negative_indices_is_found(maker: str, found: bool) -> None:
    node = helper.make_node
    given = ["x", "zero"] if maker == "Max" else ["x"]
    nodes = [node(maker, given, ["i"])] if maker else []
    nodes.append(node("OneHot", ["i" if maker else "x", "d", "v"], ["y"]))
    constants = {"d": np.array([5]), "v": np.array([0, 1], np.float32), "zero": np.array(0)}
    model = onnx.load_from_string(model_of(nodes, {"x": [3, 7] if maker == "ArgMax" else [7]}, constants))
    if maker != "ArgMax":
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert names_in(model.SerializeToString()) == ["one-hot-negative"] * found


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"kernel_shape": [1, 4, 4], "strides": [1, 2, 2], "pads": [0, 1, 1, 0, 1, 1]}, "pads"),
        ({"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "pads": [1, 1, 0, 1, 1, 0]}, ""),
        ({"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "pads": [1] * 6}, ""),
        ({"kernel_shape": [3, 3, 3], "strides": [2, 2, 1], "pads": [1] * 6}, "strides"),
        ({"kernel_shape": [3, 3, 3], "strides": [2, 1, 1], "pads": [1] * 6}, ""),
        ({"kernel_shape": [3, 3, 3], "strides": [3, 2, 1], "pads": [1] * 6}, "padding"),
        ({"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "auto_pad": "SAME_UPPER"}, ""),
    ],
)
def test_transposed_convolutions_in_three_dimensions_are_found(attributes: dict[str, Any], found: str) -> None:
    one = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    weights = {"w": np.zeros((4, 8, *attributes["kernel_shape"]), np.float32)}
    names = names_in(model_of([one], {"x": [1, 4, 5, 6, 7]}, weights))
    assert names == [f"conv-transpose-3d-{found}"] * bool(found)


@pytest.mark.parametrize(
    ("auto_pad", "added", "found"),
    [
        ("SAME_LOWER", [1, 0], True),
        ("SAME_UPPER", [1, 1], True),
        ("SAME_UPPER", [0, 0], False),
        ("NOTSET", [1, 1], False),
    ],
)
def test_output_padding_with_auto_pad_is_found(auto_pad: str, added: list[int], found: bool) -> None:
    one = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], auto_pad=auto_pad, output_padding=added
    )
    names = names_in(model_of([one], {"x": [1, 4, 6, 7]}, {"w": np.zeros((4, 8, 3, 3), np.float32)}))
    assert names == ["conv-transpose-same-output-padding"] * found


@pytest.mark.parametrize(
    ("op", "order", "shape", "found"),
    [
        ("Add", ["w", "x"], (2, 3, 4, 6, 6), "add-square-vector-half"),
        ("Add", ["x", "w"], (2, 3, 4, 6, 6), ""),
        ("Add", ["w", "x"], (2, 3, 4, 5, 6), ""),
        ("Mul", ["x", "w"], (2, 3, 4, 6, 6), "mul-square-vector-half"),
        ("Mul", ["w", "x"], (2, 3, 4, 6, 6), ""),
    ],
)
def test_float16_in_five_dimensions_with_a_vector_is_found(
    op: str, order: list[str], shape: Sequence[int], found: str
) -> None:
    nodes = [helper.make_node(op, order, ["h"]), helper.make_node("Add", ["h", "w"], ["y"])]
    names = names_in(half_model(nodes, shape, {"w": np.ones(6, np.float16)}))
    assert names == [found] * bool(found)


@pytest.mark.parametrize("noop", [0, 1])
def test_an_empty_list_of_axes_reduces_all_axes_or_none(noop: int) -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "none"], ["y"], keepdims=1, noop_with_empty_axes=noop)]
    data = model_of(nodes, {"x": [2, 3]}, {"none": np.array([], np.int64)})
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert graph.known["y"].shape == ((2, 3) if noop else (1, 1))


def tanh_product(
    shape: Sequence[int], between: str = "", *, integer: str = "uint16", factor: str = "uint16", act: str = "Tanh"
) -> bytes:
    """Return a quantised activation, perhaps an operator with a constant after it, and a product with a constant."""
    node = helper.make_node
    constants: dict[str, Any] = {"s": np.float32(1e-4), "z": np.zeros((), integer)}
    constants |= {"f": np.ones((1,), factor), "fz": np.zeros((), factor)}
    nodes = [node("DequantizeLinear", ["f", "s", "fz"], ["factor"])]

    def quantised(name: str) -> str:
        nodes.append(node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"]))
        nodes.append(node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"]))
        return f"{name}_d"

    nodes.append(node(act, [quantised("x")], ["t"]))
    last = quantised("t")
    if between:
        nodes.append(node(between, [last, "factor"], ["b"]))
        last = quantised("b")
    nodes.append(node("Mul", ["factor", last], ["m"]))
    quantised("m")
    return model_of(nodes, {"x": list(shape)}, constants, opset=21)


@pytest.mark.parametrize(
    ("model", "is_wrong"),
    [
        (tanh_product([1, 16, 40]), True),
        (tanh_product([16, 5]), True),
        (tanh_product([2, 1, 16, 5]), True),
        (tanh_product([1, 16, 40], integer="int16", factor="int16"), True),
        (tanh_product([1, 16, 40], "Add"), True),
        (tanh_product([1, 16, 40], "Div"), True),
        (tanh_product([1, 16, 40], "Sub"), True),
        (tanh_product([2, 16, 40]), False),
        (tanh_product([1, 17, 40]), False),
        (tanh_product([16]), False),
        (tanh_product([1, 16, 40], act="Sigmoid"), False),
        (tanh_product([1, 16, 40], factor="uint8"), False),
        (tanh_product([1, 16, 40], integer="uint8", factor="uint8"), False),
    ],
)
def test_a_16_bit_tanh_is_multiplied_wrong_at_one_range(model: bytes, is_wrong: bool) -> None:
    """Measured: 122 of 125 matching random cases are wrong, and none of 190 others."""
    assert names_in(model) == ["tanh-product"] * is_wrong
    assert names_in(model, release="2.3.0") == []


def test_integers_of_a_dequantize_without_zero_point_have_the_stored_type() -> None:
    node = helper.make_node
    nodes = [node("DequantizeLinear", ["c", "s"], ["d"]), node("Mul", ["d", "d"], ["y"])]
    data = model_of(nodes, {}, {"c": np.zeros(2, np.uint16), "s": np.float32(1)}, opset=21)
    graph = read_graph(io.BytesIO(data), len(data))
    assert all_true(["quantised(0) == 'uint16' and way(0, 0, 0) == ['DequantizeLinear']"], graph.nodes[1], graph)


def inside(kind: str, *, op: str = "Exp", condition: bool | None = None, depth: int = 1) -> bytes:
    """Return a model with an operator in a branch of an If (whose other branch is a Relu), in a Loop, or in a
    function.
    """
    node, shape = helper.make_node, [1, 16]

    def value(name: str, element: int = 1, sizes: Sequence[int] = shape) -> Any:
        return helper.make_tensor_value_info(name, element, sizes)

    def branch(operator: str) -> Any:
        return helper.make_graph([node(operator, ["n"], ["b"])], operator, [], [value("b")])

    inputs, tensors, functions, opsets = [value("x")], [], [], [helper.make_opsetid("", 17)]
    nodes = [node("Neg", ["x"], ["n"])]
    if kind == "If":
        if condition is None:
            inputs.append(value("c", 9, []))
        else:
            tensors.append(numpy_helper.from_array(np.array(condition), "c"))
        nodes.append(node("If", ["c"], ["y"], name="choice", then_branch=branch(op), else_branch=branch("Relu")))
    elif kind == "Loop":
        body = [node(op, ["v"], ["w"]), node("Identity", ["go"], ["on"])]
        sides = [value("i", 7, []), value("go", 9, []), value("v")], [value("on", 9, []), value("w")]
        nodes.append(node("Loop", ["many", "", "n"], ["y"], body=helper.make_graph(body, "body", *sides)))
        tensors.append(numpy_helper.from_array(np.array(3), "many"))
    else:
        opsets.append(helper.make_opsetid("own", 1))
        last = [node(op, ["a"], ["r"])]
        functions = [helper.make_function("own", "F0", ["a"], ["r"], last, opsets[:1])]
        for number in range(1, depth):
            calls = [node(f"F{number - 1}", [f"t{i}" if i else "a"], [f"t{i + 1}"], domain="own") for i in range(2)]
            functions.append(helper.make_function("own", f"F{number}", ["a"], ["t2"], calls, opsets))
        nodes.append(node(f"F{depth - 1}", ["n"], ["y"], domain="own"))
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], tensors)
    return bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions).SerializeToString()
    )


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (inside("If"), "a branch of the If choice"),
        (inside("If", condition=False), ""),
        (inside("If", op="Sin"), ""),
        (inside("Loop"), ""),
        (inside("function"), "the function own.F0"),
        (inside("function", depth=3), "the function own.F2"),
        (inside("function", op="Sin"), ""),
    ],
)
def test_operators_in_branches_and_functions_are_found_and_have_no_rewrite(model: bytes, where: str) -> None:
    found = known_wrong.find_in_model(model, arch=73)
    assert bool(found) == bool(where)
    assert all(where in one.text and not one.fault.rewrite for one in found)
    assert "qnnbridge fix MODEL" not in known_wrong.warning_of("m", found)


def test_an_operator_in_a_branch_that_is_always_taken_is_fixed_after_the_branch_replaces_the_if() -> None:
    (found,) = known_wrong.find_in_model(inside("If", condition=True), arch=73)
    assert (found.inside, found.node) == ("a branch of the If choice", "b")
    assert found.rewrites == ("shape-computations", "untaken-branches", "exponent-limits")
    command = "qnnbridge fix m.onnx -o m_fixed.onnx --only shape-computations --only untaken-branches --only exponent-limits"
    assert command in known_wrong.warning_of("m", [found], ModelInCommands("m.onnx"))


def test_shapes_and_constants_are_followed_into_a_function() -> None:
    """The attributes of the body are those of the call, or the defaults."""
    node = helper.make_node
    flatten = node("Flatten", ["a"], ["r"])
    flatten.attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="at", type=onnx.AttributeProto.INT))
    function = helper.make_function("own", "F", ["a"], ["r"], [flatten], [helper.make_opsetid("", 17)])
    function.attribute_proto.append(helper.make_attribute("at", 1))
    nodes = [node("F", ["x"], ["p"], domain="own"), node("F", ["x"], ["q"], domain="own", at=2)]
    model = onnx.load_from_string(model_of(nodes, {"x": [2, 3, 4]}))
    model.functions.append(function)
    data = model.SerializeToString()
    graph = read_graph(io.BytesIO(data), len(data))
    complete(graph)
    assert [graph.about(name).shape for name in "pq"] == [(2, 12), (6, 4)]


def test_functions_that_call_each_other_without_end_are_inlined_in_part() -> None:
    """Forty levels of two calls each are 2 ** 40 nodes."""
    data = inside("function", depth=40)
    graph = read_graph(io.BytesIO(data), len(data))
    assert len(graph.entries) < 100_000


@pytest.mark.parametrize(
    ("left", "right", "reader", "is_wrong"),
    [
        ((2, 16, 17), (1, 16, 17), "LayerNormalization", True),
        ((7, 24, 31), (24, 31), "LayerNormalization", True),
        ((1, 32, 64), (4, 32, 64), "Sigmoid", True),
        ((2, 2, 32, 64), (2, 1, 32, 64), "LayerNormalization", True),
        ((2, 2, 32, 64), (1, 2, 32, 64), "LayerNormalization", False),  # repeated along the first of four
        ((1, 32, 64), (1, 32, 64), "LayerNormalization", False),
        ((8, 32, 64), (1, 32, 64), "LayerNormalization", False),
        ((4, 8, 64), (1, 8, 64), "LayerNormalization", False),
        ((4, 33, 64), (1, 33, 64), "LayerNormalization", False),
        ((4, 32, 16), (1, 32, 16), "LayerNormalization", False),
        ((4, 32, 64), (1, 1, 64), "LayerNormalization", False),
        ((4, 32, 64), (1, 32, 64), "Softmax", False),
    ],
)
def test_the_limits_of_repeated_rows_equal_the_measured_ones(
    left: Sequence[int], right: Sequence[int], reader: str, is_wrong: bool
) -> None:
    scale = ["g"] if reader == "LayerNormalization" else []
    for passed in ([], ["Identity"], ["Gelu", "Transpose"]):
        names = ["s", *(f"p{number}" for number in range(len(passed)))]
        nodes = [helper.make_node("Add", ["x", "p"], ["s"], name="sum")]
        nodes += [helper.make_node(op, [names[i]], [names[i + 1]], name=f"n{i}") for i, op in enumerate(passed)]
        nodes.append(helper.make_node(reader, [names[-1], *scale], ["y"], name="last"))
        model = model_of(nodes, {"x": left, "p": right}, {"g": np.ones(left[-1], np.float32)}, opset=20)
        assert names_in(model) == ["repeated-rows"] * is_wrong, passed


def test_repeated_rows_before_relu_and_as_their_own_gate_are_right() -> None:
    rows = helper.make_node("Add", ["x", "p"], ["s"])
    inputs = {"x": [4, 32, 64], "p": [1, 32, 64]}
    gate = [helper.make_node("Sigmoid", ["s"], ["g"]), helper.make_node("Mul", ["s", "g"], ["y"])]
    relu = [helper.make_node("Relu", ["s"], ["r"]), helper.make_node("Sigmoid", ["r"], ["y"])]
    assert names_in(model_of([rows, *gate], inputs)) == []
    assert names_in(model_of([rows, *relu], inputs)) == []
    assert names_in(model_of([rows, helper.make_node("Sigmoid", ["s"], ["y"])], inputs)) == ["repeated-rows"]


@pytest.mark.parametrize(
    ("front", "shape", "behind", "is_wrong"),
    [
        (["Transpose"], [-1], ["Relu", "Transpose"], True),
        (["Transpose", "Softmax"], [-1], ["Sigmoid", "Gather", "Transpose"], True),
        (["Transpose", "Reshape"], [48], ["Relu", "MaxPool"], True),
        (["MaxPool"], [-1], ["Relu", "MaxPool"], True),
        (["Transpose"], [1, -1], ["Relu", "Transpose"], False),  # two dimensions
        (["Transpose"], [-1], ["Relu"], False),
        (["Relu"], [-1], ["Relu", "Transpose"], False),
        (["Transpose", "MatMul"], [-1], ["Relu", "Transpose"], False),
        (["Transpose", "Flatten"], [-1], ["Relu", "Transpose"], False),
        (["Transpose", "Concat"], [-1], ["Relu", "Transpose"], False),
        (["Transpose"], [-1], ["Reshape", "Transpose"], False),
        (["Transpose"], [-1], ["Relu", "Expand", "Transpose"], False),
    ],
)
def test_the_limits_of_vectors_between_transposes_equal_the_measured_ones(
    front: Sequence[str], shape: Sequence[int], behind: Sequence[str], is_wrong: bool
) -> None:
    ops = [*front, "Reshape", *behind]
    second = {"Reshape": ["other"], "Gather": ["i"], "MatMul": ["m"], "Expand": ["other"]}
    names = ["x", *(f"t{number}" for number in range(len(ops)))]
    nodes = []
    for number, op in enumerate(ops):
        more = ["s"] if number == len(front) else second.get(op, [])
        kernel = {"kernel_shape": [1, 1]} if op == "MaxPool" else {}
        nodes.append(helper.make_node(op, [names[number], *more], [names[number + 1]], name=f"n{number}", **kernel))
    constants = {
        "s": np.array(shape),
        "other": np.array([2, 24]),
        "i": np.zeros((2, 2), np.int64),
        "m": np.ones((1, 1), np.float32),
    }
    found = names_in(model_of(nodes, {"x": [1, 2, 3, 8]}, constants))
    assert found == ["vector-between-transposes"] * is_wrong


@pytest.mark.parametrize(
    ("shape", "pads", "behind", "fill", "is_wrong"),
    [
        ([1, 4, 6], [0, 0, 0, 0, 1, 2], "", None, True),  # the result is right in a new host
        ([1, 4, 8], [0, 0, 0, 0, 1, 2], "Tanh", None, True),
        ([4, 6], [0, 0, 1, 2], "", None, True),
        ([1, 3, 8, 8], [0, 0, 0, 0, 0, 0, 1, 1], "Relu", None, True),
        ([1, 3, 8, 8], [0, 0, 0, 0, 0, 0, 1, 1], "MaxPool", None, True),
        ([1, 3, 8, 8], [0, 0, 0, 0, 0, 0, 1, 1], "Conv", None, False),  # ONNX Runtime merges them
        ([1, 3, 8, 8], [0, 0, 0, 0, 0, 0, 1, 1], "Conv", 0.0, False),
        ([1, 3, 8, 8], [0, 0, 0, 0, 0, 0, 1, 1], "Conv", 1.0, True),
        ([1, 3, 8, 8], [0, 0, 0, 0, 0, 2, 0, 1], "AveragePool", None, True),
        ([1, 3, 8, 32], [0, 0, 0, 0, 0, 0, 1, 2], "", None, False),
        ([4, 6], [1, 0, 0, 2], "", None, False),
        ([4, 6], [0, 1, 1, 2], "", None, False),
        ([4, 6], [0, 0, 0, 2], "", None, False),
    ],
)
def test_one_sided_padding_of_the_last_and_another_dimension_is_found(
    shape: list[int], pads: list[int], behind: str, fill: float | None, is_wrong: bool
) -> None:
    """The expected values were measured on QNN 2.7.0 in a host that had computed other models before."""
    constants = {"pads": np.array(pads), **({} if fill is None else {"fill": np.array(fill, np.float32)})}
    nodes = [helper.make_node("Pad", ["x", *constants], ["p" if behind else "y"])]
    if behind == "Conv":
        constants["w"] = np.ones((3, 3, 3, 3), np.float32)
    if behind:
        own = {"kernel_shape": [3, 3]} if "Pool" in behind else {}
        nodes.append(helper.make_node(behind, ["p", *(["w"] if behind == "Conv" else [])], ["y"], **own))
    assert ("pad-constant-one-sided" in names_in(model_of(nodes, {"x": shape}, constants))) is is_wrong


def test_a_constant_vector_of_pads_is_not_between_transposes() -> None:
    """PyTorch's older exporter writes such pads: the vector is a constant, which no layout optimizer changes."""
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["rows"], value=numpy_helper.from_array(np.zeros(1, np.int64))),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[1, 0]),
        helper.make_node("Reshape", ["columns", "s"], ["pads"]),
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[1, 1]),
    ]
    model = model_of(nodes, {"x": [1, 3, 6, 6]}, {"n": np.array([4, 2]), "s": np.array([-1])})
    assert names_in(model) == []


@pytest.mark.parametrize(
    ("ops", "attributes", "is_wrong"),
    [
        (["MaxPool", "ArgMax"], {"axis": 1}, True),
        (["MaxPool", "ArgMin"], {"axis": 3, "keepdims": 0}, True),
        (["MaxPool", "Relu", "ArgMax"], {"axis": 1}, True),
        (["MaxPool", "ArgMax"], {"axis": 1, "keepdims": 0}, False),  # the rest is in the same order
        (["MaxPool", "Cast"], {"to": 7}, True),
        (["MaxPool", "Cast"], {"to": 6}, False),
        (["ArgMax", "Transpose"], {"perm": [0, 3, 1, 2]}, True),
        (["Relu", "Transpose"], {"perm": [0, 3, 1, 2]}, False),
        (["Relu", "ArgMax"], {"axis": 1}, False),
        (["MaxPool", "MatMul", "ArgMax"], {"axis": 1}, False),
    ],
)
def test_an_int64_output_fails_if_it_is_transposed(
    ops: Sequence[str], attributes: Mapping[str, Any], is_wrong: bool
) -> None:
    names = ["x", *(f"t{number}" for number in range(len(ops)))]
    nodes = []
    for number, op in enumerate(ops):
        own = attributes if number == len(ops) - 1 else {"kernel_shape": [1, 1]} if op == "MaxPool" else {}
        given = [names[number], "m"] if op == "MatMul" else [names[number]]
        nodes.append(helper.make_node(op, given, [names[number + 1]], name=f"n{number}", **own))
    model = model_of(nodes, {"x": [1, 3, 6, 6]}, {"m": np.ones((6, 6), np.float32)})
    assert names_in(model) == ["int64-output-transposed"] * is_wrong


@pytest.mark.parametrize(
    ("axis", "keepdims", "behind", "at", "is_wrong"),
    [
        (2, 0, "Unsqueeze", 1, True),
        (3, 0, "Unsqueeze", 0, True),
        (1, 0, "Unsqueeze", 1, False),
        (1, 1, "Squeeze", 1, False),
        (2, 1, "Squeeze", 2, True),
        (1, 1, "Identity", None, True),
        (1, 1, "Unsqueeze", 0, False),  # of five dimensions, which is another row of the table
    ],
)
def test_a_transpose_is_moved_past_operators_that_add_or_drop_a_dimension(
    axis: int, keepdims: int, behind: str, at: int | None, is_wrong: bool
) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1]),
        helper.make_node("ArgMax", ["p"], ["a"], axis=axis, keepdims=keepdims),
        helper.make_node(behind, ["a"] if at is None else ["a", "at"], ["y"]),
    ]
    constants = {} if at is None else {"at": np.array([at])}
    model = model_of(nodes, {"x": [1, 3, 6, 6]}, constants)
    assert names_in(model).count("int64-output-transposed") == is_wrong


_TO_FIVE = {"s": np.array([1, 2, 3, 2, 4])}


@pytest.mark.parametrize(
    ("nodes", "element", "shape", "found"),
    [
        (["Reshape x s y"], 7, [48], [0]),
        (["Reshape x s y"], 6, [48], []),  # int32 is right
        (["Add x x y"], 7, [1, 2, 3, 2, 4], [0]),
        (["Add x x y"], 7, [2, 3, 2, 4], []),
        (["Add x x t", "Cast:1 t y"], 7, [1, 2, 3, 2, 4], [0]),  # only the input of QNN has the type
        (["Reshape x s t", "Add t t u", "Cast:1 u y"], 7, [48], []),  # all of it is on QNN
        (["Reshape x s t", "Transpose t u", "Cast:1 u y"], 7, [48], [0, 2]),  # the CPU has the Transpose
        (["Cast:7 x t", "Add t t u", "Cast:1 u y"], 1, [1, 2, 3, 2, 4], []),
        (["Cast:7 x y", "Add y y t"], 1, [1, 2, 3, 2, 4], [1]),  # QNN refuses such a Cast to an output
        (["Reshape x s y", "Cast:1 y z"], 7, [48], [0]),  # an output that another node reads, too
        (["ConstantOfShape s t", "Add t t y"], 7, [48], []),  # follows from constants
        (["Reshape x six t", "Cast:6 t u", "Reshape u s y"], 7, [1, 2, 3, 2, 4], []),  # as converted on the CPU
    ],
)
def test_int64_with_five_dimensions_at_inputs_and_outputs_of_qnn_is_found(
    nodes: Sequence[str], element: int, shape: list[int], found: list[int]
) -> None:
    """The expected values were measured on QNN 2.7.0."""
    made = []
    for number, text in enumerate(nodes):
        op, *names = text.split()
        op, _, to = op.partition(":")
        own = {"to": int(to)} if to else {}
        made.append(helper.make_node(op, names[:-1], names[-1:], name=f"n{number}", **own))
    outputs = [helper.make_empty_tensor_value_info("y")]
    given = [helper.make_tensor_value_info("x", element, shape)]
    constants = {**_TO_FIVE, "six": np.array([1, 2, 3, 2, 4, 1])}
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(made, "g", given, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    rows = [one for one in known_wrong.find_in_model(model, arch=73) if one.fault.name == "int64-five-dimensions"]
    assert [one.index for one in rows] == found


@pytest.mark.parametrize(
    ("scale", "shift", "factor", "found"),
    [
        (2**0.5, 1.0, 0.5, []),
        (1.4142, 1.0, 0.5, []),
        (2.0, 1.0, 0.5, ["gelu-constants"]),
        (2**0.5, 2.0, 0.5, ["gelu-constants"]),
        (2**0.5, 1.0, 0.25, ["gelu-constants"]),
    ],
)
def test_a_gelu_is_distinguished_from_patterns_that_qnn_mistakes_for_one(
    scale: float, shift: float, factor: float, found: list[str]
) -> None:
    start = [helper.make_node("Div", ["x", "d"], ["a"]), helper.make_node("Erf", ["a"], ["e"])]
    start.append(helper.make_node("Add", ["e", "b"], ["f"]))
    orders = (
        [("Mul", "x", "f", "g"), ("Mul", "g", "k", "y")],
        [("Mul", "x", "k", "g"), ("Mul", "g", "f", "y")],
        [("Mul", "f", "k", "g"), ("Mul", "x", "g", "y")],
    )
    numbers = {"d": np.float32(scale), "b": np.float32(shift), "k": np.float32(factor)}
    for order in orders:
        nodes = start + [helper.make_node(op, [left, right], [made]) for op, left, right, made in order]
        assert names_in(model_of(nodes, {"x": [2, 16]}, numbers)) == found
        shared = [*nodes, helper.make_node("Add", ["y", "a"], ["z"])]
        assert names_in(model_of(shared, {"x": [2, 16]}, numbers)) == ["gelu-shared"]


@pytest.mark.parametrize(
    ("factor", "axis", "found"),
    [
        (0.5, -1, []),
        (-0.5, -1, ["softmax-negative-factor"]),
        (0.5, 1, ["softmax-factor-axis"]),
        (-0.5, 1, ["softmax-factor-axis"]),
    ],
)
def test_a_softmax_of_a_product_is_wrong_by_its_factor_and_axis(factor: float, axis: int, found: list[str]) -> None:
    nodes = [helper.make_node("Mul", ["x", "k"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=axis)]
    shape = {"x": [2, 4, 16]}
    assert names_in(model_of(nodes, shape, {"k": np.float32(factor)})) == found
    assert names_in(model_of(nodes, shape, {"k": np.float32([factor])})) == []
    read_twice = [*nodes, helper.make_node("Add", ["y", "a"], ["z"])]
    assert names_in(model_of(read_twice, shape, {"k": np.float32(factor)})) == []
