"""Convert between the wire's values and the values of ONNX Runtime's Python API.

Arrays, lists, dicts and ``None`` are the same on both sides and pass unchanged, so a call behaves as without the
bridge. Only values that numpy cannot represent are converted: `Typed` (bfloat16, float8 and sub-byte types) and
`Sparse`. Bits are never changed. Stateless and thread-safe.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import LAYOUTS, ElementType, ValueType, from_ort_type, nbytes
from qnnbridge_protocol.tensors import Sparse, Typed


def typed_element(ort_type: str) -> ElementType | None:
    """Return the element type of a dense tensor if ONNX Runtime cannot return the tensor as a numpy array, else
    ``None``."""
    try:
        parsed: ValueType = from_ort_type(ort_type)
    except errors.NotImplemented:
        return None
    if parsed.kind == "optional" and parsed.item is not None:
        parsed = parsed.item
    if parsed.kind != "tensor" or parsed.element is None or LAYOUTS[parsed.element].named:
        return None
    return parsed.element


def feed(ort: Any, value: Any) -> Any:
    """Convert a value to a type that ``InferenceSession.run`` accepts as an input."""
    if isinstance(value, Typed):
        return typed_to_ort(ort, value)
    if isinstance(value, Sparse):
        return sparse_to_ort(ort, value)
    if isinstance(value, list) and any(isinstance(item, (Typed, Sparse)) for item in value):
        raise errors.NotImplemented(
            "A sequence of bfloat16, float8, sub-byte or sparse tensors cannot be an input.",
            cause="ONNX Runtime's Python API cannot create such a sequence.",
        )
    return value


def feeds_as_ort_values(ort: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Convert all inputs to OrtValues, for a run with an output that cannot be represented as a numpy array."""
    values = {}
    for name, value in feeds.items():
        if value is None:
            continue  # an empty optional: ONNX Runtime treats it as absent
        values[name] = to_ort_value(ort, value, name)
    return values


def to_ort_value(ort: Any, value: Any, name: str) -> Any:
    """Convert a tensor to an OrtValue. The OrtValue may use the memory of `value`, and then keeps `value` alive."""
    value = feed(ort, value)
    if isinstance(value, np.ndarray):
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))
    if isinstance(value, (list, dict)):
        raise errors.NotImplemented(
            f"{name!r} is a sequence or a map, which cannot be converted to an OrtValue.",
            cause="ONNX Runtime's Python API cannot create such an OrtValue, but the call needs OrtValues because "
            "numpy lacks the element type of an output.",
        )
    if not isinstance(value, ort.OrtValue):
        # `InferenceSession.run` raises the same message.
        raise RuntimeError(f"Unable to handle object of type {type(value)}")
    return value


def typed_to_ort(ort: Any, value: Typed) -> Any:
    """Convert a tensor whose element type numpy lacks to an OrtValue."""
    if not LAYOUTS[value.element_type].packed:
        # The OrtValue uses the memory of the bytes.
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.asarray(value.data, order="C"), int(value.element_type)
        )
    # The shape of a packed array differs from its tensor's shape, so let ONNX Runtime allocate memory and copy the
    # bytes into it.
    made = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape), int(value.element_type))
    data = np.asarray(value.data, order="C")
    if _checked_size(made, value.element_type, value.shape):
        ctypes.memmove(made.data_ptr(), data.ctypes.data, data.nbytes)
    return made


def sparse_to_ort(ort: Any, value: Sparse) -> Any:
    """Convert a sparse tensor to an OrtValue. ONNX Runtime does not check the indices; `Sparse` has checked
    them."""
    shape = np.asarray(value.dense_shape, dtype=np.int64)
    values = np.asarray(value.values, order="C")
    cpu = ort.OrtDevice.make("cpu", 0)
    if value.format == "block":  # only the native bindings can create this format
        native = ort.capi.onnxruntime_pybind11_state.SparseTensor.blocksparse_from_numpy
        blocks = native(shape, values, np.asarray(value.indices[0], dtype=np.int32, order="C"), cpu._get_c_device())
        return ort.OrtValue.ort_value_from_sparse_tensor(ort.SparseTensor(blocks))
    parts = [np.asarray(part, dtype=np.int64, order="C") for part in value.indices]
    make = (
        ort.SparseTensor.sparse_coo_from_numpy if value.format == "coo" else ort.SparseTensor.sparse_csr_from_numpy
    )
    return ort.OrtValue.ort_value_from_sparse_tensor(make(shape, values, *parts, cpu))


def result(value: Any) -> Any:
    """Convert an output of ``InferenceSession.run`` to a value of the wire."""
    if isinstance(value, (np.ndarray, list, dict)) or value is None:
        return value
    if type(value).__name__ == "SparseTensor":
        return _sparse(value)
    return value


def result_of_ort_value(value: Any) -> Any:
    """Convert an output of ``run_with_ort_values`` to a value of the wire."""
    if not value.has_value():
        return None
    if value.is_sparse_tensor():
        return _sparse(value.as_sparse_tensor())
    if not value.is_tensor():
        raise errors.NotImplemented(
            "An output that is a sequence or a map cannot be returned together with an output whose element type "
            "numpy lacks.",
            fix="Request these outputs in separate calls.",
        )
    element = ElementType(value.element_type())
    if LAYOUTS[element].named:
        return value.numpy()
    shape = tuple(value.shape())
    size = _checked_size(value, element, shape)
    # Copy, because the OrtValue frees its memory when it is deleted. Use a bytearray, because numpy arrays over
    # bytes are read-only.
    raw = bytearray(ctypes.string_at(value.data_ptr(), size)) if size else bytearray()
    return Typed(np.frombuffer(raw, dtype=LAYOUTS[element].storage), element, shape)


def _checked_size(value: Any, element: ElementType, shape: tuple[int, ...]) -> int:
    """Return the size in bytes that follows from a tensor's element type and shape; raise `NotImplemented` if ONNX
    Runtime reports a different size.

    Call this function before accessing the memory directly.
    """
    expected = nbytes(element, shape)
    tell = getattr(value, "tensor_size_in_bytes", None)  # since 1.23
    if tell is not None and tell() != expected:
        raise errors.NotImplemented(
            f"This ONNX Runtime stores {element.text} of shape {shape} in {tell()} bytes; {expected} were expected."
        )
    return expected


def _sparse(tensor: Any) -> Sparse:
    # Unwrap the native object: in the Python class `format` is a method, and `get_coo_data` is missing.
    native = tensor._get_c_tensor() if hasattr(tensor, "_get_c_tensor") else tensor
    kind, shape, values = str(native.format), tuple(int(d) for d in native.dense_shape()), native.values()
    if kind.endswith("ORT_SPARSE_COO"):
        return Sparse(np.array(values), shape, "coo", (np.array(native.get_coo_data().indices()),))
    if kind.endswith("ORT_SPARSE_CSRC"):
        view = native.get_csrc_data()
        return Sparse(np.array(values), shape, "csr", (np.array(view.inner()), np.array(view.outer())))
    try:
        indices = np.array(native.get_blocksparse_data().indices())
    except RuntimeError as error:  # up to 1.32 ONNX Runtime reads int32 indices as int64, and refuses them
        raise errors.NotImplemented(
            f"A sparse tensor in the format {kind} cannot be sent to the application.",
            cause=f"ONNX Runtime does not return the indices: {str(error).strip()}",
        ) from None
    return Sparse(np.array(values), shape, "block", (indices.astype(np.int32),))
