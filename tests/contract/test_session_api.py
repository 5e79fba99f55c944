"""`InferenceSession` has the methods, arguments, results and errors of ``onnxruntime.InferenceSession``."""

from __future__ import annotations

import json
import logging
import os
import queue
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime_qnn")

import onnxruntime

import qnnbridge
from qnnbridge import errors
from tests.contract.both_sides import assert_same_error, assert_same_run, is_logged, nodes, two_sessions
from tests.contract.small_models import CPU, MODELS, QNN, add_and_multiply, model, node, tensor

pytestmark = pytest.mark.simulator

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((2, 3), 2.5, np.float32)
FEEDS = {"a": A, "b": B}
ANSWER_TIMEOUT_S = 30


@pytest.fixture
def arithmetic(host: qnnbridge.Host, pools_of_onnxruntime: None) -> Any:
    """Both sessions of `add_and_multiply`."""
    made = add_and_multiply()
    made.producer_name, made.domain, made.model_version = "tester", "com.example", 7
    made.doc_string, made.graph.doc_string = "a model", "its graph"
    onnx.helper.set_model_props(made, {"alphabet": "abcÄÖß語", "empty": "", "many": "x" * 100_000})
    with two_sessions(host, made.SerializeToString()) as sessions:
        yield sessions


# --- run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [None, [], ["p"], ["d", "s"], ["s", "p", "d"], ("p",), ["p", "p"], ["unknown"], ["p", ""]],
    ids=str,
)
def test_run_returns_the_requested_outputs(names: Any, arithmetic: Any) -> None:
    direct, bridged = arithmetic
    assert_same_run(direct, bridged, FEEDS, names)


@pytest.mark.parametrize(
    "feeds",
    [{}, {"a": A}, {**FEEDS, "c": A}, {"a": A, "b": B[:1]}, {"a": A, "b": B[:, :2]}, {"a": A, "b": B.astype("f8")}],
    ids=["none", "one of two", "too many", "other batch", "wrong shape", "wrong type"],
)
def test_run_accepts_and_refuses_the_same_feeds_as_onnxruntime(feeds: dict[str, Any], arithmetic: Any) -> None:
    direct, bridged = arithmetic
    assert_same_run(direct, bridged, feeds)


def test_results_belong_to_the_application(arithmetic: Any) -> None:
    _, bridged = arithmetic
    first = bridged.run(["s"], FEEDS)[0]
    assert first.flags.writeable
    first[:] = 0
    assert bridged.run(["s"], FEEDS)[0].tolist() == (A + B).tolist()


def test_run_async_passes_results_and_user_data_to_the_callback(arithmetic: Any) -> None:
    answers: list[Any] = []
    for session in arithmetic:
        called: queue.Queue[Any] = queue.Queue()
        session.run_async(["s"], FEEDS, lambda *given, called=called: called.put(given), ("user", 1))
        answers.append(called.get(timeout=ANSWER_TIMEOUT_S))
    (theirs, their_data, their_error), (ours, our_data, our_error) = answers
    assert our_data == their_data == ("user", 1)
    assert our_error == their_error == ""
    assert ours[0].tolist() == theirs[0].tolist()


def test_run_async_passes_an_error_to_the_callback(arithmetic: Any) -> None:
    _, bridged = arithmetic
    called: queue.Queue[Any] = queue.Queue()
    feeds = {"a": A, "b": np.ones((5, 3), np.float32)}
    bridged.run_async(None, feeds, lambda *given: called.put(given), None)
    results, _, error = called.get(timeout=ANSWER_TIMEOUT_S)
    assert results == []
    assert "[ONNXRuntimeError]" in error


@pytest.mark.parametrize("feeds", [{}, {"a": A}, {"a": A, "b": "text"}], ids=["none", "one of two", "no value"])
def test_run_async_raises_immediately_for_an_invalid_input(feeds: dict[str, Any], arithmetic: Any) -> None:
    direct, bridged = arithmetic
    with pytest.raises((ValueError, RuntimeError)) as caught:
        direct.run_async(None, feeds, pytest.fail, None)
    assert_same_error(caught.value, lambda: bridged.run_async(None, feeds, pytest.fail, None))


def test_an_exception_in_a_callback_is_logged(arithmetic: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, bridged = arithmetic

    def callback(*_: Any) -> None:
        raise LookupError("lost the user")

    bridged.run_async(None, FEEDS, callback, None)
    bridged.close()
    assert is_logged(caplog, "lost the user")


def test_run_with_ort_values_returns_ort_values(arithmetic: Any) -> None:
    direct, bridged = arithmetic
    theirs = direct.run_with_ort_values(
        ["p", "s"], {k: onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in FEEDS.items()}
    )
    ours = bridged.run_with_ort_values(
        ["p", "s"], {k: qnnbridge.OrtValue.ortvalue_from_numpy(v) for k, v in FEEDS.items()}
    )
    for one, two in zip(ours, theirs, strict=True):
        assert isinstance(one, qnnbridge.OrtValue)
        assert (one.data_type(), one.shape(), one.device_name()) == (
            two.data_type(),
            two.shape(),
            two.device_name(),
        )
        assert one.numpy().tolist() == two.numpy().tolist()


def test_a_binding_reads_its_inputs_at_each_run_and_writes_into_its_outputs(arithmetic: Any) -> None:
    results = []
    for session in arithmetic:
        a, p = A.copy(), np.zeros_like(A)
        binding = session.io_binding()
        binding.bind_input("a", "cpu", 0, np.float32, a.shape, a.ctypes.data)
        binding.bind_cpu_input("b", B)
        binding.bind_output("p", "cpu", 0, np.float32, p.shape, p.ctypes.data)
        binding.bind_output("s")
        session.run_with_iobinding(binding)
        a += 1
        session.run_with_iobinding(binding)
        results.append([p.tolist(), *(array.tolist() for array in binding.copy_outputs_to_cpu())])
    assert results[0] == results[1]
    assert results[1][0] == ((A + 1) * B).tolist()


def test_the_log_of_a_run_contains_its_tag(
    arithmetic: Any, host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    _, bridged = arithmetic
    caplog.set_level(logging.INFO, logger="qnnbridge.host")
    options = qnnbridge.RunOptions()
    options.logid = "this very run"
    options.log_severity_level = 3
    with pytest.raises(qnnbridge.BridgeError):
        bridged.run(None, {"a": A, "b": np.ones((5, 3), np.float32)}, options)
    assert is_logged(caplog, "this very run")


def test_qnn_options_are_changed_between_runs(host: qnnbridge.Host) -> None:
    options = qnnbridge.RunOptions()
    options.add_run_config_entry("qnn.htp_perf_mode", "burst")
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host) as session:
        x = np.ones((3, 2), np.float32)
        before = session.run(None, {"X": x})[0]
        session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
        assert session.run(None, {"X": x}, options)[0].tobytes() == before.tobytes()
        with pytest.raises(qnnbridge.errors.OptionError, match=r"ep\.dynamic\.workload_type"):
            session.set_ep_dynamic_options({"ep.dynamic.workload": "Efficient"})


# --- descriptions ----------------------------------------------------------------------------------------


def test_inputs_and_outputs_are_described_as_in_onnxruntime(arithmetic: Any) -> None:
    direct, bridged = arithmetic
    assert nodes(bridged.get_inputs()) == nodes(direct.get_inputs())
    assert nodes(bridged.get_outputs()) == nodes(direct.get_outputs())
    assert nodes(bridged.get_inputs())[0] == ("a", "tensor(float)", ["batch", 3])


@pytest.mark.parametrize("file", [path.name for path in sorted(MODELS.glob("*.onnx"))])
def test_real_models_are_described_as_in_onnxruntime(file: str, host: qnnbridge.Host) -> None:
    with two_sessions(host, MODELS / file) as (direct, bridged):
        assert nodes(bridged.get_inputs()) == nodes(direct.get_inputs())
        assert nodes(bridged.get_outputs()) == nodes(direct.get_outputs())
        assert bridged.get_modelmeta().custom_metadata_map == direct.get_modelmeta().custom_metadata_map


def test_the_metadata_of_the_model_arrives_complete(arithmetic: Any) -> None:
    theirs, ours = (session.get_modelmeta() for session in arithmetic)
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.custom_metadata_map == theirs.custom_metadata_map
    assert ours.custom_metadata_map["alphabet"] == "abcÄÖß語"


def test_overridable_initializers_are_listed_and_may_be_fed(host: qnnbridge.Host) -> None:
    made = model(
        [node("Mul", ["x", "factor"], ["y"])],
        [tensor("x", [2]), tensor("factor", [1])],
        [tensor("y", [2])],
        {"factor": np.array([3], np.float32)},
    )
    x = np.array([1, 2], np.float32)
    with two_sessions(host, made.SerializeToString()) as (direct, bridged):
        assert nodes(bridged.get_overridable_initializers()) == nodes(direct.get_overridable_initializers())
        assert [arg.name for arg in bridged.get_overridable_initializers()] == ["factor"]
        assert [arg.name for arg in bridged.get_inputs()] == [arg.name for arg in direct.get_inputs()] == ["x"]
        assert assert_same_run(direct, bridged, {"x": x})[0].tolist() == [3, 6]
        assert assert_same_run(direct, bridged, {"x": x, "factor": np.array([5], np.float32)})[0].tolist() == [
            5,
            10,
        ]


def test_providers_and_their_options_are_listed_as_in_onnxruntime(arithmetic: Any) -> None:
    direct, bridged = arithmetic
    assert bridged.get_providers() == direct.get_providers() == [CPU]
    assert bridged.get_provider_options() == direct.get_provider_options()


def test_the_provider_options_of_qnn_include_the_values_that_the_host_added(host: qnnbridge.Host) -> None:
    options = [{"htp_performance_mode": "burst"}]
    with qnnbridge.InferenceSession(MODELS / "q.onnx", provider_options=options, host=host) as session:
        assert session.get_providers()[0] == QNN
        shown = session.get_provider_options()[QNN]
    assert shown["htp_performance_mode"] == "burst"
    assert shown["soc_model"] == "60"
    assert os.path.isfile(shown["backend_path"])


def test_get_session_options_returns_the_given_options(host: qnnbridge.Host) -> None:
    def prepare(_: Any, options: Any) -> None:
        options.intra_op_num_threads = 1
        options.logid = "mine"

    with two_sessions(host, add_and_multiply().SerializeToString(), prepare) as sessions:
        theirs, ours = (session.get_session_options() for session in sessions)
    for name in ("intra_op_num_threads", "inter_op_num_threads", "logid", "enable_mem_pattern", "enable_profiling"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_profiling_writes_a_file_that_names_the_nodes(host: qnnbridge.Host, tmp_path: Path) -> None:
    def prepare(module: Any, options: Any) -> None:
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / f"profile of {module.__name__}")

    with two_sessions(host, add_and_multiply().SerializeToString(), prepare) as sessions:
        operators = []
        for session in sessions:
            session.run(None, FEEDS)
            assert session.get_profiling_start_time_ns() > 0
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            operators.append({event["args"]["op_name"] for event in events if "op_name" in event.get("args", {})})
    assert operators[0] == operators[1] == {"Add", "Mul", "Sub"}
    assert len(list(tmp_path.glob("profile of qnnbridge*.json"))) == 1


def test_a_profile_is_lost_with_its_host_and_the_error_reports_it(tmp_path: Path) -> None:
    options = qnnbridge.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    model = add_and_multiply().SerializeToString()
    with qnnbridge.Host() as host, qnnbridge.InferenceSession(model, options, [CPU], host=host) as session:
        session.run(None, FEEDS)
        host.restart()
        session.run(None, FEEDS)
        with pytest.raises(errors.StateLost, match="profile is lost"):
            session.end_profiling()
        since = Path(session.end_profiling())
        assert {event["name"] for event in json.loads(since.read_text(encoding="utf-8"))} >= {"model_run"}
        # Profiling that was ended is not started again by the next host.
        profiles = set(tmp_path.iterdir())
        host.restart()
        session.run(None, FEEDS)
        assert session.end_profiling() == ""
        assert set(tmp_path.iterdir()) == profiles


# --- set_providers ---------------------------------------------------------------------------------------


def test_set_providers_recreates_the_session(host: qnnbridge.Host) -> None:
    x = np.ones((3, 2), np.float32)
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", host=host) as session:
        on_qnn = session.run(None, {"X": x})
        assert session.placement.qnn_nodes == 1
        session.set_providers([CPU])
        assert session.get_providers() == [CPU]
        assert session.placement.qnn_nodes == 0
        assert session.run(None, {"X": x})[0].shape == on_qnn[0].shape


def test_providers_that_cannot_be_used_leave_the_session_unchanged(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODELS / "mul_1.onnx", providers=[CPU], host=host) as session:
        impossible: list[list[Any]] = [["CUDAExecutionProvider"], [(QNN, {"soc_model": "none"})], [5]]
        for wrong in impossible:
            with pytest.raises(qnnbridge.BridgeError):
                session.set_providers(wrong)
        assert session.get_providers() == [CPU]
        assert session.run(None, {"X": np.ones((3, 2), np.float32)})[0].shape == (3, 2)


def test_errors_are_also_instances_of_the_classes_of_an_imported_onnxruntime(arithmetic: Any) -> None:
    direct, bridged = arithmetic
    feeds = {"a": A, "b": np.ones((5, 3), np.float32)}
    with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
        direct.run(None, feeds)
    assert_same_error(caught.value, lambda: bridged.run(None, feeds))
    with pytest.raises(qnnbridge.BridgeError):
        bridged.run(None, feeds)


def test_an_option_that_only_the_library_knows_is_accepted_with_a_warning(
    host: qnnbridge.Host, caplog: pytest.LogCaptureFixture
) -> None:
    """`graph_name` is a string in every provider library, but not an option: it represents an option of a newer
    release.
    """
    options = {"graph_name": "1", "soc_model": "X Elite"}
    session = qnnbridge.InferenceSession(
        MODELS / "mul_1.onnx", host=host, providers=["QNNExecutionProvider"], provider_options=[options]
    )
    assert session.placement.soc_model == "60"
    assert is_logged(caplog, "'graph_name' is newer than qnnbridge's table")
