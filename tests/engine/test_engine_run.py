"""Running a session: options of a run, stopping it, and errors that are those of ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_models import CPU, MODELS, QNN, assert_same, direct_cpu_session, model, node, relu, tensor
from onnx import helper

from qnnbridge_host.engine import StopHandle
from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import RunSpec

X = np.array([[-1, 0, 2, 3]], np.float32)
Y = np.array([[0, 0, 2, 3]], np.float32)


@pytest.fixture
def session(create: Any) -> Any:
    return create(relu(), provider=CPU)


def both_fail(bridge: Callable[[], Any], direct: Callable[[], Any]) -> tuple[errors.BridgeError, Exception]:
    with pytest.raises(errors.BridgeError) as ours:
        bridge()
    with pytest.raises(Exception) as theirs:
        direct()
    return ours.value, theirs.value


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"nonsense": X},
        {"x": X, "nonsense": X},
        {"x": X.astype(np.float64)},
        {"x": X.astype(np.int64)},
        {"x": np.zeros((1, 5), np.float32)},
        {"x": np.zeros(4, np.float32)},
        {"x": np.array([["a", "b", "c", "d"]])},
        {"x": None},
    ],
)
def test_bad_feeds_fail_with_the_class_and_text_of_onnx_runtime(session: Any, feeds: dict[str, Any]) -> None:
    direct = direct_cpu_session(relu())
    ours, theirs = both_fail(lambda: session.run(None, feeds), lambda: direct.run(None, feeds))
    assert type(ours).__name__ in (type(theirs).__name__, f"Remote{type(theirs).__name__}")
    assert ours.message == str(theirs)
    assert_same(session.run(None, {"x": X}), [Y])


def test_an_unknown_output_fails_as_in_onnx_runtime(session: Any) -> None:
    direct = direct_cpu_session(relu())
    ours, theirs = both_fail(lambda: session.run(["z"], {"x": X}), lambda: direct.run(["z"], {"x": X}))
    assert (type(ours).__name__, ours.message) == (type(theirs).__name__, str(theirs))


def test_outputs_are_returned_in_the_requested_order(create: Any) -> None:
    two = model(
        [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])],
        [tensor("x", [1, 4])],
        [tensor("y", [1, 4]), tensor("z", [1, 4])],
    )
    session = create(two, provider=CPU)
    assert_same(session.run(["z", "y"], {"x": X}), [-X, Y])
    assert_same(session.run(["z"], {"x": X}), [-X])
    assert_same(session.run([], {"x": X}), [Y, -X])


def test_run_options_are_passed_on(session: Any) -> None:
    run = RunSpec(
        {"logid": "one run", "log_severity_level": 3, "only_execute_path_to_fetches": True}, {"gpu_graph_id": "1"}
    )
    assert_same(session.run(None, {"x": X}, run), [Y])


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (RunSpec({"log_id": "a"}), "'logid'"),
        (RunSpec({"terminate": "yes"}), "bool"),
        (RunSpec({}, {"qnn.perf_mode": "burst"}), "'qnn.htp_perf_mode'"),
        (RunSpec({}, {"qnn.rpc_control_latency": "abc"}), "whole number"),
        (RunSpec({}, {"gpu_graph_ids": "1"}), "'gpu_graph_id'"),
        (RunSpec({"active_adapters": ["/nowhere.onnx_adapter"]}), None),
    ],
)
def test_wrong_run_options_are_refused_with_an_explanation(session: Any, run: RunSpec, word: str | None) -> None:
    with pytest.raises(errors.OptionError) as caught:
        session.run(None, {"x": X}, run)
    assert word is None or word in (caught.value.fix or "")


@pytest.mark.simulator
def test_qnn_run_options_reach_a_qnn_session(create: Any) -> None:
    run = RunSpec(
        {}, {"qnn.htp_perf_mode": "burst", "qnn.htp_perf_mode_post_run": "default", "qnn.rpc_control_latency": 100}
    )
    session = create(relu())
    assert_same(session.run(None, {"x": X}, run), session.run(None, {"x": X}))


@pytest.mark.simulator
def test_dynamic_options_are_checked_before_they_reach_qnn(create: Any) -> None:
    session = create(relu())
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    with pytest.raises(errors.OptionError):
        session.set_ep_dynamic_options({"ep.dynamic.workload": "Efficient"})


def test_a_run_with_terminate_already_set_does_not_run(session: Any) -> None:
    stop = StopHandle()
    stop.stop()
    with pytest.raises(errors.Fail, match="terminate flag"):
        session.run(None, {"x": X}, None, stop)
    assert_same(session.run(None, {"x": X}, None, StopHandle()), [Y])


def test_a_run_is_stopped_by_another_thread(create: Any) -> None:
    session = create(_counting_loop(), provider=CPU)
    started = threading.Event()

    class Told(StopHandle):
        def attach(self, run_options: Any) -> None:
            super().attach(run_options)
            started.set()

    stop = Told()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            session.run(None, {"turns": np.array(2**62, np.int64), "x": X}, None, stop)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    stop.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(caught[0], errors.Fail)
    assert "terminate" in caught[0].message


def _counting_loop() -> onnx.ModelProto:
    """Return a loop whose input is the number of iterations."""
    flag, number = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Neg", ["before"], ["after"])],
        "body",
        [tensor("turn", [], number), tensor("go", [], flag), tensor("before", [1, 4])],
        [tensor("go_on", [], flag), tensor("after", [1, 4])],
    )
    return model(
        [node("Loop", ["turns", "true", "x"], ["y"], body=body)],
        [tensor("turns", [], number), tensor("x", [1, 4])],
        [tensor("y", [1, 4])],
        {"true": np.array(True)},
    )


def test_a_session_runs_in_several_threads_at_the_same_time(create: Any) -> None:
    session = create(MODELS / "pnet.onnx", provider=CPU)
    feeds = [{"input_1": np.full((1, 32, 32, 3), n, np.float32)} for n in range(4)]
    expected = [session.run(None, feed) for feed in feeds]
    found: list[Any] = [None] * 4

    def run(n: int) -> None:
        found[n] = [session.run(None, feeds[n]) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        for outputs in found[n]:
            assert_same(outputs, expected[n])


@pytest.mark.simulator
def test_an_error_inside_of_qnn_is_raised_and_the_session_stays_usable(create: Any) -> None:
    gather = model(
        [node("Gather", ["x", "i"], ["y"])],
        [tensor("x", [4]), tensor("i", [1], onnx.TensorProto.INT32)],
        [tensor("y", [1])],
    )
    session = create(gather)
    good = {"x": np.float32([1, 2, 3, 4]), "i": np.int32([2])}
    with pytest.raises(errors.EPFail) as caught:
        session.run(None, {**good, "i": np.int32([100])})
    assert caught.value.details["qnn_code"] == 1100
    assert session.run(None, good)[0].shape == (1,)
    assert session.info.providers[0] == QNN


def test_a_lora_adapter_is_used_for_the_run_that_names_it(create: Any, tmp_path: Path) -> None:
    import onnxruntime as ort

    adapted = model(
        [node("Add", ["x", "delta"], ["y"])],
        [tensor("x", [1, 4]), tensor("delta", [1, 4])],
        [tensor("y", [1, 4])],
        {"delta": np.zeros((1, 4), np.float32)},
    )
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    delta = np.float32([[10, 20, 30, 40]])
    adapter.set_parameters({"delta": ort.OrtValue.ortvalue_from_numpy(delta)})
    path = tmp_path / "delta.onnx_adapter"
    adapter.export_adapter(str(path))
    session = create(adapted, provider=CPU)
    run = RunSpec({"active_adapters": [str(path)]})
    assert_same(session.run(None, {"x": X}, run), [X + delta])
    assert_same(session.run(None, {"x": X}), [X])
