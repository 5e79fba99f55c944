"""QNN and the CPU compute with the values, sizes and adapters that are set in the session options."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge import OrtValue
from qnnbridge_host.model.initial_values import with_values
from qnnbridge_host.model.writing import tensor_message

pytestmark = [pytest.mark.simulator, pytest.mark.process]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 8)).astype("f")
IN_FILE = np.full((8, 8), 0.01, "f")
GIVEN = (RNG.normal(size=(8, 8)) / 3).astype("f")
CPU = "CPUExecutionProvider"


def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: list[Any], weights: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def product(weights: bool = True, rows: Any = 2) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if not weights:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(IN_FILE)))
    return model_of(nodes, {"w": IN_FILE} if weights else {}, [value("x", [rows, 8])], [value("y", [rows, 8])])


def branches() -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(IN_FILE, "w")]
    one = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["t"])], "t", [], [value("t", [2, 8])], tensors)
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["u"])], "u", [], [value("u", [2, 8])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=one, else_branch=other)
    inputs = [value("x", [2, 8]), value("c", [], TensorProto.BOOL)]
    return model_of([node], {}, inputs, [value("y", [2, 8])])


def convolution() -> onnx.ModelProto:
    """ONNX Runtime folds the BatchNormalization into the Conv weights of the file, also for the CPU."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"]),
    ]
    norm = {name: np.linspace(0.5, 1.5, 4).astype("f") for name in "sbmv"}
    weights = {"w": np.full((4, 3, 3, 3), 0.01, "f"), **norm}
    return model_of(nodes, weights, [value("x", [1, 3, 6, 6])], [value("y", [1, 4, 4, 4])])


CASES = {
    "initializer": (product(), {"x": X}, GIVEN),
    "constant": (product(weights=False), {"x": X}, GIVEN),
    "branch": (branches(), {"x": X, "c": np.array(True)}, GIVEN),
    "folded": (
        convolution(),
        {"x": RNG.normal(size=(1, 3, 6, 6)).astype("f")},
        RNG.normal(size=(4, 3, 3, 3)).astype("f"),
    ),
}


def with_in_file(model: onnx.ModelProto, given: Any) -> list[Any]:
    """Return the results of the model whose file contains the values."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graphs = [made.graph, *(a.g for node in made.graph.node for a in node.attribute if a.type == a.GRAPH)]
    for graph in graphs:
        for tensor in graph.initializer:
            if tensor.name == "w":
                tensor.CopyFrom(numpy_helper.from_array(given, "w"))
        for node in graph.node:
            if node.op_type == "Constant":
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(given))
    return [made.SerializeToString()]


def expected(model: onnx.ModelProto, given: Any, feeds: dict[str, Any]) -> Any:
    (data,) = with_in_file(model, given)
    return onnxruntime.InferenceSession(data, providers=[CPU]).run(None, feeds)[0]


def options_with(name: str, given: Any) -> qnnbridge.SessionOptions:
    options = qnnbridge.SessionOptions()
    options.add_initializer(name, OrtValue.ortvalue_from_numpy(given))
    return options


@pytest.mark.parametrize("providers", [None, [CPU]], ids=["QNN", "CPU"])
@pytest.mark.parametrize("name", CASES)
def test_a_given_initializer_value_is_used(name: str, providers: Any, tmp_path: Path, host: qnnbridge.Host) -> None:
    model, feeds, given = CASES[name]
    onnx.save(model, str(tmp_path / "m.onnx"))
    more = {"fallback": "cpu"} if name == "branch" else {}
    with (
        warnings.catch_warnings(),
        qnnbridge.InferenceSession(
            tmp_path / "m.onnx", options_with("w", given), providers=providers, host=host, **more
        ) as session,
    ):
        warnings.simplefilter("error")
        (result,) = session.run(None, feeds)
        if providers is None:
            assert session.placement.qnn_nodes
            assert session.verify(feeds).state != "differs"
    np.testing.assert_allclose(result, expected(model, given, feeds), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("providers", [None, [CPU]], ids=["QNN", "CPU"])
@pytest.mark.parametrize(
    "entry",
    ["session.disable_prepacking", "session.use_device_allocator_for_initializers", "session.use_env_allocators"],
)
def test_a_given_value_is_used_however_the_weights_are_stored(
    entry: str, providers: Any, host: qnnbridge.Host
) -> None:
    options = options_with("w", GIVEN)
    options.add_session_config_entry(entry, "1")
    data = product().SerializeToString()
    with qnnbridge.InferenceSession(data, options, providers=providers, host=host) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ GIVEN, atol=0.02, rtol=0.02)


def test_each_value_has_its_own_compiled_model(
    tmp_path: Path, host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    onnx.save(product(), str(tmp_path / "m.onnx"))
    for state, factor in (("miss", 1), ("miss", 2), ("hit", 1), ("hit", 2)):
        options = options_with("w", GIVEN * np.float32(factor))
        with qnnbridge.InferenceSession(tmp_path / "m.onnx", options, cache=True, host=host) as session:
            assert session.cache.state == state
            np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ (GIVEN * factor), atol=0.02, rtol=0.02)


def test_a_given_value_is_used_in_the_next_host_and_with_external_weights(tmp_path: Path) -> None:
    model = product()
    model.graph.node[0].output[0] = "p"
    model.graph.node.append(helper.make_node("Add", ["p", "b"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.full((2, 8), 3, "f"), "b"))
    path = tmp_path / "m.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="m.bin", size_threshold=0)
    with (
        qnnbridge.Host() as host,
        qnnbridge.InferenceSession(path, options_with("w", GIVEN), cache=False, host=host) as session,
    ):
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ GIVEN + 3, atol=0.02, rtol=0.02)
            host.restart()


def test_a_compiled_model_contains_the_given_values(tmp_path: Path, host: qnnbridge.Host) -> None:
    onnx.save(product(), str(tmp_path / "m.onnx"))
    options = options_with("w", GIVEN)
    made = qnnbridge.compile(tmp_path / "m.onnx", tmp_path / "out", sess_options=options, host=host)
    with qnnbridge.InferenceSession(made.path, host=host) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ GIVEN, atol=0.02, rtol=0.02)
    with pytest.raises(qnnbridge.errors.OptionError, match="compiled: its weights are in a context binary"):
        qnnbridge.InferenceSession(made.path, options, host=host)


def test_sizes_that_options_fix_are_those_that_qnn_uses(host: qnnbridge.Host) -> None:
    model = product(rows="n")
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    # The size becomes a value in the result.
    model.graph.node[0].output[0] = "p"
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMax", ["f"], ["most"], keepdims=0),
            helper.make_node("Mul", ["p", "most"], ["y"]),
        ]
    )
    x = RNG.normal(size=(16, 8)).astype("f")
    for add, what in (
        (qnnbridge.SessionOptions.add_free_dimension_override_by_name, "n"),
        (qnnbridge.SessionOptions.add_free_dimension_override_by_denotation, "DATA_BATCH"),
    ):
        options = qnnbridge.SessionOptions()
        add(options, what, 16)
        with qnnbridge.InferenceSession(model.SerializeToString(), options, fallback="cpu", host=host) as session:
            assert session.placement.qnn_nodes
            np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ IN_FILE * 16, atol=0.02, rtol=0.02)


def test_external_initializers_and_files_in_memory_reach_qnn(tmp_path: Path, host: qnnbridge.Host) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(product(), str(path), save_as_external_data=True, location="m.bin", size_threshold=0)
    values, files = qnnbridge.SessionOptions(), qnnbridge.SessionOptions()
    values.add_external_initializers(["w"], [OrtValue.ortvalue_from_numpy(GIVEN)])
    files.add_external_initializers_from_files_in_memory(["m.bin"], [GIVEN.tobytes()], [GIVEN.nbytes])
    for model, options in ((path, values), (path.read_bytes(), files)):
        with qnnbridge.InferenceSession(model, options, host=host) as session:
            assert session.placement.qnn_nodes
            np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ GIVEN, atol=0.02, rtol=0.02)


def test_a_lora_adapter_reaches_qnn(tmp_path: Path, host: qnnbridge.Host) -> None:
    model = product()
    model.graph.input.append(value("w", [8, 8]))  # an adapter replaces an overridable input
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    kept = onnxruntime.OrtValue.ortvalue_from_numpy(GIVEN)
    adapter.set_parameters({"w": kept})
    adapter.export_adapter(str(tmp_path / "a.onnx_adapter"))
    loaded = qnnbridge.LoraAdapter()
    loaded.Load(str(tmp_path / "a.onnx_adapter"))
    run = qnnbridge.RunOptions()
    run.add_active_adapter(loaded)
    with qnnbridge.InferenceSession(model.SerializeToString(), host=host) as session:
        assert session.placement.qnn_nodes
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ IN_FILE, atol=0.02, rtol=0.02)
        np.testing.assert_allclose(session.run(None, {"x": X}, run)[0], X @ GIVEN, atol=0.02, rtol=0.02)


def test_a_model_with_other_values_is_otherwise_unchanged() -> None:
    for name, (model, _, given) in CASES.items():
        data = model.SerializeToString()
        made = with_values(data, {"w": tensor_message("w", 1, given.shape, given.tobytes())})
        assert (made.replaced, made.misfits) == ({"w"}, frozenset()), name
        onnx.checker.check_model(onnx.load_from_string(made.model))
        (wanted,) = with_in_file(model, given)
        changed = onnx.load_from_string(made.model)
        for node in changed.graph.node:
            if node.op_type == "Constant":
                node.attribute[0].t.ClearField("name")
        assert changed == onnx.load_from_string(wanted), name
        assert with_values(data, {"nothing": b""}).model == data
    other = tensor_message("w", 11, (8,), np.zeros(8).tobytes())
    assert with_values(product().SerializeToString(), {"w": other}).misfits == {"w"}
