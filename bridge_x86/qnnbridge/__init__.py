"""Run ONNX models on the Qualcomm NPU from any Python, in a supervised host process.

>>> import qnnbridge >>> session = qnnbridge.InferenceSession("model.onnx") >>> session.run(None, {"x": x})

The API is that of ``onnxruntime``, which need not be installed in the application. Each attribute is imported when
it is first used, so importing the package takes almost no time. PYTEST_DONT_REWRITE keeps pytest from rewriting
assertions in this module; see `qnnbridge_protocol`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol import __version__

if TYPE_CHECKING:
    from qnnbridge import errors
    from qnnbridge._buckets.padding import PaddingReport
    from qnnbridge._buckets.variants import BucketStatus
    from qnnbridge._compile import compile  # noqa: A004 - as in qnnbridge.compile(...)
    from qnnbridge._host import Host, HostStats, connect, default_host
    from qnnbridge._inference_session import InferenceSession
    from qnnbridge._io_binding import IOBinding
    from qnnbridge._options.fields import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OrtAllocatorType
    from qnnbridge._pull import pull
    from qnnbridge._session.create import CacheWarning
    from qnnbridge._session.numbers_check import NumbersWarning
    from qnnbridge._session.remote_runner import CpuFallbackWarning
    from qnnbridge._session.runs import LoraAdapter, ModelMetadata, NodeArg, RunOptions
    from qnnbridge._session_options import SessionOptions
    from qnnbridge._supervision.restart_policy import RecycleAfter, RestartPolicy
    from qnnbridge._values.ort_value import OrtValue, SparseTensor
    from qnnbridge.errors import BridgeError
    from qnnbridge_protocol.limits import Limits
    from qnnbridge_protocol.model_records import CacheStatus, CompileResult, NumbersReport
    from qnnbridge_protocol.specs import HostInfo, Placement
    from qnnbridge_protocol.tensors import Typed

_HOMES = {
    "BridgeError": "qnnbridge.errors",
    "BucketStatus": "qnnbridge._buckets.variants",
    "CacheStatus": "qnnbridge_protocol.model_records",
    "CacheWarning": "qnnbridge._session.create",
    "CompileResult": "qnnbridge_protocol.model_records",
    "CpuFallbackWarning": "qnnbridge._session.remote_runner",
    "ExecutionMode": "qnnbridge._options.fields",
    "ExecutionOrder": "qnnbridge._options.fields",
    "GraphOptimizationLevel": "qnnbridge._options.fields",
    "Host": "qnnbridge._host",
    "HostInfo": "qnnbridge_protocol.specs",
    "HostStats": "qnnbridge._host",
    "IOBinding": "qnnbridge._io_binding",
    "InferenceSession": "qnnbridge._inference_session",
    "Limits": "qnnbridge_protocol.limits",
    "LoraAdapter": "qnnbridge._session.runs",
    "ModelMetadata": "qnnbridge._session.runs",
    "NodeArg": "qnnbridge._session.runs",
    "NumbersReport": "qnnbridge_protocol.model_records",
    "NumbersWarning": "qnnbridge._session.numbers_check",
    "OrtAllocatorType": "qnnbridge._options.fields",
    "OrtValue": "qnnbridge._values.ort_value",
    "PaddingReport": "qnnbridge._buckets.padding",
    "Placement": "qnnbridge_protocol.specs",
    "RecycleAfter": "qnnbridge._supervision.restart_policy",
    "RestartPolicy": "qnnbridge._supervision.restart_policy",
    "RunOptions": "qnnbridge._session.runs",
    "SessionOptions": "qnnbridge._session_options",
    "SparseTensor": "qnnbridge._values.ort_value",
    "Typed": "qnnbridge_protocol.tensors",
    "compile": "qnnbridge._compile",
    "connect": "qnnbridge._host",
    "default_host": "qnnbridge._host",
    "pull": "qnnbridge._pull",
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
    "NumbersReport",
    "NumbersWarning",
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
    "pull",
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
