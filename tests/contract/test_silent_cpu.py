"""Every way in which ONNX Runtime silently runs a model on the CPU that was meant for QNN is an error here.

If the application allows the CPU, the placement and a warning report it. In both cases the message contains the
real cause, which ONNX Runtime writes only to its log.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from tests.contract.small_models import CPU, MODELS, QNN, model, node, tensor

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODEL = MODELS / "mul_1.onnx"
X = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def garbage(tmp_path: Path) -> dict[str, str]:
    """Return a backend that exists but cannot be loaded."""
    library = tmp_path / "libQnnHtp.so"
    library.write_bytes(b"this is no library" * 100)
    return {"backend_path": str(library)}


# --- QNN does not start ----------------------------------------------------------------------------------

NOT_STARTED: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "unknown chip": (
        {"soc_model": "9999"},
        ("QNN SetupBackend failed", "QNN_DEVICE_ERROR_INVALID_CONFIG", "Check soc_model"),
    ),
    "unknown device": ({"device_id": "7"}, ("Could not find device with ID = 7", "device_id")),
}


@pytest.mark.parametrize("reason", NOT_STARTED)
def test_a_backend_that_does_not_start_is_an_error_with_its_cause(reason: str, host: qnnbridge.Host) -> None:
    options, words = NOT_STARTED[reason]
    with pytest.raises(errors.PlacementRefused) as caught:
        qnnbridge.InferenceSession(MODEL, provider_options=[options], host=host)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_backend_that_cannot_be_loaded_is_an_error_with_its_cause(
    garbage: dict[str, str], host: qnnbridge.Host
) -> None:
    with pytest.raises(errors.PlacementRefused) as caught:
        qnnbridge.InferenceSession(MODEL, provider_options=[garbage], host=host)
    assert "QNN SetupBackend failed Unable to load backend" in str(caught.value)
    assert garbage["backend_path"] in (caught.value.cause or "")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"soc_model": "9999"}, "QNN_DEVICE_ERROR_INVALID_CONFIG"),
        ({"device_id": "7"}, "A QNN device with the number 7"),
    ],
    ids=["unknown chip", "unknown device"],
)
def test_the_cause_is_reported_if_the_cpu_is_allowed(
    options: dict[str, str], cause: str, host: qnnbridge.Host
) -> None:
    with pytest.warns(qnnbridge.CpuFallbackWarning, match=cause) as told:
        session = qnnbridge.InferenceSession(MODEL, provider_options=[options], fallback="cpu", host=host)
    assert told[0].filename == __file__
    assert (session.placement.qnn_nodes, session.placement.cpu_nodes) == (0, 1)
    assert cause in (session.placement.cause or "")
    # ONNX Runtime still lists QNN, so its list proves nothing.
    assert QNN in session.get_providers()
    assert session.run(None, {"X": X})[0].shape == X.shape
    session.close()


@pytest.mark.parametrize("fallback", ["error", "cpu"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend_path": "/nowhere/libQnnHtp.so"}, "the file /nowhere/libQnnHtp.so does not exist"),
        ({"backend_type": "cpu"}, "has no library for this backend"),
        ({"qnn_context_priority": "urgent"}, "cannot be 'urgent'"),
        ({"htp_arch": "seventy-three"}, "cannot be 'seventy-three'"),
    ],
    ids=["missing backend", "backend without a library", "unknown priority", "unknown architecture"],
)
def test_options_that_would_silently_use_the_cpu_are_refused(
    options: dict[str, str], words: str, fallback: Any, host: qnnbridge.Host
) -> None:
    with pytest.raises(errors.OptionError, match=words):
        qnnbridge.InferenceSession(MODEL, provider_options=[options], fallback=fallback, host=host)


@pytest.mark.parametrize("fallback", ["error", "cpu"])
def test_the_python_fallback_of_onnx_runtime_is_off(fallback: Any, host: qnnbridge.Host) -> None:
    """onnxruntime prints "Falling back to ['CPUExecutionProvider'] and retrying." and returns a CPU session."""
    options = [{"enable_htp_shared_memory_allocator": "1"}]  # a backend that needs the driver of a real NPU
    with pytest.raises(qnnbridge.BridgeError, match="creating QNN EP") as caught:
        qnnbridge.InferenceSession(MODEL, provider_options=options, enable_fallback=1, fallback=fallback, host=host)
    assert "enable_htp_shared_memory_allocator" in (caught.value.cause or "")


# --- QNN does not support the nodes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model_v8.onnx", "input 'input_1': N"),
        ("pnet.onnx", "input 'input_1': N, M1, M2"),
        ("ch_ppocr_mobile_v2.0_cls_infer.onnx", "input 'x': "),
    ],
)
def test_a_dynamic_model_is_refused_or_reported(file: str, words: str, host: qnnbridge.Host) -> None:
    """With a dynamic batch ONNX Runtime logs nothing at all."""
    with pytest.raises(errors.PlacementRefused, match=words):
        qnnbridge.InferenceSession(MODELS / file, host=host)
    with pytest.warns(qnnbridge.CpuFallbackWarning, match=words):
        session = qnnbridge.InferenceSession(MODELS / file, fallback="cpu", host=host)
    assert session.placement.qnn_nodes == 0
    session.close()


def partly_for_qnn() -> bytes:
    """Return a model with Relu, which QNN supports, then Det, which it does not."""
    made = model(
        [node("Relu", ["x"], ["r"], name="relu"), node("Det", ["r"], ["y"], name="det")],
        [tensor("x", [2, 3, 3])],
        [tensor("y", [2])],
    )
    return bytes(made.SerializeToString())


def test_the_refusal_of_a_single_node_on_the_cpu_names_the_node(host: qnnbridge.Host) -> None:
    with pytest.raises(errors.PlacementRefused) as caught:
        qnnbridge.InferenceSession(partly_for_qnn(), host=host)
    assert "1 of 2 nodes" in caught.value.message
    assert "Operators of type `Det` are not supported by QNN EP" in str(caught.value)


@pytest.mark.parametrize("how", [{"fallback": "cpu"}, {"providers": [QNN, CPU]}], ids=str)
def test_each_node_on_the_cpu_is_listed_if_the_cpu_is_allowed(how: dict[str, Any], host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(partly_for_qnn(), host=host, **how) as session:
        placement = session.placement
    assert (placement.qnn_nodes, placement.cpu_nodes, placement.partitions) == (1, 1, 1)
    assert placement.cpu_list == (("det", "Det"),)
    assert "Det (det)" in (placement.cause or "")


# --- the ways in which examples request QNN --------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"providers": [QNN]},
        {"providers": [(QNN, {"soc_model": "60"})]},
        {"providers": [QNN, CPU]},
        {"providers": [(QNN, {"backend_path": "libQnnHtp.so"}), CPU]},
        {"providers": [QNN], "provider_options": [{"backend_type": "htp"}]},
    ],
    ids=str,
)
def test_every_way_to_request_qnn_uses_qnn(arguments: dict[str, Any], host: qnnbridge.Host) -> None:
    """With the plugin, onnxruntime's ``providers=["QNNExecutionProvider"]`` creates a CPU session."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with qnnbridge.InferenceSession(MODEL, host=host, **arguments) as session:
            assert (session.placement.qnn_nodes, session.placement.cpu_nodes) == (1, 0)
            assert session.placement.backend == "htp"


def test_qnn_after_the_cpu_is_refused_because_it_would_get_no_node(host: qnnbridge.Host) -> None:
    with pytest.raises(errors.OptionError, match="comes before QNNExecutionProvider"):
        qnnbridge.InferenceSession(MODEL, providers=[CPU, QNN], host=host)


def test_a_session_that_requests_only_the_cpu_is_not_a_fallback(host: qnnbridge.Host) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with qnnbridge.InferenceSession(MODEL, providers=[CPU], host=host) as session:
            assert (session.placement.qnn_nodes, session.placement.cpu_nodes) == (0, 1)


def test_a_session_on_the_saver_backend_warns_that_its_outputs_are_not_results(tmp_path: Path) -> None:
    """The saver claims all nodes like QNN, but returns garbage. It writes into the working folder."""
    options = [{"backend_path": "libQnnSaver.so"}]
    with qnnbridge.Host(cwd=tmp_path) as host:
        with pytest.warns(RuntimeWarning, match="are not results") as caught:
            session = qnnbridge.InferenceSession(MODEL, provider_options=options, host=host)
        assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name], "it names our line"
        assert session.placement.backend == "saver"
        assert "are not results" in (session.placement.cause or "")


# --- an incomplete installation --------------------------------------------------------------------------

HostWithout = Callable[[Collection[str]], qnnbridge.Host]


@pytest.fixture
def host_without(tmp_path: Path) -> HostWithout:
    """Return a host whose onnxruntime-qnn lacks files, or the folder of its libraries. All else is linked."""
    import onnxruntime_qnn

    def make(missing: Collection[str]) -> qnnbridge.Host:
        package = Path(onnxruntime_qnn.__file__).parent
        (tmp_path / package.name).mkdir()
        for file in package.iterdir():
            if file.name not in missing and file.name != "__pycache__":
                (tmp_path / package.name / file.name).symlink_to(file)
        for sibling in package.parent.glob(f"{package.name}[-.]*"):
            if sibling.name not in missing:
                (tmp_path / sibling.name).symlink_to(sibling)
        code = (
            f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); "
            "runpy.run_module('qnnbridge_host', run_name='__main__')"
        )
        command = [sys.executable, "-I", "-u", "-X", "utf8", "-c", code, "--parent", str(os.getpid())]
        return qnnbridge.Host(_command=command)

    return make


def refusal(host: qnnbridge.Host, source: Path = MODEL) -> str:
    with pytest.raises(qnnbridge.BridgeError) as caught:
        qnnbridge.InferenceSession(source, host=host)
    return str(caught.value)


def test_the_linked_installation_works_when_nothing_is_missing(host_without: HostWithout) -> None:
    """Otherwise the tests below would prove nothing."""
    with host_without(()) as host, qnnbridge.InferenceSession(MODEL, host=host) as session:
        assert session.placement.qnn_nodes == 1


def test_the_error_for_a_missing_library_folder_names_it(host_without: HostWithout) -> None:
    with host_without(["onnxruntime_qnn.libs"]) as host:
        text = refusal(host)
        assert "libc++" in text
        assert "onnxruntime_qnn.libs" in text
        assert "Reinstall onnxruntime-qnn" in text
        with pytest.warns(qnnbridge.CpuFallbackWarning, match=r"libc\+\+"):
            session = qnnbridge.InferenceSession(MODEL, fallback="cpu", host=host)
        assert session.placement.qnn_nodes == 0


def test_the_error_for_a_missing_provider_library_names_it(host_without: HostWithout) -> None:
    library = "libonnxruntime_providers_qnn.so"
    with host_without([library]) as host:
        text = refusal(host)
        assert library in text
        assert "Reinstall onnxruntime-qnn" in text
        with qnnbridge.InferenceSession(MODEL, providers=[CPU], host=host) as session:
            assert session.run(None, {"X": X})[0].shape == X.shape


def test_the_error_for_a_missing_backend_library_names_it(host_without: HostWithout) -> None:
    with host_without(["libQnnHtp.so"]) as host:
        with pytest.raises(qnnbridge.BridgeError, match="default backend path") as caught:
            qnnbridge.InferenceSession(MODEL, host=host)
        assert "libQnnHtp.so" in (caught.value.cause or "")
        assert "Reinstall onnxruntime-qnn" in (caught.value.fix or "")


def test_the_error_for_a_missing_system_library_names_the_libraries_that_need_it(
    host_without: HostWithout, tmp_path: Path
) -> None:
    """Models run without the library; compiled ones are neither written nor read, and ONNX Runtime does not report
    why.
    """
    with host_without(["libQnnSystem.so"]) as host:
        with qnnbridge.InferenceSession(MODEL, host=host) as session:
            assert session.placement.qnn_nodes == 1
        options = qnnbridge.SessionOptions()
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(tmp_path / "compiled.onnx"))
        with pytest.raises(qnnbridge.BridgeError, match=r"libQnnSystem\.so"):
            qnnbridge.InferenceSession(MODEL, options, host=host)
