"""The cost of a small model file is bounded, and checked in a time proportional to the file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.attack import large_models, models
from onnx import TensorProto, helper, numpy_helper

from qnnbridge_host.graph import bounds, graphs, runnable
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.rewrite import constants
from qnnbridge_protocol.errors import InvalidGraph, NoSuchFile


def test_functions_that_expand_to_too_many_nodes_are_refused() -> None:
    with pytest.raises(InvalidGraph, match=r"more than 1,000,000 nodes") as caught:
        bounds.check_functions(models.exponential_functions())
    assert "40 functions call each other; inlined, they have 10^12 nodes" in str(caught.value.cause)
    bounds.check_functions(models.exponential_functions(depth=18))


def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="F of the model calls itself"):
        bounds.check_functions(models.recursive_function())


def test_tensors_of_unlimited_size_are_not_computed() -> None:
    assert bounds.computes_many_sizes(models.gigantic_range())
    assert bounds.computes_many_sizes(models.doubling_sizes())
    assert not bounds.computes_many_sizes(models.doubling_sizes(depth=10))
    assert graphs.types_of(models.doubling_sizes())["y"] is not None


@pytest.mark.parametrize("make", [models.gigantic_constant, models.gigantic_tile, models.gigantic_expand])
def test_huge_constants_are_not_folded(make: object, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    assert constants.fold(Editor(model, tmp_path)) == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (models.gigantic_constant, r"a tensor of 128 GB"),
        (models.gigantic_pad, r"a tensor of 16 GB"),
        (models.growing_tiles, r"a tensor of"),
        (models.doubling_sizes, r"a tensor of"),
        (models.endless_loop, r"repeats its body 4,611,686,018,427,387,904 times"),
    ],
)
def test_a_model_that_no_machine_can_run_is_refused_before_it_is_run(make: object, says: str) -> None:
    with pytest.raises(InvalidGraph, match=says):
        runnable.check_runnable(make())  # type: ignore[operator]


@pytest.mark.parametrize("make", [models.deep_branches, models.long_name, lambda: large_models.long_chain(50)])
def test_other_models_are_run(make: object) -> None:
    runnable.check_runnable(make())  # type: ignore[operator]


def test_a_loop_with_a_condition_may_have_any_iteration_limit() -> None:
    """Exporters write the largest possible number for a loop that ends by its condition."""
    model = models.endless_loop()
    body = model.graph.node[0].attribute[0].g
    body.node[0].op_type = "Not"
    runnable.check_runnable(model)


@pytest.mark.parametrize("way", ["no number of repetitions", "a Constant node", "a constant condition"])
def test_an_endless_loop_is_refused_however_it_is_written(way: str) -> None:
    model = models.endless_loop()
    graph = model.graph
    body = graph.node[0].attribute[0].g
    if way == "no number of repetitions":
        graph.node[0].input[0] = ""
    elif way == "a Constant node":
        graph.node.insert(0, helper.make_node("Constant", [], ["n"], value=graph.initializer[0]))
        del graph.initializer[0]
    else:
        body.node.remove(body.node[0])
        body.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    with pytest.raises(InvalidGraph, match=r"repeats its body (without an end|4,611)"):
        runnable.check_runnable(model)


def test_a_damaged_iteration_count_is_left_to_onnx_runtime() -> None:
    model = models.endless_loop()
    model.graph.initializer[0].raw_data = b""
    runnable.check_runnable(model)
    model.graph.initializer[0].CopyFrom(helper.make_tensor("n", TensorProto.STRING, [], [b"many"]))
    runnable.check_runnable(model)


def test_weights_of_two_bits_have_their_data() -> None:
    # Older releases of onnx lack types of two bits.
    kind, in_a_byte = (TensorProto.INT2, 4) if hasattr(TensorProto, "INT2") else (TensorProto.INT4, 2)
    model, count = models.endless_loop(), 4 * bounds.SMALL_MESSAGE
    model.graph.initializer.append(helper.make_tensor("w", kind, [count], bytes(count // in_a_byte), raw=True))
    bounds.check_tensors(model)


def test_a_tensor_without_its_data_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="w of the model has fewer bytes"):
        bounds.check_tensors(models.false_size())


def _added(*nodes: object, weights: tuple[object, ...] = (), functions: tuple[object, ...] = ()) -> Any:
    """Return a model that adds `w` to its input x of shape [1, 4]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([*nodes, helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], list(weights))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=9)


def _tensor(kind: int = TensorProto.FLOAT, dims: tuple[int, ...] = (4,), raw: bytes = bytes(16)) -> Any:
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=raw)


def _function(name: str, *calls: str) -> Any:
    nodes = [
        helper.make_node(call, ["a"], ["b"], domain="" if call[0].isupper() else "d") for call in calls or ["Relu"]
    ]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    return helper.make_function("d", name, ["a"], ["b"], nodes, imports)


def _loaded(model: Any, folder: Path, *replaced: bytes) -> Any:
    data = model.SerializeToString()
    (folder / "m.onnx").write_bytes(data.replace(*replaced) if replaced else data)
    return graphs.load(folder / "m.onnx")


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (_tensor(raw=bytes(15)), "has fewer bytes than its shape requires"),
        (_tensor(raw=bytes(20)), "has more bytes than its shape requires"),
        (_tensor(kind=999), "has an unknown element type"),
        (_tensor(dims=(-1, -4)), "has a negative size"),
    ],
)
def test_the_error_for_a_damaged_tensor_names_it(tensor: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match=f"The tensor w of the model {says}"):
        _loaded(_added(weights=(tensor,)), tmp_path)
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    with pytest.raises(InvalidGraph, match=says):
        _loaded(_added(constant), tmp_path)


def test_unreadable_nodes_are_refused(tmp_path: Path) -> None:
    broken = _added(helper.make_node("Softmax", ["x"], ["w"]))
    broken.graph.node[0].attribute.add(name="axis", ref_attr_name="k", type=2)
    with pytest.raises(InvalidGraph, match="axis of the node Softmax has no value"):
        _loaded(broken, tmp_path)
    with pytest.raises(InvalidGraph, match="not UTF-8"):
        _loaded(_added(helper.make_node("ReluXXX", ["x"], ["w"])), tmp_path, b"ReluXXX", b"Relu\xff\xfe\xfd")
    named = _added(helper.make_node("Relu", ["x"], ["w"]))
    named.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(InvalidGraph, match="input or output of the model has a name that is not UTF-8"):
        _loaded(named, tmp_path, b"batch", b"bat\xff\xfe")


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ([_function(f"f{n}", f"f{n + 1}") for n in range(3000)] + [_function("f3000")], "too deep"),
        ([_function("f0"), _function("f0", "Neg")], "cannot be inlined"),
        ([_function(f"f{n}") for n in range(20_000)], "cannot be inlined"),
    ],
)
def test_functions_that_cannot_be_inlined_are_refused(functions: list[Any], says: str, tmp_path: Path) -> None:
    call = helper.make_node("f0", ["x"], ["w"], domain="d")
    with pytest.raises(InvalidGraph, match=says):
        graphs.inlined(_loaded(_added(call, functions=tuple(functions)), tmp_path))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"offset": "4096"}, "w.bin of the model is cut off"),
        ({"offset": str(2**64 - 8), "length": "16"}, "w.bin of the model is cut off"),
        ({"length": str(2**70)}, "at offset 0 of the file w.bin"),
        ({"offset": "-8"}, "at offset -8 of the file w.bin"),
        ({"offset": "1e3"}, "at offset 1e3 of the file w.bin"),
    ],
)
def test_weights_in_a_truncated_file_are_refused(entries: dict[str, str], says: str, tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(bytes(40))
    with pytest.raises(InvalidGraph, match=says):
        graphs.load_tensor(tensor, tmp_path)


def test_weights_without_a_length_are_as_long_as_their_shape(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(range(40)))
    graphs.load_tensor(tensor, tmp_path)
    assert tensor.raw_data == bytes(range(16))


def test_a_division_that_would_crash_the_process_is_not_computed(tmp_path: Path) -> None:
    """ONNX Runtime divides as the processor does, which raises SIGFPE."""
    smallest = numpy_helper.from_array(np.array(np.iinfo(np.int64).min), "a")
    division = [helper.make_node("Div", ["a", "b"], ["q"]), helper.make_node("Cast", ["q"], ["w"], to=1)]
    model = _added(*division, weights=(smallest, numpy_helper.from_array(np.array(-1), "b")))
    constants.fold(Editor(model, tmp_path))
    assert [node.op_type for node in model.graph.node] == ["Div", "Cast", "Add"]
    with pytest.raises(InvalidGraph, match="divides the smallest value"):
        runnable.check_runnable(model)


def test_a_division_of_the_smallest_number_by_another_divisor_is_computed(tmp_path: Path) -> None:
    smallest = numpy_helper.from_array(np.array([np.iinfo(np.int64).min, 5]), "a")
    division = [helper.make_node("Div", ["a", "b"], ["q"]), helper.make_node("Cast", ["q"], ["w"], to=1)]
    model = _added(*division, weights=(smallest, numpy_helper.from_array(np.array([1, -1]), "b")))
    runnable.check_runnable(model)


def test_strings_count_with_their_characters() -> None:
    text = helper.make_tensor("s", TensorProto.STRING, [1], [b"a" * 1_000_000])
    times = numpy_helper.from_array(np.array([100_000]), "k")
    model = _added(helper.make_node("Expand", ["s", "k"], ["w"]), weights=(text, times))
    with pytest.raises(InvalidGraph, match="a tensor of 93 GB"):
        runnable.check_runnable(model)


def test_a_huge_window_is_refused() -> None:
    pool = helper.make_node("AveragePool", ["x"], ["w"], kernel_shape=[2**40, 2**40])
    with pytest.raises(InvalidGraph, match="has a window of"):
        runnable.check_runnable(_added(pool))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
def test_a_pipe_in_place_of_a_model_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(NoSuchFile, match="cannot be read") as caught:
        scan_model(tmp_path / "m.onnx")
    assert caught.value.cause == "It is not a regular file."
