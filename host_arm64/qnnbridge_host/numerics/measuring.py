"""Measure a case: compare QNN's results with the CPU's. The caller provides the sessions.

`lab.sweep` uses this module to measure its cases, and `qnnbridge doctor --numbers` uses it to measure the example
of each row of the known-wrong table. All functions are thread-safe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from qnnbridge_host.numerics.cases import (
    Case,
    SweepNode,
    SweepTensor,
    feeds_of,
    float_model,
    quantised_model,
)
from qnnbridge_host.numerics.rounding import HALF_ROUNDING, LARGEST_HALF, RoundingJudgement, judge, worst

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
CaseRun = Callable[[Feeds], Sequence[Any]]
# refused: QNN does not support the case. failed: an error at session creation or in a run. skipped: nothing to
# compare.
CaseStatus = Literal["right", "wrong", "refused", "failed", "skipped"]

_MOVED: Final = 4
# A model with values between 6,000 and 36,000, half a megabyte in each tensor. Of the tried variants only this
# model revealed all known operators that read unwritten memory. It costs 0.1 s on the simulator.
_FILLING: Final = Case(
    {
        "x": SweepTensor((1, 32, 64, 64), values=["uniform", 20, 120]),
        "k": SweepTensor((), values=[300.0], constant=True),
    },
    (
        SweepNode("Mul", ("x", "k")),
        SweepNode("Add", ("y0", "x")),
        SweepNode("Transpose", ("y1",), {"perm": [0, 1, 3, 2]}),
    ),
)


class CaseSides(Protocol):
    """Opens sessions of a model. Errors of ONNX Runtime are passed on unchanged."""

    def cpu(self, model: bytes) -> CaseRun:
        """Open a CPU session with graph optimizations disabled."""
        ...

    def qnn(self, model: bytes) -> CaseRun:
        """Open a QNN session without nodes on the CPU."""
        ...

    def is_refusal(self, error: Exception) -> bool:
        """Return whether the error means that QNN does not support a node."""
        ...


def filling_model() -> tuple[bytes, Feeds]:
    """Return a model and inputs that fill memory used by QNN with large numbers.

    In an application other models have left their numbers in memory. In a fresh process memory is zero, so a result
    may be right by chance although QNN reads unwritten memory.
    """
    return float_model(_FILLING).to_bytes(), feeds_of(_FILLING)


@dataclasses.dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case. judged: the worst output of all runs, if the status is right or wrong."""

    status: CaseStatus
    why: str = ""
    judged: RoundingJudgement | None = None


def measured(
    case: Case,
    sides: CaseSides,
    rewritten: Callable[[bytes], bytes] = lambda model: model,
    draws: int = 1,
    fill: Callable[[], None] = lambda: None,
) -> CaseResult:
    """Measure a case on QNN.

    Args:
        case: the case.
        sides: opens the sessions.
        rewritten: function that changes the model for QNN; the CPU runs the original.
        draws: number of different inputs; each result must be right.
        fill: called before each run on QNN; runs `filling_model` there.
    """
    feeds = feeds_of(case)
    plain = float_model(case, every_output=True)
    try:
        values = dict(zip(plain.outputs, sides.cpu(plain.to_bytes())(feeds), strict=True))
    except Exception as error:  # noqa: BLE001 - after any error there is nothing to compare with
        return CaseResult("skipped", f"the CPU: {error}"[:200])
    steps: dict[str, float] = {}
    if case.form.startswith("qdq"):
        floats = {k: v for k, v in {**feeds, **values}.items() if v.dtype == np.float32 and v.size}
        if not all(np.isfinite(value).all() for value in floats.values()):
            return CaseResult("skipped", "a range that is not finite")
        ranges = {k: (float(v.min()), float(v.max())) for k, v in floats.items()}
        model = quantised_model(case, ranges)
        most = 65535 if case.form == "qdq16" else 255
        steps = {k: (max(high, 0) - min(low, 0)) / most for k, (low, high) in ranges.items()}
    else:
        model = float_model(case)
        if not _in_half_floats(values.values()):
            return CaseResult("skipped", "beyond half floats")
    data = model.to_bytes()
    try:
        cpu = sides.cpu(data)
        reference, again = cpu(feeds), cpu(feeds)
    except Exception as error:  # noqa: BLE001 - as above
        return CaseResult("skipped", f"the CPU: {error}"[:200])
    try:
        session = sides.qnn(rewritten(data))

        def qnn(given: Feeds) -> Sequence[Any]:
            fill()
            return session(given)

        if not same_results(reference, again):
            same = same_results(qnn(feeds), qnn(feeds))
            why = "the same random numbers in every run" if same else ""
            return CaseResult("wrong" if same else "right", why)
        results = [(feeds, reference, qnn(feeds))]
        for number in range(1, draws):
            others = feeds_of(dataclasses.replace(case, seed=case.seed + number))
            expected = cpu(others)
            if case.form.startswith("qdq") or _in_half_floats(expected):
                results.append((others, expected, qnn(others)))
    except Exception as error:  # noqa: BLE001 - QNN's error is the result
        status: CaseStatus = "refused" if sides.is_refusal(error) else "failed"
        return CaseResult(status, str(error)[:300])
    # Use the output names of the float model, because `steps` contains the quantisation steps by these names.
    names = list(float_model(case).outputs)
    found = []
    for given, expected, ours in results:
        rng = np.random.default_rng(case.seed)
        moved = [cpu(_moved(given, steps, rng)) for _ in range(_MOVED)]
        for place, (right, result) in enumerate(zip(expected, ours, strict=True)):
            step = steps.get(names[place], 0.0)
            found.append(judge(right, [other[place] for other in moved], result, step))
    judged = worst(found)
    return CaseResult("right" if judged.right else "wrong", judged.why, judged)


def _in_half_floats(values: Any) -> bool:
    floats = [value for value in values if value.dtype.kind == "f" and value.size]
    return all(np.isfinite(value).all() and np.abs(value).max() <= LARGEST_HALF for value in floats)


def same_results(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether all outputs of two runs are equal; NaN equals NaN."""
    # NaN is checked for floats only: numpy does not support it for strings.
    return all(
        np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in zip(one, other, strict=True)
    )


def _moved(feeds: Feeds, steps: Mapping[str, float], rng: np.random.Generator) -> dict[str, Array]:
    found = {}
    for name, value in feeds.items():
        if value.dtype.kind == "f":
            sign = rng.choice([-1.0, 1.0], value.shape)
            # An infinite value has no rounding error. Use 0, because infinity minus infinity would be NaN.
            size = np.where(np.isfinite(value), np.abs(value), 0)
            value = np.asarray(value + sign * (size * HALF_ROUNDING + steps.get(name, 0.0) / 2), value.dtype)
        found[name] = value
    return found
