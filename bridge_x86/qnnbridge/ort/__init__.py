"""The surface of the module ``onnxruntime``, answered by the host: ``import qnnbridge.ort as onnxruntime``.

Same names, argument order, defaults and error classes. What cannot cross a process is refused in words, and a
name that ONNX Runtime has and this module lacks says so (`missing`). Each name is imported when it is first used;
nothing here starts the host until an answer of it is needed. `qnnbridge.dropin` puts this module in the place of
``onnxruntime`` itself. Once imported, errors read as ONNX Runtime's do (`errors`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import speak_like_onnxruntime as _speak_like_onnxruntime

_speak_like_onnxruntime()

if TYPE_CHECKING:
    from qnnbridge._lora import LoraAdapter
    from qnnbridge._node import ModelMetadata, NodeArg
    from qnnbridge._option_fields import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        ModelPackageWriteMode,
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
    from qnnbridge.ort._compiler import ModelCompiler
    from qnnbridge.ort._environment import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        print_debug_info,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
    )
    from qnnbridge.ort._ep_devices import (
        OrtEpDevice,
        OrtHardwareDevice,
        get_ep_devices,
        register_execution_provider_library,
        unregister_execution_provider_library,
    )
    from qnnbridge.ort._memory import (
        OrtArenaCfg,
        OrtMemoryInfo,
        copy_tensors,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from qnnbridge.ort._placement import OrtEpAssignedNode, OrtEpAssignedSubgraph
    from qnnbridge.ort._refused import (
        AdapterFormat,
        ModelPackage,
        ModelPackageComponentContext,
        ModelPackageContext,
        ModelPackageOptions,
        OrtEpContextData,
        OrtEpContextDataBuffer,
        OrtExternalInitializerInfo,
        OrtSyncStream,
    )
    from qnnbridge.ort._session import InferenceSession, IOBinding, SessionIOBinding
    from qnnbridge.ort._values import OrtDevice, OrtValue, SparseTensor

_ENUMS = (
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
)
_ENVIRONMENT = (
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
)
_EP_DEVICES = (
    "OrtEpDevice",
    "OrtHardwareDevice",
    "get_ep_devices",
    "register_execution_provider_library",
    "unregister_execution_provider_library",
)
_MEMORY = (
    "OrtArenaCfg",
    "OrtMemoryInfo",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
)
_REFUSED = (
    "AdapterFormat",
    "ModelPackage",
    "ModelPackageComponentContext",
    "ModelPackageContext",
    "ModelPackageOptions",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtExternalInitializerInfo",
    "OrtSyncStream",
)

_HOMES: dict[str, str] = {
    **dict.fromkeys(_ENUMS, "qnnbridge._option_fields"),
    **dict.fromkeys(_ENVIRONMENT, "qnnbridge.ort._environment"),
    **dict.fromkeys(_EP_DEVICES, "qnnbridge.ort._ep_devices"),
    **dict.fromkeys(_MEMORY, "qnnbridge.ort._memory"),
    **dict.fromkeys(_REFUSED, "qnnbridge.ort._refused"),
    **dict.fromkeys(("OrtEpAssignedNode", "OrtEpAssignedSubgraph"), "qnnbridge.ort._placement"),
    **dict.fromkeys(("InferenceSession", "IOBinding", "SessionIOBinding"), "qnnbridge.ort._session"),
    **dict.fromkeys(("OrtDevice", "OrtValue", "SparseTensor"), "qnnbridge.ort._values"),
    "LoraAdapter": "qnnbridge._lora",
    "ModelCompiler": "qnnbridge.ort._compiler",
    "ModelMetadata": "qnnbridge._node",
    "NodeArg": "qnnbridge._node",
    "RunOptions": "qnnbridge._run_options",
    "SessionOptions": "qnnbridge._session_options",
}
_SUBMODULES = ("backend", "capi", "datasets")

__all__ = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelCompiler",
    "ModelMetadata",
    "ModelPackage",
    "ModelPackageComponentContext",
    "ModelPackageContext",
    "ModelPackageOptions",
    "ModelPackageWriteMode",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
]

# Of the package, as applications read them.
import_capi_exception = None
cuda_version = ""
package_name = "onnxruntime"
__author__ = "Microsoft"


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value
    if name in ("__version__", "version"):
        from qnnbridge.ort._environment import host_version

        return host_version()
    from qnnbridge.ort._missing import missing

    raise missing("onnxruntime", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES, "__version__", "version"})
