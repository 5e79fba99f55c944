"""Runs the demo: every line on QNN, and on the CPU provider of the same host beside it."""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_tools.demo import lines

if TYPE_CHECKING:
    from qnnbridge import Host, HostInfo
    from qnnbridge_protocol.specs import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """One provider's answers, in the order of the lines. Durations in seconds."""

    answers: list[lines.Answer]
    placement: Placement
    load_s: float
    run_s: float  # median of one line

    def right(self, asked: list[lines.TextLine]) -> int:
        return sum(a.upside_down == line.upside_down for a, line in zip(self.answers, asked, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The whole demo. ``qnn`` is None where the host has no QNN; ``qnn_error`` then says why.

    ready_s: from nothing to a host that has ONNX Runtime loaded, in seconds.
    """

    asked: list[lines.TextLine]
    qnn: Computed | None
    qnn_error: ProviderUnavailable | None
    cpu: Computed
    host: HostInfo
    ready_s: float

    @property
    def ok(self) -> bool:
        return self.qnn is not None and self.qnn.right(self.asked) == len(self.asked)

    @property
    def largest_difference(self) -> float | None:
        """Between the probabilities of the two providers for "upside down"."""
        if self.qnn is None:
            return None
        return max(abs(_turned(q) - _turned(c)) for q, c in zip(self.qnn.answers, self.cpu.answers, strict=True))


def compute(*, host_python: str | None = None, timeout_s: float | None = None) -> Outcome:
    """Starts a host of its own, asks both providers, ends the host."""
    from qnnbridge import Host

    asked = lines.load_lines()
    qnn: Computed | None = None
    qnn_error: ProviderUnavailable | None = None
    begun = time.perf_counter()
    with lines.model_file() as model, Host(python=host_python) as host:
        info = host.info  # waits until ONNX Runtime is loaded, which else would count as loading the model
        ready_s = time.perf_counter() - begun
        try:
            qnn = _ask("QNNExecutionProvider", model, asked, host, timeout_s)
        except ProviderUnavailable as error:
            qnn_error = error
        cpu = _ask("CPUExecutionProvider", model, asked, host, timeout_s)
        return Outcome(asked=asked, qnn=qnn, qnn_error=qnn_error, cpu=cpu, host=info, ready_s=ready_s)


def _ask(provider: str, model: Path, asked: list[lines.TextLine], host: Host, timeout_s: float | None) -> Computed:
    from qnnbridge import InferenceSession

    begun = time.perf_counter()
    with InferenceSession(str(model), providers=[provider], host=host, timeout=timeout_s) as session:
        load_s = time.perf_counter() - begun
        answers: list[lines.Answer] = []
        durations: list[float] = []
        for line in asked:
            feeds = {lines.INPUT_NAME: lines.model_input(line.image)}
            begun = time.perf_counter()
            (probabilities,) = session.run(None, feeds)
            durations.append(time.perf_counter() - begun)
            answers.append(lines.answer_of(probabilities))
        return Computed(answers, session.placement, load_s, statistics.median(durations))


def _turned(answer: lines.Answer) -> float:
    return answer.sure if answer.upside_down else 1 - answer.sure
