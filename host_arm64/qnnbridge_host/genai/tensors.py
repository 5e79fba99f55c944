"""Tensors between numpy and onnxruntime-genai. Copies both ways; any thread."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_size_t, c_void_p
from typing import Any, Final

import numpy as np

from qnnbridge_host.genai.native import GenaiLibrary, Object
from qnnbridge_protocol.elements import LAYOUTS, ElementType
from qnnbridge_protocol.errors import GenerationUnsupported
from qnnbridge_protocol.tensors import Typed

# Numbers of OgaElementType are those of ONNX.
_NUMBERS: Final = {
    np.dtype(LAYOUTS[e].storage): e for e in ElementType if LAYOUTS[e].named and e != ElementType.STRING
}


def make_tensor(native: GenaiLibrary, value: Any) -> Object:
    """A native tensor that borrows the array's memory and keeps it."""
    array = np.ascontiguousarray(value.data if isinstance(value, Typed) else value)
    element = value.element_type if isinstance(value, Typed) else _NUMBERS.get(array.dtype)
    if element is None:
        raise GenerationUnsupported(f"A tensor of {array.dtype} cannot be given to onnxruntime-genai.")
    shape = value.shape if isinstance(value, Typed) else np.shape(value)
    dimensions = (c_int64 * len(shape))(*shape)
    pointer = c_void_p(array.ctypes.data)
    return native.make(
        "Tensor", "OgaCreateTensorFromBuffer", pointer, dimensions, len(shape), int(element), keeps=(array,)
    )


def read_tensor(native: GenaiLibrary, tensor: Object) -> Any:
    """A copy of the native tensor, as a value of the wire."""
    number, rank, data = ctypes.c_int(), c_size_t(), c_void_p()
    native.call("OgaTensorGetType", tensor.handle, byref(number))
    native.call("OgaTensorGetShapeRank", tensor.handle, byref(rank))
    dimensions = (c_int64 * rank.value)()
    native.call("OgaTensorGetShape", tensor.handle, dimensions, rank)
    native.call("OgaTensorGetData", tensor.handle, byref(data))
    element = ElementType(number.value)
    layout = LAYOUTS[element]
    shape = tuple(dimensions)
    storage = np.dtype(layout.storage)
    size = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
    raw = bytearray(ctypes.string_at(data, size)) if size else bytearray()
    array = np.frombuffer(raw, dtype=storage).reshape(shape)
    return array if layout.named else Typed(array, element, shape)
