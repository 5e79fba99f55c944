"""Functions of the bindings that ONNX Runtime's build and its quantization tools use."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NoReturn

from qnnbridge._session_options import SessionOptions
from qnnbridge.ort._errors import Refused, SessionObjectInitializer, refusal

# Where a DLTensor has its type: behind the address, the device and the number of dimensions.
_DLPACK_TYPE = 8 + 8 + 4
_DLPACK_UNSIGNED = 1

_CAUSE = "It is a tool of ONNX Runtime's build, which works on memory of its own process."
_FIX = "Use the package onnxruntime itself for it, in an environment without the drop-in."


class OpSchema(
    Refused,
    members="AttrType Attribute FormalParameter FormalParameterOption SupportType TypeConstraintParam attributes "
    "deprecated doc domain file has_type_and_shape_inference_function inputs is_infinite line max_input max_output "
    "min_input min_output name outputs since_version support_level type_constraints",
):
    """The schema of an operator."""

    _cause, _fix = _CAUSE, _FIX


class KernelDef(Refused, members="domain op_name provider type_constraints version_range"):
    """A kernel and the types that it takes."""

    _cause, _fix = _CAUSE, _FIX


def _refused(name: str) -> Any:
    def function(*_: Any, **__: Any) -> NoReturn:
        raise refusal(name, _CAUSE, _FIX)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Refused, in words."
    return function


get_all_operator_schema = _refused("get_all_operator_schema")
get_all_opkernel_def = _refused("get_all_opkernel_def")
get_registered_ep_kernel_defs = _refused("get_registered_ep_kernel_defs")
pack_fp4_weights_for_cuda_moe_gemm = _refused("pack_fp4_weights_for_cuda_moe_gemm")
quantize_matmul_2bits = _refused("quantize_matmul_2bits")
quantize_matmul_4bits = _refused("quantize_matmul_4bits")
quantize_matmul_8bits = _refused("quantize_matmul_8bits")
quantize_matmul_bnb4 = _refused("quantize_matmul_bnb4")
quantize_qdq_matmul_2bits = _refused("quantize_qdq_matmul_2bits")
quantize_qdq_matmul_4bits = _refused("quantize_qdq_matmul_4bits")


def get_default_session_options() -> SessionOptions:
    """Options that nothing was set in."""
    return SessionOptions()


def is_dlpack_uint8_tensor(capsule: Any, /) -> bool:
    """Whether a DLPack capsule holds 8-bit unsigned numbers, as older ones call truth values. Up to 1.30."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer_of(capsule, b"dltensor")
    code, bits, lanes = struct.unpack("=BBH", ctypes.string_at(address + _DLPACK_TYPE, 4))
    return (code, bits, lanes) == (_DLPACK_UNSIGNED, 8, 1)


def get_session_initializer() -> SessionObjectInitializer:
    return SessionObjectInitializer()
