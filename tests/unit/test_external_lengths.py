"""External tensors get the length that ONNX makes optional; all other bytes of the model stay the same."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.fakes import models as build

from qnnbridge_host.model.external_lengths import file_with_lengths, with_lengths

SIZES = {
    TensorProto.FLOAT: 32,
    TensorProto.INT64: 64,
    TensorProto.BFLOAT16: 16,
    TensorProto.BOOL: 8,
    TensorProto.INT4: 4,
    TensorProto.UINT2: 2,
}


def external(name: str, dims: list[int], element: int = TensorProto.FLOAT, **entries: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=element, data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(dims)
    for key, value in {"location": "w.bin", **entries}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    return tensor


def lengths(model: bytes) -> dict[str, dict[str, str]]:
    """Return the entries of each external tensor, anywhere in the model."""
    found: dict[str, dict[str, str]] = {}

    def look(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            found[tensor.name] = {entry.key: entry.value for entry in tensor.external_data}
        for node in graph.node:
            for attribute in node.attribute:
                for tensor in (attribute.t, *attribute.tensors):
                    if tensor.name:
                        found[tensor.name] = {entry.key: entry.value for entry in tensor.external_data}
                for inner in (attribute.g, *attribute.graphs):
                    look(inner)

    look(onnx.load_model_from_string(model).graph)
    return found


def with_tensors(*tensors: TensorProto) -> onnx.ModelProto:
    return build.model([build.node("Relu", ["x"], ["y"])], {"x": (1, [2])}, {"y": (1, [2])}, tensors)


@pytest.mark.parametrize("element", SIZES)
@pytest.mark.parametrize("dims", [[], [3], [5, 7], [0, 4], [1000, 301]])
def test_the_length_is_computed_from_type_and_shape(element: int, dims: list[int]) -> None:
    model = with_tensors(external("w", dims, element))
    changed = with_lengths(model.SerializeToString())
    assert changed is not None
    expected = math.ceil(math.prod(dims) * SIZES[element] / 8)
    assert lengths(changed) == {"w": {"location": "w.bin", "length": str(expected)}}
    # Nothing else has changed.
    made = onnx.load_model_from_string(changed)
    del made.graph.initializer[0].external_data[-1]
    assert made == model


def test_tensors_without_a_length_get_one_in_nodes_and_subgraphs() -> None:
    branch = helper.make_graph(
        [build.node("Identity", ["inner"], ["z"])], "branch", [], [build.tensor("z", [2])], [external("inner", [2])]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("constant", [4], offset=64)),
        helper.make_node("If", ["on"], ["y"], then_branch=branch, else_branch=branch),
    ]
    given = [external("given", [2], length=8), external("checked", [2], checksum="a")]
    inside = onnx.numpy_helper.from_array(np.ones(3, np.float32), "inside")
    model = build.model(nodes, {"on": (9, [])}, {"y": (1, [2])}, [*given, inside])
    changed = with_lengths(model.SerializeToString())
    assert changed is not None
    found = lengths(changed)
    assert found.pop("inside") == {}
    assert {name: entries.get("length") for name, entries in found.items()} == {
        "given": "8",
        "checked": "8",
        "constant": "16",
        "inner": "8",
    }
    assert found["constant"]["offset"] == "64"


def test_a_model_with_all_lengths_is_not_changed(tmp_path: Path) -> None:
    whole = with_tensors(external("w", [2], length=8)).SerializeToString()
    assert with_lengths(whole) is None
    # The tensor contains its data, so its external location is ignored.
    internal = external("w", [2])
    internal.data_location = TensorProto.DEFAULT
    assert with_lengths(with_tensors(internal).SerializeToString()) is None
    lacking = with_tensors(external("w", [2])).SerializeToString()
    for cut in range(len(lacking)):
        with_lengths(lacking[:cut])  # raises nothing
    (tmp_path / "m.onnx").write_bytes(lacking)
    (tmp_path / "empty.onnx").touch()
    assert file_with_lengths(str(tmp_path / "m.onnx")) == with_lengths(lacking)
    assert file_with_lengths(str(tmp_path / "empty.onnx")) is None
    assert file_with_lengths(str(tmp_path / "absent.onnx")) is None
