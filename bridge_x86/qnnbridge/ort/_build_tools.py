"""Functions of the bindings that ONNX Runtime's build and its quantization tools use.

They run in the host, on arrays that go there and come back. Facts of operators and kernels are plain objects here.
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
from qnnbridge_protocol.errors import OptionError

# Where a DLTensor has its type: behind the address, the device and the number of dimensions.
_DLPACK_TYPE = 8 + 8 + 4
_DLPACK_UNSIGNED = 1


class _Facts:
    """Attributes of an object of the bindings, as the host reports them."""

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)


class FormalParameter(_Facts):
    """An input or an output of an operator."""


class Attribute(_Facts):
    """An attribute of an operator."""


class TypeConstraintParam(_Facts):
    """The types that a type parameter of an operator stands for."""


class AttrType(_Facts):
    """Kinds of attributes go by their names here."""


class FormalParameterOption(_Facts):
    """Whether a parameter may be left out goes by a name here."""


class SupportType(_Facts):
    """How far an operator is supported goes by a name here."""


class OpSchema(_Facts):
    """The schema of an operator."""

    # The bindings nest these classes in `OpSchema`: programs write `OpSchema.AttrType`.
    AttrType, Attribute, FormalParameter = AttrType, Attribute, FormalParameter
    FormalParameterOption, SupportType, TypeConstraintParam = (
        FormalParameterOption,
        SupportType,
        TypeConstraintParam,
    )
    __slots__ = (
        *("attributes", "deprecated", "doc", "domain", "file", "has_type_and_shape_inference_function"),
        *("inputs", "line", "max_input", "max_output", "min_input", "min_output", "name", "outputs"),
        *("since_version", "support_level", "type_constraints"),
    )

    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, value)
        # JSON has no sets, and the bindings give types as one.
        for part in ("inputs", "outputs"):
            setattr(self, part, [FormalParameter(**{**one, "types": set(one["types"])}) for one in facts[part]])
        self.attributes = {name: Attribute(**one) for name, one in facts["attributes"].items()}
        self.type_constraints = [TypeConstraintParam(**one) for one in facts["type_constraints"]]

    @staticmethod
    def is_infinite(version: int) -> bool:
        """Whether a number of inputs stands for any number."""
        # onnx writes INT_MAX as the largest number of inputs where the last one may be repeated.
        return version == 2**31 - 1


class KernelDef(_Facts):
    """A kernel and the types that it takes."""

    __slots__ = ("domain", "op_name", "provider", "type_constraints", "version_range")

    def __init__(self, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(self, name, tuple(value) if name == "version_range" else value)


def get_all_operator_schema() -> list[OpSchema]:
    """Of each operator that the host's ONNX Runtime knows."""
    return [OpSchema(**facts) for facts in _listed("get_all_operator_schema")]


def get_all_opkernel_def() -> list[KernelDef]:
    """Of each kernel of the providers that the host's ONNX Runtime was built with."""
    return [KernelDef(**facts) for facts in _listed("get_all_opkernel_def")]


def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """Of each kernel of one provider."""
    return [KernelDef(**facts) for facts in _listed("get_registered_ep_kernel_defs", ep_name)]


def _quantizer(name: str) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        arrays = [one for one in arguments if isinstance(one, np.ndarray)]
        # None marks the place of an array, which travels beside the arguments.
        others = [None if isinstance(one, np.ndarray) else one for one in arguments]
        reply = _call(
            "quantize", {"name": name, "arguments": others}, [np.ascontiguousarray(one) for one in arrays]
        )
        # ONNX Runtime's functions write their results into arrays that the caller gives: here they come back.
        # A function that returns an array has one value more than there are arguments.
        for mine, changed in zip(arrays, reply.values, strict=False):
            if mine.flags.writeable:
                mine[...] = changed
        return reply.values[-1] if reply.result == "array" else reply.result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "ONNX Runtime's own, in the host; the arrays are written to as there."
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
    # An object for each call: nothing of it is kept in the host.
    tools, _ = create_object(default_host(), "BuildTools")
    try:
        return tools.call(operation, arguments, values)
    finally:
        tools.release()


def get_default_session_options() -> SessionOptions:
    """Options that nothing was set in."""
    return SessionOptions()


def is_dlpack_uint8_tensor(capsule: Any, /) -> bool:
    """Whether a DLPack capsule holds 8-bit unsigned numbers, as older ones call truth values. Up to 1.30."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    # Without a restype ctypes would cut the pointer to a C int, which has 32 bits.
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # A consumer renames the capsule to used_dltensor. Then this raises the ValueError of the C function:
    # `pythonapi` looks for a Python exception after each call.
    address = pointer_of(capsule, b"dltensor")
    code, bits, lanes = struct.unpack("=BBH", ctypes.string_at(address + _DLPACK_TYPE, 4))
    return (code, bits, lanes) == (_DLPACK_UNSIGNED, 8, 1)


class SessionObjectInitializer:
    """What sets up a native session object. Importing the name works, so that annotations and ``isinstance`` do."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise OptionError(
            f"{type(self).__name__} cannot be used through qnnbridge.",
            cause="It is a pointer into ONNX Runtime's memory, which is in another process.",
            fix="Leave it out: InferenceSession needs none.",
        )


def get_session_initializer() -> SessionObjectInitializer:
    return SessionObjectInitializer()
