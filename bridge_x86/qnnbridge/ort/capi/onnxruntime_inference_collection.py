"""``onnxruntime.capi.onnxruntime_inference_collection``: classes that ONNX Runtime implements in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qnnbridge import ort
from qnnbridge.ort import (
    AdapterFormat,
    InferenceSession,
    IOBinding,
    ModelCompiler,
    OrtDevice,
    OrtDeviceVendorId,
    OrtExternalInitializerInfo,
    OrtValue,
    SparseTensor,
    copy_tensors,
)
from qnnbridge.ort import _placement as provider_choice
from qnnbridge.ort._native import NativeOrtValue
from qnnbridge.ort._session import Session
from qnnbridge.ort.capi import _pybind_state as C  # noqa: N812 - ONNX Runtime's own name

GetInitializerLocationFunc = Callable[
    [str, OrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None
]
GetInitializerLocationWrapperFunc = Callable[
    [str, NativeOrtValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None
]


def check_and_normalize_provider_args(
    providers: Sequence[Any] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the providers and the options of each."""
    named = provider_choice.normalize(providers, provider_options, available_provider_names)
    return [name for name, _ in named], [options for _, options in named]


def get_ort_device_type(device_type: str) -> int:
    """Return the number of a device type."""
    return OrtDevice.make(device_type, 0).device_type()


def get_vendor_id_for_device_type(device_type: str) -> OrtDeviceVendorId | None:
    """Return the vendor that a device type implies; ``None`` for types that any vendor may have."""
    vendors = {
        "cuda": OrtDeviceVendorId.NVIDIA,
        "dml": OrtDeviceVendorId.MICROSOFT,
        "cann": OrtDeviceVendorId.HUAWEI,
        "webgpu": OrtDeviceVendorId.NONE,
    }
    return vendors.get(device_type)


def make_get_initializer_location_func_wrapper(get_initializer_location_func: Any) -> Any:
    """Wrap a function that takes an `OrtValue` so that the bindings can call it."""

    def wrapper(name: str, value: Any, external_info: Any) -> Any:
        answer = get_initializer_location_func(name, OrtValue(value), external_info)
        if answer is not None and answer is external_info:
            return OrtExternalInitializerInfo(answer.filepath, answer.file_offset, answer.byte_size)
        return answer

    return wrapper


for _function in (
    Session,
    check_and_normalize_provider_args,
    get_ort_device_type,
    get_vendor_id_for_device_type,
    make_get_initializer_location_func_wrapper,
):
    ort.set_module(_function, "capi.onnxruntime_inference_collection")

__all__ = [
    "AdapterFormat",
    "C",
    "GetInitializerLocationFunc",
    "GetInitializerLocationWrapperFunc",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "check_and_normalize_provider_args",
    "copy_tensors",
    "get_ort_device_type",
    "get_vendor_id_for_device_type",
    "make_get_initializer_location_func_wrapper",
]
