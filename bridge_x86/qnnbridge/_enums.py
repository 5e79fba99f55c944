"""The enumerations of ONNX Runtime that an application passes in or gets back, by its names and numbers.

They are `IntEnum`, so they compare with numbers and travel as numbers. Some of ONNX Runtime's own do not compare
with numbers; nothing that works with those breaks with these. ``str()`` gives ``Class.MEMBER`` as there, on every
Python version.
"""

from __future__ import annotations

import enum

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "ModelPackageWriteMode",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
]


class _OrtEnum(enum.IntEnum):
    __str__ = enum.Enum.__str__
    __format__ = enum.Enum.__format__  # an IntEnum would format as its number


class GraphOptimizationLevel(_OrtEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_OrtEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_OrtEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_OrtEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_OrtEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(_OrtEnum):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(_OrtEnum):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(_OrtEnum):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(_OrtEnum):
    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtSparseFormat(_OrtEnum):
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class ModelPackageWriteMode(_OrtEnum):
    """Since ONNX Runtime 1.32."""

    PRESERVE = 0
    DENSE = 1


class OrtCompileApiFlags(enum.IntFlag):
    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtDeviceVendorId(enum.IntEnum):
    """PCI vendor numbers of devices."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086
