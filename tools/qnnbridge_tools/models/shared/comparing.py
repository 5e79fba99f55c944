"""How much two results of a model differ: largest difference, relative to the values, cosine. Pure functions.

Sequences and maps are compared leaf by leaf and told as one output. NaN agrees with NaN and an infinity with the
same infinity, since two correct computations have them at the same places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL_STEPS = 1.0
"""8- and 16-bit integers are mostly quantised values: they may be rounded the other way."""
_TINY = 1e-6
"""Below this a value counts as zero: differences are not told relative to it."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output over all samples.

    elements: how many were compared. max_abs: largest difference. max_relative: the same, relative to the largest
    magnitude of the expected values. cosine: of the worst sample; None if it is no floating point output.
    different: elements that must be equal and are not (integers, text, truth values, NaN at different places).
    mismatch: what made a comparison impossible, like a different shape.
    """

    name: str
    kind: str
    elements: int = 0
    max_abs: float = 0.0
    max_relative: float = 0.0
    cosine: float | None = None
    different: int = 0
    mismatch: str | None = None

    def within(self, relative: float) -> bool:
        """Whether this is rounding and not an error. relative: allowed for floating point."""
        if self.mismatch is not None or self.different:
            return False
        return self.kind != "float" or self.max_relative <= relative

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compare(
    names: Sequence[str], expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]
) -> tuple[OutputDifference, ...]:
    """Differences of every output; `expected` and `found` hold the outputs of each sample."""
    return tuple(
        _of_samples(name, [(sample[number], other[number]) for sample, other in zip(expected, found, strict=True)])
        for number, name in enumerate(names)
    )


def _of_samples(name: str, pairs: Iterable[tuple[Any, Any]]) -> OutputDifference:
    total = OutputDifference(name, "float")
    first = True
    for expected, found in pairs:
        one = _of_values(name, expected, found)
        total = one if first else _joined(total, one)
        first = False
    return total


def _joined(a: OutputDifference, b: OutputDifference) -> OutputDifference:
    cosines = [cosine for cosine in (a.cosine, b.cosine) if cosine is not None]
    return OutputDifference(
        a.name,
        a.kind,
        a.elements + b.elements,
        max(a.max_abs, b.max_abs),
        max(a.max_relative, b.max_relative),
        min(cosines) if cosines else None,
        a.different + b.different,
        a.mismatch or b.mismatch,
    )


def _of_values(name: str, expected: Any, found: Any) -> OutputDifference:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if list(expected) != list(found):
            return OutputDifference(
                name, "map", mismatch=f"keys {list(found)!r:.80} instead of {list(expected)!r:.80}"
            )
        return _of_parts(name, "map", list(expected.values()), list(found.values()))
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        return _of_parts(name, "sequence", expected, found)
    if expected is None or found is None:
        gone = None if expected is found else "empty on one side only"
        return OutputDifference(name, "optional", mismatch=gone)
    if hasattr(expected, "dense_shape") or hasattr(found, "dense_shape"):
        return OutputDifference(name, "sparse", mismatch="sparse tensors are not compared")
    return _of_arrays(name, np.asarray(expected), np.asarray(found))


def _of_parts(name: str, kind: str, expected: Sequence[Any], found: Sequence[Any]) -> OutputDifference:
    if len(expected) != len(found):
        return OutputDifference(name, kind, mismatch=f"length {len(found)} instead of {len(expected)}")
    pairs = list(zip(expected, found, strict=True))
    if all(isinstance(value, (int, float, str, np.generic)) for pair in pairs for value in pair):
        return _of_arrays(name, np.asarray(expected), np.asarray(found))
    return _of_samples(name, pairs)


def _of_arrays(name: str, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> OutputDifference:
    kind = "float" if expected.dtype.kind in "fcV" else "integer" if expected.dtype.kind in "biu" else "text"
    if expected.shape != found.shape:
        return OutputDifference(name, kind, mismatch=f"shape {found.shape} instead of {expected.shape}")
    if expected.dtype != found.dtype:
        return OutputDifference(name, kind, mismatch=f"type {found.dtype} instead of {expected.dtype}")
    if kind == "float":
        return _of_floats(name, expected, found)
    different = int(np.count_nonzero(expected != found))
    if kind == "text" or not different:
        return OutputDifference(name, kind, expected.size, different=different)
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    if expected.dtype.kind in "iu" and expected.dtype.itemsize <= 2:
        different = int(np.count_nonzero(gap > SMALL_STEPS))
    return OutputDifference(name, kind, expected.size, float(gap.max()), different=different)


def _of_floats(name: str, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> OutputDifference:
    if expected.dtype.kind == "c":
        expected = np.stack([expected.real, expected.imag])
        found = np.stack([found.real, found.imag])
    a, b = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    if not a.size:
        return OutputDifference(name, "float")
    finite = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    different = int(np.count_nonzero(~finite & ~same))
    a, b = a[finite], b[finite]
    if not a.size:
        return OutputDifference(name, "float", different=different)
    largest = float(np.abs(a).max())
    max_abs = float(np.abs(a - b).max())
    return OutputDifference(
        name, "float", int(a.size), max_abs, max_abs / max(largest, _TINY), cosine(a, b), different
    )


def cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """1 for the same direction. Scaled first, so that nothing over- or underflows; two zero vectors agree."""
    scale_a, scale_b = float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0))
    if not scale_a or not scale_b:
        return 1.0 if scale_a == scale_b else 0.0
    a, b = a / scale_a, b / scale_b
    return float(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1.0, 1.0))
