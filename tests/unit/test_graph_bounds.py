"""What a small file may ask for is bounded, in a time that is in proportion to the file."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.attack import large_models, models

from qnnbridge_host.graph import bounds, graphs, runnable
from qnnbridge_host.rewrite import folding
from qnnbridge_protocol.errors import InvalidGraph


def test_functions_that_are_too_many_nodes_when_written_out_are_refused() -> None:
    with pytest.raises(InvalidGraph, match=r"more than 1,000,000 nodes") as caught:
        bounds.check_functions(models.exponential_functions())
    assert "40 functions stand for 10^12 nodes" in str(caught.value.cause)
    bounds.check_functions(models.exponential_functions(depth=18))


def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="F of the model calls itself"):
        bounds.check_functions(models.recursive_function())


def test_tensors_of_sizes_that_grow_without_end_are_not_computed() -> None:
    assert bounds.computes_many_sizes(models.gigantic_range())
    assert bounds.computes_many_sizes(models.doubling_sizes())
    assert not bounds.computes_many_sizes(models.doubling_sizes(depth=10))
    assert graphs.types_of(models.doubling_sizes())["y"] is not None


@pytest.mark.parametrize("make", [models.gigantic_constant, models.gigantic_tile, models.gigantic_expand])
def test_gigantic_constants_are_not_folded(make: object, tmp_path: object) -> None:
    from pathlib import Path

    from qnnbridge_host.graph.editor import Editor

    model = make()  # type: ignore[operator]
    assert folding.fold(Editor(model, Path(str(tmp_path)))) == 0


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


def test_a_loop_with_a_condition_may_have_any_number_of_repetitions() -> None:
    """Exporters write the largest number there is for a loop that ends by its condition."""
    model = models.endless_loop()
    body = model.graph.node[0].attribute[0].g
    body.node[0].op_type = "Not"
    runnable.check_runnable(model)


@pytest.mark.parametrize("way", ["no number of repetitions", "a Constant node", "a constant condition"])
def test_a_loop_without_an_end_is_refused_however_it_is_written(way: str) -> None:
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


def test_a_damaged_number_of_repetitions_is_left_to_onnx_runtime() -> None:
    model = models.endless_loop()
    model.graph.initializer[0].raw_data = b""
    runnable.check_runnable(model)
    model.graph.initializer[0].CopyFrom(helper.make_tensor("n", TensorProto.STRING, [], [b"many"]))
    runnable.check_runnable(model)


def test_weights_of_two_bits_have_their_data() -> None:
    # Older releases of onnx have none of two bits.
    kind, in_a_byte = (TensorProto.INT2, 4) if hasattr(TensorProto, "INT2") else (TensorProto.INT4, 2)
    model, count = models.endless_loop(), 4 * bounds.SMALL_MESSAGE
    model.graph.initializer.append(helper.make_tensor("w", kind, [count], bytes(count // in_a_byte), raw=True))
    bounds.check_tensors(model)


def test_a_tensor_without_its_data_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="w of the model has fewer bytes"):
        bounds.check_tensors(models.false_size())
