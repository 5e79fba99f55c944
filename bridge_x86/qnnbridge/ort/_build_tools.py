"""Functions of the bindings that ONNX Runtime's build and quantization tools use.

The functions run in the host, on arrays that are sent to the host and back. Schemas of operators and definitions of
kernels are copied into plain objects of this process.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from qnnbridge._host import default_host
from qnnbridge._host_objects import ObjectReply, create_object
from qnnbridge._session_options import SessionOptions
from qnnbridge.ort._signatures import bound
from qnnbridge_protocol.errors import OptionError

# Offset of the type in a DLTensor, after the address, the device and the number of dimensions.
_DLPACK_TYPE = 8 + 8 + 4
_DLPACK_UNSIGNED = 1


class _Facts:
    """Attributes of an object of the bindings, as reported by the host."""

    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)


class OpSchema(_Facts):
    """The schema of an operator. Enumerations are represented by their names."""

    class AttrType(_Facts):
        """Namespace for the types of attributes."""

    class Attribute(_Facts):
        """An attribute of an operator."""

    class FormalParameter(_Facts):
        """An input or an output of an operator."""

    class FormalParameterOption(_Facts):
        """Namespace for the parameter options: single, optional, variadic."""

    class SupportType(_Facts):
        """Namespace for the support levels of operators."""

    class TypeConstraintParam(_Facts):
        """The types allowed for a type parameter of an operator."""

    __slots__ = (
        *("attributes", "deprecated", "doc", "domain", "file", "has_type_and_shape_inference_function"),
        *("inputs", "line", "max_input", "max_output", "min_input", "min_output", "name", "outputs"),
        *("since_version", "support_level", "type_constraints"),
    )

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        # The bindings return the types as a set, but JSON has only lists.
        self.inputs, self.outputs = (
            [self.FormalParameter(**{**one, "types": set(one["types"])}) for one in facts[part]]
            for part in ("inputs", "outputs")
        )
        self.attributes = {name: self.Attribute(**one) for name, one in facts["attributes"].items()}
        self.type_constraints = [self.TypeConstraintParam(**one) for one in facts["type_constraints"]]

    @staticmethod
    def is_infinite(version: int) -> bool:
        """Return whether `version`, a maximum number of inputs, means "no limit"."""
        # onnx uses INT_MAX as the maximum number of inputs if the last input may be repeated.
        return version == 2**31 - 1


class KernelDef(_Facts):
    """A kernel and the types that it accepts."""

    __slots__ = ("domain", "op_name", "provider", "type_constraints", "version_range")


def get_all_operator_schema() -> list[OpSchema]:
    """Return the schema of each operator in the host's ONNX Runtime."""
    return [OpSchema(**facts) for facts in _listed("get_all_operator_schema")]


def get_all_opkernel_def() -> list[KernelDef]:
    """Return all kernels of the providers that the host's ONNX Runtime was built with."""
    return _kernels("get_all_opkernel_def")


@bound("get_registered_ep_kernel_defs")
def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """Return all kernels of one provider."""
    return _kernels("get_registered_ep_kernel_defs", ep_name)


def _kernels(name: str, *arguments: str) -> list[KernelDef]:
    found = _listed(name, *arguments)
    return [KernelDef(**{**facts, "version_range": tuple(facts["version_range"])}) for facts in found]


def _quantizer(name: str) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        arrays = [one for one in arguments if isinstance(one, np.ndarray)]
        # None marks the position of an array. Arrays are sent separately from the other arguments.
        others = [None if isinstance(one, np.ndarray) else one for one in arguments]
        reply = _call(
            "quantize", {"name": name, "arguments": others}, [np.ascontiguousarray(one) for one in arrays]
        )
        # ONNX Runtime's functions write results into the caller's arrays, so the host returns the changed arrays.
        # If the function also returns an array, this array comes last.
        for mine, changed in zip(arrays, reply.values, strict=False):
            if mine.flags.writeable:
                mine[...] = changed
        return reply.values[-1] if reply.result == "array" else reply.result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Call ONNX Runtime's function in the host and copy its results into the given arrays."
    return function


pack_fp4_weights_for_cuda_moe_gemm = _quantizer("pack_fp4_weights_for_cuda_moe_gemm")
quantize_matmul_2bits = _quantizer("quantize_matmul_2bits")
quantize_matmul_4bits = _quantizer("quantize_matmul_4bits")
quantize_matmul_8bits = _quantizer("quantize_matmul_8bits")
quantize_matmul_bnb4 = _quantizer("quantize_matmul_bnb4")
quantize_qdq_matmul_2bits = _quantizer("quantize_qdq_matmul_2bits")
quantize_qdq_matmul_4bits = _quantizer("quantize_qdq_matmul_4bits")


def _listed(name: str, *arguments: str) -> list[dict[str, Any]]:
    (text,) = _call("list", {"name": name, "arguments": list(arguments)}).values
    return json.loads(bytes(text))  # type: ignore[no-any-return]


def _call(operation: str, arguments: dict[str, Any], values: Any = ()) -> ObjectReply:
    # Create an object for each call, so that nothing remains in the host afterwards.
    tools, _ = create_object(default_host(), "BuildTools")
    try:
        return tools.call(operation, arguments, values)
    finally:
        tools.release()


def get_default_session_options() -> SessionOptions:
    """Return options with default values."""
    return SessionOptions()


def is_dlpack_uint8_tensor(capsule: Any, /) -> bool:
    """Return whether a DLPack capsule has the type uint8, which older capsules use for booleans. Needed up to
    ONNX Runtime 1.30."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    # Without a restype, ctypes would truncate the pointer to a C int, which has 32 bits.
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # A consumer renames a capsule to used_dltensor. The C function then fails, and `pythonapi` raises the
    # function's ValueError.
    address = pointer_of(capsule, b"dltensor")
    code, bits, lanes = struct.unpack("=BBH", ctypes.string_at(address + _DLPACK_TYPE, 4))
    return (code, bits, lanes) == (_DLPACK_UNSIGNED, 8, 1)


class SessionObjectInitializer:
    """Initializer of native session objects. It can be imported for annotations and ``isinstance``, but not
    used."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise OptionError(
            f"{type(self).__name__} cannot be used through qnnbridge.",
            cause="The initializer is a pointer into ONNX Runtime's memory, which is in another process.",
            fix="Omit it: InferenceSession does not need an initializer.",
        )


def get_session_initializer() -> SessionObjectInitializer:
    return SessionObjectInitializer()
