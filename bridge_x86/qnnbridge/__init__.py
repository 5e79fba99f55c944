"""Run ONNX models on the Qualcomm NPU from any Python, in a supervised host process.

>>> import qnnbridge
>>> session = qnnbridge.InferenceSession("model.onnx")
>>> session.run(None, {"x": x})

The names are those of ``onnxruntime``; the application needs no onnxruntime. Each name is imported when it is first
used, so importing the package itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol._version import __version__

if TYPE_CHECKING:
    from qnnbridge import errors
    from qnnbridge.buckets.status import BucketStatus
    from qnnbridge.buckets.verifying import PaddingReport
    from qnnbridge.cache.status import CacheStatus, CacheWarning
    from qnnbridge.compiling.compile import compile  # noqa: A004 - as in qnnbridge.compile(...)
    from qnnbridge.compiling.result import CompileResult
    from qnnbridge.daemon.connect import connect
    from qnnbridge.errors import BridgeError
    from qnnbridge.host import Host, HostInfo, HostStats, default_host
    from qnnbridge.io_binding import IOBinding
    from qnnbridge.lora import LoraAdapter
    from qnnbridge.node import ModelMetadata, NodeArg
    from qnnbridge.options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        OrtAllocatorType,
        RunOptions,
        SessionOptions,
    )
    from qnnbridge.ort_value import OrtValue
    from qnnbridge.session import CpuFallbackWarning, InferenceSession
    from qnnbridge.sparse_tensor import SparseTensor
    from qnnbridge.supervision.recycling import RecycleAfter
    from qnnbridge.supervision.restart_policy import RestartPolicy
    from qnnbridge_protocol.limits import Limits
    from qnnbridge_protocol.specs import Placement
    from qnnbridge_protocol.typed import Typed

_HOMES = {
    "BridgeError": "qnnbridge.errors",
    "BucketStatus": "qnnbridge.buckets.status",
    "CacheStatus": "qnnbridge.cache.status",
    "CacheWarning": "qnnbridge.cache.status",
    "CompileResult": "qnnbridge.compiling.result",
    "CpuFallbackWarning": "qnnbridge.session",
    "ExecutionMode": "qnnbridge.options",
    "ExecutionOrder": "qnnbridge.options",
    "GraphOptimizationLevel": "qnnbridge.options",
    "Host": "qnnbridge.host",
    "HostInfo": "qnnbridge.host",
    "HostStats": "qnnbridge.host",
    "IOBinding": "qnnbridge.io_binding",
    "InferenceSession": "qnnbridge.session",
    "Limits": "qnnbridge_protocol.limits",
    "LoraAdapter": "qnnbridge.lora",
    "ModelMetadata": "qnnbridge.node",
    "NodeArg": "qnnbridge.node",
    "OrtAllocatorType": "qnnbridge.options",
    "OrtValue": "qnnbridge.ort_value",
    "PaddingReport": "qnnbridge.buckets.verifying",
    "Placement": "qnnbridge_protocol.specs",
    "RecycleAfter": "qnnbridge.supervision.recycling",
    "RestartPolicy": "qnnbridge.supervision.restart_policy",
    "RunOptions": "qnnbridge.options",
    "SessionOptions": "qnnbridge.options",
    "SparseTensor": "qnnbridge.sparse_tensor",
    "Typed": "qnnbridge_protocol.typed",
    "compile": "qnnbridge.compiling.compile",
    "connect": "qnnbridge.daemon.connect",
    "default_host": "qnnbridge.host",
}

__all__ = [
    "BridgeError",
    "BucketStatus",
    "CacheStatus",
    "CacheWarning",
    "CompileResult",
    "CpuFallbackWarning",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "Host",
    "HostInfo",
    "HostStats",
    "IOBinding",
    "InferenceSession",
    "Limits",
    "LoraAdapter",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtValue",
    "PaddingReport",
    "Placement",
    "RecycleAfter",
    "RestartPolicy",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "Typed",
    "__version__",
    "compile",
    "connect",
    "default_host",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("qnnbridge.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'qnnbridge' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
