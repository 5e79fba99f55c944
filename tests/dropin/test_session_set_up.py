"""Decisions of a program before and during the creation of a session, compared with onnxruntime in this process.

They are devices selected by a function, cancelled loading, and global thread pools.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx
import onnxruntime as real
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as real_bindings

import qnnbridge
import qnnbridge.ort as ort
from qnnbridge._host import default_host
from qnnbridge.errors import Fail, ModelLoadCanceled, OptionError
from qnnbridge.ort.capi import onnxruntime_pybind11_state as bindings
from tests.dropin.wrong_uses import MUL as MODEL
from tests.fakes.hosts import fake_host, script

pytestmark = pytest.mark.process

CPU, QNN = "CPUExecutionProvider", "QNNExecutionProvider"
X = np.arange(6, dtype=np.float32).reshape(3, 2)
# The model multiplies by the numbers 1, 2, 3 and so on.
TRUTH = X * (X + 1)


def described() -> bytes:
    """Write a model with all kinds of metadata."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:], doc_string="inner")
    model = helper.make_model(
        graph,
        producer_name="pn",
        producer_version="pv",
        domain="dom",
        model_version=3,
        doc_string="größer",
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    model.metadata_props.add(key="a", value="b")
    model.metadata_props.add(key="domain", value="of the metadata")
    return bytes(model.SerializeToString())


def long_to_load() -> bytes:
    """Return a model that takes seconds to load, nearly all of them inside of ONNX Runtime."""
    names = ["x", *(f"t{number}" for number in range(14_000)), "y"]
    nodes = [helper.make_node("Add", [one, "c"], [other]) for one, other in itertools.pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [constant])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def chosen(module: Any, model: Any, delegate: Any, **keywords: Any) -> Any:
    """Return the providers of a session whose devices a function chooses, or class and text of the error."""
    options = module.SessionOptions()
    try:
        options.set_provider_selection_policy_delegate(delegate)
        return module.InferenceSession(model, options, **keywords).get_providers()
    except Exception as error:
        return type(error).__name__, str(error).split("\n", maxsplit=1)[0]


# --- devices chosen by a function ------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MODEL, described()], ids=["path", "bytes"])
def test_the_selection_function_gets_the_same_arguments_as_in_onnxruntime(model: str | bytes) -> None:
    got: dict[Any, Any] = {}

    def delegate_of(module: Any) -> Any:
        def delegate(devices: Any, metadata: Any, runtime: Any, most: int) -> Any:
            names = [device.ep_name for device in devices if device.ep_name != QNN]
            got[module] = (names, type(devices), metadata, list(metadata), runtime, most)
            return devices[-1:]

        return delegate

    assert chosen(ort, model, delegate_of(ort)) == chosen(real, model, delegate_of(real)) == [CPU]
    assert got[ort] == got[real]


def nonsense(result: Any) -> Any:
    return lambda *_: result


def raises(*_: Any) -> Any:
    raise LookupError("none of them")


@pytest.mark.parametrize(
    "delegate",
    [
        *map(nonsense, (None, [], [1], "x", (1,), {})),
        None,
        raises,
        lambda devices, *_: [devices[-1]] * 9,
        lambda devices, *_: [devices[-1]] * 2,
        list,  # takes no argument
    ],
)
def test_a_selection_function_with_an_invalid_result_raises_the_error_of_onnxruntime_and_the_next_session_works(
    delegate: Any,
) -> None:
    mine, native = chosen(ort, MODEL, delegate), chosen(real, MODEL, delegate)
    assert mine[0] == native[0]
    assert mine[1].split(" (")[0] == native[1].split(" (")[0]
    session = ort.InferenceSession(MODEL)
    assert np.array_equal(session.run(None, {"X": X})[0], TRUTH)


def test_the_exception_of_a_selection_function_is_the_cause_of_the_error() -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy_delegate(raises)
    with pytest.raises(Fail, match="delegate failed: LookupError: none of them") as caught:
        ort.InferenceSession(MODEL, options)
    assert isinstance(caught.value.__cause__, LookupError)


def test_an_object_that_is_not_a_function_is_refused_immediately() -> None:
    for module in (real, ort):
        with pytest.raises(TypeError, match=r"incompatible function arguments(.|\n)*Invoked with: .*, 3"):
            module.SessionOptions().set_provider_selection_policy_delegate(3)


def test_the_selection_function_is_not_called_if_providers_are_given() -> None:
    assert chosen(ort, MODEL, raises, providers=[CPU]) == [CPU]
    options = ort.SessionOptions()
    options.set_provider_selection_policy_delegate(raises)
    options.add_provider(CPU, {})
    assert ort.InferenceSession(MODEL, options).get_providers() == [CPU]


def test_an_invalid_model_is_reported_without_calling_the_function() -> None:
    kind, text = chosen(ort, b"no model", raises)
    assert (kind, "delegate" in text) == ("InvalidProtobuf", False)
    assert chosen(ort, "no/such/model.onnx", raises)[0] == chosen(real, "no/such/model.onnx", raises)[0]


@pytest.mark.simulator
def test_the_npu_can_be_chosen_and_the_choice_survives_a_restart_of_the_host() -> None:
    calls: list[int] = []

    def npu_first(devices: Any, *_: Any) -> Any:
        calls.append(len(devices))
        return [device for device in devices if device.ep_name == QNN]

    ort.register_execution_provider_library("of this test", "libonnxruntime_providers_qnn.so")
    try:
        options = ort.SessionOptions()
        options.set_provider_selection_policy_delegate(npu_first)
        assert options.has_providers()
        session = ort.InferenceSession(MODEL, options)
        assert session.get_providers()[0] == QNN
        os.kill(default_host().info.pid, signal.SIGKILL)
        assert np.allclose(session.run(None, {"X": X})[0], TRUTH, atol=1e-2)
        assert session.get_providers()[0] == QNN
    finally:
        ort.unregister_execution_provider_library("of this test")
    assert calls == [2]


def test_a_provider_selection_function_is_refused_without_devices_with_an_explanation() -> None:
    options = qnnbridge.SessionOptions()
    options.set_provider_selection_policy_delegate(raises)
    with fake_host() as host, pytest.raises(OptionError, match="function") as caught:
        qnnbridge.InferenceSession(script(), options, host=host)
    assert caught.value.fix


def test_a_gpu_of_qnn_uses_the_gpu_backend() -> None:
    hardware = ort.OrtHardwareDevice(ort.OrtHardwareDeviceType.GPU, "Qualcomm", 1, 2, {})
    gpu = ort.OrtEpDevice(QNN, "Qualcomm", {}, {}, hardware)
    options = qnnbridge.SessionOptions()
    options.add_provider_for_devices([gpu], {})
    (provider,) = options.to_spec_parts()["providers"]
    assert provider.options == {"backend_type": "gpu"}
    options = qnnbridge.SessionOptions()
    options.add_provider_for_devices([gpu], {"backend_path": "libQnnCpu.so"})
    assert options.to_spec_parts()["providers"][0].options == {"backend_path": "libQnnCpu.so"}


# --- metadata --------------------------------------------------------------------------------------------


# An entry of the metadata, and another field: one longer than the rest, and one longer than any file.
@pytest.mark.parametrize("begin", [b"\x72\x7f", b"\x72" + b"\x80" * 9 + b"\x01", b"\x0a" + b"\x80" * 9 + b"\x01"])
def test_metadata_of_a_file_that_is_not_a_model_is_refused_with_an_explanation(begin: bytes) -> None:
    with pytest.raises(RuntimeError, match="not in ONNX's format"):
        bindings.get_compatibility_info_from_model_bytes(begin + b"x", QNN)


def test_compatibility_information_may_be_long(tmp_path: Path) -> None:
    model, path = onnx.load_model_from_string(described()), tmp_path / "m.onnx"
    helper.set_model_props(model, {f"ep_compatibility_info.{QNN}": "v" * 100_000})
    onnx.save(model, path)
    for module in (bindings, real_bindings):
        assert module.get_compatibility_info_from_model(str(path), QNN) == "v" * 100_000
        assert module.get_compatibility_info_from_model(str(path), CPU) is None


def test_a_function_that_chooses_devices_gets_long_metadata() -> None:
    model = onnx.load_model_from_string(described())
    helper.set_model_props(model, {"long": "v" * 100_000})
    got = []

    def delegate(devices: Any, metadata: Any, *_: Any) -> Any:
        got.append(metadata["long"])
        return devices[-1:]

    for module in (real, ort):
        assert chosen(module, model.SerializeToString(), delegate) == [CPU]
    assert got == ["v" * 100_000] * 2


# --- cancelled loading -----------------------------------------------------------------------------------


def test_a_set_cancellation_flag_refuses_sessions_until_it_is_cleared() -> None:
    for module in (real, ort):
        options = module.SessionOptions()
        options.set_load_cancellation_flag(True)
        with pytest.raises(Exception, match=r"12 : MODEL_LOAD_CANCELED : Load model from .*mul_1.onnx") as caught:
            module.InferenceSession(MODEL, options, providers=[CPU])
        assert type(caught.value).__name__ == "ModelLoadCanceled"
        options.set_load_cancellation_flag(False)
        assert module.InferenceSession(MODEL, options, providers=[CPU]).get_providers() == [CPU]


def test_another_thread_can_stop_loading_inside_of_native_code() -> None:
    """ONNX Runtime needs seconds for fourteen thousand nodes; the flag ends loading in a fraction of that time."""
    model, options = long_to_load(), ort.SessionOptions()
    with qnnbridge.Host() as host:
        host.start()
        generation = host.info.generation
        begun = time.monotonic()
        qnnbridge.InferenceSession(model, host=host, providers=[CPU]).close()
        whole_s = time.monotonic() - begun
        timer = threading.Timer(whole_s / 10, options.set_load_cancellation_flag, (True,))
        begun = time.monotonic()
        timer.start()
        with pytest.raises(ModelLoadCanceled, match="canceled due to user request"):
            qnnbridge.InferenceSession(model, options, host=host, providers=[CPU])
        assert time.monotonic() - begun < whole_s * 0.7
        timer.join()
        with qnnbridge.InferenceSession(MODEL, host=host, providers=[CPU]) as session:
            assert np.array_equal(session.run(None, {"X": X})[0], TRUTH)
        assert host.call({"op": "host.stats"}).header["sessions"] == 0
        assert host.info.generation == generation


def test_an_open_session_is_recreated_even_if_the_flag_is_set() -> None:
    options = qnnbridge.SessionOptions()
    with fake_host() as host, qnnbridge.InferenceSession(script(), options, host=host) as session:
        before = session.run(None, {"x": X[0]})
        options.set_load_cancellation_flag(True)
        os.kill(host.info.pid, signal.SIGKILL)
        assert np.array_equal(session.run(None, {"x": X[0]}), before)


# --- global thread pools ---------------------------------------------------------------------------------

POOLS = """
import sys
import numpy as np
from MODULE import InferenceSession, SessionOptions, get_available_providers, set_global_thread_pool_sizes

def tried(call):
    try:
        call()
        print("done")
    except Exception as error:
        print(type(error).__name__, str(error).split("::", 1)[0].split(":", 1)[0])

get_available_providers()
tried(lambda: set_global_thread_pool_sizes("x", 1))
tried(lambda: set_global_thread_pool_sizes(2**31, 1))
tried(lambda: set_global_thread_pool_sizes(inter_op_num_threads=1, intra_op_num_threads=2))
tried(lambda: set_global_thread_pool_sizes(3, 3))
tried(lambda: InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"], enable_fallback=0))
options = SessionOptions()
options.use_per_session_threads = False
session = InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(session.run(None, {"X": np.ones((3, 2), np.float32)})[0].tolist())
"""


def test_global_thread_pools_are_those_of_onnxruntime() -> None:
    told = {}
    for module in ("onnxruntime", "qnnbridge.ort"):
        command = [sys.executable, "-c", POOLS.replace("MODULE", module), MODEL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
        told[module] = [
            line for line in done.stdout.splitlines() if not line.startswith(("*", "EP Error", "Falling"))
        ]
    assert [line.replace("Remote", "") for line in told["qnnbridge.ort"]] == told["onnxruntime"]


@pytest.mark.simulator
def test_global_thread_pools_are_refused_if_the_host_already_has_sessions() -> None:
    session = ort.InferenceSession(MODEL)
    with pytest.raises(OptionError, match="after a session"):
        ort.set_global_thread_pool_sizes(1, 1)
    assert np.array_equal(session.run(None, {"X": X})[0], TRUTH)
