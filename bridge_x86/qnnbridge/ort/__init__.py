"""The surface of the module ``onnxruntime``, answered by the host: ``import qnnbridge.ort as onnxruntime``.

Same names, argument order, defaults and error classes. What cannot cross a process is refused with a reason, and a
name that ONNX Runtime has and this module lacks says so (`missing`). Each name is imported when it is first used;
nothing here starts the host until an answer of it is needed. `qnnbridge.dropin` puts this module in place of
``onnxruntime`` itself. Once imported, errors read as ONNX Runtime's do (`errors`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import OrtError
from qnnbridge_protocol.errors import speak_like_onnxruntime as _speak_like_onnxruntime

_speak_like_onnxruntime()

if TYPE_CHECKING:
    from qnnbridge._ep_context import OrtEpContextData, OrtEpContextDataBuffer, OrtExternalInitializerInfo
    from qnnbridge._io_binding import IOBinding
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
    from qnnbridge._ort_value import OrtValue
    from qnnbridge._providers import OrtDevice
    from qnnbridge._session.run_options import LoraAdapter, RunOptions
    from qnnbridge._session_options import SessionOptions
    from qnnbridge._sparse_tensor import SparseTensor
    from qnnbridge.ort._compiler import ModelCompiler
    from qnnbridge.ort._environment import (
        OrtEpDevice,
        OrtHardwareDevice,
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_ep_devices,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        print_debug_info,
        register_execution_provider_library,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
        unregister_execution_provider_library,
    )
    from qnnbridge.ort._file_formats import (
        AdapterFormat,
        ModelPackage,
        ModelPackageComponentContext,
        ModelPackageContext,
        ModelPackageOptions,
    )
    from qnnbridge.ort._memory import (
        OrtArenaCfg,
        OrtMemoryInfo,
        OrtSyncStream,
        copy_tensors,
        create_and_register_allocator,
        create_and_register_allocator_v2,
    )
    from qnnbridge.ort._native import NativeIOBinding as SessionIOBinding
    from qnnbridge.ort._providers import OrtEpAssignedNode, OrtEpAssignedSubgraph
    from qnnbridge.ort._session import InferenceSession

# Where each name is, apart from those of `__all__` that are in here.
_HOMES: dict[str, str] = {
    name: home
    for home, names in {
        "qnnbridge._option_fields": (
            "ExecutionMode ExecutionOrder GraphOptimizationLevel ModelPackageWriteMode OrtAllocatorType "
            "OrtCompileApiFlags OrtDeviceMemoryType OrtDeviceVendorId OrtExecutionProviderDevicePolicy "
            "OrtHardwareDeviceType OrtMemType OrtMemoryInfoDeviceType OrtSparseFormat"
        ),
        "qnnbridge.ort._environment": (
            "OrtEpDevice OrtHardwareDevice disable_telemetry_events enable_telemetry_events get_all_providers "
            "get_available_providers get_build_info get_device get_ep_devices get_version_string "
            "has_collective_ops preload_dlls print_debug_info register_execution_provider_library "
            "set_default_logger_callback set_default_logger_severity set_default_logger_verbosity "
            "set_global_thread_pool_sizes set_seed unregister_execution_provider_library"
        ),
        "qnnbridge.ort._memory": (
            "OrtArenaCfg OrtMemoryInfo OrtSyncStream copy_tensors create_and_register_allocator "
            "create_and_register_allocator_v2"
        ),
        "qnnbridge.ort._file_formats": (
            "AdapterFormat ModelPackage ModelPackageComponentContext ModelPackageContext ModelPackageOptions"
        ),
        "qnnbridge._ep_context": "OrtEpContextData OrtEpContextDataBuffer OrtExternalInitializerInfo",
        "qnnbridge.ort._providers": "OrtEpAssignedNode OrtEpAssignedSubgraph",
        "qnnbridge.ort._session": "InferenceSession",
        "qnnbridge._io_binding": "IOBinding",
        "qnnbridge.ort._native": "SessionIOBinding",
        "qnnbridge.ort._compiler": "ModelCompiler",
        "qnnbridge._node": "ModelMetadata NodeArg",
        "qnnbridge._ort_value": "OrtValue",
        "qnnbridge._providers": "OrtDevice",
        "qnnbridge._session.run_options": "LoraAdapter RunOptions",
        "qnnbridge._session_options": "SessionOptions",
        "qnnbridge._sparse_tensor": "SparseTensor",
    }.items()
    for name in names.split()
}
# Where the class has another name on this side.
_OTHER_NAMES = {"SessionIOBinding": "NativeIOBinding"}
# Classes with members that lead to the inner ones of the bindings.
_WITH_INNER = frozenset({"IOBinding", "OrtValue", "SparseTensor"})
_SUBMODULES = ("backend", "capi", "datasets")
# Modules of ``capi`` that ONNX Runtime's own ``__init__`` leaves here.
_LEFT_HERE = ("onnxruntime_validation",)

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


# The modules in which a program finds what it imports, once these names answer for onnxruntime.
_BINDINGS, _COLLECTION = "capi.onnxruntime_pybind11_state", "capi.onnxruntime_inference_collection"
_IN_PYTHON = frozenset(
    (
        *("AdapterFormat", "IOBinding", "InferenceSession", "ModelCompiler", "OrtDevice", "OrtDeviceVendorId"),
        *("OrtValue", "SparseTensor", "copy_tensors"),
    )
)
_IN_INIT = frozenset({"preload_dlls", "print_debug_info"})
_in_place = False
_introduced: list[tuple[Any, str]] = []


def take_the_place() -> None:
    """From here on what this package hands out says that it is of onnxruntime: in texts, and when it is pickled."""
    global _in_place
    _in_place = True
    while _introduced:
        introduce(*_introduced.pop())
    for error in OrtError.__subclasses__():
        introduce(error, _BINDINGS)


def introduce(value: Any, module: str) -> None:
    """Say that a class or a function is of a module of ``onnxruntime``, once it is in its place."""
    # Without the drop-in the classes keep the names of their own modules, under which they can be pickled.
    if not _in_place:
        _introduced.append((value, module))
    elif callable(value):
        # An empty `module` is the package itself.
        value.__module__ = f"onnxruntime.{module}".rstrip(".")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LEFT_HERE:
        return importlib.import_module(f"{__name__}.capi.{name}")
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), _OTHER_NAMES.get(name, name))
        # The import attaches the members, `_attach` in that module; its result is not needed.
        if name in _WITH_INNER:
            importlib.import_module(f"{__name__}._native")
        introduce(value, "" if name in _IN_INIT else _COLLECTION if name in _IN_PYTHON else _BINDINGS)
        # Python asks a module's `__getattr__` only for names that it lacks: the next read does not come here.
        globals()[name] = value
        return value
    if name in ("__version__", "version"):
        from qnnbridge.ort._environment import host_version

        return host_version()
    from qnnbridge.ort._errors import missing

    raise missing("onnxruntime", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES, *_LEFT_HERE, "__version__", "version"})
