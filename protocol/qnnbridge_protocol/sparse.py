"""Sparse tensors in the two formats that ONNX Runtime's Python offers: COO and CSR.

Owns `Sparse` and the check of its indices. The check runs wherever one is made, on both sides of the wire:
ONNX Runtime trusts the indices, so a bad one would be a wild memory access in native code. Immutable; any thread.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Literal

import numpy as np

from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import measure

Array = np.ndarray[Any, np.dtype[Any]]
Format = Literal["coo", "csr"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A sparse tensor.

    values: the elements that are stored, one dimension.
    dense_shape: of the tensor that it stands for.
    format: ``coo`` with one ``int64`` index array, of shape (n,) (positions in the flattened tensor) or (n, rank);
        ``csr`` with two, the columns (n,) and the row starts (rows + 1,), or (0,) when nothing is stored.

    Two of them are compared with `equal_bits`; ``==`` is identity.
    """

    values: Array
    dense_shape: tuple[int, ...]
    format: Format
    indices: tuple[Array, ...]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "dense_shape", tuple(operator.index(dim) for dim in self.dense_shape))
            object.__setattr__(self, "values", np.asarray(self.values))
            object.__setattr__(self, "indices", tuple(np.asarray(part) for part in self.indices))
            _check(self)
        except (ValueError, TypeError) as error:
            raise errors.InvalidArgument("This is not a valid sparse tensor.", cause=str(error)) from None


def _check(tensor: Sparse) -> None:
    shape, values, parts = tensor.dense_shape, tensor.values, tensor.indices
    count, _ = measure(8, shape)
    if values.ndim != 1:
        raise ValueError(f"values have {values.ndim} dimensions, not one")
    for part in parts:
        if part.dtype.kind != "i" or part.dtype.itemsize != 8:
            raise ValueError(f"indices are {part.dtype}, not int64")
    stored = len(values)
    if tensor.format == "coo" and len(parts) == 1:
        if parts[0].shape == (stored,):
            _in_range(parts[0], count)
        elif parts[0].shape == (stored, len(shape)):
            for axis, dim in enumerate(shape):
                _in_range(parts[0][:, axis], dim)
        else:
            raise ValueError(f"indices of shape {parts[0].shape} for {stored} values of rank {len(shape)}")
    elif tensor.format == "csr" and len(parts) == 2:
        _check_csr(shape, stored, *parts)
    else:
        raise ValueError(f"format {tensor.format!r:.40} with {len(parts)} index arrays")


def _check_csr(shape: tuple[int, ...], stored: int, columns: Array, starts: Array) -> None:
    if len(shape) != 2:
        raise ValueError(f"CSR is for matrices, not for rank {len(shape)}")
    if columns.shape != (stored,):
        raise ValueError(f"columns of shape {columns.shape} for {stored} values")
    _in_range(columns, shape[1])
    if stored == 0 and starts.shape == (0,):
        return
    if starts.shape != (shape[0] + 1,) or starts[0] != 0 or starts[-1] != stored:
        raise ValueError(f"row starts must be {shape[0] + 1} numbers from 0 to {stored}")
    if bool((starts[1:] < starts[:-1]).any()):
        raise ValueError("row starts must not decrease")


def _in_range(index: Array, limit: int) -> None:
    if index.size and (int(index.min()) < 0 or int(index.max()) >= limit):
        raise ValueError(f"an index is outside 0..{limit - 1}")
