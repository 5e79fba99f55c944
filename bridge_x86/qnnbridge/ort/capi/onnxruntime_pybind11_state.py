"""``onnxruntime.capi.onnxruntime_pybind11_state``: error classes and native names of ONNX Runtime.

If ONNX Runtime has both a Python class and a native class, this module contains the native class (`ort._native`).
A name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from qnnbridge_protocol.errors import OrtError

_ERRORS = {cls.__name__: cls for cls in OrtError.__subclasses__()}
globals().update(_ERRORS)

# Names of this module that do not exist in ``onnxruntime``, or that mean another class there. Values: the module of
# qnnbridge that defines the object, and the object's name in that module.
INNER: dict[str, tuple[str, str]] = {
    name: (f"qnnbridge.{home}", there or name)
    for home, names in {
        "_options.fields": ("ArenaExtendStrategy OrtCompiledModelCompatibility OrtDeviceEpIncompatibilityReason"),
        "_options.providers": "OrtDevice=DeviceNumbers",
        "_values.ort_value": "SparseBlockSparseView SparseCooView SparseCsrView",
        "ort._build_tools": (
            "SessionObjectInitializer get_all_operator_schema get_all_opkernel_def get_default_session_options "
            "get_registered_ep_kernel_defs get_session_initializer is_dlpack_uint8_tensor "
            "pack_fp4_weights_for_cuda_moe_gemm quantize_matmul_2bits quantize_matmul_4bits "
            "quantize_matmul_8bits quantize_matmul_bnb4 quantize_qdq_matmul_2bits quantize_qdq_matmul_4bits"
        ),
        "ort._file_formats": "AdapterFormat=NativeAdapterFormat",
        "ort._model_compiler": "ModelCompiler=NativeCompiler",
        "ort._model_metadata": (
            "get_compatibility_info_from_model get_compatibility_info_from_model_bytes get_hardware_devices "
            "get_hardware_device_ep_incompatibility_details get_model_compatibility_for_ep_devices"
        ),
        "ort._native": (
            "InferenceSession=NativeSession OrtValue=NativeOrtValue OrtValueVector SparseTensor=NativeSparseTensor "
            "copy_tensors=copy_native_tensors"
        ),
    }.items()
    for name, _, there in (one.partition("=") for one in names.split())
}
# Names of the module ``onnxruntime`` that this module lacks, because they are implemented in Python.
_IN_PYTHON = frozenset({"IOBinding", "OrtDeviceVendorId"})
# Members of an enumeration that are also names of this module.
_EXPORTED = {"kNextPowerOfTwo": "ArenaExtendStrategy", "kSameAsRequested": "ArenaExtendStrategy"}
# Submodules of the bindings, and the class in each.
_MODULES = {"opkernel": "KernelDef", "schemadef": "OpSchema"}
_BINDINGS = "capi.onnxruntime_pybind11_state"


def _public() -> list[str]:
    from qnnbridge import ort

    return sorted({*_ERRORS, *INNER, *_EXPORTED, *_MODULES, *ort.__all__} - _IN_PYTHON)


__all__ = _public()


def __getattr__(name: str) -> Any:
    from qnnbridge import ort

    if name in INNER:
        home, there = INNER[name]
        value = getattr(importlib.import_module(home), there)
        ort.set_module(value, _BINDINGS)
    elif name in _EXPORTED:
        value = getattr(__getattr__(_EXPORTED[name]), name)
    elif name in _MODULES:
        value = ModuleType(f"onnxruntime.{_BINDINGS}.{name}")
        inside = getattr(importlib.import_module("qnnbridge.ort._build_tools"), _MODULES[name])
        ort.set_module(inside, f"{_BINDINGS}.{name}")
        setattr(value, _MODULES[name], inside)
    elif name in __all__:
        value = getattr(ort, name)
    else:
        from qnnbridge.ort._errors import missing

        raise missing(f"onnxruntime.{_BINDINGS}", name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
