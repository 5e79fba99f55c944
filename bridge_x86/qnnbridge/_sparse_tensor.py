"""`SparseTensor`: sparse values with the methods of ``onnxruntime.SparseTensor``: COO, CSR and blocks.

A thin view of `qnnbridge_protocol.tensors.Sparse`, which checks the indices: ONNX Runtime trusts them, so a wrong
one would be a wild memory access in the host. Immutable, apart from the arrays it was made from; any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from qnnbridge._option_fields import OrtSparseFormat
from qnnbridge._providers import CPU_DEVICE, DeviceNumbers, OrtDevice, refused_device
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import element_of
from qnnbridge_protocol.tensors import Format, Sparse

Array = np.ndarray[Any, np.dtype[Any]]

_FORMATS = {
    "coo": OrtSparseFormat.ORT_SPARSE_COO,
    "csr": OrtSparseFormat.ORT_SPARSE_CSRC,
    "block": OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE,
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseCooView:
    """Indices of a tensor in COO format."""

    _indices: Array

    def indices(self) -> Array:
        """Positions in the flattened tensor (one dimension) or coordinates (two); read-only."""
        return _read_only(self._indices)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseCsrView:
    """Indices of a matrix in CSR format."""

    _inner: Array
    _outer: Array

    def inner(self) -> Array:
        """Column of each value; read-only."""
        return _read_only(self._inner)

    def outer(self) -> Array:
        """Where each row starts among the values; read-only."""
        return _read_only(self._outer)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseBlockSparseView:
    """Indices of a tensor in block-sparse format."""

    _indices: Array

    def indices(self) -> Array:
        """Which block of rows and which of columns each block is: int32, of shape (2, blocks); read-only."""
        return _read_only(self._indices)


class SparseTensor:
    """A sparse tensor on the CPU."""

    __slots__ = ("_sparse",)

    def __init__(self, sparse_tensor: Sparse) -> None:
        if not isinstance(sparse_tensor, Sparse):
            raise errors.RemoteValueError(
                "`Provided object` needs to be of type `onnxruntime.capi.onnxruntime_pybind11_state.SparseTensor`",
                fix="Use sparse_coo_from_numpy or sparse_csr_from_numpy.",
            )
        self._sparse = sparse_tensor

    @property
    def value(self) -> Sparse:
        """The value on the wire."""
        return self._sparse

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Sequence[int], values: Array, coo_indices: Array, ort_device: OrtDevice
    ) -> SparseTensor:
        """From positions in the flattened tensor (as many as values), or from coordinates.

        Coordinates may be given flat (twice as many numbers as values), as ONNX Runtime takes them.
        """
        values = _values(values, ort_device)
        indices = _indices(coo_indices)
        stored, given = values.shape[0], indices.size
        if given == stored and indices.ndim <= 1:
            indices = indices.reshape(stored)
        elif given == 2 * stored:
            indices = indices.reshape(stored, 2)
        else:
            raise errors.RemoteRuntimeError(
                f"Index size: {given} must be equal to or twice the values size: {stored}"
            )
        return cls(_sparse(values, dense_shape, "coo", (indices,)))

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int],
        values: Array,
        inner_indices: Array,
        outer_indices: Array,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """From the column of each value and the starts of the rows, one more than there are rows."""
        values = _values(values, ort_device)
        return cls(_sparse(values, dense_shape, "csr", (_indices(inner_indices), _indices(outer_indices))))

    @classmethod
    def block_sparse(
        cls, dense_shape: Sequence[int], values: Array, indices: Array, ort_device: OrtDevice | DeviceNumbers
    ) -> SparseTensor:
        """From blocks (three dimensions or more) and their places (int32, two rows)."""
        values = _values(values, ort_device, blocks=True)
        if values.dtype.kind in "OUS":
            raise errors.RemoteRuntimeError(f"Unsupported values data type: {values.dtype.num}")
        return cls(_sparse(values, dense_shape, "block", (np.ascontiguousarray(indices, dtype=np.int32),)))

    def values(self) -> Array:
        """Numbers: the array that was given, read-only. Strings: a copy."""
        values = self._sparse.values
        return values.copy() if values.dtype.kind == "O" else _read_only(values)

    def as_coo_view(self) -> SparseCooView:
        if self._sparse.format != "coo":
            raise errors.RemoteRuntimeError("This sparse tensor does not contain COO format")
        return SparseCooView(self._sparse.indices[0])

    def as_csrc_view(self) -> SparseCsrView:
        if self._sparse.format != "csr":
            raise errors.RemoteRuntimeError("This sparse tensor does not contain CSR(C) format")
        return SparseCsrView(*self._sparse.indices)

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        if self._sparse.format != "block":
            raise errors.RemoteRuntimeError("This sparse tensor does not contain BlockSparse format")
        return SparseBlockSparseView(self._sparse.indices[0])

    def to_cuda(self, ort_device: OrtDevice) -> NoReturn:
        raise errors.RemoteRuntimeError(
            "Cuda is not available in this build", fix="Sparse tensors stay on the CPU."
        )

    def format(self) -> OrtSparseFormat:
        return _FORMATS[self._sparse.format]

    def dense_shape(self) -> list[int]:
        return list(self._sparse.dense_shape)

    def data_type(self) -> str:
        """``sparse_tensor(float)``, for one."""
        return sparse_type(self._sparse)

    def device_name(self) -> str:
        return "cpu"


def sparse_type(value: Sparse) -> str:
    """The type text of a sparse value."""
    element = element_of(value.values.dtype)
    if element is None:
        raise errors.RemoteRuntimeError(f"Numpy_type {value.values.dtype.num} can't be converted to MLDataType.")
    return f"sparse_tensor({element.text})"


def _values(values: Any, device: OrtDevice | DeviceNumbers, *, blocks: bool = False) -> Array:
    if not isinstance(device, (OrtDevice, DeviceNumbers)):
        raise errors.RemoteTypeError(
            f"ort_device must be an OrtDevice, not {type(device).__name__}.", fix="OrtDevice.make('cpu', 0)"
        )
    if device.device_type() != CPU_DEVICE:
        raise refused_device(f"type {device.device_type()}")
    if not isinstance(values, np.ndarray):
        raise errors.RemoteTypeError(f"values must be a numpy array, not {type(values).__name__}.")
    if values.ndim != 1 and not blocks:
        raise errors.RemoteRuntimeError(f"Expecting values 1-D numpy values array. Got dims: {values.ndim}")
    if not values.flags.c_contiguous:
        raise errors.RemoteRuntimeError("Require contiguous numpy array of values")
    given: Array = values.astype(object) if values.dtype.kind == "U" else values
    return given


def _read_only(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view


def _indices(indices: Any) -> Array:
    return np.ascontiguousarray(indices, dtype=np.int64)


def _sparse(values: Array, dense_shape: Any, kind: Format, indices: tuple[Array, ...]) -> Sparse:
    if isinstance(dense_shape, (str, bytes)) or not hasattr(dense_shape, "__iter__"):
        raise errors.RemoteTypeError(f"dense_shape must be a sequence of int, not {dense_shape!r:.100}.")
    try:
        return Sparse(values, tuple(dense_shape), kind, indices)
    except errors.InvalidArgument as error:
        raise errors.RemoteRuntimeError(error.message, cause=error.cause, fix=error.fix) from None
