"""`fix=True`: a session of a model that QNN refuses or computes wrong runs a copy that QNN supports."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge.errors import CompiledModelRefused, ModelChanged, ModelError, OptionError, PlacementRefused
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.settings import cache_dir
from qnnbridge_protocol.shell import fixed_file
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract.small_models import model, node, tensor

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

SOC = [(QNN, {"soc_model": SOC_MODEL})]
X = np.random.default_rng(5).standard_normal((1, 8, 16)).astype(np.float32)


def softsign(size: int | str = 16) -> onnx.ModelProto:
    """Return a model of Softsign(x^2) = x^2 / (1 + x^2); QNN lacks Softsign."""
    return model(
        [node("Pow", ["x", "two"], ["s"]), node("Softsign", ["s"], ["y"])],
        [tensor("x", [1, 8, size])],
        [tensor("y", [1, 8, size])],
        {"two": np.asarray(2, np.int64)},
    )


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(x * x / (1 + x * x))


def branching() -> onnx.ModelProto:
    """Return a model like a speech detector, in which the input sr selects one of two branches."""

    def branch(name: str, op: str) -> onnx.GraphProto:
        made = helper.make_node(op, ["x"], [f"{name}_y"])
        return helper.make_graph([made], name, [], [tensor(f"{name}_y", [1, 8, 16])])

    return model(
        [
            node("Equal", ["sr", "rate"], ["is_16k"]),
            node(
                "If", ["is_16k"], ["z"], then_branch=branch("fast", "Tanh"), else_branch=branch("slow", "Softsign")
            ),
            node("Sigmoid", ["z"], ["y"]),
        ],
        [tensor("x", [1, 8, 16]), tensor("sr", [], TensorProto.INT64)],
        [tensor("y", [1, 8, 16])],
        {"rate": np.asarray(16000, np.int64)},
    )


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")


def open_session(host: qnnbridge.Host, given: Any, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(given, providers=SOC, host=host, **keywords)


def saved(made: onnx.ModelProto, path: Path, **keywords: Any) -> Path:
    onnx.save(made, path, **keywords)
    return path


def copies() -> list[Path]:
    return sorted((Store(cache_dir()).root / "fixed").glob("*/*.onnx"))


def test_a_refusal_names_what_fix_would_rewrite_and_fix_makes_the_model_run(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    path = saved(softsign(), tmp_path / "soft.onnx")
    with pytest.raises(PlacementRefused) as refused:
        open_session(host, path)
    assert refused.value.fix is not None
    assert "fix=True" in refused.value.fix
    assert f"qnnbridge fix {path} -o {fixed_file(path)}" in refused.value.fix
    assert "missing-operators: 1 Softsign" in refused.value.fix
    with open_session(host, path, fix=True, verify="raise") as session:
        (y,) = session.run(None, {"x": X})
        np.testing.assert_allclose(y, expected(X), atol=5e-3)
        assert session.placement.cpu_nodes == 0
        assert "missing-operators: 1 Softsign" in session.fixed
        assert [one.name for one in (*session.get_inputs(), *session.get_outputs())] == ["x", "y"]
        assert session.verified.state == "agrees"
    assert onnx.load(path) == softsign(), "the original is never changed"


def test_the_rewritten_copy_is_made_once_and_again_only_if_it_is_damaged(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    path = saved(softsign(), tmp_path / "soft.onnx")
    open_session(host, path, fix=True, cache=True).close()
    (copy,) = copies()
    date = copy.stat().st_mtime_ns
    with open_session(host, path, fix=True, cache=True) as session:
        assert session.cache.state == "hit"
        assert copies()[0].stat().st_mtime_ns == date
    copy.write_bytes(b"damaged")
    with open_session(host, path, fix=True, cache=True) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(X), atol=5e-3)
    # Another branch needs another copy.
    open_session(host, path, fix={"skip": ["masks"]}, cache=True).close()
    assert len(copies()) == 2


def test_a_changed_model_gets_a_new_rewritten_copy(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = saved(softsign(), tmp_path / "soft.onnx")
    with open_session(host, path, fix=True) as session:
        changed = softsign()
        changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.asarray(3, np.int64), "two"))
        saved(changed, path)
        host.restart()
        with pytest.raises(ModelChanged):
            session.run(None, {"x": X})


def test_a_fixed_session_is_recreated_in_the_next_host_and_in_another_process(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    with open_session(host, saved(softsign(), tmp_path / "soft.onnx"), fix=True) as session:
        before = session.run(None, {"x": X})
        host.restart()
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], before[0])
        with pickle.loads(pickle.dumps(session)) as again:
            np.testing.assert_array_equal(again.run(None, {"x": X})[0], before[0])


@pytest.mark.parametrize("cache", [True, False])
def test_models_given_as_bytes_and_without_a_cache_are_rewritten(host: qnnbridge.Host, cache: bool) -> None:
    with open_session(host, softsign().SerializeToString(), fix=True, cache=cache) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(X), atol=5e-3)
    assert len(copies()) == int(cache)


def test_an_unusable_cache_does_not_prevent_a_rewrite(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with open_session(host, softsign().SerializeToString(), fix=True) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(X), atol=5e-3)
    made = softsign(64)
    made.graph.node.append(node("Mul", ["y", "w"], ["z"]))
    made.graph.initializer.append(numpy_helper.from_array(np.ones((1, 8, 64), np.float32), "w"))
    made.graph.output[0].name = "z"
    saved(made, tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=16)
    with pytest.raises(ModelError, match="cannot be stored") as refused:
        open_session(host, tmp_path / "big.onnx", fix=True)
    assert refused.value.fix


def test_a_model_with_external_weights_is_rewritten(host: qnnbridge.Host, tmp_path: Path) -> None:
    made = softsign(64)
    made.graph.node.append(node("Mul", ["y", "w"], ["z"]))
    weights = np.random.default_rng(1).standard_normal((1, 8, 64)).astype(np.float32)
    x = np.tile(X, 4)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    made.graph.output[0].name = "z"
    saved(made, tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=16)
    with open_session(host, tmp_path / "big.onnx", fix=True, verify="raise") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x) * weights, atol=2e-2)
    with pytest.raises(OptionError, match="needs the cache"):
        open_session(host, tmp_path / "big.onnx", fix=True, cache=False)


def test_the_model_of_each_bucket_is_rewritten(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = saved(softsign("n"), tmp_path / "soft.onnx")
    with open_session(host, path, fix=True, buckets={"n": [8, 16]}, pad=0.0, verify="raise") as session:
        session.warm()
        for size in (5, 8, 13):
            x = X[..., :size]
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x), atol=5e-3)
        assert session.verified.state == "agrees"
        assert session.get_inputs()[0].shape == [1, 8, "n"]
    assert len(copies()) == 2


def test_only_a_session_with_buckets_rewrites_operators_that_qnn_refuses_without_fix(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    path = saved(softsign("n"), tmp_path / "soft.onnx")
    buckets = {"buckets": {"n": [8, 16]}, "pad": 0.0}
    with pytest.raises(PlacementRefused):
        open_session(host, path, fix=False, **buckets)
    for _ in range(2):
        with open_session(host, path, verify="raise", **buckets) as session:
            x = X[..., :13]
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x), atol=5e-3)
            assert any(line.startswith("missing-operators") for line in session.fixed)
            assert session.placement.cpu_nodes == 0


def test_an_input_that_chooses_a_branch_becomes_a_constant(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = saved(branching(), tmp_path / "branch.onnx")
    with pytest.raises(PlacementRefused) as refused:
        open_session(host, path)
    assert refused.value.fix is not None
    assert "--constant sr=16000" in refused.value.fix
    assert "fix={'constants': {'sr': 16000.0}}" in refused.value.fix
    with open_session(host, path, fix={"constants": {"sr": 16000}}, verify="raise") as session:
        assert [one.name for one in session.get_inputs()] == ["x"]
        np.testing.assert_allclose(session.run(None, {"x": X})[0], 1 / (1 + np.exp(-np.tanh(X))), atol=5e-3)
        assert session.verified.state == "agrees"


@pytest.mark.parametrize("fix", ["yes", {"skipped": []}, {"constants": {"sr": "16000"}}, {"only": "masks"}, 5])
def test_a_wrong_value_for_fix_is_refused(fix: Any) -> None:
    with pytest.raises(OptionError, match="fix="):
        qnnbridge.InferenceSession(softsign().SerializeToString(), fix=fix)


def test_a_model_that_cannot_be_rewritten_is_refused(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = saved(softsign(), tmp_path / "soft.onnx")
    with pytest.raises(OptionError, match="no-such"):
        open_session(host, path, fix={"skip": ["no-such"]})
    with pytest.raises(OptionError, match="no input"):
        open_session(host, path, fix={"constants": {"sr": 1}})
    compiled = qnnbridge.compile(Path(__file__).parents[1] / "models" / "sigmoid.onnx", tmp_path, host=host)
    with pytest.raises(CompiledModelRefused):
        open_session(host, compiled.path, fix=True)


@pytest.mark.parametrize(
    ("shape", "end"), [((1, 4, 6), (0, 1, 2)), ((1, 4, 8), (0, 1, 2)), ((1, 3, 8, 8), (0, 0, 1, 1))]
)
def test_padding_is_right_in_a_host_that_has_computed_other_models(
    shape: tuple[int, ...], end: tuple[int, ...], host: qnnbridge.Host
) -> None:
    """Use default options. QNN's own padding would return data that other models wrote."""
    rng = np.random.default_rng(1)
    padded = model(
        [node("Pad", ["x", "pads"], ["y"])],
        [tensor("x", list(shape))],
        [tensor("y", [size + more for size, more in zip(shape, end, strict=True)])],
        {"pads": np.asarray([*[0] * len(shape), *end], np.int64)},
    )
    for _ in range(6):
        sizes = [1, *map(int, rng.integers(2, 40, 2))]
        other = model([node("Neg", ["x"], ["y"])], [tensor("x", sizes)], [tensor("y", sizes)])
        with qnnbridge.InferenceSession(
            other.SerializeToString(), providers=SOC, host=host, cache=False
        ) as session:
            session.run(None, {"x": 50 * rng.standard_normal(sizes).astype(np.float32)})
        with qnnbridge.InferenceSession(
            padded.SerializeToString(), providers=SOC, host=host, cache=False
        ) as session:
            assert session.placement.cpu_nodes == 0
            x = rng.standard_normal(shape).astype(np.float32)
            whole = np.pad(x, [(0, more) for more in end])
            np.testing.assert_allclose(session.run(None, {"x": x})[0], whole, atol=0.01)


def rms_normalization(form: str, shape: tuple[int, ...]) -> Any:
    """Return a normalization of the last dimension, as one operator or as exporters write it."""
    constants = {
        "two": np.float32(2),
        "last": np.array([-1]),
        "eps": np.float32(1e-5),
        "w": np.linspace(0.5, 1.5, shape[-1], dtype=np.float32),
    }
    if form == "operator":
        nodes = [node("RMSNormalization", ["x", "w"], ["y"], axis=-1, epsilon=1e-5)]
    else:
        nodes = [
            node("Pow", ["x", "two"], ["a"]),
            node("ReduceMean", ["a", "last"], ["b"], keepdims=1),
            node("Add", ["b", "eps"], ["c"]),
            node("Sqrt", ["c"], ["d"]),
            node("Reciprocal", ["d"], ["e"]),
            node("Mul", ["x", "e"], ["m"]),
            node("Mul", ["m", "w"] if form == "weight behind" else ["w", "m"], ["y"]),
        ]
    used = {name: value for name, value in constants.items() if any(name in one.input for one in nodes)}
    return model(nodes, [tensor("x", list(shape))], [tensor("y", list(shape))], used, opset=23)


@pytest.mark.parametrize("form", ["operator", "weight behind", "weight in front"])
@pytest.mark.parametrize("shape", [(1, 24, 4, 8), (9, 12, 1, 80), (9, 17, 2, 1), (2, 24, 20)])
def test_a_normalization_is_right_in_a_host_that_has_computed_other_models(
    shape: tuple[int, ...], form: str, host: qnnbridge.Host
) -> None:
    """Sessions with default options rewrite QNN's own normalization, which does not write all rows (as in Qwen 3)."""
    rng = np.random.default_rng(1)
    sizes = [1, 32, 64, 64]
    other = model([node("Neg", ["x"], ["y"])], [tensor("x", sizes)], [tensor("y", sizes)])
    with qnnbridge.InferenceSession(other.SerializeToString(), providers=SOC, host=host, cache=False) as session:
        session.run(None, {"x": np.full(sizes, 500, np.float32)})
    data = rms_normalization(form, shape).SerializeToString()
    with qnnbridge.InferenceSession(data, providers=SOC, host=host, cache=False) as session:
        assert session.placement.cpu_nodes == 0
        x = rng.standard_normal(shape).astype(np.float32)
        scale = np.linspace(0.5, 1.5, shape[-1], dtype=np.float32)
        right = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
        np.testing.assert_allclose(session.run(None, {"x": x})[0], right, atol=0.02)


def rms_beside_a_refused_node() -> Any:
    found = rms_normalization("weight in front", (1, 4, 8, 8))
    found.graph.node[-1].output[0] = "normal"
    found.graph.node.append(node("Det", ["normal"], ["y"]))
    del found.graph.output[0].type.tensor_type.shape.dim[2:]
    return found


def test_a_rewritten_session_lists_the_nodes_on_the_cpu_and_not_faults_that_the_rewrite_fixed(
    host: qnnbridge.Host,
) -> None:
    with pytest.raises(PlacementRefused) as refused:
        qnnbridge.InferenceSession(
            rms_beside_a_refused_node().SerializeToString(), providers=SOC, host=host, cache=False
        )
    assert [op for _, op in refused.value.details["cpu_list"]] == ["Det"]


def test_the_error_for_an_unexplained_failure_of_qnn_names_the_known_fault(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(rms_normalization("weight in front", (1, 4, 8)).SerializeToString())
    with pytest.raises(qnnbridge.errors.EPFail) as failed:
        qnnbridge.InferenceSession(path, providers=SOC, host=host, cache=False, fix=False)
    assert "QNN is known to fail with one operator of the model: Mul" in (failed.value.cause or "")
    assert f"qnnbridge fix {path} -o {fixed_file(path)} --only operand-order" in (failed.value.fix or "")
