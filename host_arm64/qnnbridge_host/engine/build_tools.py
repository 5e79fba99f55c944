"""The host's part of the functions of the bindings that ONNX Runtime's build and its quantization use.

They take arrays and give arrays, or list operators and kernels; none keeps anything. The functions are those of
a closed table.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as bindings

from qnnbridge_host.engine.objects import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_protocol.errors import NotImplemented as NotImplementedByOrt
from qnnbridge_protocol.errors import RemoteValueError

# Functions that write into the arrays they get.
QUANTIZERS = frozenset(
    (
        *("pack_fp4_weights_for_cuda_moe_gemm", "quantize_matmul_2bits", "quantize_matmul_4bits"),
        *(
            "quantize_matmul_8bits",
            "quantize_matmul_bnb4",
            "quantize_qdq_matmul_2bits",
            "quantize_qdq_matmul_4bits",
        ),
    )
)
# Functions that list what there is.
LISTS = frozenset({"get_all_operator_schema", "get_all_opkernel_def", "get_registered_ep_kernel_defs"})
_PLAIN = (str, int, float, bool, type(None))


def _function(call: ObjectCall, table: frozenset[str]) -> Any:
    name = argument(call, "name", str)
    if name not in table:
        raise RemoteValueError(f"{name!r:.80} is no function of this kind.")
    found = getattr(bindings, name, None)
    if found is None:
        raise NotImplementedByOrt(f"The onnxruntime of the host has no {name}.")
    return found


def _quantize(_: Any, call: ObjectCall) -> ObjectResult:
    """Call with copies of the arrays, and return them as they are afterwards, with what the function gave."""
    function = _function(call, QUANTIZERS)
    arrays = [np.array(value) for value in call.values]
    left = iter(arrays)
    given = [next(left) if one is None else one for one in argument(call, "arguments", list)]
    result = function(*given)
    if isinstance(result, np.ndarray):
        return ObjectResult("array", [*arrays, result])
    return ObjectResult(result if isinstance(result, _PLAIN) else None, arrays)


def _list(_: Any, call: ObjectCall) -> ObjectResult:
    """The facts of each operator or kernel, as JSON: there are too many for a header."""
    found = _function(call, LISTS)(*map(str, argument(call, "arguments", list)))
    text = json.dumps([_facts(one) for one in found]).encode()
    return ObjectResult(len(found), [np.frombuffer(text, np.uint8)])


def _facts(value: Any) -> Any:
    """Of an object of the bindings its public attributes; sets are sorted, enumerations go by name."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {str(key): _facts(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_facts(one) for one in value]
    if isinstance(value, set):
        return sorted(_facts(one) for one in value)
    if hasattr(type(value), "__members__"):
        return value.name
    attributes = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: _facts(one) for name, one in attributes.items() if not callable(one)}


BUILD_TOOLS = ObjectKind("BuildTools", lambda _call: bindings, {"quantize": _quantize, "list": _list})
