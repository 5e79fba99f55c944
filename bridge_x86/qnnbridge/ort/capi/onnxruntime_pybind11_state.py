"""``onnxruntime.capi.onnxruntime_pybind11_state``: error classes, and what ONNX Runtime defines natively."""

from __future__ import annotations

from typing import Any

from qnnbridge_protocol.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,  # noqa: A004 - ONNX Runtime's own name
    RuntimeException,
)

__all__ = [
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
]


def __getattr__(name: str) -> Any:
    from qnnbridge import ort

    if name in ort.__all__:
        return getattr(ort, name)
    from qnnbridge.ort._errors import missing

    raise missing("onnxruntime.capi.onnxruntime_pybind11_state", name)
