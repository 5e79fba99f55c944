"""Models around context binaries, built from handwritten descriptions, and the structures that QNN's library
fills."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from typing import Any

import pytest

from qnnbridge_host.model.context_binary import (
    BinaryDescription,
    GraphDescription,
    Quantisation,
    TensorDescription,
    type_words,
)
from qnnbridge_protocol.errors import ContextUnusable, OptionError

onnx = pytest.importorskip("onnx")

from qnnbridge_host.wrap import system_library as native  # noqa: E402 - it needs onnx
from qnnbridge_host.wrap.build import Binary, wrap  # noqa: E402

BYTE = Quantisation((0.5,), (-128,))


def tensor(name: str, data_type: int = 0x408, **changes: Any) -> TensorDescription:
    plain = TensorDescription(name, data_type, (2, 3), BYTE if data_type >> 8 in (3, 4) else None)
    return dataclasses.replace(plain, **changes)


def graph(name: str = "main", inputs: Any = None, outputs: Any = None, **changes: Any) -> GraphDescription:
    return GraphDescription(name, tuple(inputs or [tensor("x")]), tuple(outputs or [tensor("y")]), **changes)


def binary(*graphs: GraphDescription) -> Binary:
    return Binary(BinaryDescription(graphs, build="v2.51.0.1", backend=6), "m_qnn.bin", "m.bin")


def models(*graphs: GraphDescription, names: tuple[str, ...] = (), **how: bool) -> list[Any]:
    made = [onnx.load_from_string(one.data) for one in wrap(binary(*graphs), names, **how)]
    for one in made:
        onnx.checker.check_model(one)
    return made


def compiled(model: Any) -> list[tuple[str, list[str], list[str], dict[str, Any]]]:
    return [
        (
            node.name,
            list(node.input),
            list(node.output),
            {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute},
        )
        for node in model.graph.node
        if node.op_type == "EPContext"
    ]


def ends(values: Any) -> list[tuple[str, int]]:
    return [(value.name, value.type.tensor_type.elem_type) for value in values]


def test_the_node_has_the_names_by_which_qnn_finds_graph_and_tensors() -> None:
    (model,) = models(graph("prompt", [tensor("x", 0x416), tensor("mask", 0x216)], [tensor("y", 0x508)]))
    ((name, inputs, outputs, attributes),) = compiled(model)
    assert (name, inputs, outputs) == ("prompt", ["x", "mask"], ["y"])
    assert attributes["partition_name"] == b"prompt"
    assert (attributes["main_context"], attributes["embed_mode"]) == (1, 0)
    assert attributes["ep_cache_context"] == b"m_qnn.bin"
    assert attributes["source"] == b"QNNExecutionProvider"
    assert "io_name_overrides" not in attributes
    types = onnx.TensorProto
    assert ends(model.graph.input) == [("x", types.UINT16), ("mask", types.FLOAT16)]
    assert ends(model.graph.output) == [("y", types.BOOL)]


def test_float_inputs_and_outputs_have_the_scale_and_the_negative_offset_of_the_context_binary() -> None:
    half, signed = tensor("h", 0x216), tensor("s", 0x308, quantisation=Quantisation((0.25,), (3,)))
    (model,) = models(graph("g", [tensor("x"), half], [signed, tensor("f", 0x232)]), float_io=True)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == ["QuantizeLinear", "Cast", "EPContext", "DequantizeLinear"]
    assert {kind for _, kind in ends([*model.graph.input, *model.graph.output])} == {onnx.TensorProto.FLOAT}
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    assert constants["x/scale"] == 0.5
    assert constants["x/zero_point"] == 128
    assert constants["x/zero_point"].dtype == "uint8"
    assert constants["s/zero_point"] == -3
    # Shown name, then QNN's own: the reverse order crashes onnxruntime-qnn 2.7.
    assert compiled(model)[0][3]["io_name_overrides"] == b"x/qnn=x;h/qnn=h;s/qnn=s;"
    assert {one.key: one.value for one in model.metadata_props}["qnnbridge.float_io"] == "1"


def test_scales_along_an_axis_keep_the_axis() -> None:
    along = tensor("x", quantisation=Quantisation((0.5, 0.25, 0.125), (0, 0, 0), axis=1))
    (model,) = models(graph(inputs=[along]), float_io=True)
    node = model.graph.node[0]
    assert (node.op_type, node.attribute[0].name, node.attribute[0].i) == ("QuantizeLinear", "axis", 1)


def test_each_graph_gets_its_own_model_with_the_context_binary() -> None:
    first, second = models(graph("a"), graph("b"))
    assert [compiled(model)[0][0] for model in (first, second)] == ["a", "b"]
    assert all(compiled(model)[0][3]["main_context"] == 1 for model in (first, second))


def test_all_graphs_in_one_model_share_the_context_binary_and_keep_their_tensors_separate() -> None:
    (model,) = models(graph("a"), graph("b", outputs=[tensor("z")]), together=True)
    (_, _, _, first), (_, inputs, _, second) = compiled(model)
    assert (first["main_context"], second["main_context"]) == (1, 0)
    assert "ep_cache_context" not in second
    assert inputs == ["b/x"]
    assert second["io_name_overrides"] == b"b/x=x;"
    assert [name for name, _ in ends(model.graph.input)] == ["a/x", "b/x"]
    assert [name for name, _ in ends(model.graph.output)] == ["y", "z"]


def test_a_tensor_that_a_graph_reads_and_writes_becomes_two_in_onnx() -> None:
    (model,) = models(graph("g", [tensor("cache", kind=2)], [tensor("cache", kind=2)]))
    assert [name for name, _ in ends(model.graph.output)] == ["g/cache/out"]
    assert compiled(model)[0][3]["io_name_overrides"] == b"g/cache=cache;g/cache/out=cache;"


def test_a_graph_is_selected_by_its_name() -> None:
    (model,) = models(graph("a"), graph("b"), names=("b",))
    assert compiled(model)[0][0] == "b"
    with pytest.raises(OptionError, match="no graph 'c'") as refused:
        models(graph("a"), graph("b"), names=("c",))
    assert "a, b" in str(refused.value.fix)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data_type": 0x404}, "ufixed4, for which ONNX Runtime has no array"),
        ({"data_type": 0x608}, "string8"),
        ({"data_type": 0x7FFFFFFF}, "type 0x7fffffff"),
        ({"name": ""}, "has no name"),
        ({"layout": 5}, "memory layout 5"),
        ({"dynamic": True}, "changes from run to run"),
        ({"dimensions": (2, 0)}, "is empty"),
        ({"kind": 11}, "is optional"),
    ],
)
def test_tensors_that_onnx_runtime_cannot_pass_to_qnn_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ContextUnusable, match=why) as refused:
        models(graph(inputs=[tensor("x"), dataclasses.replace(tensor("t"), **changes)]))
    assert refused.value.evidence
    assert refused.value.fix


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"quantisation": None}, "does not have its scale"),
        ({"quantisation": Quantisation(encoding=4)}, "does not have its scale"),
        ({"quantisation": Quantisation((0.5,), (0,), bits=4)}, "uses 4 of its 8 bits"),
        ({"quantisation": Quantisation((0.5,), (1,))}, "is not a valid zero point of UINT8"),
        ({"quantisation": Quantisation((0.0,), (0,))}, "its scale is 0"),
        ({"quantisation": Quantisation((0.5,), (0,), axis=1)}, "1 scales along axis 1"),
        (
            {"data_type": 0x332, "quantisation": Quantisation((0.5,), (0,))},
            "QuantizeLinear does not support 32 bits",
        ),
    ],
)
def test_tensors_that_cannot_be_float_are_refused_and_available_in_raw_form(
    changes: dict[str, Any], why: str
) -> None:
    made = graph(inputs=[dataclasses.replace(tensor("t"), **changes)])
    with pytest.raises(ContextUnusable, match=why):
        models(made, float_io=True)
    assert compiled(models(made)[0])[0][1] == ["t"]


def test_a_context_binary_without_graphs_is_refused() -> None:
    with pytest.raises(ContextUnusable, match="has no graph"):
        models()


def test_a_description_survives_json() -> None:
    along = tensor("w", quantisation=Quantisation((0.5, 0.25), (1, 2), 0, 4))
    told = BinaryDescription(
        (graph("g", [along, tensor("f", 0x232)], updateable=2),), "v2", 6, 60, (2, 40, 0), "1.15.0", "V3"
    )
    assert BinaryDescription.from_plain(json.loads(json.dumps(told.to_plain()))) == told


def test_types_are_named_in_words() -> None:
    assert [type_words(one) for one in (0x416, 0x232, 0x508, 0x64)] == ["ufixed16", "float32", "bool8", "int64"]


# --- the structures of QNN ---------------------------------------------------------------------------------


def test_the_structures_have_the_sizes_of_the_c_headers() -> None:
    """The sizes are those of 64-bit systems, derived from QnnTypes.h and QnnSystemContext.h by the rules of C."""
    sizes = {
        native._QuantizeParams: 40,
        native._TensorV1: 112,
        native._TensorV2: 136,
        native._Tensor: 144,
        native._GraphV1: 40,
        native._GraphV2: 56,
        native._GraphV3: 80,
        native._Graph: 88,
        native._BinaryV1: 128,
        native._BinaryV2: 136,
        native._BinaryV3: 136,
    }
    assert {kind.__name__: ctypes.sizeof(kind) for kind in sizes} == {k.__name__: size for k, size in sizes.items()}
    assert (native._Interface.create.offset, native._Interface.free.offset) == (32, 56)


def filled(binary: int, graph: int, tensor: int) -> tuple[Any, list[Any]]:
    """Return a `BinaryInfo` as the library would return it, in these versions, and an object that keeps its memory."""
    sizes, dynamic = (ctypes.c_uint32 * 2)(2, 3), (ctypes.c_uint8 * 2)(0, 0)
    one = native._Tensor(version=tensor)
    inner = getattr(one.of, f"v{tensor}" if tensor in (1, 2) else "v1")
    inner.name, inner.data_type, inner.rank = b"x", 0x416, 2
    inner.dimensions = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_uint32))
    inner.quantize.definition, inner.quantize.encoding = 1, 0
    inner.quantize.values.one.scale, inner.quantize.values.one.offset = 0.5, -7
    if tensor == 2:
        inner.is_dynamic = ctypes.cast(dynamic, ctypes.POINTER(ctypes.c_uint8))
    tensors = (native._Tensor * 1)(one)
    made = native._Graph(version=graph)
    info = getattr(made.of, f"v{graph}" if graph in (1, 2, 3) else "v1")
    info.name, info.input_count, info.output_count = b"g", 1, 1
    info.inputs = info.outputs = ctypes.cast(tensors, ctypes.POINTER(native._Tensor))
    graphs = (native._Graph * 1)(made)
    whole = native._Binary(version=binary)
    head = getattr(whole.of, f"v{binary}" if binary in (1, 2, 3) else "v1")
    head.backend, head.build, head.graph_count = 6, b"v2.10.0", 1
    head.graphs = ctypes.cast(graphs, ctypes.POINTER(native._Graph))
    if binary == 3:
        head.soc_model = 60
    return whole, [sizes, dynamic, tensors, graphs]


@pytest.mark.parametrize("tensor_version", [1, 2])
@pytest.mark.parametrize("graph_version", [1, 2, 3])
@pytest.mark.parametrize("binary_version", [1, 2, 3])
def test_every_version_of_the_structures_is_read(
    binary_version: int, graph_version: int, tensor_version: int
) -> None:
    whole, _memory = filled(binary_version, graph_version, tensor_version)
    told = native._binary(whole, "m.bin", "1.1.0")
    assert (told.backend, told.build, told.names) == (6, "v2.10.0", ("g",))
    assert told.soc_model == (60 if binary_version == 3 else 0)
    assert told.graphs[0].inputs == (TensorDescription("x", 0x416, (2, 3), Quantisation((0.5,), (-7,))),)
    versions = f"BinaryInfo V{binary_version}, GraphInfo V{graph_version}, Tensor V{tensor_version}"
    assert told.layout == versions


@pytest.mark.parametrize(
    ("versions", "what"), [((4, 1, 1), "BinaryInfo"), ((3, 4, 1), "GraphInfo"), ((3, 3, 3), "Ten")]
)
def test_an_unknown_version_is_refused_before_it_is_read(versions: tuple[int, int, int], what: str) -> None:
    whole, _memory = filled(*versions)
    with pytest.raises(ContextUnusable, match=r"a description of .* that qnnbridge does not support") as refused:
        native._binary(whole, "m.bin", "1.99.0")
    assert f"{what}" in str(refused.value.cause)


def test_a_count_without_an_array_is_reported_as_damage() -> None:
    whole, _memory = filled(3, 3, 1)
    whole.of.v3.graphs = None
    with pytest.raises(ContextUnusable, match="cannot read"):
        native._binary(whole, "m.bin", "1.15.0")
