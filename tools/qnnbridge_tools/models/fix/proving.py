"""Whether a rewritten model still computes what the original does: both on the CPU, on the same made-up inputs.

The original runs once; its answers are kept for every rewrite. It may have free dimensions: its inputs get the
sizes that the rewritten model has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import BridgeError, OrtError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.models.shared import cpu
from qnnbridge_tools.models.shared.comparing import Check, OutputDifference, compare
from qnnbridge_tools.models.shared.sampling import Feeds, NotMade, Samples, make_samples


class Proof:
    """Of one original. constants: values of inputs that the rewritten model does not have.

    `reason` says why nothing can be compared, if so.
    """

    def __init__(
        self, original: Path, declared: list[NodeInfo], constants: Mapping[str, Any], tolerance: float, seed: int
    ) -> None:
        self.reason = ""
        self._tolerance = tolerance
        self._names: list[str] = []
        self._samples = Samples((), {})
        self._expected: list[list[Any]] = []
        label = "the original"
        try:
            session = cpu.open_session(original, label, _silent())
            self._names = [output.name for output in session.get_outputs()]

            def run(feeds: Feeds) -> list[Any]:
                return cpu.run(session, {**feeds, **constants}, label)

            self._samples = make_samples(declared, seed=seed, accepts=run)
            self._expected = [run(feeds) for feeds in self._samples.feeds]
            again = [run(self._samples.feeds[0])]
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
        session = cpu.open_session(candidate, "the rewritten model", _silent())
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
        cpu.open_session(candidate, "the model", _silent())
    except BridgeError as error:
        return error.cause or error.message
    return None


def _silent() -> Any:
    """A model that does not load, or run, is told in the report; ONNX Runtime would log it as well."""
    options = cpu.quiet_options()
    options.log_severity_level = 4
    return options


def _all_within(outputs: tuple[OutputDifference, ...], tolerance: float) -> bool:
    return all(output.within(tolerance) for output in outputs)
