"""Models for the engine's tests, made with onnx.helper, and sessions made directly for comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tests.fakes.models import FLOAT, MODELS, Shape, model, node, tensor

from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

__all__ = ["FLOAT", "MODELS"]

QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"


def value(name: str, of: onnx.TypeProto) -> onnx.ValueInfoProto:
    return helper.make_value_info(name, of)


def relu(shape: Shape = (1, 4)) -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], [tensor("x", shape)], [tensor("y", shape)])


def relu_then_det() -> onnx.ModelProto:
    """Return a model with one node that QNN supports and one, Det, that it does not."""
    return model(
        [node("Relu", ["x"], ["r"], name="relu"), node("Det", ["r"], ["y"], name="det")],
        [tensor("x", [2, 3, 3])],
        [tensor("y", [2])],
    )


def quantized_relu() -> onnx.ModelProto:
    """Return a model with Q and DQ at its inputs and outputs, which only a session that allows the CPU leaves to
    the CPU.
    """
    constants = {"s": np.float32(0.05).reshape(()), "z": np.uint8(128).reshape(())}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("Relu", ["xd"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        node("DequantizeLinear", ["rq", "s", "z"], ["y"]),
    ]
    return model(nodes, [tensor("x", [1, 8])], [tensor("y", [1, 8])], constants)


def identity(element: int, shape: Shape = (None,), opset: int = 21) -> onnx.ModelProto:
    nodes = [node("Identity", ["x"], ["y"])]
    return model(nodes, [tensor("x", shape, element)], [tensor("y", shape, element)], opset=opset)


def make_spec(source: Any, *, provider: str | None = QNN, options: Any = None, **fields: Any) -> tuple[Any, Any]:
    """Return a SessionSpec, and the model's bytes unless the model is a file.

    Args:
        options: options of the provider.
        settings: value of the field ``options`` of SessionSpec.
        fields: further fields of SessionSpec.
    """
    data = None
    if isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    if isinstance(source, (bytes, bytearray, memoryview)):
        source, data = None, source
    if provider is not None:
        fields.setdefault("providers", (ProviderSpec(provider, options or {}),))
    if "settings" in fields:
        fields["options"] = fields.pop("settings")
    return SessionSpec(None if source is None else os.fspath(source), **fields), data


def direct_session(source: Any, **qnn_options: str) -> Any:
    """Return the same session created with ONNX Runtime alone: strict, on QNN."""
    import onnxruntime as ort
    import onnxruntime_qnn

    devices = [device for device in ort.get_ep_devices() if device.ep_name == QNN]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    given = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60", **qnn_options}
    options.add_provider_for_devices(devices, given)
    if isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    return ort.InferenceSession(source, options, enable_fallback=0)


def direct_cpu_session(source: Any) -> Any:
    import onnxruntime as ort

    if isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    return ort.InferenceSession(source, providers=[CPU], enable_fallback=0)


def random_feeds(session: Any, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return float inputs for a session; free dimensions get the given sizes, or 2."""
    rng = np.random.default_rng(7)
    sizes = sizes or {}
    return {
        info.name: rng.random([d if isinstance(d, int) else sizes.get(d, 2) for d in info.shape], dtype=np.float32)
        for info in session.info.inputs
    }


def assert_same(left: Any, right: Any) -> None:
    """Assert that both are equal bit for bit, and in type, dtype and shape."""
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        if left.dtype == object:
            assert left.tolist() == right.tolist()
        else:
            assert left.tobytes() == right.tobytes()
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right
