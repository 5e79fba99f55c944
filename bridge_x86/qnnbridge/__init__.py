"""Run ONNX models on the Qualcomm NPU from any Python, in a supervised host process.

>>> import qnnbridge
>>> session = qnnbridge.InferenceSession("model.onnx")
>>> session.run(None, {"x": x})

The names are those of ``onnxruntime``; the application needs no onnxruntime. Importing this package loads numpy
and nothing else that is heavy.
"""

from qnnbridge import errors
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
from qnnbridge.ort_value import OrtValue, SparseTensor
from qnnbridge.session import CpuFallbackWarning, InferenceSession
from qnnbridge.supervision.recycling import RecycleAfter
from qnnbridge.supervision.restart_policy import RestartPolicy
from qnnbridge_protocol._version import __version__
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.specs import Placement
from qnnbridge_protocol.values import Typed

__all__ = [
    "BridgeError",
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
    "Placement",
    "RecycleAfter",
    "RestartPolicy",
    "RunOptions",
    "SessionOptions",
    "SparseTensor",
    "Typed",
    "__version__",
    "default_host",
    "errors",
]
