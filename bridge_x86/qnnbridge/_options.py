"""Everything that an application sets before a session or a run: the public face of the option modules."""

from __future__ import annotations

from qnnbridge._foreign_options import coerce_run_options, coerce_session_options
from qnnbridge._option_fields import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from qnnbridge._run_options import RunOptions
from qnnbridge._session_options import SessionOptions

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "RunOptions",
    "SessionOptions",
    "coerce_run_options",
    "coerce_session_options",
]
