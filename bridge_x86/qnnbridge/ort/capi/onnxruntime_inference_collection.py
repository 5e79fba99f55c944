"""``onnxruntime.capi.onnxruntime_inference_collection``: the classes that ONNX Runtime writes in Python."""

from __future__ import annotations

from qnnbridge._option_fields import OrtDeviceVendorId
from qnnbridge._ort_value import OrtValue
from qnnbridge._providers import OrtDevice
from qnnbridge._sparse_tensor import SparseTensor
from qnnbridge.ort._adapter_format import AdapterFormat
from qnnbridge.ort._compiler import ModelCompiler
from qnnbridge.ort._memory import copy_tensors
from qnnbridge.ort._providers import normalize as check_and_normalize_provider_args
from qnnbridge.ort._session import InferenceSession, IOBinding, Session

__all__ = [
    "AdapterFormat",
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
]
