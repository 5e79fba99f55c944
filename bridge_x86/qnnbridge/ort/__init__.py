"""The interface of the module ``onnxruntime``, implemented by the host: ``import qnnbridge.ort as onnxruntime``.

Names, argument order, defaults and error classes are the same as in ``onnxruntime``. A feature that is not possible
across processes raises an error with the reason, and so does a name of ONNX Runtime that this module lacks
(`missing`). Each name is imported when it is first used, and the host starts only when a value from the host is
needed. `qnnbridge.dropin` makes ``import onnxruntime`` return this module. Importing this module also gives errors
the text that ONNX Runtime uses (`qnnbridge.ort._errors`).
"""

from __future__ import annotations

import builtins
import importlib
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import BY_CODE, OrtError
from qnnbridge_protocol.errors import speak_like_onnxruntime as _speak_like_onnxruntime

_speak_like_onnxruntime()

if TYPE_CHECKING:
    from qnnbridge._ep_context import OrtEpContextData as OrtEpContextData
    from qnnbridge._ep_context import OrtEpContextDataBuffer as OrtEpContextDataBuffer
    from qnnbridge._ep_context import OrtExternalInitializerInfo as OrtExternalInitializerInfo
    from qnnbridge._io_binding import IOBinding as IOBinding
    from qnnbridge._options.fields import ExecutionMode as ExecutionMode
    from qnnbridge._options.fields import ExecutionOrder as ExecutionOrder
    from qnnbridge._options.fields import GraphOptimizationLevel as GraphOptimizationLevel
    from qnnbridge._options.fields import ModelPackageWriteMode as ModelPackageWriteMode
    from qnnbridge._options.fields import OrtAllocatorType as OrtAllocatorType
    from qnnbridge._options.fields import OrtCompileApiFlags as OrtCompileApiFlags
    from qnnbridge._options.fields import OrtDeviceMemoryType as OrtDeviceMemoryType
    from qnnbridge._options.fields import OrtDeviceVendorId as OrtDeviceVendorId
    from qnnbridge._options.fields import OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy
    from qnnbridge._options.fields import OrtHardwareDeviceType as OrtHardwareDeviceType
    from qnnbridge._options.fields import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
    from qnnbridge._options.fields import OrtMemType as OrtMemType
    from qnnbridge._options.fields import OrtSparseFormat as OrtSparseFormat
    from qnnbridge._options.providers import OrtDevice as OrtDevice
    from qnnbridge._session.runs import LoraAdapter as LoraAdapter
    from qnnbridge._session.runs import ModelMetadata as ModelMetadata
    from qnnbridge._session.runs import NodeArg as NodeArg
    from qnnbridge._session.runs import RunOptions as RunOptions
    from qnnbridge._session_options import SessionOptions as SessionOptions
    from qnnbridge._values.ort_value import OrtValue as OrtValue
    from qnnbridge._values.ort_value import SparseTensor as SparseTensor
    from qnnbridge.ort._environment import OrtArenaCfg as OrtArenaCfg
    from qnnbridge.ort._environment import OrtEpDevice as OrtEpDevice
    from qnnbridge.ort._environment import OrtHardwareDevice as OrtHardwareDevice
    from qnnbridge.ort._environment import OrtMemoryInfo as OrtMemoryInfo
    from qnnbridge.ort._environment import OrtSyncStream as OrtSyncStream
    from qnnbridge.ort._environment import copy_tensors as copy_tensors
    from qnnbridge.ort._environment import create_and_register_allocator as create_and_register_allocator
    from qnnbridge.ort._environment import create_and_register_allocator_v2 as create_and_register_allocator_v2
    from qnnbridge.ort._environment import disable_telemetry_events as disable_telemetry_events
    from qnnbridge.ort._environment import enable_telemetry_events as enable_telemetry_events
    from qnnbridge.ort._environment import get_all_providers as get_all_providers
    from qnnbridge.ort._environment import get_available_providers as get_available_providers
    from qnnbridge.ort._environment import get_build_info as get_build_info
    from qnnbridge.ort._environment import get_device as get_device
    from qnnbridge.ort._environment import get_ep_devices as get_ep_devices
    from qnnbridge.ort._environment import get_version_string as get_version_string
    from qnnbridge.ort._environment import has_collective_ops as has_collective_ops
    from qnnbridge.ort._environment import preload_dlls as preload_dlls
    from qnnbridge.ort._environment import print_debug_info as print_debug_info
    from qnnbridge.ort._environment import (
        register_execution_provider_library as register_execution_provider_library,
    )
    from qnnbridge.ort._environment import set_default_logger_callback as set_default_logger_callback
    from qnnbridge.ort._environment import set_default_logger_severity as set_default_logger_severity
    from qnnbridge.ort._environment import set_default_logger_verbosity as set_default_logger_verbosity
    from qnnbridge.ort._environment import set_global_thread_pool_sizes as set_global_thread_pool_sizes
    from qnnbridge.ort._environment import set_seed as set_seed
    from qnnbridge.ort._environment import (
        unregister_execution_provider_library as unregister_execution_provider_library,
    )
    from qnnbridge.ort._file_formats import AdapterFormat as AdapterFormat
    from qnnbridge.ort._file_formats import ModelPackage as ModelPackage
    from qnnbridge.ort._file_formats import ModelPackageComponentContext as ModelPackageComponentContext
    from qnnbridge.ort._file_formats import ModelPackageContext as ModelPackageContext
    from qnnbridge.ort._file_formats import ModelPackageOptions as ModelPackageOptions
    from qnnbridge.ort._model_compiler import ModelCompiler as ModelCompiler
    from qnnbridge.ort._native import NativeIOBinding
    from qnnbridge.ort._placement import OrtEpAssignedNode as OrtEpAssignedNode
    from qnnbridge.ort._placement import OrtEpAssignedSubgraph as OrtEpAssignedSubgraph
    from qnnbridge.ort._session import InferenceSession as InferenceSession

    SessionIOBinding = NativeIOBinding

# The name of this package. The drop-in changes `__name__` to "onnxruntime".
_OURS = "qnnbridge.ort"
# The module that defines each name.
_HOMES: dict[str, str] = {
    name: home
    for home, names in {
        "qnnbridge._options.fields": (
            "ExecutionMode ExecutionOrder GraphOptimizationLevel ModelPackageWriteMode OrtAllocatorType "
            "OrtCompileApiFlags OrtDeviceMemoryType OrtDeviceVendorId OrtExecutionProviderDevicePolicy "
            "OrtHardwareDeviceType OrtMemType OrtMemoryInfoDeviceType OrtSparseFormat"
        ),
        "qnnbridge.ort._environment": (
            "OrtArenaCfg OrtEpDevice OrtHardwareDevice OrtMemoryInfo OrtSyncStream copy_tensors "
            "create_and_register_allocator create_and_register_allocator_v2 disable_telemetry_events "
            "enable_telemetry_events get_all_providers get_available_providers get_build_info get_device "
            "get_ep_devices get_version_string has_collective_ops preload_dlls print_debug_info "
            "register_execution_provider_library "
            "set_default_logger_callback set_default_logger_severity set_default_logger_verbosity "
            "set_global_thread_pool_sizes set_seed unregister_execution_provider_library"
        ),
        "qnnbridge.ort._file_formats": (
            "AdapterFormat ModelPackage ModelPackageComponentContext ModelPackageContext ModelPackageOptions"
        ),
        "qnnbridge._ep_context": "OrtEpContextData OrtEpContextDataBuffer OrtExternalInitializerInfo",
        "qnnbridge.ort._placement": "OrtEpAssignedNode OrtEpAssignedSubgraph",
        "qnnbridge.ort._session": "InferenceSession",
        "qnnbridge._io_binding": "IOBinding",
        "qnnbridge.ort._native": "SessionIOBinding",
        "qnnbridge.ort._model_compiler": "ModelCompiler",
        "qnnbridge._values.ort_value": "OrtValue SparseTensor",
        "qnnbridge._options.providers": "OrtDevice",
        "qnnbridge._session.runs": "LoraAdapter ModelMetadata NodeArg RunOptions",
        "qnnbridge._session_options": "SessionOptions",
    }.items()
    for name in names.split()
}
# Attributes of the package, and further names that `from onnxruntime import *` imports.
_OF_PACKAGE = ("capi", "cuda_version", "import_capi_exception", "onnxruntime_validation", "package_name", "version")
__all__ = sorted({*_HOMES, *_OF_PACKAGE})

# Classes whose name in qnnbridge differs from the name in onnxruntime.
_OTHER_NAMES = {"SessionIOBinding": "NativeIOBinding"}
# Classes with members that return native objects of ONNX Runtime's bindings.
_WITH_INNER = frozenset({"IOBinding", "OrtValue", "SparseTensor"})
_SUBMODULES = ("backend", "capi", "datasets")
# Modules of ``capi`` that are attributes of the package, because ONNX Runtime's own ``__init__`` imports them.
_LEFT_HERE = ("onnxruntime_validation",)


# onnxruntime has these attributes, and applications read them.
import_capi_exception = None
cuda_version = ""
package_name = "onnxruntime"
__author__ = "Microsoft"


# Module names that classes and functions get as `__module__` while the drop-in is installed.
_BINDINGS, _COLLECTION = "capi.onnxruntime_pybind11_state", "capi.onnxruntime_inference_collection"
_IN_PYTHON = frozenset(
    (
        *("AdapterFormat", "IOBinding", "InferenceSession", "ModelCompiler", "OrtDevice", "OrtDeviceVendorId"),
        *("OrtValue", "SparseTensor", "copy_tensors"),
    )
)
_IN_INIT = frozenset({"preload_dlls", "print_debug_info"})
_adopted = False
_deferred: list[tuple[Any, str]] = []


def adopt_onnxruntime_names() -> None:
    """Set `__module__` of all classes and functions of this package to ``onnxruntime``, so that error messages and
    pickles contain that name."""
    global _adopted
    _adopted = True
    while _deferred:
        set_module(*_deferred.pop())
    for error in OrtError.__subclasses__():
        set_module(error, _BINDINGS)
    # For errors that are built-in classes in ONNX Runtime, programs expect the built-in name in
    # `type(error).__name__`.
    for code, kind in BY_CODE.items():
        family, _, name = code.partition(".")
        if family == "py" and hasattr(builtins, name) and name != "Exception":
            kind.__name__ = kind.__qualname__ = name
            kind.__module__ = "builtins"


def set_module(value: Any, module: str) -> None:
    """If the drop-in is installed, set `__module__` of a class or a function to a module of ``onnxruntime``."""
    # Without the drop-in the classes keep their own `__module__`, in which pickle looks for them.
    if not _adopted:
        _deferred.append((value, module))
    elif callable(value):
        # An empty `module` stands for the package itself.
        value.__module__ = f"onnxruntime.{module}".rstrip(".")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{_OURS}.{name}")
    if name in _LEFT_HERE:
        return importlib.import_module(f"{_OURS}.capi.{name}")
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(home), _OTHER_NAMES.get(name, name))
        # Import `_native`, which adds the members that return native objects to these classes (`_attach`).
        if name in _WITH_INNER:
            importlib.import_module(f"{_OURS}._native")
        set_module(value, "" if name in _IN_INIT else _COLLECTION if name in _IN_PYTHON else _BINDINGS)
        # Python calls a module's `__getattr__` only for missing names, so the next access finds the value directly.
        globals()[name] = value
        return value
    if name in ("__version__", "version"):
        from qnnbridge.ort._environment import host_version

        return host_version()
    from qnnbridge.ort._errors import missing

    raise missing("onnxruntime", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES, *_LEFT_HERE, "__version__", "version"})
