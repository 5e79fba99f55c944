"""What `verify_model` tells. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.models.shared.comparing import OutputDifference

if TYPE_CHECKING:
    from qnnbridge_protocol.specs import Placement

Kind = Literal["given", "made up", "extreme"]
Status = Literal["agrees", "differs", "failed", "unchecked", "refused", "skipped"]
Verdict = Literal["agrees", "differs", "failed", "not compared"]


@dataclasses.dataclass(frozen=True, slots=True)
class TrapFound:
    """A silent trap that was stepped into. words: what it is. evidence: what was seen. advice: what to do."""

    name: str
    words: str
    evidence: str
    advice: str


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedOutput:
    """One output for one set of inputs. differs: more than rounding; `remark` says why."""

    difference: OutputDifference
    differs: bool
    remark: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One set of inputs.

    counts: whether a difference makes the model differ (NaN, infinities and sizes beyond half floats do not,
    unless asked for). status: failed, QNN raised or died where the CPU answers; unchecked, QNN answers where the
    CPU raises; refused, neither answers; skipped, not tried. `reason` has the words for the last four.
    """

    name: str
    kind: Kind
    counts: bool
    status: Status
    outputs: tuple[JudgedOutput, ...] = ()
    reason: str = ""
    traps: tuple[TrapFound, ...] = ()
    died: bool = False

    @property
    def is_bad(self) -> bool:
        return self.status in ("differs", "failed")


@dataclasses.dataclass(frozen=True, slots=True)
class Alone:
    """One node by itself on the CPU's own values. agrees: None if that could not be tried; `words` says more."""

    agrees: bool | None
    words: str


@dataclasses.dataclass(frozen=True, slots=True)
class Divergence:
    """The first node, in the order of the file, behind which QNN's values differ from the CPU's.

    exact: it is this node; else the time was over and it is one of `window` nodes that end with it. number, of: its
    place. tensor, difference: what differs; None if QNN dies or raises there, `error` says how. row: the inputs.
    """

    row: str
    node: str
    op: str
    number: int
    of: int
    exact: bool
    window: int
    tensor: str = ""
    difference: OutputDifference | None = None
    error: str = ""
    alone: Alone | None = None
    sessions: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """verdict: failed if QNN made no session; "not compared" if nothing was to be compared, `reason` says why.

    placement: None if there was no session. precision: what QNN computes in. divergence: None if none was looked
    for or found; `not_bisected` says why, empty if nothing had to be looked for.
    """

    source: Path
    verdict: Verdict
    reason: str
    precision: str
    tolerance: str
    sizes: Mapping[str, int]
    rows: tuple[Row, ...]
    placement: Placement | None
    versions: Mapping[str, str]
    divergence: Divergence | None = None
    not_bisected: str = ""
    node_traps: tuple[TrapFound, ...] = ()
    error: BridgeError | None = None
    seconds: float = 0.0

    @property
    def traps(self) -> tuple[TrapFound, ...]:
        """Each once, the first evidence of it."""
        found: dict[str, TrapFound] = {}
        for trap in (*self.node_traps, *(trap for row in self.rows for trap in row.traps)):
            found.setdefault(trap.name, trap)
        return tuple(found.values())

    @property
    def cosine(self) -> float | None:
        """The worst one over ordinary inputs; None if no output has several floats: one has no direction."""
        cosines = (
            one.difference.cosine
            for row in self.rows
            if row.kind != "extreme"
            for one in row.outputs
            if one.difference.cosine is not None and one.difference.elements > 1
        )
        return min(cosines, default=None)
