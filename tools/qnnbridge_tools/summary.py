"""What is worth telling of a tensor: element type, shape, least, greatest and mean value. Pure functions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_protocol.sparse import Sparse
from qnnbridge_protocol.typed import Typed, ml_dtype


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """``least``, ``greatest`` and ``mean`` are of the finite elements; None where there is none to speak of."""

    kind: str
    shape: tuple[int, ...] | None
    least: float | None = None
    greatest: float | None = None
    mean: float | None = None
    not_finite: int = 0

    def numbers_text(self) -> tuple[str, str, str]:
        texts = ["-" if n is None else f"{n:.6g}" for n in (self.least, self.greatest, self.mean)]
        if self.not_finite:
            texts[2] += f" ({self.not_finite} NaN or infinite)"
        return texts[0], texts[1], texts[2]


def summarize(value: Any) -> Summary:
    """Of any value that a session gives: arrays, types that numpy cannot name, sequences, maps, None."""
    if isinstance(value, np.ndarray):
        return _of_array(value, str(value.dtype) if value.dtype != object else "string")
    if isinstance(value, (list, tuple)):
        return Summary(f"sequence of {len(value)}", None)
    if isinstance(value, dict):
        return Summary(f"map of {len(value)}", None)
    if value is None:
        return Summary("empty optional", None)
    if isinstance(value, Typed):
        kind = value.element_type.text
        if ml_dtype(value.element_type) is None:  # without ml_dtypes these are bits, not numbers
            return Summary(kind, value.shape)
        return _of_array(value.numpy(), kind)
    if isinstance(value, Sparse):
        return Summary(f"sparse {value.format}", tuple(value.dense_shape))
    return Summary(type(value).__name__, None)


def _of_array(array: npt.NDArray[Any], kind: str) -> Summary:
    if array.size == 0 or array.dtype.kind in "OUSMm":
        return Summary(kind, array.shape)
    if array.dtype.kind == "c":
        array = np.abs(array)
    elif array.dtype.kind not in "biu":
        array = array.astype(np.float64)  # also what ml_dtypes names; sums of float16 overflow
    finite = array if array.dtype.kind in "biu" else array[np.isfinite(array)]
    not_finite = int(array.size - finite.size)
    if finite.size == 0:
        return Summary(kind, array.shape, not_finite=not_finite)
    return Summary(
        kind,
        array.shape,
        float(finite.min()),
        float(finite.max()),
        float(finite.mean(dtype=np.float64)),
        not_finite,
    )
