"""Whether a changed model still computes what the original does: both on the CPU, on the same made-up inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from qnnbridge_protocol.errors import OrtError
from qnnbridge_tools.models.shared import cpu, graphs
from qnnbridge_tools.models.shared.comparing import OutputDifference, compare
from qnnbridge_tools.models.shared.sampling import NotMade, Samples, make_samples

FLOAT32_TOLERANCE = 1e-3
"""Relative to the largest value of an output. Fusing and folding in float32 moves results by some 1e-6 of it."""
LOW_PRECISION_TOLERANCE = 2e-2
"""For float16 and quantised models, whose rounding steps are that large and may fall the other way."""

_ROUNDED_OPS = ("QuantizeLinear", "DynamicQuantizeLinear", "com.microsoft.QuantizeLinear")
_FLOAT16 = 10

OpenSession = Callable[[], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """compared: False if nothing could be compared; `reason` says why. agrees: within the tolerance.

    sizes: what free dimensions were given for the check.
    """

    compared: bool
    agrees: bool = True
    reason: str | None = None
    tolerance: float = 0.0
    samples: int = 0
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    outputs: tuple[OutputDifference, ...] = ()

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
    """What rounding may cost in this model, relative to the largest value."""
    rounded = any(op in ops for op in _ROUNDED_OPS) or any(
        ".QLinear" in op or op.startswith("QLinear") for op in ops
    )
    float16 = any(tensor.data_type == _FLOAT16 for tensor in model.graph.initializer) or any(
        value.type.tensor_type.elem_type == _FLOAT16 for value in [*model.graph.input, *model.graph.output]
    )
    return LOW_PRECISION_TOLERANCE if rounded or float16 or _computes_float16(model) else FLOAT32_TOLERANCE


def check_same(original: OpenSession, changed: OpenSession, *, tolerance: float, seed: int) -> Check:
    """Runs both, one after the other: a large model need not be in memory twice."""
    reference = _run_original(original, tolerance, seed)
    if isinstance(reference, Check):
        return reference
    session = changed()
    found = [cpu.run(session, feeds, "the changed model", reference.names) for feeds in reference.samples.feeds]
    outputs = compare(reference.names, reference.expected, found)
    sizes = reference.samples.sizes
    if not any(output.elements or output.different or output.mismatch for output in outputs):
        return Check(False, reason="every result is empty, NaN or infinite", sizes=sizes, outputs=outputs)
    agrees = all(output.within(tolerance) for output in outputs)
    return Check(True, agrees, None, tolerance, len(found), sizes, outputs)


@dataclasses.dataclass(frozen=True, slots=True)
class _Reference:
    names: list[str]
    samples: Samples
    expected: list[list[Any]]


def _run_original(open_original: OpenSession, tolerance: float, seed: int) -> _Reference | Check:
    label = "the original"
    try:
        session = open_original()
        names = [output.name for output in session.get_outputs()]
        samples = make_samples(
            session.get_inputs(), seed=seed, accepts=lambda feeds: cpu.run(session, feeds, label)
        )
        expected = [cpu.run(session, feeds, label) for feeds in samples.feeds]
        again = [cpu.run(session, samples.feeds[0], label)]
    except NotMade as error:
        return Check(False, reason=str(error))
    except OrtError as error:
        return Check(False, reason=f"the CPU provider does not take the original ({error.cause})")
    if not all(output.within(tolerance) for output in compare(names, expected[:1], again)):
        return Check(False, reason="the model gives another result every time it runs", sizes=samples.sizes)
    return _Reference(names, samples, expected)


def evidence(check: Check) -> list[str]:
    """A line for each output that differs too much."""
    return [difference_text(output) for output in check.outputs if not output.within(check.tolerance)]


def difference_text(output: OutputDifference) -> str:
    if output.mismatch:
        return f"output {output.name}: {output.mismatch}"
    text = (
        f"output {output.name}: largest difference {output.max_abs:.3g} ({output.max_relative:.2g} of the values)"
    )
    if output.cosine is not None:
        text += f", cosine {output.cosine:.6f}"
    if output.different:
        text += f", {output.different} elements that must be equal are not"
    return text


def _computes_float16(model: Any) -> bool:
    return any(
        node.op_type == "Cast" and any(a.name == "to" and a.i == _FLOAT16 for a in node.attribute)
        for node in graphs.nodes(model)
    )
