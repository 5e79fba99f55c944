"""Make inputs constants, such as those whose value is a size: vectors and single numbers, with and without
buckets."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import qnnbridge
import qnnbridge.ort
from qnnbridge.errors import InvalidArgument, OptionError, PlacementRefused
from qnnbridge_models.analyze.analyzer import analyze_model
from qnnbridge_protocol.shell import fixed_file
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract.small_models import CPU, model, node, tensor
from tests.daemon.real_daemon import daemon_of_its_own

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

SOC = [(QNN, {"soc_model": SOC_MODEL})]
rng = np.random.default_rng(0)
X = rng.uniform(0, 1, (1, 4, 16)).astype(np.float32)


def mask_decoder(points: int | str = 4) -> onnx.ModelProto:
    """Return a decoder like that of Segment Anything, whose input `orig_im_size` is the size of the masks."""
    return model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("ReduceMax", ["a"], ["b"], axes=[1], keepdims=0),
            node("Reshape", ["b", "grid"], ["low"]),
            node("Cast", ["orig_im_size"], ["size"], to=TensorProto.INT64),
            node("Concat", ["ones", "size"], ["full"], axis=0),
            node("Resize", ["low", "", "", "full"], ["masks"], mode="linear"),
        ],
        [tensor("x", [1, points, 16]), tensor("orig_im_size", [2])],
        [tensor("masks", [1, 1, "height", "width"])],
        {
            "w": (rng.standard_normal((16, 64)) * 0.2).astype(np.float32),
            "grid": np.array([1, 1, 8, 8], np.int64),
            "ones": np.array([1, 1], np.int64),
        },
        17,
    )


def saved(made: onnx.ModelProto, path: Path) -> str:
    onnx.save(made, str(path))
    return str(path)


def in_process(made: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    plain = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(plain.run(None, feeds))


def open_session(host: qnnbridge.Host, given: Any, **keywords: Any) -> qnnbridge.InferenceSession:
    keywords = {"providers": SOC, **keywords}
    return qnnbridge.InferenceSession(given, host=host, **keywords)


def test_the_refusal_names_a_constant_and_a_command_that_work(host: qnnbridge.Host, tmp_path: Path) -> None:
    path = saved(mask_decoder(), tmp_path / "sam.onnx")
    for keywords in ({}, {"fix": True}):
        with pytest.raises(PlacementRefused) as refused:
            open_session(host, path, **keywords)
        fix = refused.value.fix
        assert fix is not None
        assert "input orig_im_size determines the size of masks" in fix
        argument = re.search(r"fix=(\{.*?\}\})", fix)
        assert argument is not None
        given = eval(argument[1], {"__builtins__": {}})
        assert given == {"constants": {"orig_im_size": [64.0, 64.0]}}
        with open_session(host, path, fix=given) as session:
            assert session.placement.cpu_nodes == 0
            assert session.run(None, {"x": X})[0].shape == (1, 1, 64, 64)
    command = re.search(r"run once: qnnbridge (.*?)\. The rewrites", fix)
    assert command is not None
    words = [sys.executable, "-m", "qnnbridge_tools", *shlex.split(command[1])]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with open_session(host, str(tmp_path / fixed_file(path))) as session:
        assert session.run(None, {"x": X})[0].shape == (1, 1, 64, 64)


def test_a_refusal_for_another_operator_does_not_name_the_inputs_that_hold_sizes(host: qnnbridge.Host) -> None:
    nodes = [node("Slice", ["x", "start", "end", "axis"], ["a"]), node("Det", ["x"], ["y"])]
    inputs = [tensor("x", [1, 4, 4]), tensor("start", [1], TensorProto.INT64)]
    arrays = {"axis": np.array([1], np.int64), "end": np.array([4], np.int64)}
    made = model(nodes, inputs, [tensor("y", [1]), tensor("a", [1, "n", 4])], arrays, 17)
    with pytest.raises(PlacementRefused) as both:
        open_session(host, made.SerializeToString())
    assert "--constant start=" in str(both.value.fix)
    with pytest.raises(PlacementRefused) as one:
        open_session(host, made.SerializeToString(), fix={"constants": {"start": 1}})
    assert "Det" in f"{one.value.cause} {one.value.evidence}"
    assert "--constant" not in str(one.value.fix)


def test_a_session_takes_a_vector_as_a_constant_and_each_vector_has_its_own_cache_entry(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    made = mask_decoder()
    path = saved(made, tmp_path / "sam.onnx")
    for size in ((48, 64), (64, 48), np.array([20, 30]), (48, 64)):
        expected = in_process(made, {"x": X, "orig_im_size": np.array(size, np.float32)})[0]
        with open_session(host, path, fix={"constants": {"orig_im_size": size}}, verify="raise") as session:
            assert [one.name for one in session.get_inputs()] == ["x"]
            found = session.run(None, {"x": X})[0]
            np.testing.assert_allclose(found, expected, atol=5e-3)
            # the original gets the vector as a feed
            assert session.verified.state == "agrees"
            assert session.placement.cpu_nodes == 0
            with pytest.raises(InvalidArgument, match="orig_im_size"):
                session.run(None, {"x": X, "orig_im_size": np.array(size, np.float32)})


def test_a_free_dimension_of_a_constant_gets_the_length_of_the_value(host: qnnbridge.Host) -> None:
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    inputs = [tensor("x", ["batch", 12]), tensor("shape", ["rank"], TensorProto.INT64)]
    given = model(nodes, inputs, [tensor("y", [None, None, None])], {}, 17).SerializeToString()
    x = rng.uniform(0, 1, (1, 12)).astype(np.float32)
    buckets = {"buckets": {"batch": [2, 4]}, "pad": 0}
    with open_session(host, given, fix={"constants": {"shape": [-1, 3, 4]}}, verify="raise", **buckets) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x.reshape(1, 3, 4), atol=5e-3)
        assert session.verified.state == "agrees"
    with pytest.raises(OptionError, match="free dimensions"):
        open_session(host, given, fix={"constants": {"shape": 5}}, **buckets)


def test_the_replacement_of_onnxruntime_takes_vectors_as_constants(host: qnnbridge.Host) -> None:
    made = mask_decoder()
    expected = in_process(made, {"x": X, "orig_im_size": np.array([12, 20], np.float32)})[0]
    fix = {"constants": {"orig_im_size": [12, 20]}}
    session = qnnbridge.ort.InferenceSession(made.SerializeToString(), providers=SOC, host=host, fix=fix)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, atol=5e-3)


def test_buckets_take_vectors_as_constants_and_the_refusal_names_them(host: qnnbridge.Host, tmp_path: Path) -> None:
    made = mask_decoder("num_points")
    path = saved(made, tmp_path / "sam.onnx")
    buckets = {"buckets": {"num_points": [4, 8]}}
    with pytest.raises(PlacementRefused) as refused:
        open_session(host, path, pad=0, **buckets)
    assert "fix={'constants': {'orig_im_size': [64.0, 64.0]}}" in str(refused.value.fix)
    assert "--dim num_points=4 --constant orig_im_size=64,64" in str(refused.value.fix)
    with pytest.raises(OptionError) as undecided:
        open_session(host, path, **buckets)
    assert "orig_im_size" in str(undecided.value.cause)
    assert "fix={'constants': {'orig_im_size': [64.0, 64.0]}}" in str(undecided.value.fix)
    fix = {"constants": {"orig_im_size": [20, 30]}}
    # A repeated last row does not change a maximum.
    with open_session(host, path, pad="edge", fix=fix, verify="raise", **buckets) as session:
        for points in (4, 3, 7):
            x = rng.uniform(0, 1, (1, points, 16)).astype(np.float32)
            expected = in_process(made, {"x": x, "orig_im_size": np.array([20, 30], np.float32)})[0]
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=5e-3)


@pytest.mark.parametrize(
    ("constants", "named"),
    [
        ({"orig_im_size": [48, 64, 3]}, "has the shape 3"),
        ({"orig_im_size": [[48, 64]]}, "has the shape 1x2"),
        ({"orig_im_size": [1e39, 64]}, "cannot represent"),
        ({"orig_size": [48, 64]}, "no input"),
        ({"masks": [48, 64]}, "no input"),
        ({"w": [48, 64]}, "no input"),
        ({"orig_im_size": ["48", 64]}, "is not known"),
        ({"orig_im_size": [0] * 5000}, "is not known"),
    ],
)
def test_a_constant_that_does_not_fit_its_input_is_refused_with_an_explanation(
    host: qnnbridge.Host, tmp_path: Path, constants: dict[str, Any], named: str
) -> None:
    path = saved(mask_decoder(), tmp_path / "sam.onnx")
    with pytest.raises(OptionError, match=named) as refused:
        open_session(host, path, fix={"constants": constants})
    assert refused.value.fix


def test_analyze_names_the_constant_and_ignores_models_without_sizes_in_inputs(tmp_path: Path) -> None:
    for points, sizes in ((4, ""), ("num_points", ' --dim "num_points=SIZE"')):
        path = Path(saved(mask_decoder(points), tmp_path / "sam.onnx"))
        found = analyze_model(path, soc_model=SOC_MODEL, offline=True)
        assert [one.what for one in found.advice] == [
            f"qnnbridge fix {path} -o {fixed_file(path)} --constant orig_im_size=64,64{sizes}"
        ]
        assert "the value of orig_im_size determines the size of masks" in found.advice[0].why
    scaled = model([node("Mul", ["x", "s"], ["y"])], [tensor("x", [1, 4]), tensor("s", [4])], [tensor("y", [1, 4])])
    assert not analyze_model(saved(scaled, tmp_path / "s.onnx"), soc_model=SOC_MODEL, offline=True).advice


def test_a_daemon_takes_vectors_as_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = mask_decoder()
    expected = in_process(made, {"x": X, "orig_im_size": np.array([12, 20], np.float32)})[0]
    with daemon_of_its_own(tmp_path, monkeypatch) as host:
        fix = {"constants": {"orig_im_size": [12, 20]}}
        with open_session(host, made.SerializeToString(), fix=fix, verify="raise") as session:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, atol=5e-3)


# --- random models and constants ---------------------------------------------------------------------------


def walked(
    walk: np.random.Generator, operators: list[str]
) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]:
    """Return a random chain of operators, the values of inputs that become constants, and feeds."""
    nodes: list[Any] = []
    inputs, values, weights = [tensor("x", [1, 4, 6])], {}, {}
    shape, last = [1, 4, 6], "x"

    def given(kind: Any, value: Any) -> str:
        name = f"c{len(values)}"
        values[name] = np.asarray(value, kind)
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        inputs.append(tensor(name, list(values[name].shape), element))
        return name

    for number in range(int(walk.integers(1, 6))):
        made = f"t{number}"
        what = walk.choice(operators)
        if what == "add":
            nodes.append(node("Add", [last, given(np.float32, walk.standard_normal(shape[-1]))], [made]))
        elif what == "mul":
            nodes.append(node("Mul", [last, given(np.float32, walk.standard_normal((shape[1], 1)))], [made]))
        elif what == "slice" and shape[2] > 2:
            start = int(walk.integers(0, 2))
            ends = [given(np.int64, [start]), given(np.int32, shape[2] - 1)]
            weights["one"] = np.array([1], np.int64)
            nodes.append(node("Cast", [ends[1]], [f"{made}_c"], to=TensorProto.INT64))
            nodes.append(node("Reshape", [f"{made}_c", "one"], [f"{made}_e"]))
            weights["axis"] = np.array([2], np.int64)
            nodes.append(node("Slice", [last, ends[0], f"{made}_e", "axis"], [made]))
            shape = [1, shape[1], shape[2] - 1 - start]
        elif what == "reshape":
            shape = [1, shape[2], shape[1]]
            nodes.append(node("Reshape", [last, given(np.int64, shape)], [made]))
        elif what == "expand" and shape[1] * shape[2] < 100:
            weights["flat"] = np.array([1, 1, -1], np.int64)
            nodes.append(node("Reshape", [last, "flat"], [f"{made}_f"]))
            shape = [1, 2, shape[1] * shape[2]]
            nodes.append(node("Expand", [f"{made}_f", given(np.int64, shape)], [made]))
        elif what == "where":
            mask = given(np.bool_, walk.integers(0, 2, shape[-1]))
            weights["zero"] = np.zeros(1, np.float32)
            nodes.append(node("Where", [mask, last, "zero"], [made]))
        elif what == "scale":
            factor = given(np.int32, walk.integers(1, 5))
            nodes.append(node("Cast", [factor], [f"{made}_c"], to=TensorProto.FLOAT))
            nodes.append(node("Div", [last, f"{made}_c"], [made]))
        elif what == "pad":
            nodes.append(node("Pad", [last, given(np.int64, [0, 0, 0, 0, 1, 2])], [made]))
            shape = [1, shape[1] + 1, shape[2] + 2]
        else:
            nodes.append(node("Tanh", [last], [made]))
        last = made
    nodes.append(node("Sigmoid", [last], ["y"]))
    feeds = {"x": walk.standard_normal((1, 4, 6)).astype(np.float32)}
    return model(nodes, inputs, [tensor("y", [None, None, None])], weights, 17), values, feeds


def as_given(walk: np.random.Generator, value: Any) -> Any:
    """Return one of the forms in which an application may pass a constant."""
    nested = value.tolist()
    forms = [value, nested, np.float64(value) if value.ndim == 0 else value.astype(np.float64)]
    if value.ndim > 1:
        forms += [value.reshape(-1).tolist(), tuple(map(tuple, nested))]
    if value.ndim == 1 and value.size == 1:
        forms.append(nested[0])
    return forms[int(walk.integers(len(forms)))]


OPERATORS = ["add", "mul", "slice", "reshape", "expand", "where", "scale", "tanh"]


# QNN computes Pad wrong whether its sizes are constants or not.
@pytest.mark.parametrize(
    ("providers", "operators"), [([CPU], [*OPERATORS, "pad"]), (SOC, OPERATORS)], ids=["cpu", "qnn"]
)
def test_sessions_with_constants_compute_what_onnxruntime_computes_with_these_values_as_feeds(
    host: qnnbridge.Host, providers: list[Any], operators: list[str]
) -> None:
    seen = 0
    for seed in range(40 if providers == [CPU] else 12):
        walk = np.random.default_rng(seed)
        made, values, feeds = walked(walk, operators)
        expected = in_process(made, {**feeds, **values})[0]
        # Some of the inputs are still fed.
        chosen = {name: as_given(walk, value) for name, value in values.items() if walk.random() < 0.8}
        left = {name: value for name, value in values.items() if name not in chosen}
        if providers != [CPU] and left:
            chosen, left = {name: as_given(walk, value) for name, value in values.items()}, {}
        with open_session(
            host, made.SerializeToString(), fix={"constants": chosen}, providers=providers, fallback="cpu"
        ) as session:
            assert {one.name for one in session.get_inputs()} == {"x", *left}
            found = session.run(None, {**feeds, **left})[0]
        exact = providers == [CPU]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if exact else 5e-3, err_msg=f"seed {seed}")
        seen += bool(chosen)
    assert seen > 5
