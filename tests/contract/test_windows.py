"""Windows and padding that a session chooses itself are right for ids and masks of any type; otherwise it uses
none."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge._buckets.batches import Context
from qnnbridge.errors import NumbersDiffer, OptionError
from tests import needs
from tests.comparisons import settled
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract.window_models import WIDTH, drawn

pytestmark = pytest.mark.process

CPU = ["CPUExecutionProvider"]
SOC = [(QNN, {"soc_model": SOC_MODEL})]
BUCKETS = {"n": [16, 48, 96]}
WALK_SIZES = (5, 17, 33, 47, 50, 97, 130)
# Before the check used values of all kinds, 76 of the first 250 models gave wrong results.
SEEDS = range(needs.length(30, 60))


def truth(data: bytes, feeds: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, providers=CPU).run(None, feeds)[0]


@pytest.mark.timeout(600)
def test_random_models_with_windows_give_the_results_of_onnxruntime_at_any_length_or_are_refused() -> None:
    """Walk over random models: whatever a session decides automatically must be right."""
    decided = {"pad=0": 0, "chunk='n'": 0, "refused": 0}
    wrong = []
    with qnnbridge.Host(sys.executable) as host:
        for seed in SEEDS:
            made, words = drawn(seed)
            data = made.model()
            try:
                session = qnnbridge.InferenceSession(data, providers=CPU, host=host, buckets=BUCKETS, verify=False)
            except OptionError:
                decided["refused"] += 1
                continue
            with session:
                assert session.buckets is not None
                decided[session.buckets.decided] += 1
                sizes = [size for size in WALK_SIZES if size <= 96 or session.buckets.decided != "pad=0"]
                for size in sizes:
                    feeds = made.feeds(np.random.default_rng([seed, size]), size)
                    (found,) = session.run(None, feeds)
                    expected = truth(data, feeds)
                    if not np.allclose(found, expected, 1e-3, 1e-4 * np.abs(expected).max(), equal_nan=True):
                        wrong.append((seed, words, session.buckets.decided, size))
    assert not wrong
    # Otherwise the walk proves nothing.
    assert min(decided.values()) >= len(SEEDS) // 10, decided


# --- results on QNN ------------------------------------------------------------------------------------------


def tagger(reach_hidden: bool = True) -> bytes:
    """Return three convolutions over ids. The rows of padding and unknown words are equal, as in a trained table."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((49, WIDTH)).astype(np.float32)
    table[:2] = 0 if reach_hidden else table[:2]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Transpose", ["e"], ["x0"], perm=[0, 2, 1]),
    ]
    constants = [numpy_helper.from_array(table, "table")]
    for layer in range(3):
        weights = 1.5 * rng.standard_normal((WIDTH, WIDTH, 5)) / np.sqrt(WIDTH * 5)
        constants.append(numpy_helper.from_array(weights.astype(np.float32), f"w{layer}"))
        nodes += [
            helper.make_node("Conv", [f"x{layer}", f"w{layer}"], [f"c{layer}"], pads=[2, 2]),
            helper.make_node("Relu", [f"c{layer}"], [f"x{layer + 1}"]),
        ]
    nodes.append(helper.make_node("Transpose", ["x3"], ["y"], perm=[0, 2, 1]))
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n", WIDTH])]
    graph = helper.make_graph(nodes, "tagger", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    data: bytes = made.SerializeToString()
    return data


def ids(size: int) -> dict[str, Any]:
    return {"ids": np.random.default_rng(size).integers(2, 49, (1, size))}


def snr_db(expected: Any, found: Any) -> float:
    error = float(((expected - found) ** 2).sum())
    return float(10 * np.log10((expected**2).sum() / max(error, 1e-30)))


def differs(session: qnnbridge.InferenceSession, feeds: dict[str, Any]) -> Any:
    """Return the output of a call whose comparison reports a difference."""
    (found,) = session.run(None, feeds)
    assert settled(session).state == "differs"
    return found


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.delenv("QNNBRIDGE_VERIFY")


@pytest.mark.simulator
@pytest.mark.usefixtures("simulator")
def test_the_reach_of_a_model_with_ids_is_measured_with_ids_of_the_whole_table(host: qnnbridge.Host) -> None:
    data = tagger()
    with qnnbridge.InferenceSession(data, providers=SOC, host=host, buckets={"n": [8, 32]}) as session:
        assert session.buckets is not None
        assert session.buckets.decided == "chunk='n'"
        for size in (40, 57):
            assert snr_db(truth(data, ids(size)), session.run(None, ids(size))[0]) > 50
        assert settled(session).state == "agrees"
        assert session.verify(ids(45)).state == "agrees"


@pytest.mark.simulator
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("mode", ["warn", "raise"])
def test_calls_in_windows_are_compared_with_the_unsplit_model(
    mode: Any, host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context that is too short is not noticed by the comparison of each single window."""
    monkeypatch.setattr("qnnbridge._buckets.padding.measure", lambda *_: Context(1, 1))
    monkeypatch.setattr("qnnbridge._buckets.padding.check_exact", lambda *_: None)
    data = tagger()
    with qnnbridge.InferenceSession(data, providers=SOC, host=host, buckets={"n": [8, 32]}, verify=mode) as session:
        feeds = ids(40)
        if mode == "raise":
            with pytest.raises(NumbersDiffer, match="different results"):
                session.run(None, feeds)
        else:
            with pytest.warns(qnnbridge.NumbersWarning):
                found = differs(session, feeds)
            assert snr_db(truth(data, feeds), found) < 30
        assert session.verified.state == "differs"
        assert session.verify(ids(57)).state == "differs"


@pytest.mark.simulator
@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore::qnnbridge.NumbersWarning")
@pytest.mark.parametrize(("split", "refused"), [("batch", NumbersDiffer), (None, qnnbridge.errors.InvalidArgument)])
def test_rows_that_depend_on_each_other_are_not_returned_as_the_result_of_a_split_call(
    split: str | None, refused: type[Exception], host: qnnbridge.Host
) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    x += np.arange(8, dtype=np.float32)[:, None]
    with qnnbridge.InferenceSession(
        made.SerializeToString(), providers=SOC, host=host, buckets={"batch": [4]}, split=split, verify="raise"
    ) as session:
        session.run(None, {"x": x[:4]})
        assert session.verified.state == ("differs" if split else "agrees")
        with pytest.raises(refused):
            session.run(None, {"x": x})
