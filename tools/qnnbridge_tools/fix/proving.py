"""Whether a rewritten model still computes what the original does: both on the CPU, on the same made-up inputs.

The original runs once; its answers are kept for every rewrite. It may have free dimensions: its inputs get the
sizes that the rewritten model has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import BridgeError, OrtError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.model_work import cpu
from qnnbridge_tools.model_work.checking import Check
from qnnbridge_tools.model_work.comparing import OutputDifference, compare
from qnnbridge_tools.model_work.sampling import NotMade, Samples, make_samples


class Proof:
    """Of one original. `reason` says why nothing can be compared, if so."""

    def __init__(self, original: Path, declared: list[NodeInfo], tolerance: float, seed: int) -> None:
        self.reason = ""
        self._tolerance = tolerance
        self._names: list[str] = []
        self._samples = Samples((), {})
        self._expected: list[list[Any]] = []
        label = "the original"
        try:
            session = cpu.open_session(original, label)
            self._names = [output.name for output in session.get_outputs()]
            self._samples = make_samples(declared, seed=seed, accepts=lambda feeds: cpu.run(session, feeds, label))
            self._expected = [cpu.run(session, feeds, label) for feeds in self._samples.feeds]
            again = [cpu.run(session, self._samples.feeds[0], label)]
        except NotMade as error:
            self.reason = str(error)
        except OrtError as error:
            self.reason = f"the CPU provider does not take the original ({error.cause})"
        else:
            if not _all_within(compare(self._names, self._expected[:1], again), tolerance):
                self.reason = "the model gives another result every time it runs"

    def of(self, candidate: Path) -> Check:
        """Raises `OrtError` if the candidate does not load or run."""
        if self.reason:
            return Check(False, reason=self.reason)
        session = cpu.open_session(candidate, "the rewritten model")
        found = [cpu.run(session, feeds, "the rewritten model", self._names) for feeds in self._samples.feeds]
        outputs = compare(self._names, self._expected, found)
        sizes = self._samples.sizes
        if not any(output.elements or output.different or output.mismatch for output in outputs):
            return Check(False, reason="every result is empty, NaN or infinite", sizes=sizes, outputs=outputs)
        agrees = _all_within(outputs, self._tolerance)
        return Check(True, agrees, None, self._tolerance, len(found), sizes, outputs)


def load_problem(candidate: Path) -> str | None:
    """Why ONNX Runtime does not load it; None if it does."""
    try:
        cpu.open_session(candidate, "the model")
    except BridgeError as error:
        return error.cause or error.message
    return None


def _all_within(outputs: tuple[OutputDifference, ...], tolerance: float) -> bool:
    return all(output.within(tolerance) for output in outputs)
