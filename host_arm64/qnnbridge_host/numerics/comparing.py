"""Compare two results of a model, and a changed model with its original.

A comparison has the largest difference, the largest difference relative to the values, and the cosine. Sequences
and maps are compared element by element and reported as one output. NaN agrees with NaN and an infinity with the
same infinity, because two correct computations have them at the same positions. A changed model is compared with
its original on the CPU, on the same generated inputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs
from qnnbridge_host.numerics.sampling import DeclaredInput, Feeds, NotMade, Samples, make_samples
from qnnbridge_protocol.errors import OrtError

# Allowed difference of integers that are usually quantised values (8 and 16 bits), which may be rounded up or down.
SMALL_STEPS = 1.0
# Smaller values count as zero, so differences are not divided by them.
_TINY = 1e-6

# Tolerance for float32, relative to the largest value of an output. Fusing and folding of operators causes
# differences of 1e-6.
FLOAT32_TOLERANCE = 1e-3
# Tolerance for float16 and quantised models, relative to the largest value of an output: about the size of a
# quantisation step, by which rounding may change a value.
LOW_PRECISION_TOLERANCE = 2e-2
_ROUNDED_OPS = ("QuantizeLinear", "DynamicQuantizeLinear", "com.microsoft.QuantizeLinear")
_FLOAT16 = 10
OpenSession = Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputComparison:
    """Comparison of an output over all samples.

    Args:
        elements: number of compared elements.
        max_abs: largest difference.
        max_relative: largest difference relative to the largest magnitude of the expected values.
        cosine: cosine of the worst sample; None for an output that is not floating point.
        different: number of elements that must be equal but differ (integers, strings, booleans, NaN at different
            positions).
        mismatch: why no comparison is possible, such as a different shape.
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
        """Return whether rounding may have caused the differences. relative: tolerance for floating point."""
        if self.mismatch is not None or self.different:
            return False
        return self.kind != "float" or self.max_relative <= relative

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compare(
    names: Sequence[str], expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]
) -> tuple[OutputComparison, ...]:
    """Compare every output; `expected` and `found` contain the outputs of each sample."""
    return tuple(
        _of_samples(name, [(sample[number], other[number]) for sample, other in zip(expected, found, strict=True)])
        for number, name in enumerate(names)
    )


def _of_samples(name: str, pairs: Iterable[tuple[Any, Any]]) -> OutputComparison:
    found = [_of_values(name, expected, other) for expected, other in pairs]
    return functools.reduce(_joined, found) if found else OutputComparison(name, "float")


def _joined(a: OutputComparison, b: OutputComparison) -> OutputComparison:
    cosines = [cosine for cosine in (a.cosine, b.cosine) if cosine is not None]
    return OutputComparison(
        a.name,
        a.kind,
        a.elements + b.elements,
        max(a.max_abs, b.max_abs),
        max(a.max_relative, b.max_relative),
        min(cosines) if cosines else None,
        a.different + b.different,
        a.mismatch or b.mismatch,
    )


def _of_values(name: str, expected: Any, found: Any) -> OutputComparison:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if list(expected) != list(found):
            return OutputComparison(
                name, "map", mismatch=f"keys {list(found)!r:.80} instead of {list(expected)!r:.80}"
            )
        return _of_parts(name, "map", list(expected.values()), list(found.values()))
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        return _of_parts(name, "sequence", expected, found)
    if expected is None or found is None:
        gone = None if expected is found else "empty on one side only"
        return OutputComparison(name, "optional", mismatch=gone)
    if hasattr(expected, "dense_shape") or hasattr(found, "dense_shape"):
        return OutputComparison(name, "sparse", mismatch="sparse tensors are not compared")
    return _of_arrays(name, np.asarray(expected), np.asarray(found))


def _of_parts(name: str, kind: str, expected: Sequence[Any], found: Sequence[Any]) -> OutputComparison:
    if len(expected) != len(found):
        return OutputComparison(name, kind, mismatch=f"length {len(found)} instead of {len(expected)}")
    pairs = list(zip(expected, found, strict=True))
    if all(isinstance(value, (int, float, str, np.generic)) for pair in pairs for value in pair):
        return _of_arrays(name, np.asarray(expected), np.asarray(found))
    return _of_samples(name, pairs)


def _of_arrays(name: str, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> OutputComparison:
    # V: bfloat16 and similar types, which ml_dtypes adds to numpy. They can be converted to float64.
    kind = "float" if expected.dtype.kind in "fcV" else "integer" if expected.dtype.kind in "biu" else "text"
    if expected.shape != found.shape:
        return OutputComparison(name, kind, mismatch=f"shape {found.shape} instead of {expected.shape}")
    if expected.dtype != found.dtype:
        return OutputComparison(name, kind, mismatch=f"type {found.dtype} instead of {expected.dtype}")
    if kind == "float":
        return _of_floats(name, expected, found)
    different = int(np.count_nonzero(expected != found))
    if kind == "text" or not different:
        return OutputComparison(name, kind, expected.size, different=different)
    gap = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    if expected.dtype.kind in "iu" and expected.dtype.itemsize <= 2:
        different = int(np.count_nonzero(gap > SMALL_STEPS))
    return OutputComparison(name, kind, expected.size, float(gap.max()), different=different)


def _of_floats(name: str, expected: npt.NDArray[Any], found: npt.NDArray[Any]) -> OutputComparison:
    if expected.dtype.kind == "c":
        expected = np.stack([expected.real, expected.imag])
        found = np.stack([found.real, found.imag])
    a, b = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    if not a.size:
        return OutputComparison(name, "float")
    finite = np.isfinite(a) & np.isfinite(b)
    # An infinity equals itself, but NaN does not.
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    different = int(np.count_nonzero(~finite & ~same))
    a, b = a[finite], b[finite]
    if not a.size:
        return OutputComparison(name, "float", different=different)
    largest = float(np.abs(a).max())
    max_abs = float(np.abs(a - b).max())
    return OutputComparison(
        name, "float", int(a.size), max_abs, max_abs / max(largest, _TINY), cosine(a, b), different
    )


def cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Return the cosine of two vectors, scaled to avoid over- and underflow. Two zero vectors count as equal."""
    scale_a, scale_b = float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0))
    if not scale_a or not scale_b:
        return 1.0 if scale_a == scale_b else 0.0
    a, b = a / scale_a, b / scale_b
    return float(np.clip(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), -1.0, 1.0))


@dataclasses.dataclass(frozen=True, slots=True)
class ModelCheck:
    """Result of comparing a changed model with the original.

    Args:
        compared: False if nothing could be compared; `reason` is then set.
        agrees: all differences are within the tolerance.
        sizes: sizes of free dimensions that were used for the check.
    """

    compared: bool
    agrees: bool = True
    reason: str | None = None
    tolerance: float = 0.0
    samples: int = 0
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    outputs: tuple[OutputComparison, ...] = ()

    @property
    def max_abs(self) -> float:
        return max((output.max_abs for output in self.outputs), default=0.0)

    def document(self) -> dict[str, Any]:
        return {
            "compared": self.compared,
            "agrees": self.agrees,
            "reason": self.reason,
            "tolerance": self.tolerance,
            "samples": self.samples,
            "sizes": dict(self.sizes),
            "outputs": [output.document() for output in self.outputs],
        }


def tolerance_of(model: Any, ops: Mapping[str, int]) -> float:
    """Return the difference that rounding may cause in a model, relative to the largest value."""
    rounded = any(op in ops for op in _ROUNDED_OPS) or any(
        ".QLinear" in op or op.startswith("QLinear") for op in ops
    )
    float16 = graphs.has_float16(model) or any(
        node.op_type == "Cast" and any(a.name == "to" and a.i == _FLOAT16 for a in node.attribute)
        for node in graphs.nodes(model)
    )
    return LOW_PRECISION_TOLERANCE if rounded or float16 else FLOAT32_TOLERANCE


# Operators whose results vary from run to run. Two runs may agree by chance, for example the few bits of a
# Bernoulli.
_RANDOM_OPS = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)


def is_random(ops: Mapping[str, int]) -> bool:
    """Return whether a model with these operators draws random numbers."""
    return not _RANDOM_OPS.isdisjoint(ops)


class Reference:
    """Results of an original on the CPU for generated inputs, as a reference for changed models.

    The original runs only in the constructor, so that a large model need not be in memory twice. `reason` is set if
    nothing can be compared.

    Args:
        open_original: opens a session of the original.
        tolerance: allowed difference, relative to the largest value of an output.
        seed: seed of the generated inputs.
        declared: the inputs of the changed models, for an original with free dimensions.
        constants: values of inputs that the changed models lack.
        quantised: names of integer inputs that the model dequantises.
        random: whether the model draws random numbers (`is_random`), so that nothing can be compared.
        changed: function that replaces each set of generated inputs by the inputs to use.
    """

    def __init__(
        self,
        open_original: OpenSession,
        *,
        tolerance: float,
        seed: int,
        declared: Sequence[DeclaredInput] | None = None,
        constants: Mapping[str, Any] | None = None,
        quantised: frozenset[str] = frozenset(),
        random: bool = False,
        changed: Callable[[Feeds], Feeds] | None = None,
    ) -> None:
        self.reason = ""
        self._tolerance = tolerance
        self._names: list[str] = []
        self._samples = Samples((), {})
        self._expected: list[list[Any]] = []
        try:
            # Keep the session in a local variable, so that the original is freed before a changed model is loaded.
            session = open_original()
            self._names = [output.name for output in session.get_outputs()]

            def run(feeds: Feeds) -> list[Any]:
                return cpu.run(session, {**feeds, **(constants or {})}, "the original")

            inputs = session.get_inputs() if declared is None else declared
            tried: list[list[Any]] = []
            self._samples = make_samples(
                inputs, seed=seed, accepts=lambda feeds: tried.append(run(feeds)), quantised=quantised
            )
            if changed is not None:
                feeds = tuple(map(changed, self._samples.feeds))
                self._samples = dataclasses.replace(self._samples, feeds=feeds)
                tried = [run(self._samples.feeds[0])]
            self._expected = [run(feeds) for feeds in self._samples.feeds]
        except NotMade as error:
            self.reason = str(error)
        except OrtError as error:
            self.reason = f"the CPU provider cannot run the original ({error.cause})"
        else:
            # `make_samples` has run the first inputs to check that the model accepts them. Two runs with the same
            # inputs must agree; otherwise the model is random and nothing can be compared.
            same = compare(self._names, self._expected[:1], tried)
            if random or not all(output.within(tolerance) for output in same):
                self.reason = "the model returns a different result in each run"

    def check(self, open_changed: OpenSession, allowed: float = 0.0) -> ModelCheck:
        """Compare a changed model. Raise `OrtError` if this model cannot run. allowed: minimum tolerance."""
        tolerance = max(self._tolerance, allowed)
        sizes = self._samples.sizes
        if self.reason:
            return ModelCheck(False, reason=self.reason, sizes=sizes)
        session = open_changed()
        found = [cpu.run(session, feeds, "the changed model", self._names) for feeds in self._samples.feeds]
        outputs = compare(self._names, self._expected, found)
        # Comparing nothing must not count as agreement.
        if not any(output.elements or output.different or output.mismatch for output in outputs):
            return ModelCheck(False, reason="every result is empty, NaN or infinite", sizes=sizes, outputs=outputs)
        agrees = all(output.within(tolerance) for output in outputs)
        return ModelCheck(True, agrees, None, tolerance, len(found), sizes, outputs)


def check_lines(check: ModelCheck | None, head: str = "") -> list[str]:
    """Format a check: `head`, then a line for each output."""
    if check is None:
        return ["none: --no-check"]
    if not check.compared:
        return [f"nothing could be compared: {check.reason}"]
    return [*([head] if head else []), *(difference_text(output) for output in check.outputs)]


def evidence(check: ModelCheck) -> list[str]:
    """Return a line for each output that differs too much."""
    return [difference_text(output) for output in check.outputs if not output.within(check.tolerance)]


def difference_text(output: OutputComparison) -> str:
    if output.mismatch:
        return f"output {output.name}: {output.mismatch}"
    text = f"output {output.name}: largest difference {output.max_abs:.3g} ("
    text += f"{output.max_relative:.2g} of the largest value)"
    if output.cosine is not None:
        text += f", cosine {output.cosine:.6f}"
    if output.different:
        text += f", {output.different} elements that must be equal differ"
    return text
