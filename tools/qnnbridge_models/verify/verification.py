"""The result of `verify_model`, as data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qnnbridge_host.numerics.judge import NumberFormat, State
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.model_records import JudgedNumbers
from qnnbridge_protocol.specs import Placement

InputKind = Literal["given", "made up", "extreme"]
InputStatus = Literal["agrees", "differs", "not shown", "failed", "unchecked", "refused", "skipped"]
VerificationVerdict = Literal["agrees", "differs", "not shown", "failed", "not compared"]


@dataclasses.dataclass(frozen=True, slots=True)
class TrapFound:
    """A silent trap that was stepped into.

    Args:
        words: what it is.
        evidence: what was seen.
        advice: what to do.
        proof: what was changed, and that the error went with it.
    """

    name: str
    words: str
    evidence: str
    advice: str
    proof: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedOutput:
    """One output for one set of inputs."""

    name: str
    numbers: JudgedNumbers

    @property
    def differs(self) -> bool:
        return self.numbers.state == "differs"


@dataclasses.dataclass(frozen=True, slots=True)
class OutputVerdict:
    """One output over all inputs that count.

    Args:
        state: unknown if these inputs do not show it; `reason` says why.
        inputs, worst: the set of inputs that decides, and its numbers; None if nothing was compared.
    """

    name: str
    state: State
    reason: str = ""
    inputs: str = ""
    worst: JudgedNumbers | None = None

    def document(self) -> dict[str, Any]:
        numbers = self.worst.to_wire() if self.worst is not None else {}
        return {
            **numbers,
            "name": self.name,
            "state": self.state,
            "reason": self.reason or None,
            "inputs": self.inputs,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class InputSetResult:
    """One set of inputs.

    Args:
        counts: whether a difference makes the model differ (NaN, infinities and sizes beyond half floats do not,
            unless asked for).
        status: not shown, the values prove nothing; failed, QNN raised or died where the CPU answers; unchecked,
            QNN answers where the CPU raises; refused, neither answers; skipped, not tried. `reason` has the words
            for the last four.
        kept: the answer of QNN is that of an interrupted run before.
    """

    name: str
    kind: InputKind
    counts: bool
    status: InputStatus
    outputs: tuple[JudgedOutput, ...] = ()
    reason: str = ""
    traps: tuple[TrapFound, ...] = ()
    died: bool = False
    kept: bool = False

    @property
    def is_bad(self) -> bool:
        return self.status in ("differs", "failed")

    @property
    def worst(self) -> JudgedOutput | None:
        """The output with the lowest SNR of those that differ, else of all."""
        compared = [one for one in self.outputs if one.numbers.snr_db is not None or one.numbers.lost]
        return min(
            compared,
            key=lambda one: (not one.differs, -math.inf if one.numbers.lost else one.numbers.snr_db or 0.0),
            default=None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAlone:
    """One node by itself on the CPU's own values.

    Args:
        agrees: None if that could not be tried; `words` says more.
    """

    agrees: bool | None
    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """The first node, in the order of the file, behind which QNN's values differ from the CPU's.

    Args:
        exact: it is this node; else the time was over and it is one of `window` nodes that end with it.
        number, of: its place.
        tensor, difference: what differs; None if QNN dies or raises there, `error` says how.
        row: the inputs.
        group: the names of the nodes that were looked at as one: a quantised operator with its Q and DQ nodes.
        not_finalized: places of which QNN does not finalize the cut model; they are no evidence.
    """

    row: str
    node: str
    op: str
    number: int
    of: int
    exact: bool
    window: int
    tensor: str = ""
    difference: JudgedNumbers | None = None
    error: str = ""
    group: tuple[str, ...] = ()
    not_finalized: int = 0
    alone: NodeAlone | None = None
    sessions: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class SessionCure:
    """What a session makes of a model that QNN computes wrong: it rewrites what it knows a rewrite for.

    Args:
        rewrites: as text.
        agrees: on the inputs that differed before; `words` has the numbers.
    """

    rewrites: tuple[str, ...]
    agrees: bool
    words: str

    def __str__(self) -> str:
        if self.agrees:
            return f"Sessions cure it by themselves ({'; '.join(self.rewrites)}): {self.words} then."
        return f"Sessions rewrite it ({'; '.join(self.rewrites)}), which does not cure it: {self.words} then."


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify_model`.

    Args:
        verdict: not shown if an output answers these inputs with nothing that proves anything; failed if QNN made
            no session; "not compared" if nothing was to be compared. `reason` says why, with the worst numbers.
        number_format: what QNN computes in.
        limits: of the verdict, as text.
        outputs: the verdict on each output over all inputs that count.
        given: the same on the given inputs alone; empty if none were given.
        placement: None if there was no session.
        nodes: of the file, that do work for the inputs; None if they could not be counted.
        cure: by sessions, of a model that differs; None if they change nothing of it.
        divergence: None if none was looked for or found; `not_bisected` says why, empty if nothing had to be looked
            for.
    """

    source: Path
    verdict: VerificationVerdict
    reason: str
    number_format: NumberFormat
    limits: str
    sizes: Mapping[str, int]
    rows: tuple[InputSetResult, ...]
    outputs: tuple[OutputVerdict, ...]
    given: tuple[OutputVerdict, ...]
    placement: Placement | None
    versions: Mapping[str, str]
    nodes: int | None = None
    divergence: Divergence | None = None
    not_bisected: str = ""
    node_traps: tuple[TrapFound, ...] = ()
    error: BridgeError | None = None
    cure: SessionCure | None = None
    seconds: float = 0.0

    @property
    def traps(self) -> tuple[TrapFound, ...]:
        """Each once, the first evidence of it."""
        found: dict[str, TrapFound] = {}
        for trap in (*self.node_traps, *(trap for row in self.rows for trap in row.traps)):
            found.setdefault(trap.name, trap)
        return tuple(found.values())

    @property
    def worst(self) -> OutputVerdict | None:
        """The output that decides: one that differs before one that is not shown, then the lowest SNR."""
        return worst_of(self.outputs)

    @property
    def snr_db(self) -> float | None:
        """Of the worst output over all inputs that count; None if nothing was compared."""
        ratios = [
            one.worst.snr_db for one in self.outputs if one.worst is not None and one.worst.snr_db is not None
        ]
        return min(ratios, default=None)


_ORDER = {"differs": 0, "unknown": 1, "agrees": 2}


def worst_of(outputs: Sequence[OutputVerdict]) -> OutputVerdict | None:
    def rank(one: OutputVerdict) -> tuple[int, float]:
        ratio = one.worst.snr_db if one.worst is not None and not one.worst.lost else None
        return _ORDER[one.state], -math.inf if ratio is None else ratio

    return min(outputs, key=rank, default=None)


def numbers_text(numbers: JudgedNumbers) -> str:
    """SNR, share of values, decisions and the largest difference of one output."""
    if numbers.snr_db is None:
        return numbers.reason or "nothing was compared"
    where = f" in {numbers.part}" if numbers.part else ""
    text = f"SNR {numbers.snr_db:.1f} dB{where}, largest difference {numbers.max_abs:.3g}"
    text += f", {numbers.off:.2%} of values off"
    return text if numbers.decisions is None else f"{text}, {numbers.decisions:.1%} of the decisions the same"
